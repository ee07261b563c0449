//! CLIP's vision transformer: patches and a class token, transformer blocks, a projection of the class token. Parameters have
//! the names of CLIP's state dict, below `visual`.

use super::batch_norm::Pass;
use super::layers::{linear, value_for};
use super::transformer::{LayerNorm, Transformer, clip_deviation, patches};
use super::{ClipStem, Compute, EncoderSpec, Family, Network, Precision, PythonLoader};
use crate::check::{Problem, parse_name, require};
use crate::cpu::Engine;
use crate::math::Layout;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Blocks of the transformer.
const LAYERS: usize = 4;
/// Patches on each side of an image.
const GRID: usize = 8;

/// The name of CLIP's vision transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClipVitName {
    /// Four layers of width 192 over 8×8 patches, 256 values out.
    ClipVitXs,
}

/// CLIP's vision transformer, small. Its features are the embedding that texts share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipVitConfig {
    /// clip-vit-xs is a vision transformer of 4 layers of width 192 over 8×8 patches, 256 out.
    pub name: ClipVitName,
    /// Multiplies the width of the transformer.
    pub width: f64,
    /// What belongs to the clip encoders; leave it out.
    #[serde(default)]
    pub stem: ClipStem,
}

impl ClipVitConfig {
    fn channels(&self) -> usize {
        (192.0 * self.width).round() as usize
    }

    /// Heads of 64 values.
    fn heads(&self) -> usize {
        (self.channels() / 64).max(1)
    }

    /// Side of a patch in pixels.
    fn patch(&self, size: usize) -> usize {
        (size / GRID).max(1)
    }
}

impl EncoderSpec for ClipVitConfig {
    fn name(&self) -> &'static str {
        Self::NAMES[self.name as usize]
    }

    fn check(&self, size: usize) -> Result<(), Problem> {
        let (width, channels) = (self.width, self.channels());
        require((0.0625..=16.0).contains(&width), "encoder.width", || {
            format!("is {width}; it must lie between 0.0625 and 16")
        })?;
        require(channels > 0 && channels.is_multiple_of(64), "encoder.width", || {
            format!("gives a transformer of width {channels}; it must be a multiple of 64")
        })?;
        require(size.is_multiple_of(GRID), "encoder.name", || {
            format!("needs images whose side is a multiple of {GRID}, not {size} pixels")
        })
    }

    fn feature_dim(&self) -> usize {
        256
    }

    fn is_embedding(&self) -> bool {
        true
    }

    fn has_one_size(&self) -> bool {
        true
    }

    fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64> {
        clip_deviation(LAYERS, name, dims)
    }

    fn kept_bytes(&self, _: usize, _: usize, precision: Precision) -> usize {
        LAYERS * (GRID * GRID + 1) * precision.kept_of_block(self.channels())
    }

    fn open_clip(&self, size: usize) -> Option<Value> {
        let (width, heads) = (self.channels(), self.heads());
        Some(json!({
            "layers": LAYERS, "width": width, "head_width": width / heads,
            "patch_size": self.patch(size), "image_size": size,
        }))
    }

    fn python(&self, size: usize, _: usize) -> PythonLoader {
        PythonLoader::of_open_clip(self.open_clip(size), self.feature_dim())
    }
}

impl Family for ClipVitConfig {
    type Net = ClipVit;

    const NAMES: &'static [&'static str] = &["clip-vit-xs"];

    fn named(name: &str, _: usize) -> Option<Self> {
        Some(Self { name: parse_name(name).ok()?, width: 1.0, stem: ClipStem::Clip })
    }

    fn build(&self, size: usize, channels: usize, compute: &Compute) -> ClipVit {
        let shape = (self.channels(), LAYERS, self.heads());
        ClipVit::with_shape(shape, self.patch(size), self.feature_dim(), (size, channels), compute)
    }
}

/// The weight of a convolution whose stride is its kernel.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    weight: Param<Tensor<4>>,
}

/// CLIP's vision transformer.
#[derive(Module, Debug)]
pub struct ClipVit {
    class_embedding: Param<Tensor<1>>,
    positional_embedding: Param<Tensor<2>>,
    proj: Param<Tensor<2>>,
    conv1: PatchEmbedding,
    ln_pre: LayerNorm,
    transformer: Transformer,
    ln_post: LayerNorm,
    #[module(skip)]
    layout: Layout,
    #[module(skip)]
    engine: Option<Engine>,
}

impl ClipVit {
    /// Any width, blocks, heads, patch and dimension of the embedding, for images of `size` pixels.
    #[doc(hidden)]
    pub fn with_shape(
        (width, layers, heads): (usize, usize, usize),
        patch: usize,
        output: usize,
        (size, channels): (usize, usize),
        compute: &Compute,
    ) -> Self {
        let device = compute.device();
        let zeros = |rows, columns| Param::from_tensor(Tensor::zeros([rows, columns], device));
        let places = (size / patch).pow(2);
        let weight = Param::from_tensor(Tensor::zeros([width, channels, patch, patch], device));
        Self {
            class_embedding: Param::from_tensor(Tensor::zeros([width], device)),
            positional_embedding: zeros(places + 1, width),
            proj: zeros(width, output),
            conv1: PatchEmbedding { weight },
            ln_pre: LayerNorm::new(width, compute),
            transformer: Transformer::new(width, layers, heads, compute),
            ln_post: LayerNorm::new(width, compute),
            layout: compute.layout(),
            engine: compute.engine(),
        }
    }
}

impl Network for ClipVit {
    /// → embeddings `[N, dim]`, not normalised
    fn forward(&self, x: Tensor<4>, _: &mut Pass) -> Tensor<2> {
        let weight = value_for(&self.conv1.weight, &x);
        let [width, channels, patch, _] = weight.dims();
        let (patches, [n, places]) = patches(x, patch, self.layout);
        let weight = weight.reshape([width, channels * patch * patch]);
        let tokens = linear(patches, weight, None, self.engine).reshape([n, places, width]);
        let class = value_for(&self.class_embedding, &tokens).reshape([1, 1, width]).repeat_dim(0, n);
        let x = Tensor::cat(vec![class, tokens], 1);
        let x = x.clone() + value_for(&self.positional_embedding, &x).unsqueeze();
        let x = self.transformer.forward(self.ln_pre.forward(x), false);
        let class = self.ln_post.forward(x.narrow(1, 0, 1)).reshape([n, width]);
        let proj = value_for(&self.proj, &class);
        class.matmul(proj)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{export, initialise_by, to_host};
    use burn::tensor::TensorData;

    fn with_width(width: f64) -> ClipVitConfig {
        ClipVitConfig { width, ..ClipVitConfig::named("clip-vit-xs", 64).unwrap() }
    }

    #[test]
    fn what_cannot_be_built_is_refused_by_its_key() {
        let problem = |width: f64, size: usize| with_width(width).check(size).unwrap_err();
        assert_eq!(with_width(1.0).check(64), Ok(()));
        assert_eq!(with_width(1.0 / 3.0).check(64), Ok(()));
        assert_eq!(problem(0.01, 64).key, "encoder.width");
        let text = "encoder.width gives a transformer of width 96; it must be a multiple of 64";
        assert_eq!(problem(0.5, 64).to_string(), text);
        let text = "encoder.name needs images whose side is a multiple of 8, not 60 pixels";
        assert_eq!(problem(1.0, 60).to_string(), text);
    }

    #[test]
    fn images_of_any_size_have_eight_patches_on_a_side() {
        assert_eq!([32, 64, 224].map(|size| with_width(1.0).patch(size)), [4, 8, 28]);
        let want = json!({ "layers": 4, "width": 384, "head_width": 64, "patch_size": 28, "image_size": 224 });
        assert_eq!(with_width(2.0).open_clip(224), Some(want));
        let tensors = export(&with_width(1.0 / 3.0).build(32, 3, &Compute::cpu()));
        assert_eq!(tensors["positional_embedding"].shape, [65, 64]);
        assert_eq!(tensors["conv1.weight"].shape, [64, 3, 4, 4]);
        assert_eq!(tensors["proj"].shape, [64, 256]);
    }

    /// Attention that mixes nothing leaves each token alone, and the class token is not of the image.
    #[test]
    fn the_feature_is_the_class_token_which_sees_the_image_through_attention() {
        let compute = Compute::cpu();
        let out = |has_attention: bool, slope: f32| {
            let net = ClipVit::with_shape((4, 1, 2), 2, 3, (4, 3), &compute);
            let is_drawn = |name: &str| has_attention || !name.starts_with("transformer.");
            let net = initialise_by(net, 5, |name, _| is_drawn(name).then_some(1.0));
            // Every patch is another for another slope.
            let pixels: Vec<f32> = (0..48).map(|k| 1.0 + slope * (k % 7) as f32).collect();
            let x = TensorData::new(pixels, compute.layout().shape(1, 3, 4));
            to_host(net.forward(Tensor::from_data(x, compute.device()), &mut Pass::Eval))
        };
        assert_eq!(out(false, 0.0), out(false, 1.0));
        let (flat, steep) = (out(true, 0.0), out(true, 1.0));
        assert!(flat.iter().zip(&steep).any(|(a, b)| (a - b).abs() > 1e-3), "{flat:?} {steep:?}");
    }
}
