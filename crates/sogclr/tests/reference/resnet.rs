//! Encoders against torchvision: the same weights by formula, the same output, gradients and statistics.

use crate::files::{Golden, hashed, json};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use sogclr::comm::Group;
use sogclr::encoder::{
    BufferUpdates, Compute, Family, Head, HeadConfig, Network, Pass, ResNetConfig, ResNetName, Stem, apply_buffers,
};
use sogclr::math::Layout;
use sogclr::params::{HostTensor, NamedTensors, export, import};
use std::collections::BTreeMap;

fn config(model: &str) -> ResNetConfig {
    let (name, width, stem) = match model {
        "resnet18" => (ResNetName::Resnet18, 1.0, Stem::Imagenet),
        "resnet34" => (ResNetName::Resnet34, 1.0, Stem::Imagenet),
        "resnet50" => (ResNetName::Resnet50, 1.0, Stem::Imagenet),
        "resnet101" => (ResNetName::Resnet101, 1.0, Stem::Imagenet),
        "resnet152" => (ResNetName::Resnet152, 1.0, Stem::Imagenet),
        "resnet50_2x" => (ResNetName::Resnet50, 2.0, Stem::Imagenet),
        "resnet50_4x" => (ResNetName::Resnet50, 4.0, Stem::Imagenet),
        "cifar_resnet18" => (ResNetName::Resnet18, 1.0, Stem::Cifar),
        "cifar_resnet20" => (ResNetName::Resnet20, 1.0, Stem::Cifar),
        other => panic!("unknown golden model {other}"),
    };
    ResNetConfig { name, width, stem }
}

/// `reference/golden.py`'s weights; `open` keeps activations clear of ReLU's kink.
fn formula(name: &str, shape: &[usize], open: bool) -> Vec<f32> {
    let values = hashed(name, shape.iter().product());
    let last = name.rsplit('.').next().unwrap();
    let rule: Box<dyn Fn(f32) -> f32> = match (shape, last) {
        ([_, c, h, w], _) => {
            let scale = (6.0 / (c * h * w) as f64).sqrt();
            Box::new(move |r| (f64::from(r) * scale) as f32)
        }
        ([_, input], _) => {
            let scale = (3.0 / *input as f64).sqrt();
            Box::new(move |r| (f64::from(r) * scale) as f32)
        }
        (_, "weight") if open => Box::new(|r| 0.1 * (1.0 + 0.1 * r)),
        (_, "weight") => Box::new(|r| 1.0 + 0.1 * r),
        (_, "bias") if open => Box::new(|r| 1.0 + 0.1 * r),
        (_, "running_var") => Box::new(|r| 1.0 + 0.5 * r.abs()),
        _ => Box::new(|r| 0.1 * r),
    };
    values.into_iter().map(rule).collect()
}

pub fn with_formula<M: Module>(module: M, open: bool) -> M {
    let tensors: NamedTensors = export(&module)
        .into_iter()
        .map(|(name, HostTensor { shape, .. })| {
            let values = formula(&name, &shape, open);
            (name, HostTensor { shape, values })
        })
        .collect();
    import(module, &tensors).unwrap()
}

pub fn tensor<const D: usize>(name: &str, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(hashed(name, shape.iter().product()), shape), device)
}

/// Images `[N, C, H, W]` in the layout of `compute`.
pub fn images(name: &str, shape: [usize; 4], compute: &Compute) -> Tensor<4> {
    let x = tensor(name, shape, compute.device());
    match compute.layout() {
        Layout::ChannelsFirst => x,
        Layout::ChannelsLast => x.permute([0, 2, 3, 1]),
    }
}

/// Images `[C, size, size]`, one after the other, in `layout`.
pub fn arranged(planes: Vec<f32>, channels: usize, size: usize, layout: Layout) -> Vec<f32> {
    match layout {
        Layout::ChannelsFirst => planes,
        Layout::ChannelsLast => {
            let pixels = |image: &[f32]| -> Vec<f32> {
                (0..image.len()).map(|k| image[k % channels * size * size + k / channels]).collect()
            };
            planes.chunks(channels * size * size).flat_map(pixels).collect()
        }
    }
}

fn shape_of(info: &serde_json::Value) -> [usize; 4] {
    serde_json::from_value(info.clone()).unwrap()
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.inner().into_data().try_to_vec().unwrap()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// How the CPU may compute a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    Winograd,
    Direct,
    PlainBurn,
}

impl Path {
    pub const ALL: [Self; 3] = [Self::Direct, Self::PlainBurn, Self::Winograd];

    pub fn compute(self) -> Compute {
        match self {
            Self::Winograd => Compute::cpu(),
            Self::Direct => Compute::cpu_exact(),
            Self::PlainBurn => Compute::plain(Device::flex()),
        }
    }
}

#[test]
fn features_equal_torchvision() {
    Path::ALL.into_iter().for_each(features_equal_torchvision_on);
}

fn features_equal_torchvision_on(path: Path) {
    let compute = path.compute();
    let (golden, info) = (Golden::open("resnet.safetensors"), json("resnet.json"));
    let models = [
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "resnet50_2x",
        "cifar_resnet18",
        "cifar_resnet20",
    ];
    for model in models {
        let shape = shape_of(&info[model]["eval_input"]);
        let net = with_formula(config(model).build(shape[2], 3, &compute), false);
        let x = images("input", shape, &compute);
        let ours = values(net.forward(x, &mut Pass::Eval));
        let want = golden.get(&format!("{model}.eval.features"));
        let largest = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
        for (ours, want) in ours.iter().zip(&want) {
            assert!((f64::from(*ours) - want).abs() <= 1e-4 * largest.max(1.0), "{path:?} {model}: {ours} vs {want}");
        }
    }
}

#[test]
fn parameter_counts_equal_torchvision() {
    for (model, info) in json("resnet.json").as_object().unwrap() {
        let Some(want) = info["parameters"].as_u64() else { continue };
        let net = config(model).build(32, 3, &Compute::cpu());
        let ours: usize = export(&net)
            .iter()
            .filter(|(name, _)| !name.contains("running_"))
            .map(|(_, tensor)| tensor.values.len())
            .sum();
        assert_eq!(ours as u64, want, "{model}");
    }
    // The paper: 94 M and 375 M for ResNet-50 2× and 4×.
    let info = json("resnet.json");
    assert_eq!(info["resnet50_2x"]["parameters"].as_u64().unwrap() / 1_000_000, 93);
    assert_eq!(info["resnet50_4x"]["parameters"].as_u64().unwrap() / 1_000_000, 375);
}

/// All gradients by name, on the host.
pub fn gradients<M: Module>(module: &M, grads: &Gradients) -> BTreeMap<String, Vec<f32>> {
    struct Collect<'a> {
        path: Vec<String>,
        grads: &'a Gradients,
        found: BTreeMap<String, Vec<f32>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = param.val().grad(self.grads) {
                self.found.insert(self.path.join("."), values(grad));
            }
        }
    }
    let mut visitor = Collect { path: Vec::new(), grads, found: BTreeMap::new() };
    module.visit(&mut visitor);
    visitor.found
}

/// Σg, Σg·hashed("probe." + name), ‖g‖ as `reference/resnet.py` stores them.
fn assert_projection(label: &str, ours: &[f32], want: ndarray::ArrayView1<f64>, tolerance: f64) {
    let probe = hashed(&format!("probe.{}", label.rsplit(' ').next().unwrap()), ours.len());
    let sum: f64 = ours.iter().map(|&g| f64::from(g)).sum();
    let dot: f64 = ours.iter().zip(&probe).map(|(&g, &r)| f64::from(g) * f64::from(r)).sum();
    let length = norm(ours.iter().map(|&g| f64::from(g)));
    let scale = want[2].max(1.0) * (ours.len() as f64).sqrt();
    for (what, ours, want) in [("sum", sum, want[0]), ("probe", dot, want[1]), ("norm", length, want[2])] {
        assert!((ours - want).abs() <= tolerance * scale, "{label} {what}: {ours} vs {want}");
    }
}

#[test]
fn training_pass_equals_pytorch_in_output_gradients_and_statistics() {
    Path::ALL.into_iter().for_each(training_pass_equals_pytorch_on);
}

fn training_pass_equals_pytorch_on(path: Path) {
    let (golden, info) = (Golden::open("resnet.safetensors"), json("resnet.json"));
    let compute = path.compute().autodiff();
    for model in ["resnet18", "resnet50", "cifar_resnet18", "cifar_resnet20"] {
        // Where activations sit at ReLU's kink, rounding moves gradients; `train_open` is the strict one.
        let kinked = if path == Path::Winograd { 2e-2 } else { 5e-3 };
        for (mode, tolerance, output_tolerance) in [("train", kinked, 1e-3), ("train_open", 2e-4, 1e-5)] {
            let shape = shape_of(&info[model]["train_input"]);
            let net = with_formula(config(model).build(shape[2], 3, &compute), mode == "train_open");
            let x = images("input", shape, &compute);
            let mut updates = BufferUpdates::default();
            let features = net.forward(x, &mut Pass::Train(&mut updates, &Group::solo()));
            let want = golden.get(&format!("{model}.{mode}.features"));
            let largest = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
            for (ours, want) in values(features.clone()).iter().zip(&want) {
                let error = (f64::from(*ours) - want).abs();
                assert!(error <= output_tolerance * largest, "{path:?} {model} {mode}: {ours} vs {want}");
            }
            let probe = tensor("probe", features.dims(), compute.device());
            let grads = gradients(&net, &(features * probe).sum().backward());
            let names = info[model]["grads"].as_array().unwrap();
            assert_eq!(grads.len(), names.len(), "{model}: every parameter has a gradient");
            let want = golden.get(&format!("{model}.{mode}.grads"));
            let want = want.into_dimensionality::<ndarray::Ix2>().unwrap();
            for (name, want) in names.iter().zip(want.outer_iter()) {
                let name = name.as_str().unwrap();
                assert_projection(&format!("{path:?} {model} {mode} {name}"), &grads[name], want, tolerance);
            }
            let after = export(&apply_buffers(net, &mut updates));
            let want = golden.get(&format!("{model}.{mode}.statistics"));
            let want = want.into_dimensionality::<ndarray::Ix2>().unwrap();
            for (name, want) in info[model]["statistics"].as_array().unwrap().iter().zip(want.outer_iter()) {
                let name = name.as_str().unwrap();
                assert_projection(&format!("{path:?} {model} {mode} {name}"), &after[name].values, want, 1e-4);
            }
        }
    }
}

#[test]
fn head_equals_pytorch() {
    Path::ALL.into_iter().for_each(head_equals_pytorch_on);
}

fn head_equals_pytorch_on(path: Path) {
    let golden = Golden::open("resnet.safetensors");
    let compute = path.compute().autodiff();
    let device = compute.device();
    let config = HeadConfig { layers: 2, hidden: 16, output: 4, norm: true, norm_output: true };
    let head = with_formula(Head::new(&config, 8, &compute), false);
    let mut updates = BufferUpdates::default();
    let out = head.forward(tensor("head_input", [6, 8], device), &mut Pass::Train(&mut updates, &Group::solo()));
    let close = |label: &str, ours: &[f32], want: ndarray::ArrayD<f64>| {
        for (ours, want) in ours.iter().zip(&want) {
            assert!((f64::from(*ours) - want).abs() < 1e-4, "{label}: {ours} vs {want}");
        }
    };
    close("output", &values(out.clone()), golden.get("head.output"));
    let probe = tensor("probe", [6, 4], device);
    let grads = gradients(&head, &(out * probe).sum().backward());
    assert_eq!(grads.len(), 5);
    for (name, grad) in &grads {
        close(name, grad, golden.get(&format!("head.grad.{name}")));
    }
    let after = export(&apply_buffers(head, &mut updates));
    for name in ["layers.0.bn.running_mean", "layers.0.bn.running_var", "layers.1.bn.running_var"] {
        close(name, &after[name].values, golden.get(&format!("head.statistics.{name}")));
    }
}

#[test]
fn weights_of_another_model_are_refused() {
    let build = |model: &str| config(model).build(32, 3, &Compute::cpu());
    let small = build("cifar_resnet20");
    let mut tensors = export(&build("cifar_resnet18"));
    let error = import(small.clone(), &tensors).unwrap_err().to_string();
    assert!(error.contains("another model"), "{error}");
    tensors = export(&small);
    tensors.insert("fc.weight".into(), HostTensor { shape: vec![1], values: vec![0.0] });
    assert!(import(small, &tensors).unwrap_err().to_string().contains("fc.weight"));
}
