//! Training with bf16 activations beside f32: the same curve, gradients within rounding in every layer, the same bytes for
//! any number of threads.

use crate::paths::{advance, learner, run};
use sogclr::encoder::{Compute, Precision, ResNetConfig, ResNetName, Stem};
use sogclr::params::export;
use std::collections::BTreeMap;

fn bf16() -> Compute {
    Compute::cpu().with_precision(Precision::Bf16)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn the_training_curve_is_that_of_f32() {
    let curve = |compute: &Compute| -> Vec<f64> {
        let mut learner = learner(compute);
        (0..30).map(|index| advance(&mut learner, compute.layout(), index)).collect()
    };
    let (ours, f32) = (curve(&bf16()), curve(&Compute::cpu()));
    assert_ne!(ours, f32, "the choice shows");
    assert!(f32[29] < f32[0] - 0.1, "it learns: {f32:?}");
    let apart = ours.iter().zip(&f32).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("at most {apart:.1e} apart");
    assert!(apart < 0.02, "{ours:?} {f32:?}");
}

/// Features and gradients of basic and bottleneck blocks, with either stem: the gradient of every layer, however small, is
/// there, and as far from f32's as rounding of 8 bits in each layer lets it be.
#[test]
fn no_layers_gradient_vanishes() {
    // How far: deep networks leave few pixels of such images, and batch norm amplifies rounding there.
    for (name, stem, far) in [
        (ResNetName::Resnet8, Stem::Cifar, 0.05),
        (ResNetName::Resnet18, Stem::Imagenet, 0.5),
        (ResNetName::Resnet50, Stem::Imagenet, 0.8),
    ] {
        let config = ResNetConfig { name, width: 0.25, stem };
        let shape = [6, 3, 64, 64];
        let of = |compute: Compute| run(&config, shape, &compute.autodiff());
        let (ours, f32): (BTreeMap<_, _>, BTreeMap<_, _>) = (of(bf16()), of(Compute::cpu()));
        assert_eq!(ours.keys().collect::<Vec<_>>(), f32.keys().collect::<Vec<_>>());
        // Gradients of shifts before another batch norm are sums that cancel: their error is that of the others.
        let size = |values: &[f32]| norm(values.iter().map(|&v| f64::from(v)));
        let typical = f32.values().map(|values| size(values)).sum::<f64>() / f32.len() as f64;
        let mut worst = (0.0, String::new());
        for (name, want) in &f32 {
            let apart = norm(ours[name].iter().zip(want).map(|(&a, &b)| f64::from(a) - f64::from(b)));
            let error = apart / (size(want) + typical);
            if error > worst.0 {
                worst = (error, name.clone());
            }
            let (here, there) = (size(&ours[name]), size(want));
            assert!(here > 0.5 * there, "{config:?} {name} vanishes: {here:e} of {there:e}");
        }
        assert!(worst.0 < far, "{config:?}: {worst:?}");
        println!("{config:?}: furthest {worst:?}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let trained = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut learner = learner(&bf16());
            for index in 0..3 {
                advance(&mut learner, bf16().layout(), index);
            }
            let weights = export(learner.model()).into_iter();
            weights.map(|(name, tensor)| (name, tensor.values.iter().map(|v| v.to_bits()).collect())).collect()
        })
    };
    let one: Vec<(String, Vec<u32>)> = trained(1);
    for threads in [2, 3, 5] {
        assert!(trained(threads) == one, "{threads} threads");
    }
}
