//! ResNets as in torchvision (basic and bottleneck blocks), with the CIFAR stem and the three-stage CIFAR family.

use super::batch_norm::{BatchNorm, Pass, Reads};
use super::layers::Conv;
use super::{Compute, EncoderSpec, Family, Network, Precision, PythonLoader};
use crate::check::{Problem, parse_name, require};
use crate::cpu::{self, Engine};
use burn::module::Module;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, module};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names of the ResNets. 18–152 are torchvision's; 8–56 are the CIFAR ResNets (6n+2 layers, three stages of 16/32/64 channels,
/// 1×1 projection shortcuts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the number of layers")]
pub enum ResNetName {
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

/// A ResNet: resnet8 to 56 for small images, resnet18 to 152 as in torchvision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// The network: 8–56 for small images, 18–152 as in torchvision.
    pub name: ResNetName,
    /// Multiplies every channel count: 2 and 4 are the paper's wide ResNet-50; 0.25 and 0.5 suit CPUs.
    pub width: f64,
    /// `cifar` for images up to 64 pixels, `imagenet` above, unless set.
    pub stem: Stem,
}

/// Channel counts and depth of one ResNet.
struct Plan {
    stem_channels: usize,
    /// (blocks, channels, stride of the first block) of each stage
    stages: Vec<(usize, usize, usize)>,
    bottleneck: bool,
}

impl ResNetConfig {
    /// The network at full width, with the stem that fits images of `size` pixels.
    pub fn for_size(name: ResNetName, size: usize) -> Self {
        Self { name, width: 1.0, stem: if size <= 64 { Stem::Cifar } else { Stem::Imagenet } }
    }

    /// The network with so many blocks in its stages, and the channels of its stem at full width.
    pub(super) fn of_blocks(blocks: &[usize], is_bottleneck: bool) -> Option<(Self, usize)> {
        let all = Self::NAMES.iter().filter_map(|name| <Self as Family>::named(name, 32));
        all.map(|config| (config.plan(), config)).find_map(|(plan, config)| {
            let counts = plan.stages.iter().map(|(count, ..)| count);
            let is_it = plan.bottleneck == is_bottleneck && counts.eq(blocks);
            is_it.then_some((config, plan.stem_channels))
        })
    }

    fn plan(&self) -> Plan {
        let scaled = |channels: usize| ((channels as f64 * self.width).round() as usize).max(1);
        let (blocks, first, bottleneck): (&[usize], usize, bool) = match self.name {
            ResNetName::Resnet8 => (&[1, 1, 1], 16, false),
            ResNetName::Resnet14 => (&[2, 2, 2], 16, false),
            ResNetName::Resnet20 => (&[3, 3, 3], 16, false),
            ResNetName::Resnet32 => (&[5, 5, 5], 16, false),
            ResNetName::Resnet56 => (&[9, 9, 9], 16, false),
            ResNetName::Resnet18 => (&[2, 2, 2, 2], 64, false),
            ResNetName::Resnet34 => (&[3, 4, 6, 3], 64, false),
            ResNetName::Resnet50 => (&[3, 4, 6, 3], 64, true),
            ResNetName::Resnet101 => (&[3, 4, 23, 3], 64, true),
            ResNetName::Resnet152 => (&[3, 8, 36, 3], 64, true),
        };
        let stages = blocks
            .iter()
            .enumerate()
            .map(|(stage, &count)| (count, scaled(first << stage), if stage == 0 { 1 } else { 2 }))
            .collect();
        Plan { stem_channels: scaled(first), stages, bottleneck }
    }
}

impl EncoderSpec for ResNetConfig {
    fn name(&self) -> &'static str {
        Self::NAMES[self.name as usize]
    }

    fn check(&self, _: usize) -> Result<(), Problem> {
        let width = self.width;
        require((0.0625..=16.0).contains(&width), "encoder.width", || {
            format!("is {width}; it must lie between 0.0625 and 16")
        })
    }

    fn feature_dim(&self) -> usize {
        let plan = self.plan();
        let (_, channels, _) = plan.stages[plan.stages.len() - 1];
        channels * if plan.bottleneck { 4 } else { 1 }
    }

    /// He-normal over the fan-out, as torchvision.
    fn deviation(&self, _: &str, dims: &[usize]) -> Option<f64> {
        match dims {
            [output, _, height, width] => Some((2.0 / (output * height * width) as f64).sqrt()),
            _ => None,
        }
    }

    fn kept_bytes(&self, size: usize, channels: usize, precision: Precision) -> usize {
        let values = self.convolutions(size, channels).iter().map(|(count, conv)| count * conv.y_len()).sum();
        precision.kept_of_convolutions(values)
    }

    fn convolutions(&self, size: usize, channels: usize) -> Vec<(usize, sogclr_kernels::Conv)> {
        let plan = self.plan();
        let mut found: Vec<(usize, sogclr_kernels::Conv)> = Vec::new();
        let mut add = |side: usize, ci: usize, co: usize, k: usize, stride: usize| {
            let conv = sogclr_kernels::Conv { n: 1, h: side, w: side, ci, co, k, stride, pad: k / 2 };
            match found.iter_mut().find(|(_, other)| *other == conv) {
                Some((count, _)) => *count += 1,
                None => found.push((1, conv)),
            }
            conv.out().0
        };
        let mut side = match self.stem {
            Stem::Cifar => add(size, channels, plan.stem_channels, 3, 1),
            Stem::Imagenet => add(size, channels, plan.stem_channels, 7, 2).div_ceil(2),
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

    /// torchvision's classifier and counters.
    fn is_foreign(&self, name: &str) -> bool {
        name.starts_with("fc.") || name.ends_with("num_batches_tracked")
    }

    fn python(&self, _: usize, channels: usize) -> PythonLoader {
        let plan = self.plan();
        let is_small = if self.stem == Stem::Cifar { "True" } else { "False" };
        let settings = format!(
            "CHANNELS, STEM, SMALL_STEM = {channels}, {}, {is_small}\n# Blocks, channels and first stride of each \
             stage.\nSTAGES = {:?}\nEXPANSION = {}",
            plan.stem_channels,
            plan.stages,
            if plan.bottleneck { 4 } else { 1 }
        );
        PythonLoader { needs: &[], settings, program: include_str!("load/resnet.py") }
    }
}

impl Family for ResNetConfig {
    type Net = ResNet;

    const NAMES: &'static [&'static str] = &[
        "resnet8",
        "resnet14",
        "resnet20",
        "resnet32",
        "resnet56",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
    ];

    fn named(name: &str, size: usize) -> Option<Self> {
        Some(Self::for_size(parse_name(name).ok()?, size))
    }

    fn build(&self, _: usize, channels: usize, compute: &Compute) -> ResNet {
        ResNet::new(self, channels, compute)
    }
}

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
    fn new(input: usize, channels: usize, stride: usize, bottleneck: bool, compute: &Compute) -> Self {
        let output = if bottleneck { 4 * channels } else { channels };
        let norm = |channels| BatchNorm::new(channels, compute);
        let downsample =
            (stride != 1 || input != output).then(|| (Conv::new(input, output, 1, stride, compute), norm(output)));
        if bottleneck {
            Self {
                conv1: Conv::new(input, channels, 1, 1, compute),
                bn1: norm(channels),
                conv2: Conv::new(channels, channels, 3, stride, compute),
                bn2: norm(channels),
                conv3: Some(Conv::new(channels, output, 1, 1, compute)),
                bn3: Some(norm(output).zero_weight()),
                downsample,
            }
        } else {
            Self {
                conv1: Conv::new(input, channels, 3, stride, compute),
                bn1: norm(channels),
                conv2: Conv::new(channels, channels, 3, 1, compute),
                bn2: norm(channels).zero_weight(),
                conv3: None,
                bn3: None,
                downsample,
            }
        }
    }

    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let [x, shortcut] = self.conv1.share(x);
        let shortcut = match &self.downsample {
            Some((conv, bn)) => bn.forward(conv.forward(shortcut), None, false, pass),
            None => shortcut,
        };
        let y = self.bn1.read_by(self.conv1.forward(x), &self.conv2, pass);
        match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) if conv3.is_cheap() => {
                let conv3 = conv3.remade();
                let y = self.bn2.read_by(y, &conv3, pass);
                bn3.forward_remade(y, Some(shortcut), true, conv3.recipe, pass)
            }
            (Some(conv3), Some(bn3)) => bn3.forward(self.bn2.read_by(y, conv3, pass), Some(shortcut), true, pass),
            _ => self.bn2.forward(y, Some(shortcut), true, pass),
        }
    }
}

/// The 3×3 maximum of a stem.
struct MaxPool {
    is_last: bool,
}

impl Reads for MaxPool {
    fn read(&self, y: Tensor<4>) -> Tensor<4> {
        let options = MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]);
        if self.is_last { cpu::max_pool(y) } else { module::max_pool2d(y, options) }
    }

    fn reader(&self, _: &Tensor<4>) -> cpu::Reader {
        cpu::Reader::MaxPool
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
    #[module(skip)]
    engine: Option<Engine>,
    #[module(skip)]
    precision: Precision,
}

impl ResNet {
    fn new(config: &ResNetConfig, image_channels: usize, compute: &Compute) -> Self {
        let plan = config.plan();
        let pooled_stem = config.stem == Stem::Imagenet;
        let (kernel, stride) = if pooled_stem { (7, 2) } else { (3, 1) };
        let mut input = plan.stem_channels;
        let mut stages = plan.stages.iter().map(|&(count, channels, stride)| {
            (0..count)
                .map(|index| {
                    let stride = if index == 0 { stride } else { 1 };
                    let block = Block::new(input, channels, stride, plan.bottleneck, compute);
                    input = channels * if plan.bottleneck { 4 } else { 1 };
                    block
                })
                .collect::<Vec<_>>()
        });
        let mut stage = || stages.next().unwrap_or_default();
        let (layer1, layer2, layer3, layer4) = (stage(), stage(), stage(), stage());
        Self {
            conv1: Conv::new(image_channels, plan.stem_channels, kernel, stride, compute),
            bn1: BatchNorm::new(plan.stem_channels, compute),
            layer1,
            layer2,
            layer3,
            layer4,
            pooled_stem,
            engine: compute.engine(),
            precision: compute.precision(),
        }
    }
}

impl Network for ResNet {
    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let is_last = self.engine.is_some();
        let x = self.precision.enter(x);
        let x = self.conv1.forward(x);
        let mut x = match self.pooled_stem {
            true => self.bn1.read_by(x, &MaxPool { is_last }, pass),
            false => self.bn1.forward(x, None, true, pass),
        };
        for (stage, blocks) in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().enumerate() {
            x = pass.cut(stage, x);
            x = blocks.iter().fold(x, |x, block| block.forward(x, pass));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Group;
    use crate::encoder::BufferUpdates;
    use crate::params::{NamedVisitor, export, import, to_host, visit_named};
    use burn::module::Param;
    use burn::tensor::{FloatDType, Gradients, TensorData};

    fn named(name: &str, size: usize) -> ResNetConfig {
        ResNetConfig::named(name, size).unwrap()
    }

    #[test]
    fn features_are_the_last_stages_channels() {
        let names = ["resnet8", "resnet56", "resnet18", "resnet34", "resnet50", "resnet152"];
        assert_eq!(names.map(|name| named(name, 32).feature_dim()), [64, 64, 512, 512, 2048, 2048]);
        let width = |width| ResNetConfig { width, ..named("resnet50", 32) }.feature_dim();
        assert_eq!([0.25, 2.0, 0.001].map(width), [512, 4096, 4]);
    }

    #[test]
    fn a_name_brings_the_stem_that_fits_and_unknown_ones_nothing() {
        assert_eq!([64, 65].map(|size| named("resnet18", size).stem), [Stem::Cifar, Stem::Imagenet]);
        assert_eq!(ResNetConfig::named("resnet19", 32), None);
        assert_eq!(ResNetConfig::named("Resnet18", 32), None);
        assert_eq!(ResNetConfig { width: 0.05, ..named("resnet18", 32) }.check(32).unwrap_err().key, "encoder.width");
        assert_eq!(named("resnet18", 32).check(32), Ok(()));
    }

    /// torchvision's tables less the classifier: 1,814,073,344 − 512·1000 and 4,089,184,256 − 2048·1000 products.
    #[test]
    fn convolutions_are_as_many_and_cost_as_much_as_torchvisions() {
        let cost = |name: &str, size: usize| {
            let found = named(name, size).convolutions(size, 3);
            let each = |(count, c): &(usize, sogclr_kernels::Conv)| count * c.y_len() * c.ci * c.k * c.k;
            (found.iter().map(|(count, _)| count).sum::<usize>(), found.iter().map(each).sum::<usize>())
        };
        assert_eq!(cost("resnet18", 224), (20, 1_813_561_344));
        assert_eq!(cost("resnet50", 224), (53, 4_087_136_256));
        // Outputs at 8 pixels: 3·8²·16, 3·4²·32 and 3·2²·64, the shortcuts among them.
        assert_eq!(cost("resnet8", 8).0, 9);
        let values: usize = 3 * 1024 + 3 * 512 + 3 * 256;
        let kept = |precision| named("resnet8", 8).kept_bytes(8, 3, precision);
        assert_eq!(kept(Precision::F32), 4 * values * 17 / 10);
        assert_eq!(kept(Precision::Bf16), 2 * values * 17 / 10);
    }

    #[test]
    fn the_network_has_the_convolutions_that_were_announced() {
        for (name, size) in [("resnet8", 32), ("resnet18", 224), ("resnet50", 32), ("resnet50", 224)] {
            let config = ResNetConfig { width: 0.0625, ..named(name, size) };
            let announced = config.convolutions(size, 3).into_iter();
            let announced = announced.fold((0, 0), |sum, (count, c)| (sum.0 + count, sum.1 + count * c.w_len()));
            let tensors = export(&config.build(size, 3, &Compute::cpu()));
            let weights = tensors.values().filter(|tensor| tensor.shape.len() == 4);
            let built = weights.fold((0, 0), |sum, weight| (sum.0 + 1, sum.1 + weight.values.len()));
            assert_eq!(built, announced, "{name} at {size}");
        }
    }

    #[test]
    fn residual_branches_start_as_the_identity_under_torchvisions_names() {
        for (name, last, other) in [("resnet18", "bn2", "bn1"), ("resnet50", "bn3", "bn2")] {
            let config = ResNetConfig { width: 0.0625, ..named(name, 32) };
            let tensors = export(&config.build(32, 3, &Compute::cpu()));
            let weight = |norm: &str| &tensors[&format!("layer2.1.{norm}.weight")].values;
            assert!(weight(last).iter().all(|&w| w == 0.0) && weight(other).iter().all(|&w| w == 1.0), "{name}");
            assert!(tensors["layer2.0.downsample.1.weight"].values.iter().all(|&w| w == 1.0), "{name}");
            assert!(tensors.contains_key("layer4.0.downsample.0.weight"), "{name}");
        }
    }

    #[test]
    fn torchvisions_classifier_and_counters_are_foreign() {
        let config = named("resnet18", 224);
        let names = ["fc.weight", "bn1.num_batches_tracked", "layer1.0.conv1.weight", "bn1.running_mean"];
        assert_eq!(names.map(|name| config.is_foreign(name)), [true, true, false, false]);
    }

    /// A bottleneck whose layers run one after the other, each with its whole output kept.
    fn kept(block: &Block, x: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let [x, shortcut] = block.conv1.share(x);
        let y = block.bn1.forward(block.conv1.forward(x), None, true, pass);
        let y = block.bn2.forward(block.conv2.forward(y), None, true, pass);
        let (conv3, bn3) = (block.conv3.as_ref().unwrap(), block.bn3.as_ref().unwrap());
        bn3.forward(conv3.forward(y), Some(shortcut), true, pass)
    }

    struct Collect<'a>(&'a mut Gradients, Vec<(String, Vec<u32>)>);

    impl NamedVisitor for Collect<'_> {
        fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            if let Some(grad) = param.val().grad_remove(self.0) {
                self.1.push((name, to_host(grad).into_iter().map(f32::to_bits).collect()));
            }
        }
    }

    fn wave(shape: &[usize], phase: f32) -> TensorData {
        let count = shape.iter().product::<usize>();
        TensorData::new((0..count).map(|i| (i as f32 * 0.37 + phase).sin()).collect::<Vec<_>>(), shape.to_vec())
    }

    /// Output, gradient of x and of all parameters. Width 4 · `channels`.
    fn trained(
        channels: usize,
        precision: Precision,
        forward: impl Fn(&Block, Tensor<4>, &mut Pass) -> Tensor<4>,
    ) -> Vec<(String, Vec<u32>)> {
        let compute = Compute::cpu().with_precision(precision).autodiff();
        let block = Block::new(4 * channels, channels, 1, true, &compute);
        let mut tensors = export(&block);
        for (phase, tensor) in tensors.values_mut().enumerate() {
            tensor.values = wave(&tensor.shape, phase as f32).try_to_vec::<f32>().unwrap();
        }
        let block = import(block, &tensors).unwrap();
        let shape = [3, 5, 5, 4 * channels];
        let x = Tensor::<4>::from_data(wave(&shape, 0.5), compute.device()).require_grad();
        let (mut seen, group) = (BufferUpdates::default(), Group::solo());
        let y = forward(&block, precision.enter(x.clone()), &mut Pass::Train(&mut seen, &group));
        let y = y.cast(FloatDType::F32);
        let probe = Tensor::<4>::from_data(wave(&shape, 1.5), compute.device());
        let mut gradients = (y.clone() * probe).sum().backward();
        let bits = |x: Tensor<4>| to_host(x.inner()).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let dx = x.grad(&gradients).expect("a gradient of x");
        let mut all =
            vec![("y".to_owned(), bits(y)), ("dx".to_owned(), to_host(dx).into_iter().map(f32::to_bits).collect())];
        let mut collect = Collect(&mut gradients, Vec::new());
        visit_named(&block, &mut collect);
        all.extend(collect.1);
        all
    }

    #[test]
    fn what_is_made_again_gives_the_bytes_of_what_is_kept() {
        // 144 channels are too dear to be made again: only batch norm's outputs are.
        for (channels, precision) in
            [16, 144].into_iter().flat_map(|c| [Precision::F32, Precision::Bf16].map(|p| (c, p)))
        {
            let again = trained(channels, precision, |block, x, pass| block.forward(x, pass));
            assert_eq!(again.len(), 2 + 3 * 3, "three convolutions, three norms with two parameters");
            let kept = trained(channels, precision, kept);
            for ((name, again), (_, kept)) in again.iter().zip(&kept) {
                assert!(again == kept, "{name}, {channels} channels, {precision:?}");
                assert!(again.iter().any(|&bits| f32::from_bits(bits) != 0.0), "{name} is not nought");
            }
        }
    }

    #[test]
    fn a_recipe_takes_the_place_of_the_output_until_gradients_come_back() {
        let compute = Compute::cpu().autodiff();
        let (conv, norm) = (Conv::new(16, 32, 1, 1, &compute), |c| BatchNorm::new(c, &compute));
        let [cheap, dear] = [128, 129].map(|input| Conv::new(input, 16, 1, 1, &compute).is_cheap());
        assert!(cheap && !dear);
        let (remade, group) = (conv.remade(), Group::solo());
        let of = |c: usize| Tensor::<4>::from_data(wave(&[1, 2, 2, c], 0.3), compute.device());
        let mut pass = Pass::Batch(&group);
        assert!(!remade.recipe.is_there());
        let y = norm(16).read_by(of(16).require_grad(), &remade, &mut pass);
        assert!(remade.recipe.is_there());
        let y = norm(32).forward_remade(y, Some(of(32)), true, remade.recipe.clone(), &mut pass);
        drop(y.sum().backward());
        assert!(!remade.recipe.is_there(), "it was used");
    }
}
