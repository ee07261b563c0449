//! CLIP's transformer blocks, pre-norm with QuickGELU, under CLIP's parameter names.

use super::layers::{Linear, linear, value_for};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation::sigmoid, activation::softmax};

/// PyTorch's default.
const EPSILON: f64 = 1e-5;

/// Normalises the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
}

impl LayerNorm {
    pub fn new(width: usize, device: &Device) -> Self {
        let (ones, zeros) = (Tensor::ones([width], device), Tensor::zeros([width], device));
        Self { weight: Param::from_tensor(ones), bias: Param::from_tensor(zeros) }
    }

    /// `[…, width]` → the same shape
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (value_for(&self.weight, &x), value_for(&self.bias, &x));
        let centred = x.clone() - x.mean_dim(D - 1);
        let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
        centred / (variance + EPSILON).sqrt() * weight.unsqueeze() + bias.unsqueeze()
    }
}

/// Multi-head self-attention with PyTorch's parameter names.
#[derive(Module, Debug)]
pub struct Attention {
    in_proj_weight: Param<Tensor<2>>,
    in_proj_bias: Param<Tensor<1>>,
    out_proj: Linear,
    #[module(skip)]
    heads: usize,
}

impl Attention {
    fn new(width: usize, heads: usize, device: &Device) -> Self {
        Self {
            in_proj_weight: Param::from_tensor(Tensor::zeros([3 * width, width], device)),
            in_proj_bias: Param::from_tensor(Tensor::zeros([3 * width], device)),
            out_proj: Linear::new(width, width, device).with_bias(),
            heads,
        }
    }

    /// `[N, L, width]`; `mask` `[L, L]` is added to the logits
    fn forward(&self, x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<3> {
        let [n, length, width] = x.dims();
        let (weight, bias) = (value_for(&self.in_proj_weight, &x), value_for(&self.in_proj_bias, &x));
        let size = width / self.heads;
        // [N, L, 3·width] → q, k, v [N, heads, L, size]
        let all = linear(x, weight, Some(bias)).reshape([n, length, 3 * self.heads, size]).swap_dims(1, 2);
        let part = |k: usize| all.clone().narrow(1, k * self.heads, self.heads);
        let logits = part(0).matmul(part(1).swap_dims(2, 3)) * (size as f64).powf(-0.5);
        let logits = match mask {
            Some(mask) => logits + mask.unsqueeze(),
            None => logits,
        };
        let mixed = softmax(logits, 3).matmul(part(2));
        self.out_proj.forward(mixed.swap_dims(1, 2).reshape([n, length, width]))
    }
}

#[derive(Module, Debug)]
pub struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

#[derive(Module, Debug)]
pub struct ResidualAttention {
    attn: Attention,
    ln_1: LayerNorm,
    mlp: Mlp,
    ln_2: LayerNorm,
}

impl ResidualAttention {
    fn forward(&self, x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<3> {
        let x = x.clone() + self.attn.forward(self.ln_1.forward(x), mask);
        let hidden = self.mlp.c_fc.forward(self.ln_2.forward(x.clone()));
        // QuickGELU: x·σ(1.702x)
        let hidden = hidden.clone() * sigmoid(hidden * 1.702);
        x + self.mlp.c_proj.forward(hidden)
    }
}

/// A stack of blocks.
#[derive(Module, Debug)]
pub struct Transformer {
    resblocks: Vec<ResidualAttention>,
}

impl Transformer {
    pub fn new(width: usize, layers: usize, heads: usize, device: &Device) -> Self {
        let block = |_| ResidualAttention {
            attn: Attention::new(width, heads, device),
            ln_1: LayerNorm::new(width, device),
            mlp: Mlp {
                c_fc: Linear::new(width, 4 * width, device).with_bias(),
                c_proj: Linear::new(4 * width, width, device).with_bias(),
            },
            ln_2: LayerNorm::new(width, device),
        };
        Self { resblocks: (0..layers).map(block).collect() }
    }

    /// `[N, L, width]` → the same shape
    pub fn forward(&self, x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<3> {
        self.resblocks.iter().fold(x, |x, block| block.forward(x, mask.clone()))
    }
}
