//! The two linear layers, with PyTorch's weight layouts.

use super::Compute;
use crate::cpu::{self, Engine};
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
