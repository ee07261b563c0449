//! CLIP's modified ResNet: a stem of three convolutions, average pools in place of strides, attention in place of the last
//! pool. Parameters have the names of CLIP's state dict, below `visual`.

use super::batch_norm::{BatchNorm, Pass};
use super::layers::{Conv, Linear, value_for};
use super::transformer::clip_deviation;
use super::{Compute, EncoderSpec, Family, Network, Precision, PythonLoader, TextConfig};
use crate::check::{Problem, parse_name, require};
use crate::cpu::{self, Engine};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::softmax};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Names of CLIP's ResNets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClipResNetName {
    /// The paper's: [3, 4, 6, 3] blocks, width 32, 512 values out.
    ClipS,
    /// [1, 1, 1, 1] blocks, width 24, 256 values out.
    ClipXs,
}

/// The first layers of CLIP's encoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClipStem {
    /// CLIP's own.
    #[default]
    Clip,
}

/// CLIP's ResNet: clip-s (the paper's for image–text pairs) or clip-xs. Its features are the embedding that texts share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipResNetConfig {
    /// clip-s, the paper's, is CLIP's ResNet of [3, 4, 6, 3] blocks, width 32, 512 values out; clip-xs has [1, 1, 1, 1] blocks,
    /// width 24, 256 out.
    pub name: ClipResNetName,
    /// Multiplies every channel count but the embedding's.
    pub width: f64,
    /// What belongs to the clip encoders; leave it out.
    #[serde(default)]
    pub stem: ClipStem,
}

impl ClipResNetConfig {
    /// Channels of the first stage's inner convolutions; the last stage has 32 times as many.
    fn channels(&self) -> usize {
        let full = match self.name {
            ClipResNetName::ClipS => 32.0,
            ClipResNetName::ClipXs => 24.0,
        };
        (full * self.width).round() as usize
    }

    /// Blocks of each stage.
    fn layers(&self) -> [usize; 4] {
        match self.name {
            ClipResNetName::ClipS => [3, 4, 6, 3],
            ClipResNetName::ClipXs => [1, 1, 1, 1],
        }
    }

    /// Heads of the attention pool, of 64 values.
    fn heads(&self) -> usize {
        (self.channels() / 2).max(1)
    }
}

impl EncoderSpec for ClipResNetConfig {
    fn name(&self) -> &'static str {
        Self::NAMES[self.name as usize]
    }

    fn check(&self, size: usize) -> Result<(), Problem> {
        let (width, channels) = (self.width, self.channels());
        require((0.0625..=16.0).contains(&width), "encoder.width", || {
            format!("is {width}; it must lie between 0.0625 and 16")
        })?;
        require(size.is_multiple_of(32), "encoder.name", || {
            format!("needs images whose side is a multiple of 32, not {size} pixels")
        })?;
        require(channels >= 2 && channels.is_multiple_of(2), "encoder.width", || {
            format!("gives {channels} channels; they must be an even number")
        })
    }

    fn feature_dim(&self) -> usize {
        match self.name {
            ClipResNetName::ClipS => 512,
            ClipResNetName::ClipXs => 256,
        }
    }

    fn is_embedding(&self) -> bool {
        true
    }

    fn has_one_size(&self) -> bool {
        true
    }

    fn text(&self) -> TextConfig {
        match self.name {
            ClipResNetName::ClipS => TextConfig::clip_s(),
            ClipResNetName::ClipXs => TextConfig { heads: 4, layers: 4, ..TextConfig::clip_s() },
        }
    }

    fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64> {
        // No part of it is a transformer of several blocks.
        clip_deviation(1, name, dims)
    }

    fn kept_bytes(&self, size: usize, _: usize, precision: Precision) -> usize {
        let (width, side) = (self.channels(), size / 2);
        let stem = 2 * side * side * width;
        let stages = self.layers().into_iter().enumerate().map(|(stage, blocks)| {
            let (side, channels) = ((size / 4) >> stage, width << stage);
            blocks * side * side * 6 * channels
        });
        precision.kept_of_convolutions(stem + stages.sum::<usize>())
    }

    fn is_foreign(&self, name: &str) -> bool {
        name.ends_with("num_batches_tracked")
    }

    fn open_clip(&self, size: usize) -> Option<Value> {
        Some(json!({ "layers": self.layers(), "width": self.channels(), "image_size": size }))
    }

    fn python(&self, size: usize, _: usize) -> PythonLoader {
        PythonLoader::of_open_clip(self.open_clip(size), self.feature_dim())
    }
}

impl Family for ClipResNetConfig {
    type Net = ClipResNet;

    const NAMES: &'static [&'static str] = &["clip-s", "clip-xs"];

    fn named(name: &str, _: usize) -> Option<Self> {
        Some(Self { name: parse_name(name).ok()?, width: 1.0, stem: ClipStem::Clip })
    }

    fn build(&self, size: usize, channels: usize, compute: &Compute) -> ClipResNet {
        let (layers, width, heads) = (self.layers(), self.channels(), self.heads());
        ClipResNet::with_shape(layers, width, heads, self.feature_dim(), (size, channels), compute)
    }
}

/// 1×1, 3×3, average pool, 1×1.
#[derive(Module, Debug)]
pub struct ClipBlock {
    conv1: Conv,
    bn1: BatchNorm,
    conv2: Conv,
    bn2: BatchNorm,
    conv3: Conv,
    bn3: BatchNorm,
    downsample: Option<(Conv, BatchNorm)>,
    #[module(skip)]
    stride: usize,
    #[module(skip)]
    engine: Option<Engine>,
}

impl ClipBlock {
    fn new(input: usize, channels: usize, stride: usize, compute: &Compute) -> Self {
        let output = 4 * channels;
        let norm = |channels| BatchNorm::new(channels, compute);
        let downsample =
            (stride > 1 || input != output).then(|| (Conv::new(input, output, 1, 1, compute), norm(output)));
        Self {
            conv1: Conv::new(input, channels, 1, 1, compute),
            bn1: norm(channels),
            conv2: Conv::new(channels, channels, 3, 1, compute),
            bn2: norm(channels),
            conv3: Conv::new(channels, output, 1, 1, compute),
            bn3: norm(output).zero_weight(),
            downsample,
            stride,
            engine: compute.engine(),
        }
    }

    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let pool = |x: Tensor<4>| if self.stride > 1 { average_pool(x, self.engine.is_some()) } else { x };
        let [x, shortcut] = self.conv1.share(x);
        let shortcut = match &self.downsample {
            Some((conv, bn)) => bn.forward(conv.forward(pool(shortcut)), None, false, pass),
            None => shortcut,
        };
        let y = self.bn1.read_by(self.conv1.forward(x), &self.conv2, pass);
        let y = self.bn2.forward(y, None, true, pass);
        self.bn3.forward(self.conv3.forward(pool(y)), Some(shortcut), true, pass)
    }
}

/// The mean over 2×2 pixels, in the device's layout; sides are even.
fn average_pool(x: Tensor<4>, is_channels_last: bool) -> Tensor<4> {
    if is_channels_last {
        return cpu::average_pool(x);
    }
    let [n, c, h, w] = x.dims();
    x.reshape([n, c, h / 2, 2, w / 2, 2]).mean_dim(5).mean_dim(3).reshape([n, c, h / 2, w / 2])
}

/// Attention of the mean over all places to the places.
#[derive(Module, Debug)]
pub struct AttentionPool {
    positional_embedding: Param<Tensor<2>>,
    k_proj: Linear,
    q_proj: Linear,
    v_proj: Linear,
    c_proj: Linear,
    #[module(skip)]
    heads: usize,
}

impl AttentionPool {
    fn new(places: usize, width: usize, heads: usize, output: usize, compute: &Compute) -> Self {
        let project = |output| Linear::new(width, output, compute).with_bias();
        Self {
            positional_embedding: Param::from_tensor(Tensor::zeros([places + 1, width], compute.device())),
            k_proj: project(width),
            q_proj: project(width),
            v_proj: project(width),
            c_proj: project(output),
            heads,
        }
    }

    /// `[N, places, width]` → `[N, output]`
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let ([n, _, width], heads) = (x.dims(), self.heads);
        let size = width / heads;
        let x = Tensor::cat(vec![x.clone().mean_dim(1), x], 1);
        let x = x.clone() + value_for(&self.positional_embedding, &x).unsqueeze();
        // One query: (x·Wᵀ + b)·q = x·(Wᵀq) + b·q, and what is mixed is projected once, not every place.
        let per_head = |layer: &Linear| {
            let (weight, bias) = layer.parameters();
            let (weight, bias) = (value_for(weight, &x), value_for(bias, &x));
            (weight.reshape([heads, size, width]), bias.reshape([heads, 1, size]))
        };
        let ((k_weight, k_bias), (v_weight, v_bias)) = (per_head(&self.k_proj), per_head(&self.v_proj));
        // [heads, N, size]
        let q = self.q_proj.forward(x.clone().narrow(1, 0, 1)).reshape([n, heads, size]).swap_dims(0, 1);
        // [N, heads, width] and [N, heads, 1]
        let asked = q.clone().matmul(k_weight).swap_dims(0, 1);
        let offset = (q * k_bias).sum_dim(2).swap_dims(0, 1);
        let logits = (asked.matmul(x.clone().swap_dims(1, 2)) + offset) * (size as f64).powf(-0.5);
        let mixed = softmax(logits, 2).matmul(x).swap_dims(0, 1).matmul(v_weight.swap_dims(1, 2)) + v_bias;
        let mixed = mixed.swap_dims(0, 1).reshape([n, width]);
        self.c_proj.forward(mixed)
    }
}

/// CLIP's modified ResNet: images → embeddings `[N, output]`.
#[derive(Module, Debug)]
pub struct ClipResNet {
    conv1: Conv,
    bn1: BatchNorm,
    conv2: Conv,
    bn2: BatchNorm,
    conv3: Conv,
    bn3: BatchNorm,
    layer1: Vec<ClipBlock>,
    layer2: Vec<ClipBlock>,
    layer3: Vec<ClipBlock>,
    layer4: Vec<ClipBlock>,
    attnpool: AttentionPool,
    #[module(skip)]
    engine: Option<Engine>,
    #[module(skip)]
    precision: Precision,
}

impl ClipResNet {
    /// Any blocks, width, heads and dimension of the embedding, for images of `size` pixels.
    #[doc(hidden)]
    pub fn with_shape(
        layers: [usize; 4],
        width: usize,
        heads: usize,
        output: usize,
        (size, image_channels): (usize, usize),
        compute: &Compute,
    ) -> Self {
        let mut input = width;
        let mut stage = |index: usize| -> Vec<ClipBlock> {
            let channels = width << index;
            (0..layers[index])
                .map(|block| {
                    let stride = if index > 0 && block == 0 { 2 } else { 1 };
                    let made = ClipBlock::new(input, channels, stride, compute);
                    input = 4 * channels;
                    made
                })
                .collect()
        };
        let (layer1, layer2, layer3, layer4) = (stage(0), stage(1), stage(2), stage(3));
        let places = (size / 32).pow(2);
        Self {
            conv1: Conv::new(image_channels, width / 2, 3, 2, compute),
            bn1: BatchNorm::new(width / 2, compute),
            conv2: Conv::new(width / 2, width / 2, 3, 1, compute),
            bn2: BatchNorm::new(width / 2, compute),
            conv3: Conv::new(width / 2, width, 3, 1, compute),
            bn3: BatchNorm::new(width, compute),
            layer1,
            layer2,
            layer3,
            layer4,
            attnpool: AttentionPool::new(places, 32 * width, heads, output, compute),
            engine: compute.engine(),
            precision: compute.precision(),
        }
    }
}

impl Network for ClipResNet {
    /// → embeddings `[N, dim]`, not normalised
    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let is_last = self.engine.is_some();
        let x = self.precision.enter(x);
        let x = self.bn1.read_by(self.conv1.forward(x), &self.conv2, pass);
        let x = self.bn2.read_by(x, &self.conv3, pass);
        let mut x = average_pool(self.bn3.forward(x, None, true, pass), is_last);
        for (stage, blocks) in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().enumerate() {
            x = pass.cut(stage, x);
            x = blocks.iter().fold(x, |x, block| block.forward(x, pass));
        }
        // Places first, channels last.
        let places = if is_last {
            let [n, h, w, c] = x.dims();
            x.reshape([n, h * w, c])
        } else {
            let [n, c, h, w] = x.dims();
            x.reshape([n, c, h * w]).swap_dims(1, 2)
        };
        self.attnpool.forward(self.precision.leave(places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{export, to_host};
    use burn::tensor::{Device, TensorData};

    fn named(name: &str, width: f64) -> ClipResNetConfig {
        ClipResNetConfig { width, ..ClipResNetConfig::named(name, 224).unwrap() }
    }

    #[test]
    fn what_cannot_be_built_is_refused_by_its_key() {
        let problem = |width: f64, size: usize| named("clip-xs", width).check(size).unwrap_err();
        assert_eq!(named("clip-xs", 1.0).check(64), Ok(()));
        assert_eq!(problem(0.05, 64).key, "encoder.width");
        assert_eq!(
            problem(1.0, 48).to_string(),
            "encoder.name needs images whose side is a multiple of 32, not 48 pixels"
        );
        // 24/8 = 3 channels, of which the stem's first half has none and a half.
        assert_eq!(problem(0.125, 64).to_string(), "encoder.width gives 3 channels; they must be an even number");
    }

    #[test]
    fn the_embedding_keeps_its_dimension_at_any_width() {
        let (full, half) = (named("clip-s", 1.0), named("clip-s", 0.5));
        assert_eq!((full.channels(), half.channels()), (32, 16));
        // Heads of 64 values of the last stage's 32·channels.
        assert_eq!((full.heads(), half.heads()), (16, 8));
        assert_eq!((full.feature_dim(), half.feature_dim(), named("clip-xs", 1.0).feature_dim()), (512, 512, 256));
        assert_eq!((full.text().layers, named("clip-xs", 1.0).text().layers), (8, 4));
    }

    #[test]
    fn a_network_has_as_many_blocks_and_places_as_its_size_says() {
        let tensors = export(&named("clip-xs", 0.0833).build(96, 3, &Compute::cpu()));
        // 96/32 = 3 places on a side and the mean; 2 channels make 64 at the end.
        assert_eq!(tensors["attnpool.positional_embedding"].shape, [10, 64]);
        assert_eq!(tensors["attnpool.c_proj.weight"].shape, [256, 64]);
        assert_eq!(tensors["conv1.weight"].shape, [1, 3, 3, 3]);
        assert!(tensors.contains_key("layer4.0.downsample.0.weight") && !tensors.contains_key("layer4.1.conv1.weight"));
    }

    /// Two rows of four pixels: 1 2 3 4 above 5 6 7 8, and ten times that in the second channel.
    #[test]
    fn pooling_takes_the_mean_of_four_pixels_in_either_layout() {
        let device = Device::flex();
        let first: Vec<f32> = (1..=8).flat_map(|v| [v as f32, 10.0 * v as f32]).collect();
        let last = Tensor::from_data(TensorData::new(first, [1, 2, 4, 2]), &device);
        let pooled = average_pool(last.clone(), true);
        assert_eq!(pooled.dims(), [1, 1, 2, 2]);
        assert_eq!(to_host(pooled), [3.5, 35.0, 5.5, 55.0]);
        let pooled = average_pool(last.permute([0, 3, 1, 2]), false);
        assert_eq!(pooled.dims(), [1, 2, 1, 2]);
        assert_eq!(to_host(pooled), [3.5, 5.5, 35.0, 55.0]);
    }

    /// No query prefers any place: the mean over the places and over their mean, which is the same. With a key that follows the
    /// value, the query asks for large ones.
    #[test]
    fn the_attention_pool_is_a_mean_until_it_asks() {
        let compute = Compute::cpu();
        let one = || Param::from_tensor(Tensor::ones([1, 1], compute.device()));
        let mut pool = AttentionPool::new(3, 1, 1, 1, &compute);
        (pool.v_proj.weight, pool.c_proj.weight) = (one(), one());
        let x = || Tensor::from_data([[[1.0_f32], [2.0], [6.0]]], compute.device());
        assert!((to_host(pool.forward(x()))[0] - 3.0).abs() < 1e-6);
        (pool.q_proj.weight, pool.k_proj.weight) = (one(), one());
        // The query is the mean, 3: softmax of 3·(3, 1, 2, 6).
        let places = [3.0_f64, 1.0, 2.0, 6.0];
        let weights = places.map(|v| (3.0 * v).exp());
        let want = places.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>() / weights.iter().sum::<f64>();
        assert!((f64::from(to_host(pool.forward(x()))[0]) - want).abs() < 1e-4, "{want}");
    }
}
