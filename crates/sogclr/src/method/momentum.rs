//! A second model that follows the trained one: k ← m·k + (1−m)·q after every step. It is never trained.

use super::{Parts, Problem, Setting};
use crate::batch::Batch;
use crate::encoder::{HostTensor, Model, NamedMapper, NamedTensors, NamedVisitor, ParamError, Pass, export, import};
use crate::encoder::{map_named, visit_named};
use crate::math::Matrix;
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use std::collections::HashMap;

pub struct MomentumEncoder {
    model: Model,
    momentum: f64,
    device: Device,
}

impl MomentumEncoder {
    /// A copy of the model as training starts.
    pub fn new(parts: &Parts, momentum: f64) -> Self {
        let device = parts.device.clone().inner();
        // Weights are a function of (seed, name).
        Self { model: Model::new(parts.model, parts.seed, &device), momentum, device }
    }

    /// Becomes a copy of `model`.
    pub fn copy(&mut self, model: &Model) -> Result<(), ParamError> {
        self.model = import(self.model.clone(), &export(model))?;
        Ok(())
    }

    /// Embeddings `[samples, dim]` of view `view`. The samples pass in the order `order`, `group` at a time, and batch
    /// norm sees one group at a time; the result is in the batch's own order.
    pub fn embed(&self, batch: &Batch, view: usize, order: &[usize], group: usize) -> Matrix {
        let mut keys: Option<Matrix> = None;
        for rows in order.chunks(group) {
            let x = batch.crops[0].tensor(view..view + 1, rows, &self.device);
            let h = self.model.forward(x, &mut Pass::Batch);
            let dim = h.dims()[1];
            let values = h.into_data().try_to_vec::<f32>().expect("embeddings are f32");
            let keys = keys.get_or_insert_with(|| Matrix::zeros((order.len(), dim)));
            for (&row, h) in rows.iter().zip(values.chunks_exact(dim)) {
                keys.row_mut(row).assign(&ndarray::aview1(h));
            }
        }
        keys.expect("a batch is not empty")
    }

    /// k ← m·k + (1−m)·q for every trained parameter.
    pub fn follow(&mut self, model: &Model) {
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
        self.model = map_named(self.model.clone(), &mut Follow(&mut trained, self.momentum));
    }

    pub fn export(&self, tensors: &mut NamedTensors) {
        tensors.extend(export(&self.model).into_iter().map(|(name, tensor)| (format!("momentum.{name}"), tensor)));
    }

    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        let own = |(name, tensor): (&String, &_)| {
            Some((name.strip_prefix("momentum.")?.to_owned(), HostTensor::clone(tensor)))
        };
        self.model = import(self.model.clone(), &tensors.iter().filter_map(own).collect())?;
        Ok(())
    }
}

/// 0.999 on ImageNet; MoCo's 0.99 on CIFAR, whose epochs have fewer steps.
pub(super) fn default_momentum(setting: &Setting) -> f64 {
    if setting.is_small { 0.99 } else { 0.999 }
}

pub(super) fn check_momentum(momentum: f64) -> Result<(), Problem> {
    if (0.0..1.0).contains(&momentum) {
        return Ok(());
    }
    Err(("method.momentum".into(), format!("is {momentum}; it must be at least 0 and below 1 (try 0.999)")))
}
