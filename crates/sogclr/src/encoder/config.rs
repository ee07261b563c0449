//! Which encoder and head to build.

use super::{ClipResNetConfig, TextConfig, VitConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sogclr_kernels::Conv;

/// Names of the encoders. 18–152 are torchvision's; 8–56 are the CIFAR ResNets (6n+2 layers, three stages of
/// 16/32/64 channels, 1×1 projection shortcuts). The clip encoders are for image–text pairs and end in the embedding that
/// images and texts share: clip-s, the paper's, is CLIP's ResNet of [3, 4, 6, 3] blocks, width 32, 512 values out; clip-xs
/// has [1, 1, 1, 1] blocks, width 24, 256 out; clip-vit-xs is a vision transformer of 4 layers of width 192 over 8×8
/// patches, 256 out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EncoderName {
    Resnet8,
    Resnet14,
    Resnet20,
    Resnet32,
    Resnet56,
    Resnet18,
    Resnet34,
    Resnet50,
    Resnet101,
    Resnet152,
    ClipS,
    ClipXs,
    ClipVitXs,
}

impl std::str::FromStr for EncoderName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        use serde::de::{IntoDeserializer, value};
        let name: value::StrDeserializer<value::Error> = name.into_deserializer();
        Self::deserialize(name).map_err(|error| error.to_string())
    }
}

/// The first layers of a ResNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// 3×3 convolution, stride 1, no pooling: images up to 64 pixels.
    Cifar,
    /// 7×7 convolution, stride 2, and a 3×3 max-pool.
    Imagenet,
    /// What belongs to the clip encoders.
    Clip,
}

/// The network that is kept after pre-training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EncoderConfig {
    /// The network: 8–56 for small images, 18–152 as in torchvision, clip-s (the paper's),
    /// clip-xs and clip-vit-xs for image–text pairs.
    pub name: EncoderName,
    /// Multiplies every channel count: 2 and 4 are the paper's wide ResNet-50; 0.25 and 0.5 suit CPUs.
    pub width: f64,
    /// `cifar` for images up to 64 pixels, `imagenet` above, unless set; `clip` for the clip encoders.
    pub stem: Stem,
}

/// The projection head, used in pre-training only: linear, batch norm and ReLU, repeated; the last layer is
/// linear and batch norm without shift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Number of linear layers: 2, 3 or 4.
    pub layers: usize,
    /// Width of the hidden layers: the released program's 2048 for ResNet-50; 128 is the paper's text.
    pub hidden: usize,
    /// Dimension of the embedding that the loss contrasts.
    pub output: usize,
    /// Batch norm in every layer; without it the linear layers have biases (MoCo v2).
    pub norm: bool,
}

/// Blocks of the vision transformer.
pub(super) const VIT_LAYERS: usize = 4;
/// Patches on each side of the vision transformer's image.
const VIT_GRID: usize = 8;

/// What a name stands for.
pub(super) enum Family {
    ResNet,
    ClipResNet(ClipResNetConfig),
    Vit(VitConfig),
}

/// Channel counts and depth of one ResNet.
pub(super) struct Plan {
    pub stem_channels: usize,
    /// (blocks, channels, stride of the first block) of each stage
    pub stages: Vec<(usize, usize, usize)>,
    pub bottleneck: bool,
}

impl HeadConfig {
    /// Two layers, the hidden one as wide as the features.
    pub fn for_features(features: usize) -> Self {
        Self { layers: 2, hidden: features.clamp(128, 2048), output: 128, norm: true }
    }
}

impl EncoderConfig {
    /// The network at full width, with the stem that fits images of `size` pixels.
    pub fn for_size(name: EncoderName, size: usize) -> Self {
        let config = Self { name, width: 1.0, stem: if size <= 64 { Stem::Cifar } else { Stem::Imagenet } };
        if config.is_clip() { Self { stem: Stem::Clip, ..config } } else { config }
    }

    /// Whether this is an encoder of image–text pairs.
    pub fn is_clip(&self) -> bool {
        matches!(self.name, EncoderName::ClipS | EncoderName::ClipXs | EncoderName::ClipVitXs)
    }

    /// The text encoder that goes with a clip encoder unless another is set.
    pub fn text(&self) -> TextConfig {
        match self.name {
            EncoderName::ClipS => TextConfig::clip_s(),
            _ => TextConfig { heads: 4, layers: 4, ..TextConfig::clip_s() },
        }
    }

    /// Refuses what cannot be built for images of `size` pixels.
    pub fn check(&self, size: usize) -> Result<(), (&'static str, String)> {
        if !(0.0625..=16.0).contains(&self.width) {
            return Err(("width", format!("is {}; it must lie between 0.0625 and 16", self.width)));
        }
        if self.is_clip() != (self.stem == Stem::Clip) {
            return Err(("stem", "does not belong to this encoder: leave it out".into()));
        }
        match self.family(size) {
            Family::ClipResNet(_) if !size.is_multiple_of(32) => {
                Err(("name", format!("needs images whose side is a multiple of 32, not {size} pixels")))
            }
            Family::ClipResNet(net) if net.width < 2 || net.width % 2 == 1 => {
                Err(("width", format!("gives {} channels; they must be an even number", net.width)))
            }
            Family::Vit(net) if net.width == 0 || !net.width.is_multiple_of(64) => {
                Err(("width", format!("gives a transformer of width {}; it must be a multiple of 64", net.width)))
            }
            Family::Vit(_) if !size.is_multiple_of(VIT_GRID) => {
                Err(("name", format!("needs images whose side is a multiple of {VIT_GRID}, not {size} pixels")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn family(&self, image_size: usize) -> Family {
        let scaled = |width: usize| (width as f64 * self.width).round() as usize;
        let resnet = |layers, width: usize, output| {
            let width = scaled(width);
            // Heads of 64 values.
            Family::ClipResNet(ClipResNetConfig { layers, width, heads: (width / 2).max(1), image_size, output })
        };
        match self.name {
            EncoderName::ClipS => resnet([3, 4, 6, 3], 32, self.feature_dim()),
            EncoderName::ClipXs => resnet([1, 1, 1, 1], 24, self.feature_dim()),
            EncoderName::ClipVitXs => {
                let (width, patch) = (scaled(192), (image_size / VIT_GRID).max(1));
                let heads = (width / 64).max(1);
                Family::Vit(VitConfig {
                    width,
                    layers: VIT_LAYERS,
                    heads,
                    patch,
                    image_size,
                    output: self.feature_dim(),
                })
            }
            _ => Family::ResNet,
        }
    }

    /// Every distinct convolution on one image of `size` pixels, with its number of layers, from stem to last stage.
    pub fn convolutions(&self, size: usize) -> Vec<(usize, Conv)> {
        let plan = self.plan();
        let mut found: Vec<(usize, Conv)> = Vec::new();
        let mut add = |side: usize, ci: usize, co: usize, k: usize, stride: usize| {
            let conv = Conv { n: 1, h: side, w: side, ci, co, k, stride, pad: k / 2 };
            match found.iter_mut().find(|(_, other)| *other == conv) {
                Some((count, _)) => *count += 1,
                None => found.push((1, conv)),
            }
            conv.out().0
        };
        let mut side = match self.stem {
            Stem::Cifar => add(size, 3, plan.stem_channels, 3, 1),
            _ => add(size, 3, plan.stem_channels, 7, 2).div_ceil(2),
        };
        let mut input = plan.stem_channels;
        for (count, channels, first_stride) in plan.stages {
            for index in 0..count {
                let stride = if index == 0 { first_stride } else { 1 };
                let output = if plan.bottleneck { 4 * channels } else { channels };
                if stride != 1 || input != output {
                    add(side, input, output, 1, stride);
                }
                side = if plan.bottleneck {
                    add(side, input, channels, 1, 1);
                    let side = add(side, channels, channels, 3, stride);
                    add(side, channels, output, 1, 1)
                } else {
                    let side = add(side, input, channels, 3, stride);
                    add(side, channels, channels, 3, 1)
                };
                input = output;
            }
        }
        found
    }

    pub(super) fn plan(&self) -> Plan {
        let scaled = |channels: usize| ((channels as f64 * self.width).round() as usize).max(1);
        let (blocks, first, bottleneck): (&[usize], usize, bool) = match self.name {
            EncoderName::Resnet8 => (&[1, 1, 1], 16, false),
            EncoderName::Resnet14 => (&[2, 2, 2], 16, false),
            EncoderName::Resnet20 => (&[3, 3, 3], 16, false),
            EncoderName::Resnet32 => (&[5, 5, 5], 16, false),
            EncoderName::Resnet56 => (&[9, 9, 9], 16, false),
            EncoderName::Resnet18 => (&[2, 2, 2, 2], 64, false),
            EncoderName::Resnet34 => (&[3, 4, 6, 3], 64, false),
            EncoderName::Resnet50 => (&[3, 4, 6, 3], 64, true),
            EncoderName::Resnet101 => (&[3, 4, 23, 3], 64, true),
            EncoderName::Resnet152 => (&[3, 8, 36, 3], 64, true),
            EncoderName::ClipS | EncoderName::ClipXs | EncoderName::ClipVitXs => {
                unreachable!("clip encoders have no such plan")
            }
        };
        let stages = blocks
            .iter()
            .enumerate()
            .map(|(stage, &count)| (count, scaled(first << stage), if stage == 0 { 1 } else { 2 }))
            .collect();
        Plan { stem_channels: scaled(first), stages, bottleneck }
    }

    /// Dimension of the features before the head; of a clip encoder, that of the embedding.
    pub fn feature_dim(&self) -> usize {
        match self.name {
            EncoderName::ClipS => return 512,
            EncoderName::ClipXs | EncoderName::ClipVitXs => return 256,
            _ => {}
        }
        let plan = self.plan();
        let (_, channels, _) = plan.stages[plan.stages.len() - 1];
        channels * if plan.bottleneck { 4 } else { 1 }
    }
}
