//! Training with bf16 activations beside f32: the same curve, gradients within rounding in every layer, no further from the truth
//! than PyTorch's, the same bytes for any number of threads.

use crate::clip::filled;
use crate::files::{hashed, json};
use crate::paths::{advance, learner, run};
use crate::resnet::images;
use crate::transformers::{Named, all, passed};
use sogclr::batch::{Batch, Crops, Share, Texts};
use sogclr::comm::Group;
use sogclr::data::Modality;
use sogclr::encoder::{
    Compute, EncoderConfig, Model, ModelConfig, Network, Pass, Pool, Precision, ResNetConfig, ResNetName, Stem,
    TextConfig, TextEncoder, Vit,
};
use sogclr::method::{BuildContext, MethodConfig, Setting};
use sogclr::optim::{Optimizer, OptimizerConfig, Sgd};
use sogclr::params::export;
use sogclr::train::{Learner, StepPlan};
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
        check_gradients(&format!("{config:?}"), &of(bf16()), &of(Compute::cpu()), far);
    }
}

/// Of a ViT with either feature, CLIP's, a text encoder and CLIP's ResNet.
#[test]
fn no_gradient_of_a_transformer_vanishes() {
    let (ours, f32) = (all(&bf16().autodiff()), all(&Compute::cpu().autodiff()));
    for ((what, ours), (_, f32)) in ours.iter().zip(&f32) {
        let is_resnet = *what == "clip-resnet";
        check_gradients(what, ours, f32, if is_resnet { 0.8 } else { 0.02 });
    }
}

/// None is smaller than half of f32's, and none further from it than `far`.
fn check_gradients(what: &str, ours: &BTreeMap<String, Vec<f32>>, f32: &BTreeMap<String, Vec<f32>>, far: f64) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), f32.keys().collect::<Vec<_>>());
    // Gradients of shifts before another batch norm, or of keys' biases, are sums that cancel: their error is that of the others.
    let size = |values: &[f32]| norm(values.iter().map(|&v| f64::from(v)));
    let typical = f32.values().map(|values| size(values)).sum::<f64>() / f32.len() as f64;
    let (mut worst, mut least) = ((0.0, String::new()), (f64::MAX, String::new()));
    for (name, want) in f32 {
        let apart = norm(ours[name].iter().zip(want).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        let error = apart / (size(want) + typical);
        if error > worst.0 {
            worst = (error, name.clone());
        }
        let (here, there) = (size(&ours[name]), size(want));
        // What is nothing but rounding in f32 has no size.
        let is_there = there > 1e-6 * typical;
        assert!(!is_there || here > 0.5 * there, "{what} {name} vanishes: {here:e} of {there:e}");
        if is_there && here / there < least.0 {
            least = (here / there, name.clone());
        }
    }
    assert!(worst.0 < far, "{what}: {worst:?}");
    println!("{what}: furthest {worst:?}, smallest beside f32's {least:?}");
}

/// Norms in float64, and how far PyTorch's autocast is from it, of `reference/bf16.py`.
fn pytorchs(network: &str) -> BTreeMap<String, [f64; 2]> {
    serde_json::from_value(json("bf16.json")[format!("{network}_apart")].clone()).unwrap()
}

fn vit_of_golden(compute: &Compute) -> Named {
    let golden = json("bf16.json");
    let number = |key: &str| golden["vit"][key].as_u64().unwrap() as usize;
    let (width, depth, heads, size) = (number("embed_dim"), number("depth"), number("num_heads"), number("img_size"));
    let net = filled(Vit::with_shape(width, depth, heads, number("patch_size"), Pool::Class, size, 3, compute), "");
    let shape = serde_json::from_value(golden["images"].clone()).unwrap();
    passed(&net, &net.forward(images("input", shape, compute), &mut Pass::Eval))
}

fn text_of_golden(compute: &Compute) -> Named {
    let golden = json("bf16.json");
    let number = |key: &str| golden["text"][key].as_u64().unwrap() as usize;
    let (context, vocabulary) = (number("context"), number("vocabulary"));
    let (width, layers, heads) = (number("text_width"), number("text_layers"), number("text_heads"));
    let config = TextConfig { width, layers, heads, context, vocabulary, output: None };
    let net = filled(TextEncoder::new(&config, number("embed_dim"), compute), "");
    let texts = golden["texts"].as_u64().unwrap() as usize;
    let id = |text: usize, k: usize| if k + 1 == context { vocabulary - 1 } else { (7 * text + 3 * k) % 48 };
    let ids: Vec<u32> = (0..texts * context).map(|at| id(at / context, at % context) as u32).collect();
    passed(&net, &net.forward(&ids, &vec![context - 1; texts], compute.device()))
}

fn resnet_of_golden(compute: &Compute) -> Named {
    let config = ResNetConfig { name: ResNetName::Resnet8, width: 1.0, stem: Stem::Cifar };
    let shape = serde_json::from_value(json("bf16.json")["images"].clone()).unwrap();
    let mut all = run(&config, shape, compute);
    let output = all.remove("features").unwrap();
    all.insert("output".into(), output);
    all
}

/// Distances from the truth in the output and, root mean square over the parameters, in relative gradients.
#[test]
fn a_network_is_no_further_from_the_truth_than_with_pytorchs_autocast() {
    type Of = fn(&Compute) -> Named;
    for (what, of) in [("vit", vit_of_golden as Of), ("text", text_of_golden), ("resnet8", resnet_of_golden)] {
        let (ours, f32, theirs) = (of(&bf16().autodiff()), of(&Compute::cpu().autodiff()), pytorchs(what));
        assert!(f32.keys().eq(theirs.keys()), "{what}");
        let typical = theirs.values().map(|[truth, _]| truth).sum::<f64>() / theirs.len() as f64;
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for (name, &[truth, apart]) in &theirs {
            let values = |all: &Named| all[name].iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let (ours, f32) = (values(&ours), values(&f32));
            // The same network: our f32 has the size of the truth.
            let size = norm(f32.iter().copied());
            assert!((size - truth).abs() <= 1e-4 * (truth + typical), "{what} {name}: {size} of {truth}");
            let own = norm(ours.iter().zip(&f32).map(|(a, b)| a - b));
            if name == "output" {
                println!("{what}: output {:.2} times as far as PyTorch's {:.4}", own / apart, apart / truth);
                assert!(own <= 1.5 * apart, "{what}: output {own} from the truth, PyTorch's {apart}");
            } else {
                here.push(own / (truth + 0.1 * typical));
                there.push(apart / (truth + 0.1 * typical));
            }
        }
        let (here, there) = (norm(here.into_iter()), norm(there.into_iter()));
        println!("{what}: gradients {:.2} times as far as PyTorch's {there:.4}", here / there);
        assert!(here <= 1.5 * there, "{what}: gradients {here} from the truth, PyTorch's {there}");
    }
}

/// Image–text pairs: CLIP's vision transformer and a text encoder under the two-way loss.
#[test]
fn pairs_train_as_in_f32() {
    let curve = |compute: Compute| -> Vec<f64> {
        let compute = compute.autodiff();
        let encoder: EncoderConfig = toml::from_str("name = 'clip-vit-xs'\nwidth = 0.33333333\nstem = 'clip'").unwrap();
        let text = TextConfig { width: 32, layers: 2, heads: 2, context: 8, vocabulary: 40, output: None };
        let model = ModelConfig { encoder, head: None, text: Some(text), image_size: 16, channels: 3 };
        let modality = Modality::Pairs;
        let setting = Setting { is_small: true, is_grey: false, modality, samples: 6, batch: 6, epochs: 1 };
        let context = BuildContext { model: &model, seed: 0, compute: compute.clone() };
        let method = MethodConfig::named("sogclr", &setting).unwrap().spec().build(&context);
        let sgd = OptimizerConfig::Sgd(Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 });
        let mut learner = Learner::new(Model::new(&model, 0, &compute), Optimizer::new(sgd), method, 6, &compute);
        let pixels = hashed("images", 6 * 3 * 256);
        let crops = Crops { count: 1, size: 16, channels: 3, layout: compute.layout(), pixels };
        let ids = (0..6 * 8).map(|k| (k * 11 % 37) as u32).collect();
        let plan = StepPlan { chunk: 6, lr: 0.2, peak_lr: 0.2, total_steps: 12 };
        let mut batch = Batch {
            step: 0,
            epoch: 0,
            ids: (0..6).collect(),
            share: Share::whole(6),
            labels: None,
            crops: vec![crops],
            tiles: None,
            texts: Some(Texts { context: 8, ids, ends: vec![7; 6] }),
        };
        let step = |index| {
            (batch.step, batch.epoch) = (index, index);
            learner.step(&batch, &plan, &Group::solo()).unwrap().objective.unwrap()
        };
        (0..12).map(step).collect()
    };
    let (ours, f32) = (curve(bf16()), curve(Compute::cpu()));
    assert_ne!(ours, f32, "the choice shows");
    assert!(f32[11] < f32[0] - 0.03, "it learns: {f32:?}");
    let apart = ours.iter().zip(&f32).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("at most {apart:.1e} apart, from {:.3} to {:.3}", f32[0], f32[11]);
    assert!(apart < 0.02, "{ours:?} {f32:?}");
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
