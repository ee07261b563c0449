//! Pre-norm transformer blocks: their layer norm and residual branches, and CLIP's stack of them with QuickGELU under CLIP's
//! parameter names.

use super::layers::{Linear, linear, value_for};
use super::{Compute, Precision};
use crate::cpu::{self, Activation, Engine, Inner};
use crate::math::Layout;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData, activation};

/// PyTorch's default.
const EPSILON: f64 = 1e-5;

/// Normalises the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
    #[module(skip)]
    engine: Option<Engine>,
}

impl LayerNorm {
    pub fn new(width: usize, compute: &Compute) -> Self {
        let (ones, zeros) = (Tensor::ones([width], compute.device()), Tensor::zeros([width], compute.device()));
        let (weight, bias) = (Param::from_tensor(ones), Param::from_tensor(zeros));
        Self { weight, bias, epsilon: EPSILON, engine: compute.engine() }
    }

    /// With another ε than PyTorch's default.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// `[…, width]` → the same shape
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (value_for(&self.weight, &x), value_for(&self.bias, &x));
        if let Some(engine) = self.engine {
            return cpu::layer_norm(x, weight, bias, self.epsilon, engine);
        }
        let centred = x.clone() - x.mean_dim(D - 1);
        let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
        centred / (variance + self.epsilon).sqrt() * weight.unsqueeze() + bias.unsqueeze()
    }
}

/// x + second(inner(first(norm(x)))): attention or MLP with its residual. x `[N, L, width]` is f32, what lies between is stored as
/// `precision` says.
pub(super) fn branch(
    x: Tensor<3>,
    norm: &LayerNorm,
    first: (&Param<Tensor<2>>, &Param<Tensor<1>>),
    inner: Inner,
    second: &Linear,
    precision: Precision,
) -> Tensor<3> {
    let (weight, bias) = (value_for(first.0, &x), value_for(first.1, &x));
    if let Some(engine) = norm.engine {
        let norm_values = (value_for(&norm.weight, &x), value_for(&norm.bias, &x));
        let (second_weight, second_bias) = second.parameters();
        let second = (value_for(second_weight, &x), value_for(second_bias, &x));
        let values = precision.dtype();
        return cpu::branch(x, norm_values, norm.epsilon, (weight, bias), inner, second, values, engine);
    }
    let hidden = linear(norm.forward(x.clone()), weight, Some(bias), None);
    let mixed = match inner {
        Inner::Attention { heads, causal } => attend(hidden, heads, causal),
        Inner::Mlp(Activation::Gelu) => activation::gelu(hidden),
        // x·σ(1.702x)
        Inner::Mlp(Activation::QuickGelu) => hidden.clone() * activation::sigmoid(hidden * 1.702),
    };
    x + second.forward(mixed)
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
    fn new(width: usize, heads: usize, compute: &Compute) -> Self {
        let device = compute.device();
        Self {
            in_proj_weight: Param::from_tensor(Tensor::zeros([3 * width, width], device)),
            in_proj_bias: Param::from_tensor(Tensor::zeros([3 * width], device)),
            out_proj: Linear::new(width, width, compute).with_bias(),
            heads,
        }
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

/// Queries, keys and values of all heads side by side `[N, L, 3·width]` → what the heads mix `[N, L, width]`; causal, if a token
/// looks at itself and at earlier ones alone.
fn attend(all: Tensor<3>, heads: usize, causal: bool) -> Tensor<3> {
    let [n, length, width] = all.dims();
    let size = width / 3 / heads;
    let mask = causal.then(|| causal_mask(length, &all.device()));
    // q, k, v [N, heads, L, size]
    let all = all.reshape([n, length, 3 * heads, size]).swap_dims(1, 2);
    let part = |k: usize| all.clone().narrow(1, k * heads, heads);
    let logits = part(0).matmul(part(1).swap_dims(2, 3)) * (size as f64).powf(-0.5);
    let logits = match mask {
        Some(mask) => logits + mask.unsqueeze(),
        None => logits,
    };
    activation::softmax(logits, 3).matmul(part(2)).swap_dims(1, 2).reshape([n, length, width / 3])
}

/// 0 where a token may look, −∞ at later tokens. `[L, L]`
fn causal_mask(length: usize, device: &Device) -> Tensor<2> {
    let entry = |k: usize| if k % length > k / length { f32::NEG_INFINITY } else { 0.0 };
    let values: Vec<f32> = (0..length * length).map(entry).collect();
    Tensor::from_data(TensorData::new(values, [length, length]), device)
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
    #[module(skip)]
    precision: Precision,
}

impl ResidualAttention {
    fn forward(&self, x: Tensor<3>, causal: bool) -> Tensor<3> {
        let Attention { in_proj_weight, in_proj_bias, out_proj, heads } = &self.attn;
        let attention = Inner::Attention { heads: *heads, causal };
        let x = branch(x, &self.ln_1, (in_proj_weight, in_proj_bias), attention, out_proj, self.precision);
        let Mlp { c_fc, c_proj } = &self.mlp;
        branch(x, &self.ln_2, c_fc.parameters(), Inner::Mlp(Activation::QuickGelu), c_proj, self.precision)
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
            ln_1: LayerNorm::new(width, compute),
            mlp: Mlp {
                c_fc: Linear::new(width, 4 * width, compute).with_bias(),
                c_proj: Linear::new(4 * width, width, compute).with_bias(),
            },
            ln_2: LayerNorm::new(width, compute),
            precision: compute.precision(),
        };
        Self { resblocks: (0..layers).map(block).collect() }
    }

    /// `[N, L, width]` → the same shape; causal, if no token looks at later ones
    pub fn forward(&self, x: Tensor<3>, causal: bool) -> Tensor<3> {
        self.resblocks.iter().fold(x, |x, block| block.forward(x, causal))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{to_host, to_matrix};
    use burn::tensor::TensorData;

    /// Two images of two channels and 4×4 pixels whose value is 1000·image + 100·channel + 10·y + x.
    #[test]
    fn patches_are_the_same_rows_in_either_layout() {
        let value = |[n, c, y, x]: [usize; 4]| (1000 * n + 100 * c + 10 * y + x) as f32;
        let device = Device::flex();
        let first = (0..64).map(|k| value([k / 32, k / 16 % 2, k / 4 % 4, k % 4])).collect::<Vec<f32>>();
        let last = (0..64).map(|k| value([k / 32, k % 2, k / 8 % 4, k / 2 % 4])).collect::<Vec<f32>>();
        let first = Tensor::from_data(TensorData::new(first, [2, 2, 4, 4]), &device);
        let last = Tensor::from_data(TensorData::new(last, [2, 4, 4, 2]), &device);
        for (images, layout) in [(first, Layout::ChannelsFirst), (last, Layout::ChannelsLast)] {
            let (rows, counts) = patches(images, 2, layout);
            assert_eq!(counts, [2, 4]);
            let rows = to_matrix(rows);
            assert_eq!(rows.dim(), (8, 8));
            // The upper right patch of the first image, the lower left one of the second.
            assert_eq!(rows.row(1).to_vec(), [2.0, 3.0, 12.0, 13.0, 102.0, 103.0, 112.0, 113.0], "{layout:?}");
            let want = [1020.0, 1021.0, 1030.0, 1031.0, 1120.0, 1121.0, 1130.0, 1131.0];
            assert_eq!(rows.row(6).to_vec(), want, "{layout:?}");
        }
    }

    fn assert_close(ours: &[f32], want: &[f64]) {
        assert_eq!(ours.len(), want.len());
        assert!(ours.iter().zip(want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4), "{ours:?} {want:?}");
    }

    fn sigmoid_of(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// One head of one value: q = 1 and 3, k = 2 and −1, v = 10 and 20. Logits (2, −1) and (6, −3).
    #[test]
    fn a_mask_hides_later_tokens() {
        let device = Device::flex();
        let all = Tensor::from_data([[[1.0_f32, 2.0, 10.0], [3.0, -1.0, 20.0]]], &device);
        let second = 10.0 + 10.0 * sigmoid_of(-9.0);
        let open = attend(all.clone(), 1, false);
        assert_close(&to_host(open), &[10.0 + 10.0 * sigmoid_of(-3.0), second]);
        let masked = to_host(attend(all, 1, true));
        assert_eq!(masked[0], 10.0, "the first token has only itself");
        assert_close(&masked, &[10.0, second]);
    }

    #[test]
    fn a_token_may_look_back_and_at_itself() {
        let mask = to_host(causal_mask(3, &Device::flex()));
        let inf = f32::NEG_INFINITY;
        assert_eq!(mask, [0.0, inf, inf, 0.0, 0.0, inf, 0.0, 0.0, 0.0]);
    }

    /// Queries of ones, keys of ones and of zeros: logits 4 and 0 over √4 for one head of four values, 2 and 0 over √2 for each
    /// of two heads; the values are 1 and 0.
    #[test]
    fn logits_are_scaled_by_the_root_of_a_heads_size() {
        let token = |key: f32, value: f32| [[1.0; 4], [key; 4], [value; 4]].concat();
        let values = [token(1.0, 1.0), token(0.0, 0.0)].concat();
        for (heads, logit) in [(1, 2.0), (2, 2_f64.sqrt())] {
            let all = Tensor::from_data(TensorData::new(values.clone(), [1, 2, 12]), &Device::flex());
            assert_close(&to_host(attend(all, heads, false)), &[sigmoid_of(logit); 8]);
        }
    }

    /// Two heads of one value: the first looks at the first token, the second at the second.
    #[test]
    fn heads_attend_each_for_itself() {
        let all = [[[1.0_f32, 1.0, 90.0, -90.0, 3.0, 4.0], [1.0, 1.0, 0.0, 0.0, 5.0, 6.0]]];
        let mixed = attend(Tensor::from_data(all, &Device::flex()), 2, false);
        assert_close(&to_host(mixed), &[3.0, 6.0, 3.0, 6.0]);
    }

    /// (1, 3) has mean 2 and variance 1; with ε = 3 it is divided by 2.
    #[test]
    fn layer_norm_centres_and_scales_a_row() {
        for compute in [Compute::cpu(), Compute::plain(Device::flex())] {
            let device = compute.device();
            let mut norm = LayerNorm::new(2, &compute).with_epsilon(3.0);
            norm.weight = Param::from_tensor(Tensor::from_data([4.0_f32, 8.0], device));
            norm.bias = Param::from_tensor(Tensor::from_data([0.5_f32, -1.0], device));
            let y = norm.forward(Tensor::<2>::from_data([[1.0_f32, 3.0], [5.0, 5.0]], device));
            assert_close(&to_host(y), &[-1.5, 3.0, 0.5, -1.0]);
            let usual = LayerNorm::new(2, &compute).forward(Tensor::<2>::from_data([[1.0_f32, 3.0]], device));
            assert_close(&to_host(usual), &[-1.0, 1.0]);
        }
    }

    #[test]
    fn weights_are_drawn_as_clip_draws_them() {
        let deviation = |name: &str, dims: &[usize]| clip_deviation(2, name, dims);
        assert_eq!(deviation("resblocks.0.attn.in_proj_weight", &[48, 16]), Some(0.25));
        // The end of a branch: 1/√(2·width·layers), of the width that it ends in.
        assert_eq!(deviation("resblocks.0.attn.out_proj.weight", &[16, 16]), Some(0.125));
        assert_eq!(deviation("resblocks.0.mlp.c_proj.weight", &[16, 64]), Some(0.125));
        assert_eq!(deviation("resblocks.0.mlp.c_fc.weight", &[200, 50]), Some(0.1));
        // Stored the other way round.
        assert_eq!(deviation("text_projection", &[4, 100]), Some(0.5));
        assert_eq!(deviation("proj", &[4, 100]), Some(0.5));
        assert_eq!(deviation("class_embedding", &[16]), Some(0.25));
        assert_eq!(deviation("ln_pre.weight", &[16]), None);
        // A convolution: 1/√(3·fan-in)
        assert_eq!(deviation("conv1.weight", &[64, 3, 2, 1]), Some((1.0 / 18.0_f64).sqrt()));
    }
}
