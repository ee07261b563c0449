//! CLIP's transformer blocks, pre-norm with QuickGELU, under CLIP's parameter names.

use super::Compute;
use super::layers::{Linear, linear, value_for};
use crate::cpu::Engine;
use crate::math::Layout;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation::sigmoid, activation::softmax};

/// PyTorch's default.
const EPSILON: f64 = 1e-5;

/// Normalises the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl LayerNorm {
    pub fn new(width: usize, device: &Device) -> Self {
        let (ones, zeros) = (Tensor::ones([width], device), Tensor::zeros([width], device));
        Self { weight: Param::from_tensor(ones), bias: Param::from_tensor(zeros), epsilon: EPSILON }
    }

    /// With another ε than PyTorch's default.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// `[…, width]` → the same shape
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (value_for(&self.weight, &x), value_for(&self.bias, &x));
        let centred = x.clone() - x.mean_dim(D - 1);
        let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
        centred / (variance + self.epsilon).sqrt() * weight.unsqueeze() + bias.unsqueeze()
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
    #[module(skip)]
    engine: Option<Engine>,
}

impl Attention {
    fn new(width: usize, heads: usize, compute: &Compute) -> Self {
        let device = compute.device();
        Self {
            in_proj_weight: Param::from_tensor(Tensor::zeros([3 * width, width], device)),
            in_proj_bias: Param::from_tensor(Tensor::zeros([3 * width], device)),
            out_proj: Linear::new(width, width, compute).with_bias(),
            heads,
            engine: compute.engine(),
        }
    }

    /// `[N, L, width]`; `mask` `[L, L]` is added to the logits
    fn forward(&self, x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<3> {
        let (weight, bias) = (value_for(&self.in_proj_weight, &x), value_for(&self.in_proj_bias, &x));
        let all = linear(x, weight, Some(bias), self.engine);
        self.out_proj.forward(attend(all, self.heads, mask))
    }
}

/// Square patches of images as rows `[N·places, channels·patch²]`, and N and the number of places.
pub(super) fn patches(x: Tensor<4>, patch: usize, layout: Layout) -> (Tensor<2>, [usize; 2]) {
    let ([n, a, b, c], patched) = (x.dims(), |size: usize| size / patch);
    let (channels, side, ordered) = match layout {
        Layout::ChannelsFirst => {
            let side = patched(b);
            (a, side, x.reshape([n, a, side, patch, side, patch]).permute([0, 2, 4, 1, 3, 5]))
        }
        Layout::ChannelsLast => {
            let side = patched(a);
            (c, side, x.reshape([n, side, patch, side, patch, c]).permute([0, 1, 3, 5, 2, 4]))
        }
    };
    (ordered.reshape([n * side * side, channels * patch * patch]), [n, side * side])
}

/// Queries, keys and values of all heads side by side `[N, L, 3·width]` → what the heads mix `[N, L, width]`; `mask` `[L, L]` is
/// added to the logits.
pub(super) fn attend(all: Tensor<3>, heads: usize, mask: Option<Tensor<2>>) -> Tensor<3> {
    let [n, length, width] = all.dims();
    let size = width / 3 / heads;
    // q, k, v [N, heads, L, size]
    let all = all.reshape([n, length, 3 * heads, size]).swap_dims(1, 2);
    let part = |k: usize| all.clone().narrow(1, k * heads, heads);
    let logits = part(0).matmul(part(1).swap_dims(2, 3)) * (size as f64).powf(-0.5);
    let logits = match mask {
        Some(mask) => logits + mask.unsqueeze(),
        None => logits,
    };
    softmax(logits, 3).matmul(part(2)).swap_dims(1, 2).reshape([n, length, width / 3])
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
    pub fn new(width: usize, layers: usize, heads: usize, compute: &Compute) -> Self {
        let block = |_| ResidualAttention {
            attn: Attention::new(width, heads, compute),
            ln_1: LayerNorm::new(width, compute.device()),
            mlp: Mlp {
                c_fc: Linear::new(width, 4 * width, compute).with_bias(),
                c_proj: Linear::new(4 * width, width, compute).with_bias(),
            },
            ln_2: LayerNorm::new(width, compute.device()),
        };
        Self { resblocks: (0..layers).map(block).collect() }
    }

    /// `[N, L, width]` → the same shape
    pub fn forward(&self, x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<3> {
        self.resblocks.iter().fold(x, |x, block| block.forward(x, mask.clone()))
    }
}

/// Standard deviations of CLIP's initial weights, for transformers of `layers` blocks; `None` for what is not drawn.
pub(super) fn clip_deviation(layers: usize, name: &str, dims: &[usize]) -> Option<f64> {
    let root = |variance: f64| Some(variance.sqrt());
    let last = name.rsplit('.').next().unwrap_or(name);
    match dims {
        // PyTorch's default of a convolution.
        [_, input, height, width] => root(1.0 / (3 * input * height * width) as f64),
        [input, _] if last == "text_projection" || last == "proj" => root(1.0 / *input as f64),
        [_, input] if name.contains("mlp.c_fc.") => root(1.0 / (2 * input) as f64),
        // The end of a residual branch.
        [width, _] if name.contains("attn.out_proj.") || name.contains("mlp.c_proj.") => {
            root(1.0 / (2 * width * layers) as f64)
        }
        [_, input] => root(1.0 / *input as f64),
        [width] if last == "class_embedding" => root(1.0 / *width as f64),
        _ => None,
    }
}
