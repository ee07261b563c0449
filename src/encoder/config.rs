//! Which encoder and head to build.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sogclr_kernels::Conv;

/// Names of the encoders. 18–152 are torchvision's; 8–56 are the CIFAR ResNets (6n+2 layers, three stages of
/// 16/32/64 channels, 1×1 projection shortcuts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
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
}

/// The first layers of a ResNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// 3×3 convolution, stride 1, no pooling: images up to 64 pixels.
    Cifar,
    /// 7×7 convolution, stride 2, and a 3×3 max-pool.
    Imagenet,
}

/// The network that is kept after pre-training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EncoderConfig {
    /// The network: 8–56 for small images, 18–152 as in torchvision.
    pub name: EncoderName,
    /// Multiplies every channel count: 2 and 4 are the paper's wide ResNet-50; 0.25 and 0.5 suit CPUs.
    pub width: f64,
    /// `cifar` for images up to 64 pixels, `imagenet` above, unless set.
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
        Self { name, width: 1.0, stem: if size <= 64 { Stem::Cifar } else { Stem::Imagenet } }
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
            Stem::Imagenet => add(size, 3, plan.stem_channels, 7, 2).div_ceil(2),
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
        };
        let stages = blocks
            .iter()
            .enumerate()
            .map(|(stage, &count)| (count, scaled(first << stage), if stage == 0 { 1 } else { 2 }))
            .collect();
        Plan { stem_channels: scaled(first), stages, bottleneck }
    }

    /// Dimension of the features before the head.
    pub fn feature_dim(&self) -> usize {
        let plan = self.plan();
        let (_, channels, _) = plan.stages[plan.stages.len() - 1];
        channels * if plan.bottleneck { 4 } else { 1 }
    }

    /// How a PyTorch user builds the model that the exported weights fit into.
    pub fn torch_recipe(&self) -> String {
        let plan = self.plan();
        let name = serde_json::to_value(self.name).expect("a unit variant");
        let name = name.as_str().expect("a string");
        if plan.stages.len() == 3 {
            return format!(
                "a CIFAR {name} (three stages, 1x1 projection shortcuts) with torchvision's parameter names"
            );
        }
        let block = if plan.bottleneck { "Bottleneck" } else { "BasicBlock" };
        let mut steps = if self.width == 1.0 {
            format!("m = torchvision.models.{name}(); m.fc = torch.nn.Identity()")
        } else {
            format!("a torchvision-style ResNet of {block}s whose every channel count is multiplied by {}", self.width)
        };
        if self.stem == Stem::Cifar {
            steps += &format!(
                "; m.conv1 = torch.nn.Conv2d(3, {}, 3, 1, 1, bias=False); m.maxpool = torch.nn.Identity()",
                plan.stem_channels
            );
        }
        steps + "; m.load_state_dict(safetensors.torch.load_file('encoder.safetensors'), strict=True)"
    }
}
