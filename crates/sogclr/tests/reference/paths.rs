//! The CPU's own operations and the plain burn operations of every other backend: the same network.

use crate::files::hashed;
use crate::resnet::{Path, arranged, gradients, images, tensor, values, with_formula};
use proptest::{prelude::*, test_runner::RngSeed};
use sogclr::batch::{Batch, Crops, Share};
use sogclr::comm::Group;
use sogclr::data::Modality;
use sogclr::encoder::{
    BufferUpdates, Compute, Family, HeadConfig, Model, ModelConfig, Network, Pass, ResNetConfig, ResNetName, Stem,
};
use sogclr::math::Layout;
use sogclr::method::{BuildContext, MethodConfig, Setting};
use sogclr::optim::{NamedGrads, Optimizer, OptimizerConfig, Sgd};
use sogclr::train::{Learner, StepPlan};
use std::collections::BTreeMap;

/// Features and all gradients of Σ features·probe, by name.
pub fn run(config: &ResNetConfig, shape: [usize; 4], compute: &Compute) -> BTreeMap<String, Vec<f32>> {
    let net = with_formula(config.build(shape[2], shape[1], compute), true);
    let x = images("input", shape, compute);
    let features = net.forward(x, &mut Pass::Train(&mut BufferUpdates::default(), &Group::solo()));
    let probe = tensor("probe", features.dims(), compute.device());
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
        name in prop::sample::select(vec![ResNetName::Resnet8, ResNetName::Resnet18, ResNetName::Resnet50]),
        width in prop::sample::select(vec![0.25, 0.3, 0.5]),
        stem in prop::sample::select(vec![Stem::Cifar, Stem::Imagenet]),
        images in 3_usize..6,
        height in 9_usize..28,
        wide in 9_usize..28,
    ) {
        let is_small = name == ResNetName::Resnet8;
        // Deep networks leave few pixels: fewer than that, and batch norm amplifies rounding without bound.
        let (height, wide) = if is_small { (height, wide) } else { (height + 24, wide + 24) };
        let config = ResNetConfig { name, width: if is_small { 4.0 * width } else { width / 2.0 }, stem };
        let shape = [images, 3, height, wide];
        let results = Path::ALL.map(|path| (path, run(&config, shape, &path.compute().autodiff())));
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

fn resnet8(width: f64) -> ResNetConfig {
    ResNetConfig { name: ResNetName::Resnet8, width, stem: Stem::Cifar }
}

/// SogCLR on a ResNet-8, at its first step.
pub fn learner(compute: &Compute) -> Learner {
    let compute = compute.autodiff();
    let head = HeadConfig { layers: 2, hidden: 64, output: 32, norm: true, norm_output: true };
    let model = ModelConfig { encoder: resnet8(1.0).into(), head: Some(head), text: None, image_size: 16, channels: 3 };
    let (is_small, is_grey, modality) = (true, false, Modality::Images);
    let setting = Setting { is_small, is_grey, modality, samples: 16, batch: 16, epochs: 1 };
    let context = BuildContext { model: &model, seed: 0, compute: compute.clone() };
    let method = MethodConfig::named("sogclr", &setting).unwrap().spec().build(&context);
    let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
    let optimizer = Optimizer::new(OptimizerConfig::Sgd(sgd));
    Learner::new(Model::new(&model, 0, &compute), optimizer, method, 16, &compute)
}

/// One step on sixteen fixed images; the objective before it.
pub fn advance(learner: &mut Learner, layout: Layout, index: usize) -> f64 {
    // A view is its image with noise.
    let (images, noise) = (hashed("images", 16 * 3 * 256), hashed("noise", 2 * 16 * 3 * 256));
    let pixels = noise.iter().enumerate().map(|(i, n)| images[i % images.len()] + 0.5 * n).collect();
    let pixels = arranged(pixels, 3, 16, layout);
    let batch = Batch {
        step: index,
        epoch: index,
        ids: (0..16).collect(),
        share: Share::whole(16),
        labels: None,
        crops: vec![Crops { count: 2, size: 16, channels: 3, layout, pixels }],
        tiles: None,
        texts: None,
    };
    let plan = StepPlan { chunk: 16, lr: 0.05, peak_lr: 0.05, total_steps: 30 };
    learner.step(&batch, &plan, &Group::solo()).unwrap().objective.unwrap()
}

/// Losses of thirty steps.
fn curve(compute: &Compute) -> Vec<f64> {
    let mut learner = learner(compute);
    (0..30).map(|index| advance(&mut learner, compute.layout(), index)).collect()
}

#[test]
fn training_curves_coincide_on_every_path() {
    let curves = Path::ALL.map(|path| (path, curve(&path.compute())));
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
        encoder: resnet8(0.5).into(),
        head: Some(HeadConfig { layers: 2, hidden: 16, output: 8, norm: true, norm_output: true }),
        text: None,
        image_size: 8,
        channels: 3,
    };
    let all = Path::ALL.map(|path| {
        let compute = path.compute().autodiff();
        let model = Model::new(&config, 5, &compute);
        let h = model.forward(images("inference", [4, 3, 8, 8], &compute), &mut Pass::Eval);
        let plain = model.forward(images("inference", [4, 3, 8, 8], &compute.inner()), &mut Pass::Eval);
        let plain: Vec<f32> = plain.into_data().try_to_vec().unwrap();
        let apart = values(h.clone()).iter().zip(plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "with and without a graph: {apart}");
        let mut gradients = h.square().sum().backward();
        NamedGrads::collect(&model, &mut gradients).into_values()
    });
    let size = all[0].iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!(size > 1e-3);
    for other in &all[1..] {
        let apart = all[0].iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        assert!(apart < 1e-4 * size, "{apart} of {size}");
    }
}
