//! Batch normalisation whose running statistics change in the open: a training pass returns what it saw in
//! [`BufferUpdates`], and the caller applies it once the step is accepted.

use super::Compute;
use super::layers::value_for;
use crate::cpu::{self, Engine};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, activation::relu, module};
use std::collections::HashMap;

/// PyTorch's defaults.
const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// How a forward pass treats batch norm.
pub enum Pass<'a> {
    /// Normalise by the batch and collect its statistics.
    Train(&'a mut BufferUpdates),
    /// Normalise by the batch and leave the running statistics alone.
    Batch,
    /// Normalise by the running statistics.
    Eval,
}

/// The statistics of one step's forward passes (sizes of crops, chunks of the batch), keyed by running statistic. The
/// running values move once for each step, towards the mean over the passes.
#[derive(Default)]
pub struct BufferUpdates(HashMap<ParamId, (Tensor<1>, usize)>);

impl BufferUpdates {
    fn add(&mut self, running: &Param<Tensor<1>>, batch: Tensor<1>) {
        let sum = match self.0.remove(&running.id) {
            Some((sum, passes)) => (sum + batch, passes + 1),
            None => (batch, 1),
        };
        self.0.insert(running.id, sum);
    }

    /// The mean over the passes.
    fn take(&mut self, id: ParamId) -> Option<Tensor<1>> {
        let (sum, passes) = self.0.remove(&id)?;
        Some(if passes == 1 { sum } else { sum / passes as f32 })
    }
}

/// Batch norm over every axis but the channels, fused with what follows it, with torchvision's parameter names.
#[derive(Module, Debug)]
pub struct BatchNorm {
    weight: Param<Tensor<1>>,
    /// Absent in the last layer of a head.
    bias: Option<Param<Tensor<1>>>,
    running_mean: Param<Tensor<1>>,
    running_var: Param<Tensor<1>>,
    #[module(skip)]
    engine: Option<Engine>,
}

impl BatchNorm {
    /// Scale 1, shift 0.
    pub fn new(channels: usize, compute: &Compute) -> Self {
        let device = compute.device();
        let ones = || Param::from_tensor(Tensor::ones([channels], device));
        let zeros = || Param::from_tensor(Tensor::zeros([channels], device));
        Self {
            weight: ones(),
            bias: Some(zeros()),
            running_mean: zeros().set_require_grad(false),
            running_var: ones().set_require_grad(false),
            engine: compute.engine(),
        }
    }

    /// γ = 0, so that a residual branch starts as the identity.
    pub fn zero_weight(mut self) -> Self {
        self.weight = Param::from_tensor(self.weight.val().zeros_like());
        self
    }

    /// Without the shift.
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// Batch norm, then the residual if there is one, then ReLU if asked; in the device's layout.
    pub fn forward<const D: usize>(
        &self,
        x: Tensor<D>,
        residual: Option<Tensor<D>>,
        relu: bool,
        pass: &mut Pass,
    ) -> Tensor<D> {
        let weight = value_for(&self.weight, &x);
        let bias = match &self.bias {
            Some(bias) => value_for(bias, &x),
            None => weight.clone().detach().zeros_like(),
        };
        match (pass, self.engine) {
            (Pass::Eval, Some(engine)) => {
                let scale = weight / (value_for(&self.running_var, &x) + EPSILON).sqrt();
                let shift = bias - value_for(&self.running_mean, &x) * scale.clone();
                if x.is_autodiff() {
                    // The kernel is for inference and has no gradient.
                    let mut shape = [1; D];
                    shape[D - 1] = scale.dims()[0];
                    return activate(x * scale.reshape(shape) + shift.reshape(shape), residual, relu);
                }
                cpu::scale_shift(x, scale, shift, residual, relu, engine)
            }
            (Pass::Eval, None) => {
                let (mean, var) = (value_for(&self.running_mean, &x), value_for(&self.running_var, &x));
                activate(module::batch_norm(x, weight, bias, mean, var, EPSILON), residual, relu)
            }
            (pass, engine) => {
                let channels = self.running_mean.val().dims()[0];
                let count = x.dims().iter().product::<usize>() / channels;
                let (y, mean, var) = match engine {
                    Some(engine) => cpu::norm_train(x, weight, bias, residual, relu, EPSILON, engine),
                    None => {
                        let batch = module::batch_norm_train(x, weight, bias, EPSILON);
                        (activate(batch.output, residual, relu), batch.mean, batch.variance)
                    }
                };
                if let Pass::Train(updates) = pass {
                    // PyTorch keeps the unbiased variance.
                    let unbiased = count as f64 / (count.max(2) - 1) as f64;
                    updates.add(&self.running_mean, mean.inner());
                    updates.add(&self.running_var, var.inner() * unbiased);
                }
                y
            }
        }
    }
}

fn activate<const D: usize>(x: Tensor<D>, residual: Option<Tensor<D>>, use_relu: bool) -> Tensor<D> {
    let x = match residual {
        Some(residual) => x + residual,
        None => x,
    };
    if use_relu { relu(x) } else { x }
}

/// Moves the running statistics towards those that a step collected: (1 − momentum)·running + momentum·batch.
pub fn apply_buffers<M: Module>(module: M, updates: &mut BufferUpdates) -> M {
    struct Apply<'a>(&'a mut BufferUpdates);
    impl ModuleMapper for Apply<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(batch) = self.0.take(param.id) else { return param };
            param.map(|running| {
                let batch = batch.reshape(running.dims());
                let is_autodiff = running.is_autodiff();
                let moved = running.inner() * (1.0 - MOMENTUM) + batch * MOMENTUM;
                if is_autodiff { moved.autodiff() } else { moved }
            })
        }
    }
    module.map(&mut Apply(updates))
}
