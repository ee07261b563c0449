//! ResNets as in torchvision (basic and bottleneck blocks), with the CIFAR stem and the three-stage CIFAR family.

use super::batch_norm::{BatchNorm, Pass};
use super::config::{EncoderConfig, Stem};
use super::cpu;
use super::layers::Conv;
use burn::module::Module;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor, module};

/// A residual block: two 3×3 convolutions, or 1×1, 3×3, 1×1 when `conv3` is there.
#[derive(Module, Debug)]
pub struct Block {
    conv1: Conv,
    bn1: BatchNorm,
    conv2: Conv,
    bn2: BatchNorm,
    conv3: Option<Conv>,
    bn3: Option<BatchNorm>,
    downsample: Option<(Conv, BatchNorm)>,
}

impl Block {
    fn new(input: usize, channels: usize, stride: usize, bottleneck: bool, device: &Device) -> Self {
        let output = if bottleneck { 4 * channels } else { channels };
        let norm = |channels| BatchNorm::new(channels, device);
        let downsample =
            (stride != 1 || input != output).then(|| (Conv::new(input, output, 1, stride, device), norm(output)));
        if bottleneck {
            Self {
                conv1: Conv::new(input, channels, 1, 1, device),
                bn1: norm(channels),
                conv2: Conv::new(channels, channels, 3, stride, device),
                bn2: norm(channels),
                conv3: Some(Conv::new(channels, output, 1, 1, device)),
                bn3: Some(norm(output).zero_weight()),
                downsample,
            }
        } else {
            Self {
                conv1: Conv::new(input, channels, 3, stride, device),
                bn1: norm(channels),
                conv2: Conv::new(channels, channels, 3, 1, device),
                bn2: norm(channels).zero_weight(),
                conv3: None,
                bn3: None,
                downsample,
            }
        }
    }

    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((conv, bn)) => bn.forward(conv.forward(x.clone()), None, false, pass),
            None => x.clone(),
        };
        let y = self.bn1.forward(self.conv1.forward(x), None, true, pass);
        let y = self.conv2.forward(y);
        match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => {
                let y = self.bn2.forward(y, None, true, pass);
                bn3.forward(conv3.forward(y), Some(shortcut), true, pass)
            }
            _ => self.bn2.forward(y, Some(shortcut), true, pass),
        }
    }
}

/// A ResNet up to its global average pool. `layer4` is empty in the CIFAR family.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv,
    bn1: BatchNorm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    #[module(skip)]
    pooled_stem: bool,
}

impl ResNet {
    /// Weights are zero until [`super::initialise`] or [`super::import`] fills them.
    pub fn new(config: &EncoderConfig, device: &Device) -> Self {
        let plan = config.plan();
        let pooled_stem = config.stem == Stem::Imagenet;
        let (kernel, stride) = if pooled_stem { (7, 2) } else { (3, 1) };
        let mut input = plan.stem_channels;
        let mut stages = plan.stages.iter().map(|&(count, channels, stride)| {
            (0..count)
                .map(|index| {
                    let stride = if index == 0 { stride } else { 1 };
                    let block = Block::new(input, channels, stride, plan.bottleneck, device);
                    input = channels * if plan.bottleneck { 4 } else { 1 };
                    block
                })
                .collect::<Vec<_>>()
        });
        let mut stage = || stages.next().unwrap_or_default();
        let (layer1, layer2, layer3, layer4) = (stage(), stage(), stage(), stage());
        Self {
            conv1: Conv::new(3, plan.stem_channels, kernel, stride, device),
            bn1: BatchNorm::new(plan.stem_channels, device),
            layer1,
            layer2,
            layer3,
            layer4,
            pooled_stem,
        }
    }

    /// `[N, 3, H, W]` → features `[N, dim]`
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let is_last = cpu::is_channels_last(&x.device());
        let x = if is_last { x.permute([0, 2, 3, 1]) } else { x };
        let mut x = self.bn1.forward(self.conv1.forward(x), None, true, pass);
        if self.pooled_stem {
            let options = MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]);
            x = if is_last { cpu::max_pool(x) } else { module::max_pool2d(x, options) };
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(x, pass);
        }
        // Global average pool.
        if is_last {
            cpu::mean_pool(x)
        } else {
            let [n, channels, height, width] = x.dims();
            x.reshape([n, channels, height * width]).mean_dim(2).reshape([n, channels])
        }
    }
}
