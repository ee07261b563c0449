//! CLIP's modified ResNet: a stem of three convolutions, average pools in place of strides, attention in place of the last
//! pool. Parameters have the names of CLIP's state dict, below `visual`.

use super::batch_norm::{BatchNorm, Pass};
use super::cpu;
use super::layers::{Conv, Linear, value_for};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation::softmax};

#[derive(Clone, Debug, PartialEq)]
pub struct ClipResNetConfig {
    /// Blocks of each stage.
    pub layers: [usize; 4],
    /// Channels of the first stage's inner convolutions; features have 32 times as many.
    pub width: usize,
    /// Heads of the attention pool.
    pub heads: usize,
    /// Side of the images in pixels, a multiple of 32.
    pub image_size: usize,
    /// Dimension of the embedding that images and texts share.
    pub output: usize,
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
}

impl ClipBlock {
    fn new(input: usize, channels: usize, stride: usize, device: &Device) -> Self {
        let output = 4 * channels;
        let norm = |channels| BatchNorm::new(channels, device);
        let downsample =
            (stride > 1 || input != output).then(|| (Conv::new(input, output, 1, 1, device), norm(output)));
        Self {
            conv1: Conv::new(input, channels, 1, 1, device),
            bn1: norm(channels),
            conv2: Conv::new(channels, channels, 3, 1, device),
            bn2: norm(channels),
            conv3: Conv::new(channels, output, 1, 1, device),
            bn3: norm(output).zero_weight(),
            downsample,
            stride,
        }
    }

    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let pool = |x: Tensor<4>| if self.stride > 1 { average_pool(x) } else { x };
        let shortcut = match &self.downsample {
            Some((conv, bn)) => bn.forward(conv.forward(pool(x.clone())), None, false, pass),
            None => x.clone(),
        };
        let y = self.bn1.forward(self.conv1.forward(x), None, true, pass);
        let y = self.bn2.forward(self.conv2.forward(y), None, true, pass);
        self.bn3.forward(self.conv3.forward(pool(y)), Some(shortcut), true, pass)
    }
}

/// The mean over 2×2 pixels, in the device's layout; sides are even.
fn average_pool(x: Tensor<4>) -> Tensor<4> {
    let dims = x.dims();
    if cpu::is_channels_last(&x.device()) {
        let [n, h, w, c] = dims;
        let x = x.reshape([n, h / 2, 2, w / 2, 2 * c]);
        let x = (x.clone().narrow(2, 0, 1) + x.narrow(2, 1, 1)).reshape([n, h / 2, w / 2, 2 * c]);
        return (x.clone().narrow(3, 0, c) + x.narrow(3, c, c)) * 0.25;
    }
    let [n, c, h, w] = dims;
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
    fn new(places: usize, width: usize, heads: usize, output: usize, device: &Device) -> Self {
        let project = |output| Linear::new(width, output, device).with_bias();
        Self {
            positional_embedding: Param::from_tensor(Tensor::zeros([places + 1, width], device)),
            k_proj: project(width),
            q_proj: project(width),
            v_proj: project(width),
            c_proj: project(output),
            heads,
        }
    }

    /// `[N, places, width]` → `[N, output]`
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [n, places, width] = x.dims();
        let size = width / self.heads;
        let x = Tensor::cat(vec![x.clone().mean_dim(1), x], 1);
        let x = x.clone() + value_for(&self.positional_embedding, &x).unsqueeze();
        let split = |x: Tensor<3>, length: usize| x.reshape([n, length, self.heads, size]).swap_dims(1, 2);
        let q = split(self.q_proj.forward(x.clone().narrow(1, 0, 1)), 1);
        let k = split(self.k_proj.forward(x.clone()), places + 1);
        let v = split(self.v_proj.forward(x), places + 1);
        let logits = q.matmul(k.swap_dims(2, 3)) * (size as f64).powf(-0.5);
        let mixed = softmax(logits, 3).matmul(v).swap_dims(1, 2).reshape([n, width]);
        self.c_proj.forward(mixed)
    }
}

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
}

impl ClipResNet {
    /// Weights are zero until [`super::import`] or an initialisation fills them.
    pub fn new(config: &ClipResNetConfig, device: &Device) -> Self {
        let width = config.width;
        let mut input = width;
        let mut stage = |index: usize| -> Vec<ClipBlock> {
            let channels = width << index;
            (0..config.layers[index])
                .map(|block| {
                    let stride = if index > 0 && block == 0 { 2 } else { 1 };
                    let made = ClipBlock::new(input, channels, stride, device);
                    input = 4 * channels;
                    made
                })
                .collect()
        };
        let (layer1, layer2, layer3, layer4) = (stage(0), stage(1), stage(2), stage(3));
        let places = (config.image_size / 32).pow(2);
        Self {
            conv1: Conv::new(3, width / 2, 3, 2, device),
            bn1: BatchNorm::new(width / 2, device),
            conv2: Conv::new(width / 2, width / 2, 3, 1, device),
            bn2: BatchNorm::new(width / 2, device),
            conv3: Conv::new(width / 2, width, 3, 1, device),
            bn3: BatchNorm::new(width, device),
            layer1,
            layer2,
            layer3,
            layer4,
            attnpool: AttentionPool::new(places, 32 * width, config.heads, config.output, device),
        }
    }

    /// `[N, 3, S, S]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let is_last = cpu::is_channels_last(&x.device());
        let x = if is_last { x.permute([0, 2, 3, 1]) } else { x };
        let x = self.bn1.forward(self.conv1.forward(x), None, true, pass);
        let x = self.bn2.forward(self.conv2.forward(x), None, true, pass);
        let mut x = average_pool(self.bn3.forward(self.conv3.forward(x), None, true, pass));
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(x, pass);
        }
        // Places first, channels last.
        let places = if is_last {
            let [n, h, w, c] = x.dims();
            x.reshape([n, h * w, c])
        } else {
            let [n, c, h, w] = x.dims();
            x.reshape([n, c, h * w]).swap_dims(1, 2)
        };
        self.attnpool.forward(places)
    }
}
