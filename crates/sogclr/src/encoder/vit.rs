//! Vision transformers as in timm: patches and a class token, pre-norm blocks with exact GELU, a layer norm. Parameters have the
//! names of timm's state dict.

use super::batch_norm::Pass;
use super::layers::{Linear, linear, value_for};
use super::transformer::{LayerNorm, branch, patches};
use super::{Compute, EncoderSpec, Family, Network, Precision, PythonLoader};
use crate::check::{Problem, parse_name, require};
use crate::cpu::{Activation, Engine, Inner};
use crate::math::Layout;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// timm's.
const EPSILON: f64 = 1e-6;
/// Blocks of every one of them.
const DEPTH: usize = 12;
/// Values of an attention head.
const HEAD: usize = 64;

/// Names of the vision transformers: widths 192, 384 and 768, 12 blocks of heads of 64 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the widths are above")]
pub enum VitName {
    VitTiny,
    VitSmall,
    VitBase,
}

/// What the features are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// The class token (timm's `token`).
    Class,
    /// The mean over the patches (timm's `avg`).
    Mean,
}

/// A vision transformer: vit-tiny, vit-small or vit-base, as in timm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// vit-tiny, vit-small and vit-base are timm's, of width 192, 384 and 768.
    pub name: VitName,
    /// Side of a patch in pixels, which divides the image's; 16 at 224 pixels, smaller for small images unless set.
    pub patch: usize,
    /// Features: the `class` token, or the `mean` over the patches.
    pub pool: Pool,
    /// Leave the projection of patches as it is drawn, which steadies training (MoCo v3).
    pub freeze_patches: bool,
}

impl VitConfig {
    /// The network as it suits images of `size` pixels.
    pub fn for_size(name: VitName, size: usize) -> Self {
        // At least seven patches on a side, as 224 pixels have fourteen.
        let fits = |patch: &usize| size.is_multiple_of(*patch) && size / patch >= 7;
        let patch = [16, 8, 4, 2].into_iter().chain((3..16).rev()).find(fits).unwrap_or(16);
        Self { name, patch, pool: Pool::Class, freeze_patches: false }
    }

    fn width(&self) -> usize {
        match self.name {
            VitName::VitTiny => 192,
            VitName::VitSmall => 384,
            VitName::VitBase => 768,
        }
    }
}

impl EncoderSpec for VitConfig {
    fn name(&self) -> &'static str {
        Self::NAMES[self.name as usize]
    }

    fn check(&self, size: usize) -> Result<(), Problem> {
        let patch = self.patch;
        let divides = patch >= 1 && size.is_multiple_of(patch) && size / patch >= 2;
        require(divides, "encoder.patch", || {
            format!("is {patch}; it must divide images of {size} pixels into at least 2 patches on a side")
        })?;
        let places = (size / patch).pow(2);
        require(places <= 4096, "encoder.patch", || {
            format!(
                "is {patch}, which makes {places} patches of an image of {size} pixels; at most 4096 (64 on a side)"
            )
        })
    }

    fn feature_dim(&self) -> usize {
        self.width()
    }

    fn has_one_size(&self) -> bool {
        true
    }

    /// timm's 0.02 for linear layers and positions, near zero for the class token, and Xavier's for the patches, as in MoCo v3.
    fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64> {
        match dims {
            [width, channels, patch, _] => Some((2.0 / (width + channels * patch * patch) as f64).sqrt()),
            [_, _, _] if name == "cls_token" => Some(1e-6),
            [_, _] | [_, _, _] => Some(0.02),
            _ => None,
        }
    }

    fn kept_bytes(&self, size: usize, _: usize, precision: Precision) -> usize {
        let places = (size / self.patch.max(1)).pow(2) + 1;
        DEPTH * places * precision.kept_of_block(self.width())
    }

    /// timm's classifier.
    fn is_foreign(&self, name: &str) -> bool {
        name.starts_with("head.")
    }

    fn python(&self, size: usize, channels: usize) -> PythonLoader {
        let pool = match self.pool {
            Pool::Class => "token",
            Pool::Mean => "avg",
        };
        let settings = format!(
            "CHANNELS, WIDTH, DEPTH, HEADS, PATCH, POOL, IMAGE = {channels}, {}, {DEPTH}, {}, {}, {pool:?}, {size}",
            self.width(),
            self.width() / HEAD,
            self.patch
        );
        PythonLoader { needs: &["timm"], settings, program: include_str!("load/vit.py") }
    }
}

impl Family for VitConfig {
    type Net = Vit;

    const NAMES: &'static [&'static str] = &["vit-tiny", "vit-small", "vit-base"];

    fn named(name: &str, size: usize) -> Option<Self> {
        Some(Self::for_size(parse_name(name).ok()?, size))
    }

    fn build(&self, size: usize, channels: usize, compute: &Compute) -> Vit {
        let width = self.width();
        let net = Vit::with_shape(width, DEPTH, width / HEAD, self.patch, self.pool, size, channels, compute);
        if self.freeze_patches { net.with_frozen_patches() } else { net }
    }
}

/// A convolution whose stride is its kernel.
#[derive(Module, Debug)]
struct PatchProjection {
    weight: Param<Tensor<4>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct PatchEmbed {
    proj: PatchProjection,
}

#[derive(Module, Debug)]
struct VitAttention {
    qkv: Linear,
    proj: Linear,
    #[module(skip)]
    heads: usize,
}

#[derive(Module, Debug)]
struct VitMlp {
    fc1: Linear,
    fc2: Linear,
}

#[derive(Module, Debug)]
struct VitBlock {
    norm1: LayerNorm,
    attn: VitAttention,
    norm2: LayerNorm,
    mlp: VitMlp,
    #[module(skip)]
    precision: Precision,
}

impl VitBlock {
    fn new(width: usize, heads: usize, compute: &Compute) -> Self {
        let project = |input: usize, output: usize| Linear::new(input, output, compute).with_bias();
        let norm = || LayerNorm::new(width, compute).with_epsilon(EPSILON);
        Self {
            norm1: norm(),
            attn: VitAttention { qkv: project(width, 3 * width), proj: project(width, width), heads },
            norm2: norm(),
            mlp: VitMlp { fc1: project(width, 4 * width), fc2: project(4 * width, width) },
            precision: compute.precision(),
        }
    }

    /// `[N, L, width]` → the same shape
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (VitAttention { qkv, proj, heads }, VitMlp { fc1, fc2 }) = (&self.attn, &self.mlp);
        let attention = Inner::Attention { heads: *heads, causal: false };
        let x = branch(x, &self.norm1, qkv.parameters(), attention, proj, self.precision);
        branch(x, &self.norm2, fc1.parameters(), Inner::Mlp(Activation::Gelu), fc2, self.precision)
    }
}

/// A vision transformer up to its features.
#[derive(Module, Debug)]
pub struct Vit {
    cls_token: Param<Tensor<3>>,
    pos_embed: Param<Tensor<3>>,
    patch_embed: PatchEmbed,
    blocks: Vec<VitBlock>,
    /// Of all tokens, where the class token is the feature.
    norm: Option<LayerNorm>,
    /// Of the mean, where that is the feature.
    fc_norm: Option<LayerNorm>,
    #[module(skip)]
    layout: Layout,
    #[module(skip)]
    engine: Option<Engine>,
}

impl Vit {
    /// Any width, depth, heads and patch, for images of `size` pixels.
    #[doc(hidden)]
    #[expect(clippy::too_many_arguments, reason = "the sizes of a transformer")]
    pub fn with_shape(
        width: usize,
        depth: usize,
        heads: usize,
        patch: usize,
        pool: Pool,
        size: usize,
        channels: usize,
        compute: &Compute,
    ) -> Self {
        let device = compute.device();
        let zeros = |places: usize| Param::from_tensor(Tensor::zeros([1, places, width], device));
        let proj = PatchProjection {
            weight: Param::from_tensor(Tensor::zeros([width, channels, patch, patch], device)),
            bias: Param::from_tensor(Tensor::zeros([width], device)),
        };
        let norm = || LayerNorm::new(width, compute).with_epsilon(EPSILON);
        Self {
            cls_token: zeros(1),
            pos_embed: zeros((size / patch).pow(2) + 1),
            patch_embed: PatchEmbed { proj },
            blocks: (0..depth).map(|_| VitBlock::new(width, heads, compute)).collect(),
            norm: (pool == Pool::Class).then(norm),
            fc_norm: (pool == Pool::Mean).then(norm),
            layout: compute.layout(),
            engine: compute.engine(),
        }
    }

    /// The same, its projection of patches without gradient.
    fn with_frozen_patches(mut self) -> Self {
        let PatchProjection { weight, bias } = self.patch_embed.proj;
        let (weight, bias) = (weight.set_require_grad(false), bias.set_require_grad(false));
        self.patch_embed = PatchEmbed { proj: PatchProjection { weight, bias } };
        self
    }
}

impl Network for Vit {
    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let proj = &self.patch_embed.proj;
        let (weight, bias) = (value_for(&proj.weight, &x), value_for(&proj.bias, &x));
        let [width, channels, patch, _] = weight.dims();
        let (rows, [n, places]) = patches(x, patch, self.layout);
        let weight = weight.reshape([width, channels * patch * patch]);
        let tokens = linear(rows, weight, Some(bias), self.engine).reshape([n, places, width]);
        let class = value_for(&self.cls_token, &tokens).repeat_dim(0, n);
        let x = Tensor::cat(vec![class, tokens], 1);
        let x = x.clone() + value_for(&self.pos_embed, &x);
        let x = self.blocks.iter().enumerate().fold(x, |x, (at, block)| block.forward(pass.cut(at, x)));
        match (&self.norm, &self.fc_norm) {
            (Some(norm), _) => norm.forward(x.narrow(1, 0, 1)).reshape([n, width]),
            (None, Some(norm)) => norm.forward(x.narrow(1, 1, places).mean_dim(1)).reshape([n, width]),
            (None, None) => unreachable!("a transformer has one of the two norms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Group;
    use crate::params::{export, initialise, initialise_by, to_host};
    use burn::tensor::{Gradients, TensorData};

    /// Width 4, one block of two heads, four patches of 2×2 pixels.
    fn small(pool: Pool, compute: &Compute) -> Vit {
        Vit::with_shape(4, 1, 2, 2, pool, 4, 3, compute)
    }

    fn images(first: f32, compute: &Compute) -> Tensor<4> {
        let pixels = (0..48).map(|k| if k == 0 { first } else { (k % 7) as f32 * 0.1 }).collect::<Vec<f32>>();
        Tensor::from_data(TensorData::new(pixels, compute.layout().shape(1, 3, 4)), compute.device())
    }

    #[test]
    fn the_patch_is_the_largest_that_leaves_seven_on_a_side() {
        let patch = |size| VitConfig::for_size(VitName::VitTiny, size).patch;
        assert_eq!([224, 96, 64, 32, 28].map(patch), [16, 8, 8, 4, 4]);
        // 30 = 2·15, 33 = 3·11, and 112 = 16·7 is just enough.
        assert_eq!([30, 33, 112].map(patch), [2, 3, 16]);
        // 13 is prime: refused, as patches of one pixel would be.
        assert!(VitConfig::for_size(VitName::VitTiny, 13).check(13).is_err());
    }

    /// Of every place, 14 values for each of the width, of which the two sums are f32 in any case.
    #[test]
    fn a_step_keeps_what_its_branches_read() {
        let vit = VitConfig { patch: 8, ..VitConfig::for_size(VitName::VitTiny, 64) };
        assert_eq!(vit.kept_bytes(64, 3, Precision::F32), 12 * 65 * 14 * 192 * 4);
        assert_eq!(vit.kept_bytes(64, 3, Precision::Bf16), 12 * 65 * (12 * 2 + 2 * 4) * 192);
    }

    #[test]
    fn patches_divide_the_image_into_not_too_many() {
        let problem = |patch: usize, size: usize| {
            VitConfig { patch, ..VitConfig::for_size(VitName::VitTiny, size) }.check(size).unwrap_err()
        };
        assert_eq!(VitConfig::for_size(VitName::VitTiny, 32).check(32), Ok(()));
        for patch in [0, 5, 32] {
            let text = format!(
                "encoder.patch is {patch}; it must divide images of 32 pixels into at least 2 patches on a side"
            );
            assert_eq!(problem(patch, 32).to_string(), text);
        }
        // 64 on a side are allowed, 128 are not.
        let (most, more) = (VitConfig { patch: 2, ..VitConfig::for_size(VitName::VitTiny, 128) }, problem(1, 128));
        assert_eq!(most.check(128), Ok(()));
        assert!(more.to_string().starts_with("encoder.patch is 1, which makes 16384 patches"), "{more}");
    }

    #[test]
    fn a_class_token_has_the_norm_of_all_tokens_and_the_mean_its_own() {
        let names = |pool| export(&small(pool, &Compute::cpu()));
        let (class, mean) = (names(Pool::Class), names(Pool::Mean));
        assert!(class.contains_key("norm.weight") && !class.contains_key("fc_norm.weight"));
        assert!(mean.contains_key("fc_norm.weight") && !mean.contains_key("norm.weight"));
        assert_eq!(class["pos_embed"].shape, [1, 5, 4], "four patches and the class token");
        assert_eq!(class["blocks.0.attn.qkv.weight"].shape, [12, 4]);
    }

    /// A block whose weights are zero passes every token: the mean is the patches', the class token nobody's.
    #[test]
    fn the_feature_is_of_the_token_or_of_the_patches() {
        let compute = Compute::cpu();
        let out = |pool: Pool, pixel: f32, class: f32| {
            let mut net = initialise_by(small(pool, &compute), 5, |_, dims| (dims.len() == 4).then_some(1.0));
            let token = Tensor::from_data([[[class, 0.0, 0.0, 1.0]]], compute.device());
            net.cls_token = Param::from_tensor(token);
            to_host(net.forward(images(pixel, &compute), &mut Pass::Eval))
        };
        for (pool, sees_image) in [(Pool::Class, false), (Pool::Mean, true)] {
            assert_eq!(out(pool, 0.0, 3.0) != out(pool, 1.0, 3.0), sees_image, "{pool:?}");
            assert_eq!(out(pool, 0.0, 3.0) != out(pool, 0.0, -3.0), !sees_image, "{pool:?}");
        }
    }

    /// `replace` in an initialisation or an import keeps them frozen.
    #[test]
    fn frozen_patches_have_no_gradient() {
        let compute = Compute::cpu().autodiff();
        let gradients = |net: Vit| {
            let net = initialise(net, 5);
            let out = net.forward(images(1.0, &compute), &mut Pass::Batch(&Group::solo()));
            let grads: Gradients = out.narrow(1, 0, 1).sum().backward();
            let proj = &net.patch_embed.proj;
            let size = |grad: Option<Vec<f32>>| grad.map(|grad| grad.iter().map(|g| g.abs()).sum::<f32>());
            let weight = size(proj.weight.val().grad(&grads).map(to_host));
            let bias = size(proj.bias.val().grad(&grads).map(to_host));
            (weight, bias, size(net.blocks[0].mlp.fc1.weight.val().grad(&grads).map(to_host)))
        };
        let (weight, bias, block) = gradients(small(Pool::Mean, &compute));
        assert!([weight, bias, block].iter().all(|size| size.is_some_and(|size| size > 1e-4)));
        let (weight, bias, block) = gradients(small(Pool::Mean, &compute).with_frozen_patches());
        assert_eq!((weight, bias), (None, None));
        assert!(block.is_some_and(|size| size > 1e-4));
    }

    #[test]
    fn patches_are_drawn_by_xavier_and_the_rest_as_in_timm() {
        let config = VitConfig::for_size(VitName::VitTiny, 32);
        // 2/(32 + 2·3·3) = 1/25
        assert_eq!(config.deviation("patch_embed.proj.weight", &[32, 2, 3, 3]), Some(0.2));
        assert_eq!(config.deviation("cls_token", &[1, 1, 192]), Some(1e-6));
        assert_eq!(config.deviation("pos_embed", &[1, 65, 192]), Some(0.02));
        assert_eq!(config.deviation("blocks.0.mlp.fc1.weight", &[768, 192]), Some(0.02));
        assert_eq!(config.deviation("norm.weight", &[192]), None);
    }
}
