//! Batch normalisation whose running statistics change in the open: a training pass returns what it saw in
//! [`BufferUpdates`], and the caller applies it once the step is accepted.

use super::layers::value_for;
use super::rank_sum::rank_sum;
use super::{Compute, Cuts};
use crate::comm::Group;
use crate::cpu::{self, Engine, Recipe};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{FloatDType, Tensor, activation::relu, module};
use std::collections::HashMap;

/// PyTorch's defaults.
const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// How a forward pass treats batch norm.
pub enum Pass<'a> {
    /// Normalise by the batch of all ranks and collect its statistics.
    Train(&'a mut BufferUpdates, &'a Group),
    /// The same, with the graph cut at the stages of the network.
    TrainInParts(&'a mut BufferUpdates, &'a mut Cuts, &'a Group),
    /// Normalise by the batch of all ranks and leave the running statistics alone.
    Batch(&'a Group),
    /// Normalise by the running statistics.
    Eval,
}

impl Pass<'_> {
    /// Where a network may be cut, before `stage`.
    pub fn cut<const D: usize>(&mut self, stage: usize, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::TrainInParts(_, cuts, _) => cuts.cut(stage, x),
            _ => x,
        }
    }
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

/// A layer that alone reads a batch norm's rectified output.
pub(crate) trait Reads {
    /// What it makes of that output.
    fn read(&self, y: Tensor<4>) -> Tensor<4>;

    /// The same for our kernels, on the graph if x is.
    fn reader(&self, x: &Tensor<4>) -> cpu::Reader;
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

    /// What `reader` makes of the rectified output. Where our kernels train, that output is never kept: it is made again when
    /// gradients come back.
    pub(crate) fn read_by(&self, x: Tensor<4>, reader: &impl Reads, pass: &mut Pass) -> Tensor<4> {
        let group = match &*pass {
            Pass::Train(_, group) | Pass::TrainInParts(_, _, group) | Pass::Batch(group) => *group,
            Pass::Eval => return reader.read(self.forward(x, None, true, pass)),
        };
        let (Some(engine), Some(bias)) = (self.engine, &self.bias) else {
            return reader.read(self.forward(x, None, true, pass));
        };
        let count = self.count(&x, group);
        let norm = cpu::NormLayer {
            weight: value_for(&self.weight, &x),
            bias: value_for(bias, &x),
            epsilon: EPSILON,
            engine,
            group,
        };
        let (y, mean, var) = cpu::norm_read(x.clone(), norm, reader.reader(&x));
        self.collect(pass, mean, var, count);
        y
    }

    /// Values of each channel over all ranks.
    fn count<const D: usize>(&self, x: &Tensor<D>, group: &Group) -> usize {
        group.size() * x.dims().iter().product::<usize>() / self.running_mean.val().dims()[0]
    }

    /// Statistics over `count` values, for the running ones.
    fn collect(&self, pass: &mut Pass, mean: Tensor<1>, var: Tensor<1>, count: usize) {
        if let Pass::Train(updates, _) | Pass::TrainInParts(updates, ..) = pass {
            // PyTorch keeps the unbiased variance.
            let unbiased = count as f64 / (count.max(2) - 1) as f64;
            updates.add(&self.running_mean, mean.inner());
            updates.add(&self.running_var, var.inner() * unbiased);
        }
    }

    /// Batch norm, then the residual if there is one, then ReLU if asked; in the device's layout.
    pub fn forward<const D: usize>(
        &self,
        x: Tensor<D>,
        residual: Option<Tensor<D>>,
        relu: bool,
        pass: &mut Pass,
    ) -> Tensor<D> {
        self.forward_remade(x, residual, relu, Recipe::default(), pass)
    }

    /// The same of an x that gradients make again by its recipe.
    pub(crate) fn forward_remade<const D: usize>(
        &self,
        x: Tensor<D>,
        residual: Option<Tensor<D>>,
        relu: bool,
        recipe: Recipe,
        pass: &mut Pass,
    ) -> Tensor<D> {
        let weight = value_for(&self.weight, &x);
        let bias = match &self.bias {
            Some(bias) => value_for(bias, &x),
            None => weight.clone().detach().zeros_like(),
        };
        match (&mut *pass, self.engine) {
            (Pass::Eval, Some(engine)) => {
                let scale = weight / (value_for(&self.running_var, &x) + EPSILON).sqrt();
                let shift = bias - value_for(&self.running_mean, &x) * scale.clone();
                if x.is_autodiff() {
                    // The kernel is for inference and has no gradient.
                    let (mut shape, stored) = ([1; D], FloatDType::from(x.dtype()));
                    shape[D - 1] = scale.dims()[0];
                    let wide = |x: Tensor<D>| x.cast(FloatDType::F32);
                    let y = wide(x) * scale.reshape(shape) + shift.reshape(shape);
                    return activate(y, residual.map(wide), relu).cast(stored);
                }
                cpu::scale_shift(x, scale, shift, residual, relu, engine)
            }
            (Pass::Eval, None) => {
                let (mean, var) = (value_for(&self.running_mean, &x), value_for(&self.running_var, &x));
                activate(module::batch_norm(x, weight, bias, mean, var, EPSILON), residual, relu)
            }
            (Pass::Train(_, group) | Pass::TrainInParts(_, _, group) | Pass::Batch(group), engine) => {
                let count = self.count(&x, group);
                let (y, mean, var) = match engine {
                    Some(engine) => cpu::norm_train(x, weight, bias, residual, relu, EPSILON, engine, group, recipe),
                    None => {
                        let (y, mean, var) = plain_norm(x, weight, bias, group);
                        (activate(y, residual, relu), mean, var)
                    }
                };
                self.collect(pass, mean, var, count);
                y
            }
        }
    }
}

/// Output, mean and biased variance of batch norm over all axes but the channels, which are the second, over the batches of all
/// ranks, in plain operations.
fn plain_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    group: &Group,
) -> (Tensor<D>, Tensor<1>, Tensor<1>) {
    if group.size() == 1 {
        let batch = module::batch_norm_train(x, weight, bias, EPSILON);
        return (batch.output, batch.mean, batch.variance);
    }
    let dims = x.dims();
    let channels = dims[1];
    let count = (group.size() * dims.iter().product::<usize>() / channels) as f64;
    let mut shape = [1; D];
    shape[1] = channels;
    let others: Vec<usize> = (0..D).filter(|&axis| axis != 1).collect();
    let mean_of = |x: Tensor<D>| {
        let sum = others.iter().fold(x, |sum, &axis| sum.sum_dim(axis));
        rank_sum(sum.reshape([channels]), group) / count
    };
    let mean = mean_of(x.clone());
    let x = x - mean.clone().reshape(shape);
    let var = mean_of(x.clone().square());
    let scale = weight / (var.clone() + EPSILON).sqrt();
    (x * scale.reshape(shape) + bias.reshape(shape), mean, var)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{export, to_host};
    use burn::tensor::Device;

    fn computes() -> [Compute; 2] {
        [Compute::cpu(), Compute::plain(Device::flex())]
    }

    /// Means 4 and 30, variances 26/3 and 1400/3 over the batch, 13 and 700 without bias.
    fn batch(compute: &Compute) -> Tensor<2> {
        Tensor::from_data([[1.0_f32, 10.0], [3.0, 20.0], [8.0, 60.0]], compute.device())
    }

    fn running(norm: &BatchNorm) -> [Vec<f32>; 2] {
        [&norm.running_mean, &norm.running_var].map(|param| to_host(param.val().inner()))
    }

    fn assert_close(ours: &[f32], want: &[f32]) {
        assert_eq!(ours.len(), want.len());
        let is_close = |(ours, want): (&f32, &f32)| (ours - want).abs() < 1e-4 * want.abs().max(1.0);
        assert!(ours.iter().zip(want).all(is_close), "{ours:?} {want:?}");
    }

    #[test]
    fn running_statistics_move_when_a_step_is_applied_and_not_before() {
        for compute in computes() {
            let (norm, mut seen) = (BatchNorm::new(2, &compute), BufferUpdates::default());
            let y = norm.forward(batch(&compute), None, false, &mut Pass::Train(&mut seen, &Group::solo()));
            let (first, second) = ((26.0_f32 / 3.0).sqrt(), (1400.0_f32 / 3.0).sqrt());
            let want = [-3.0 / first, -20.0 / second, -1.0 / first, -10.0 / second, 4.0 / first, 30.0 / second];
            assert_close(&to_host(y), &want);
            assert_eq!(running(&norm), [[0.0, 0.0], [1.0, 1.0]]);
            // 0.9·0 + 0.1·mean, 0.9·1 + 0.1·variance
            let norm = apply_buffers(norm, &mut seen);
            let [mean, var] = running(&norm);
            assert_close(&mean, &[0.4, 3.0]);
            assert_close(&var, &[2.2, 70.9]);
            // The step is used up.
            assert_eq!(running(&apply_buffers(norm, &mut seen)), [mean, var]);
        }
    }

    #[test]
    fn two_passes_of_a_step_move_them_once_towards_their_mean() {
        let compute = Compute::cpu();
        let (norm, mut seen) = (BatchNorm::new(2, &compute), BufferUpdates::default());
        // Means 2 and 1, variances 8 and 2 without bias.
        let small = Tensor::<2>::from_data([[0.0_f32, 0.0], [4.0, 2.0]], compute.device());
        norm.forward(batch(&compute), None, false, &mut Pass::Train(&mut seen, &Group::solo()));
        norm.forward(small, None, false, &mut Pass::Train(&mut seen, &Group::solo()));
        let [mean, var] = running(&apply_buffers(norm, &mut seen));
        assert_close(&mean, &[0.3, 1.55]);
        assert_close(&var, &[0.9 + 1.05, 0.9 + 35.1]);
    }

    #[test]
    fn a_pass_over_a_batch_alone_is_normalised_by_it_and_collects_nothing() {
        for compute in computes() {
            let (norm, mut seen) = (BatchNorm::new(2, &compute), BufferUpdates::default());
            let trained = norm.forward(batch(&compute), None, false, &mut Pass::Train(&mut seen, &Group::solo()));
            let looked_at = norm.forward(batch(&compute), None, false, &mut Pass::Batch(&Group::solo()));
            assert_eq!(to_host(trained), to_host(looked_at));
            assert_eq!(seen.0.values().map(|(_, passes)| *passes).collect::<Vec<_>>(), [1, 1]);
        }
    }

    /// (x − running mean)/√(running variance)·weight + bias + residual, then ReLU; with and without gradients.
    #[test]
    fn evaluation_takes_the_running_statistics() {
        let devices = computes().into_iter().flat_map(|compute| [compute.autodiff(), compute]);
        for compute in devices {
            let param = |values: [f32; 2]| Param::from_tensor(Tensor::from_data(values, compute.device()));
            let norm = BatchNorm {
                weight: param([2.0, 5.0]),
                bias: Some(param([0.5, -1.0])),
                running_mean: param([2.0, 10.0]),
                running_var: param([4.0, 100.0]),
                ..BatchNorm::new(2, &compute)
            };
            let eval = |residual, relu| to_host(norm.forward(batch(&compute), residual, relu, &mut Pass::Eval).inner());
            assert_close(&eval(None, false), &[-0.5, -1.0, 1.5, 4.0, 6.5, 24.0]);
            let residual = Tensor::from_data([[0.0_f32, 3.0], [-2.0, 0.0], [0.0, 0.0]], compute.device());
            assert_close(&eval(Some(residual), true), &[0.0, 2.0, 0.0, 4.0, 6.5, 24.0]);
        }
    }

    #[test]
    fn without_bias_there_is_none_and_a_zero_weight_passes_the_residual() {
        let compute = Compute::cpu();
        let norm = BatchNorm::new(2, &compute).without_bias().zero_weight();
        assert_eq!(export(&norm).into_keys().collect::<Vec<_>>(), ["running_mean", "running_var", "weight"]);
        let residual = Tensor::from_data([[1.0_f32, -2.0], [3.0, 4.0], [5.0, 6.0]], compute.device());
        let y = norm.forward(batch(&compute), Some(residual), false, &mut Pass::Batch(&Group::solo()));
        assert_eq!(to_host(y), [1.0, -2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
