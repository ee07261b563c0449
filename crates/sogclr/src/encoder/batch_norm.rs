//! Batch normalisation whose running statistics change in the open: a training pass returns what it saw in
//! [`BufferUpdates`], and the caller applies it once the step is accepted.

use super::cpu;
use super::layers::value_for;
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, activation::relu, module};
use std::collections::HashMap;

/// PyTorch's defaults.
const EPSILON: f64 = 1e-5;
pub(super) const MOMENTUM: f64 = 0.1;

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
    pub(super) fn take(&mut self, id: ParamId) -> Option<Tensor<1>> {
        let (sum, passes) = self.0.remove(&id)?;
        Some(if passes == 1 { sum } else { sum / passes as f32 })
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
        let weight = value_for(&self.weight, &x);
        let bias = match &self.bias {
            Some(bias) => value_for(bias, &x),
            None => weight.clone().detach().zeros_like(),
        };
        let is_last = cpu::is_channels_last(&x.device());
        match pass {
            Pass::Eval if is_last => {
                let scale = weight / (value_for(&self.running_var, &x) + EPSILON).sqrt();
                let shift = bias - value_for(&self.running_mean, &x) * scale.clone();
                if x.is_autodiff() {
                    // The kernel is for inference and has no gradient.
                    let mut shape = [1; D];
                    shape[D - 1] = scale.dims()[0];
                    return activate(x * scale.reshape(shape) + shift.reshape(shape), residual, relu);
                }
                cpu::scale_shift(x, scale, shift, residual, relu)
            }
            Pass::Eval => {
                let (mean, var) = (value_for(&self.running_mean, &x), value_for(&self.running_var, &x));
                activate(module::batch_norm(x, weight, bias, mean, var, EPSILON), residual, relu)
            }
            Pass::Train(_) | Pass::Batch => {
                let channels = self.running_mean.val().dims()[0];
                let count = x.dims().iter().product::<usize>() / channels;
                let (y, mean, var) = if is_last {
                    cpu::norm_train(x, weight, bias, residual, relu, EPSILON)
                } else {
                    let batch = module::batch_norm_train(x, weight, bias, EPSILON);
                    (activate(batch.output, residual, relu), batch.mean, batch.variance)
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
