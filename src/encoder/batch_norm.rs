//! Batch normalisation whose running statistics change in the open: a training pass returns the new buffers in
//! [`BufferUpdates`], and the caller applies them once the step is accepted.

use super::cpu;
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, activation::relu, module};
use std::collections::HashMap;

/// PyTorch's defaults.
const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// How a forward pass treats batch norm.
pub enum Pass<'a> {
    /// Normalise by the batch and collect the new running statistics.
    Train(&'a mut BufferUpdates),
    /// Normalise by the running statistics.
    Eval,
}

/// New values of running statistics, keyed by parameter for the length of one step.
#[derive(Default)]
pub struct BufferUpdates(HashMap<ParamId, Tensor<1>>);

impl BufferUpdates {
    /// (1 − momentum)·running + momentum·batch, on top of an earlier update of the same step.
    fn blend(&mut self, running: &Param<Tensor<1>>, batch: Tensor<1>) {
        let current = self.0.remove(&running.id).unwrap_or_else(|| running.val().inner());
        self.0.insert(running.id, current * (1.0 - MOMENTUM) + batch * MOMENTUM);
    }

    pub(super) fn take(&mut self, id: ParamId) -> Option<Tensor<1>> {
        self.0.remove(&id)
    }
}

/// Batch norm over every axis but the channels, fused with what follows it, with torchvision's parameter names.
#[derive(Module, Debug)]
pub struct BatchNorm {
    pub weight: Param<Tensor<1>>,
    /// Absent in the last layer of a head.
    pub bias: Option<Param<Tensor<1>>>,
    pub running_mean: Param<Tensor<1>>,
    pub running_var: Param<Tensor<1>>,
}

impl BatchNorm {
    pub fn new(channels: usize, device: &Device) -> Self {
        let ones = || Param::from_tensor(Tensor::ones([channels], device));
        let zeros = || Param::from_tensor(Tensor::zeros([channels], device));
        Self {
            weight: ones(),
            bias: Some(zeros()),
            running_mean: zeros().set_require_grad(false),
            running_var: ones().set_require_grad(false),
        }
    }

    /// γ = 0, so that a residual branch starts as the identity.
    pub fn zero_weight(mut self) -> Self {
        self.weight = Param::from_tensor(self.weight.val().zeros_like());
        self
    }

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
        let weight = self.weight.val();
        let bias = self.bias.as_ref().map_or_else(|| weight.clone().detach().zeros_like(), |bias| bias.val());
        let is_last = cpu::is_channels_last(&x.device());
        match pass {
            Pass::Eval if is_last => {
                let scale = weight / (self.running_var.val() + EPSILON).sqrt();
                let shift = bias - self.running_mean.val() * scale.clone();
                cpu::scale_shift(x, scale, shift, residual, relu)
            }
            Pass::Eval => {
                let (mean, var) = (self.running_mean.val(), self.running_var.val());
                activate(module::batch_norm(x, weight, bias, mean, var, EPSILON), residual, relu)
            }
            Pass::Train(updates) => {
                let channels = self.running_mean.val().dims()[0];
                let count = x.dims().iter().product::<usize>() / channels;
                let (y, mean, var) = if is_last {
                    cpu::norm_train(x, weight, bias, residual, relu, EPSILON)
                } else {
                    let batch = module::batch_norm_train(x, weight, bias, EPSILON);
                    (activate(batch.output, residual, relu), batch.mean, batch.variance)
                };
                // PyTorch keeps the unbiased variance.
                let unbiased = count as f64 / (count.max(2) - 1) as f64;
                updates.blend(&self.running_mean, mean.inner());
                updates.blend(&self.running_var, var.inner() * unbiased);
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
