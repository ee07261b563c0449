//! A second model that follows the trained one: k ← m·k + (1−m)·q after every step. It is never trained.

use super::{BuildContext, Setting};
use crate::batch::Crops;
use crate::check::Problem;
use crate::comm::Group;
use crate::encoder::{Compute, Model, Pass};
use crate::math::Matrix;
use crate::params::to_matrix;
use crate::params::{HostTensor, NamedMapper, NamedTensors, NamedVisitor, ParamError, export, import};
use crate::params::{map_named, visit_named};
use burn::module::Param;
use burn::tensor::Tensor;
use std::collections::HashMap;

/// A model without gradient that follows the trained one; batch norm sees the batch at hand.
pub struct MomentumEncoder {
    model: Model,
    momentum: f64,
    compute: Compute,
}

impl MomentumEncoder {
    /// A copy of the model as training starts.
    pub fn new(context: &BuildContext, momentum: f64) -> Self {
        let compute = context.compute.inner();
        // Weights are a function of (seed, name).
        Self { model: Model::new(context.model, context.seed, &compute), momentum, compute }
    }

    /// Becomes a copy of `model`.
    pub fn copy(&mut self, model: &Model) -> Result<(), ParamError> {
        self.model = import(self.model.clone(), &export(model))?;
        Ok(())
    }

    /// Embeddings `[rows, dim]` of the crops `view` of the samples `rows`, `at_once` at a time; batch norm sees as many of
    /// every rank.
    pub fn embed(&self, crops: &Crops, view: usize, rows: &[usize], at_once: usize, group: &Group) -> Matrix {
        let embed = |rows: &[usize]| {
            let x = crops.tensor(view..view + 1, rows, self.compute.device());
            to_matrix(self.model.forward(x, &mut Pass::Batch(group)))
        };
        let pieces: Vec<Matrix> = rows.chunks(at_once).map(embed).collect();
        let views: Vec<_> = pieces.iter().map(|piece| piece.view()).collect();
        ndarray::concatenate(ndarray::Axis(0), &views).expect("embeddings of one dimension")
    }

    /// k ← m·k + (1−m)·q for every trained parameter.
    pub fn follow(&mut self, model: &Model) {
        self.follow_by(model, self.momentum);
    }

    /// The same with the m of this step.
    pub fn follow_by(&mut self, model: &Model, momentum: f64) {
        struct Trained(HashMap<String, Tensor<1>>);
        impl NamedVisitor for Trained {
            fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
                if param.val().is_require_grad() {
                    self.0.insert(name, param.val().inner().reshape([-1]));
                }
            }
        }
        struct Follow<'a>(&'a mut Trained, f64);
        impl NamedMapper for Follow<'_> {
            fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (Some(q), m) = (self.0.0.remove(&name), self.1) else { return param };
                param.map(|k| {
                    let q = q.reshape(k.dims());
                    k * m + q * (1.0 - m)
                })
            }
        }
        let mut trained = Trained(HashMap::new());
        visit_named(model, &mut trained);
        self.model = map_named(self.model.clone(), &mut Follow(&mut trained, momentum));
    }

    /// Adds its parameters to `tensors`, named `momentum.<parameter>`.
    pub fn export(&self, tensors: &mut NamedTensors) {
        tensors.extend(export(&self.model).into_iter().map(|(name, tensor)| (format!("momentum.{name}"), tensor)));
    }

    /// Restores what [`MomentumEncoder::export`] added.
    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        let own = |(name, tensor): (&String, &_)| {
            Some((name.strip_prefix("momentum.")?.to_owned(), HostTensor::clone(tensor)))
        };
        self.model = import(self.model.clone(), &tensors.iter().filter_map(own).collect())?;
        Ok(())
    }
}

/// BYOL's schedule: m₀ at the start, 1 at the end, 1 − (1 − m₀)·½(1 + cos(πt/T)).
pub fn cosine_momentum(start: f64, step: usize, total_steps: usize) -> f64 {
    let progress = step as f64 / total_steps.max(1) as f64;
    1.0 - (1.0 - start) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
}

/// 0.999 on ImageNet; MoCo's 0.99 on CIFAR, whose epochs have fewer steps.
pub(super) fn default_momentum(setting: &Setting) -> f64 {
    if setting.is_small { 0.99 } else { 0.999 }
}

pub(super) fn check_momentum(momentum: f64) -> Result<(), Problem> {
    if (0.0..1.0).contains(&momentum) {
        return Ok(());
    }
    Err(Problem::new("method.momentum", format!("is {momentum}; it must be at least 0 and below 1 (try 0.999)")))
}
