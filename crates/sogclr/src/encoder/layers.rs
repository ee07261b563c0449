//! The two linear layers, with PyTorch's weight layouts.

use super::Compute;
use super::batch_norm::Reads;
use crate::cpu::{self, Engine, Recipe};
use burn::module::{Module, Param};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, module};

/// The parameter's value for a pass over `x`: on the autodiff graph if `x` is.
pub(super) fn value_for<const D: usize, const E: usize>(param: &Param<Tensor<D>>, x: &Tensor<E>) -> Tensor<D> {
    if x.is_autodiff() { param.val() } else { param.val().inner() }
}

/// Convolution without bias; weight `[out, in, k, k]`, padding k/2.
#[derive(Module, Debug)]
pub struct Conv {
    pub weight: Param<Tensor<4>>,
    #[module(skip)]
    stride: usize,
    #[module(skip)]
    engine: Option<Engine>,
}

impl Conv {
    pub fn new(input: usize, output: usize, kernel: usize, stride: usize, compute: &Compute) -> Self {
        let weight = Tensor::zeros([output, input, kernel, kernel], compute.device());
        Self { weight: Param::from_tensor(weight), stride, engine: compute.engine() }
    }

    /// x for this layer and for another beside it.
    pub fn share(&self, x: Tensor<4>) -> [Tensor<4>; 2] {
        match self.engine {
            Some(engine) => cpu::fork(x, engine),
            None => [x.clone(), x],
        }
    }

    /// Whether its output is worth making again rather than keeping: a value costs as many products as there are input
    /// channels. The first two stages of a bottleneck network hold three quarters of such outputs for less than half of the
    /// products.
    pub fn is_cheap(&self) -> bool {
        let [_, input, side, _] = self.weight.val().dims();
        side == 1 && input <= 128
    }

    /// The convolution, with a recipe that a batch norm keeps in the place of its output.
    pub(crate) fn remade(&self) -> Remade<'_> {
        Remade { conv: self, recipe: Recipe::default() }
    }

    /// in channels → out channels, sides divided by the stride; in the device's layout
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let weight = value_for(&self.weight, &x);
        if let Some(engine) = self.engine {
            return cpu::conv(x, weight, self.stride, engine);
        }
        let pad = weight.dims()[2] / 2;
        module::conv2d(x, weight, None, ConvOptions::new([self.stride; 2], [pad; 2], [1, 1], 1))
    }
}

impl Reads for Conv {
    fn read(&self, y: Tensor<4>) -> Tensor<4> {
        self.forward(y)
    }

    fn reader(&self, x: &Tensor<4>) -> cpu::Reader {
        cpu::Reader::Conv(value_for(&self.weight, x), self.stride, Recipe::default())
    }
}

/// A convolution whose output its own batch norm does not keep.
pub(crate) struct Remade<'a> {
    pub conv: &'a Conv,
    pub recipe: Recipe,
}

impl Reads for Remade<'_> {
    fn read(&self, y: Tensor<4>) -> Tensor<4> {
        self.conv.forward(y)
    }

    fn reader(&self, x: &Tensor<4>) -> cpu::Reader {
        cpu::Reader::Conv(value_for(&self.conv.weight, x), self.conv.stride, self.recipe.clone())
    }
}

/// Matrix product; weight `[out, in]`.
#[derive(Module, Debug)]
pub struct Linear {
    /// W `[out, in]`.
    pub weight: Param<Tensor<2>>,
    /// Absent where batch norm follows.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    engine: Option<Engine>,
}

impl Linear {
    /// Without bias; weights are zero until an initialisation or an import fills them.
    pub fn new(input: usize, output: usize, compute: &Compute) -> Self {
        let weight = Param::from_tensor(Tensor::zeros([output, input], compute.device()));
        Self { weight, bias: None, engine: compute.engine() }
    }

    /// The same with a bias of zeros.
    pub fn with_bias(mut self) -> Self {
        let weight = self.weight.val();
        self.bias = Some(Param::from_tensor(Tensor::zeros([weight.dims()[0]], &weight.device())));
        self
    }

    /// Weight and bias of a layer that has one.
    pub(super) fn parameters(&self) -> (&Param<Tensor<2>>, &Param<Tensor<1>>) {
        (&self.weight, self.bias.as_ref().expect("a layer with a bias"))
    }

    /// `[…, in]` → `[…, out]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = value_for(&self.weight, &x);
        let bias = self.bias.as_ref().map(|bias| value_for(bias, &x));
        linear(x, weight, bias, self.engine)
    }
}

/// x·Wᵀ + b over the last axis; weight `[out, in]`.
pub(super) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    engine: Option<Engine>,
) -> Tensor<D> {
    let (mut dims, [output, input]) = (x.dims(), weight.dims());
    let rows = dims.iter().product::<usize>() / input;
    let y = if let Some(engine) = engine {
        // Images of one pixel.
        let y = cpu::conv(x.reshape([rows, 1, 1, input]), weight.reshape([output, input, 1, 1]), 1, engine);
        y.reshape([rows, output])
    } else {
        x.reshape([rows, input]).matmul(weight.transpose())
    };
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    dims[D - 1] = output;
    y.reshape(dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::to_host;
    use burn::tensor::{Device, TensorData};

    fn computes() -> [Compute; 2] {
        [Compute::cpu(), Compute::plain(Device::flex())]
    }

    fn linear_layer(compute: &Compute) -> Linear {
        let mut layer = Linear::new(3, 2, compute).with_bias();
        layer.weight = Param::from_tensor(Tensor::from_data([[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], compute.device()));
        layer.bias = Some(Param::from_tensor(Tensor::from_data([10.0_f32, 20.0], compute.device())));
        layer
    }

    /// (1, 0, −1)·Wᵀ = (−2, −2), (2, 1, 0)·Wᵀ = (4, 13).
    #[test]
    fn a_linear_layer_is_the_same_with_our_kernels_and_without() {
        for compute in computes() {
            let x = Tensor::<3>::from_data([[[1.0_f32, 0.0, -1.0]], [[2.0, 1.0, 0.0]]], compute.device());
            let y = linear_layer(&compute).forward(x);
            assert_eq!(y.dims(), [2, 1, 2]);
            assert_eq!(to_host(y), [8.0, 18.0, 14.0, 33.0]);
        }
    }

    #[test]
    fn a_layer_with_gradients_serves_inputs_without() {
        let compute = Compute::cpu().autodiff();
        let layer = linear_layer(&compute);
        let x = |compute: &Compute| Tensor::<2>::from_data([[2.0_f32, 1.0, 0.0]], compute.device());
        let (on, off) = (layer.forward(x(&compute)), layer.forward(x(&compute.inner())));
        assert_eq!((on.is_autodiff(), off.is_autodiff()), (true, false));
        assert_eq!(to_host(off), [14.0, 33.0]);
    }

    /// The first channel counts 1…9, the second is 1 in the middle. The kernel takes the upper left neighbour once and the
    /// right one ten times, and of the second channel the pixel itself a hundred times.
    #[test]
    fn a_convolution_pads_by_half_its_kernel_in_either_layout() {
        let mut kernel = vec![0.0_f32; 18];
        (kernel[0], kernel[5], kernel[9 + 4]) = (1.0, 10.0, 100.0);
        let pixel = |k: usize| [k as f32 + 1.0, f32::from(u8::from(k == 4))];
        for compute in computes() {
            let is_last = compute.engine().is_some();
            let values: Vec<f32> = match is_last {
                true => (0..9).flat_map(pixel).collect(),
                false => (0..18).map(|k| pixel(k % 9)[k / 9]).collect(),
            };
            let shape = if is_last { [1, 3, 3, 2] } else { [1, 2, 3, 3] };
            let out = |stride: usize| {
                let mut conv = Conv::new(2, 1, 3, stride, &compute);
                let weight = TensorData::new(kernel.clone(), [1, 2, 3, 3]);
                conv.weight = Param::from_tensor(Tensor::from_data(weight, compute.device()));
                let x = Tensor::from_data(TensorData::new(values.clone(), shape), compute.device());
                to_host(conv.forward(x))
            };
            let close = |ours: Vec<f32>, want: &[f32]| {
                assert_eq!(ours.len(), want.len());
                assert!(ours.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-3), "{compute:?}: {ours:?} {want:?}");
            };
            close(out(1), &[20.0, 30.0, 0.0, 50.0, 161.0, 2.0, 80.0, 94.0, 5.0]);
            close(out(2), &[20.0, 0.0, 80.0, 5.0]);
        }
    }
}
