//! CLIP's encoders against open_clip with the same weights: outputs, gradients, parameter counts.

use crate::files::{Golden, hashed, json};
use crate::resnet::{gradients, on_each_path, tensor, values};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use sogclr::encoder::{
    BufferUpdates, ClipResNet, ClipResNetConfig, HostTensor, NamedTensors, Pass, TextConfig, TextEncoder, export,
    import,
};

/// `reference/clip.py`'s `fill`; `prefix` is where the module stands in open_clip's model.
fn filled<M: Module>(module: M, prefix: &str) -> M {
    let value = |(name, HostTensor { shape, values }): (String, HostTensor)| {
        let full = format!("{prefix}{name}");
        let r = hashed(&full, values.len());
        let fan_in = shape.iter().skip(1).product::<usize>() as f32;
        let new = |r: f32| {
            if shape.len() > 1 {
                r * (3.0 / fan_in).sqrt()
            } else if name.ends_with("running_var") {
                1.0 + 0.5 * r.abs()
            } else if name.ends_with("weight") {
                1.0 + 0.1 * r
            } else {
                0.1 * r
            }
        };
        (name.clone(), HostTensor { shape: shape.clone(), values: r.into_iter().map(new).collect() })
    };
    let tensors: NamedTensors = export(&module).into_iter().map(value).collect();
    import(module, &tensors).unwrap()
}

fn small() -> (ClipResNetConfig, TextConfig) {
    let c = json("clip.json")["small"].clone();
    let number = |key: &str| c[key].as_u64().unwrap() as usize;
    let width = number("width");
    let vision = ClipResNetConfig {
        layers: serde_json::from_value(c["layers"].clone()).unwrap(),
        width,
        heads: 32 * width / 64,
        image_size: number("image_size"),
        output: number("embed_dim"),
    };
    let text = TextConfig {
        width: number("text_width"),
        layers: number("text_layers"),
        heads: number("text_heads"),
        context: number("context"),
        vocabulary: number("vocabulary"),
        output: number("embed_dim"),
    };
    (vision, text)
}

fn assert_values(what: &str, ours: &[f32], want: impl Iterator<Item = f64>, tolerance: f64) {
    let want: Vec<f64> = want.collect();
    assert_eq!(ours.len(), want.len(), "{what}");
    let size = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (ours, want) in ours.iter().zip(&want) {
        assert!((f64::from(*ours) - want).abs() < tolerance * size, "{what}: {ours} vs {want}");
    }
}

/// Gradients as projections: [g·probe, ‖g‖] by name.
fn assert_gradients(golden: &Golden, prefix: &str, ours: &std::collections::BTreeMap<String, Vec<f32>>) {
    let names: Vec<String> = serde_json::from_value(json("clip.json")["grads"].clone()).unwrap();
    let rows = golden.get("grads");
    let mut seen = 0;
    for (name, grad) in ours {
        let full = format!("{prefix}{name}");
        let row =
            names.iter().position(|other| *other == full).unwrap_or_else(|| panic!("no golden gradient of {full}"));
        let probe = hashed(&format!("probe.{full}"), grad.len());
        let dot: f64 = grad.iter().zip(&probe).map(|(g, p)| f64::from(*g) * f64::from(*p)).sum();
        let norm = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let (want_dot, want_norm) = (rows[[row, 0]], rows[[row, 1]]);
        let scale = want_norm.max(1e-3);
        assert!((norm - want_norm).abs() < 2e-3 * scale, "{full}: norm {norm} vs {want_norm}");
        assert!((dot - want_dot).abs() < 3e-3 * scale, "{full}: projection {dot} vs {want_dot}");
        seen += 1;
    }
    let expected = names.iter().filter(|name| name.starts_with("visual.") == (prefix == "visual.")).count();
    assert_eq!(seen, expected, "every gradient is compared");
}

#[test]
fn the_image_encoder_equals_open_clips() {
    let golden = Golden::open("clip.safetensors");
    let (config, _) = small();
    on_each_path(|path| {
        let device = Device::flex().autodiff();
        let net = filled(ClipResNet::new(&config, &device), "visual.");
        let size = config.image_size;
        let images = || tensor("images", [3, 3, size, size], &device);
        let eval = values(net.forward(images(), &mut Pass::Eval));
        assert_values(&format!("{path:?} eval"), &eval, golden.get("image.eval").iter().copied(), 1e-4);
        let out = net.forward(images(), &mut Pass::Train(&mut BufferUpdates::default()));
        assert_values(
            &format!("{path:?} train"),
            &values(out.clone()),
            golden.get("image.train").iter().copied(),
            5e-4,
        );
        let probe = tensor("probe.image", out.dims(), &device);
        assert_gradients(&golden, "visual.", &gradients(&net, &(out * probe).sum().backward()));
    });
}

#[test]
fn the_text_encoder_equals_open_clips() {
    let golden = Golden::open("clip.safetensors");
    let (_, config) = small();
    let ids: Vec<u32> = golden.get("ids").iter().map(|&id| id as u32).collect();
    let ends: Vec<usize> = serde_json::from_value(json("clip.json")["ends"].clone()).unwrap();
    let device = Device::flex().autodiff();
    let net = filled(TextEncoder::new(&config, &device), "");
    let out: Tensor<2> = net.forward(&ids, &ends, &device);
    assert_values("text", &values(out.clone()), golden.get("text.eval").iter().copied(), 1e-4);
    let probe = tensor("probe.text", out.dims(), &device);
    let grads = gradients(&net, &(out * probe).sum().backward());
    assert_gradients(&golden, "", &grads);
    // Off the graph the same values.
    let plain = net.forward(&ids, &ends, &Device::flex());
    assert!(!plain.is_autodiff());
    assert_values("text off the graph", &values(plain), golden.get("text.eval").iter().copied(), 1e-4);
}

#[test]
fn clip_s_has_the_papers_parameter_count() {
    let counts = json("clip.json")["clip_s"].clone();
    let trained = |tensors: NamedTensors| -> u64 {
        let is_trained = |name: &str| !name.contains("running_");
        tensors.iter().filter(|(name, _)| is_trained(name)).map(|(_, tensor)| tensor.values.len() as u64).sum()
    };
    let vision = trained(export(&ClipResNet::new(&ClipResNetConfig::clip_s(), &Device::flex())));
    let text = trained(export(&TextEncoder::new(&TextConfig::clip_s(), &Device::flex())));
    assert_eq!((Some(vision), Some(text)), (counts["vision"].as_u64(), counts["text"].as_u64()));
    assert_eq!(vision + text + 1, 17_606_193, "with the logit scale");
}
