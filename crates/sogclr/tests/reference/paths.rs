//! The CPU's own operations and the plain burn operations of every other backend: the same network.

use crate::files::hashed;
use crate::resnet::{Path, gradients, on_each_path, tensor, values, with_formula};
use burn::tensor::Device;
use proptest::{prelude::*, test_runner::RngSeed};
use sogclr::batch::{Batch, Crops};
use sogclr::comm::Solo;
use sogclr::encoder::{BufferUpdates, EncoderConfig, EncoderName, HeadConfig, Model, ModelConfig, Pass, ResNet, Stem};
use sogclr::method::{MethodConfig, Parts, Setting};
use sogclr::optim::{NamedGrads, Optimizer, OptimizerConfig, Sgd};
use sogclr::state::SampleState;
use sogclr::train::step;
use std::collections::BTreeMap;

/// Features and all gradients of Σ features·probe, by name.
fn run(config: &EncoderConfig, shape: [usize; 4]) -> BTreeMap<String, Vec<f32>> {
    let device = Device::flex().autodiff();
    let net = with_formula(ResNet::new(config, &device), true);
    let x = tensor("input", shape, &device);
    let features = net.forward(x, &mut Pass::Train(&mut BufferUpdates::default()));
    let probe = tensor("probe", features.dims(), &device);
    let mut all = gradients(&net, &(features.clone() * probe).sum().backward());
    all.insert("features".into(), values(features));
    all
}

/// Without the filter that is furthest apart: where two pixels under the stem's max-pool are nearly equal, rounding decides which
/// of them gets the gradient, and moves that of one filter.
fn without_one_filter(mut filters: Vec<&[(f64, f64)]>) -> Vec<&[(f64, f64)]> {
    let apart = |filter: &[(f64, f64)]| filter.iter().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    filters.sort_by(|a, b| apart(a).total_cmp(&apart(b)));
    filters.pop();
    filters
}

/// Root of the mean square.
fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), v| (sum + v * v, count + 1));
    (sum / count.max(1) as f64).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    /// Odd channel counts, odd and unequal sizes, both stems, basic and bottleneck blocks.
    #[test]
    fn kernels_and_plain_operations_agree(
        name in prop::sample::select(vec![EncoderName::Resnet8, EncoderName::Resnet18, EncoderName::Resnet50]),
        width in prop::sample::select(vec![0.25, 0.3, 0.5]),
        stem in prop::sample::select(vec![Stem::Cifar, Stem::Imagenet]),
        images in 3_usize..6,
        height in 9_usize..28,
        wide in 9_usize..28,
    ) {
        let is_small = name == EncoderName::Resnet8;
        // Deep networks leave few pixels: fewer than that, and batch norm amplifies rounding without bound.
        let (height, wide) = if is_small { (height, wide) } else { (height + 24, wide + 24) };
        let config = EncoderConfig { name, width: if is_small { 4.0 * width } else { width / 2.0 }, stem };
        let mut results = Vec::new();
        on_each_path(|path| results.push((path, run(&config, [images, 3, height, wide]))));
        let (_, plain) = results.iter().find(|(path, _)| *path == Path::PlainBurn).expect("all paths ran").clone();
        // Gradients of shifts before another batch norm are sums that cancel: their error is that of the others.
        let sizes = plain.values().map(|values| rms(values.iter().map(|&v| f64::from(v))));
        let typical = sizes.sum::<f64>() / plain.len() as f64;
        for (path, ours) in &results {
            prop_assert_eq!(ours.len(), plain.len());
            for (name, want) in &plain {
                let pairs: Vec<_> = ours[name].iter().zip(want).map(|(&a, &b)| (f64::from(a), f64::from(b))).collect();
                let kept = match (name.as_str(), stem) {
                    ("conv1.weight", Stem::Imagenet) => without_one_filter(pairs.chunks(3 * 7 * 7).collect()),
                    _ => vec![&pairs[..]],
                };
                let kept = || kept.iter().copied().flatten();
                let (error, size) = (rms(kept().map(|(a, b)| a - b)), rms(kept().map(|(_, b)| *b)));
                prop_assert!(error <= 1e-3 * (size + typical), "{:?} {}: error {} of {}", path, name, error, size);
            }
        }
    }
}

/// Losses of thirty steps on sixteen fixed images.
fn curve() -> Vec<f64> {
    let device = Device::flex().autodiff();
    let encoder = EncoderConfig { name: EncoderName::Resnet8, width: 1.0, stem: Stem::Cifar };
    let head = HeadConfig { layers: 2, hidden: 64, output: 32, norm: true };
    let config = ModelConfig { encoder, head: Some(head), text: None, image_size: 16 };
    let mut model = Model::new(&config, 0, &device);
    let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
    let mut optimizer = Optimizer::new(OptimizerConfig::Sgd(sgd));
    let (is_small, is_grey, has_text) = (true, false, false);
    let setting = Setting { is_small, is_grey, has_text, samples: 16, batch: 16, epochs: 1 };
    let parts = Parts { model: &config, seed: 0, device: device.clone() };
    let mut method = MethodConfig::named("sogclr", &setting).unwrap().spec().build(&parts);
    let mut state = SampleState::new(16, method.loss().columns());
    // A view is its image with noise.
    let (images, noise) = (hashed("images", 16 * 3 * 256), hashed("noise", 2 * 16 * 3 * 256));
    let pixels: Vec<f32> = noise.iter().enumerate().map(|(i, n)| images[i % images.len()] + 0.5 * n).collect();
    let mut losses = Vec::new();
    for index in 0..30 {
        let batch = Batch {
            step: index,
            epoch: index,
            ids: (0..16).collect(),
            ours: 0..16,
            labels: None,
            crops: vec![Crops { count: 2, size: 16, pixels: pixels.clone() }],
            tiles: None,
            texts: None,
        };
        let (new, out) = step(model, &mut optimizer, &mut *method, &mut state, &batch, 16, &Solo, 0.05).unwrap();
        losses.push(out.objective);
        model = new;
    }
    losses
}

#[test]
fn training_curves_coincide_on_every_path() {
    let mut curves = Vec::new();
    on_each_path(|path| curves.push((path, curve())));
    let (_, direct) = curves.iter().find(|(path, _)| *path == Path::Direct).expect("all paths ran").clone();
    assert!(direct[29] < direct[0] - 0.1, "it learns: {direct:?}");
    for (path, curve) in curves {
        for (step, (ours, want)) in curve.iter().zip(&direct).enumerate() {
            assert!((ours - want).abs() < 2e-3, "{path:?} step {step}: {ours} vs {want}");
        }
    }
}

/// The gradient of an inference pass, which the theory takes, on the kernels' path and on plain operations.
#[test]
fn an_inference_pass_has_its_gradient() {
    let config = ModelConfig {
        encoder: EncoderConfig { name: EncoderName::Resnet8, width: 0.5, stem: Stem::Cifar },
        head: Some(HeadConfig { layers: 2, hidden: 16, output: 8, norm: true }),
        text: None,
        image_size: 8,
    };
    let mut all = Vec::new();
    on_each_path(|_| {
        let device = Device::flex().autodiff();
        let model = Model::new(&config, 5, &device);
        let h = model.forward(tensor("inference", [4, 3, 8, 8], &device), &mut Pass::Eval);
        let plain = model.forward(tensor("inference", [4, 3, 8, 8], &device.clone().inner()), &mut Pass::Eval);
        let plain: Vec<f32> = plain.into_data().try_to_vec().unwrap();
        let apart = values(h.clone()).iter().zip(plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "with and without a graph: {apart}");
        let mut gradients = h.square().sum().backward();
        all.push(NamedGrads::collect(&model, &mut gradients).into_values());
    });
    let size = all[0].iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!(size > 1e-3);
    for other in &all[1..] {
        let apart = all[0].iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        assert!(apart < 1e-4 * size, "{apart} of {size}");
    }
}
