//! CLIP's encoders against open_clip with the same weights: outputs, gradients, parameter counts.

use crate::files::{Golden, hashed, json};
use crate::resnet::{Path, gradients, images, tensor, values};
use burn::module::Module;
use burn::tensor::Tensor;
use sogclr::comm::Group;
use sogclr::encoder::{
    BufferUpdates, ClipResNet, ClipVit, Compute, EncoderConfig, Model, ModelConfig, Network, Pass, TextConfig,
    TextEncoder, from_open_clip, to_open_clip,
};
use sogclr::params::{HostTensor, NamedTensors, export, import};

/// `embed_dim` of `reference/clip.py`'s small model.
const OUTPUT: usize = 24;

/// `reference/clip.py`'s `fill`; `prefix` is where the module stands in open_clip's model.
pub fn filled<M: Module>(module: M, prefix: &str) -> M {
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

fn small_text() -> TextConfig {
    let c = json("clip.json")["small"].clone();
    let number = |key: &str| c[key].as_u64().unwrap() as usize;
    TextConfig {
        width: number("text_width"),
        layers: number("text_layers"),
        heads: number("text_heads"),
        context: number("context"),
        vocabulary: number("vocabulary"),
        output: None,
    }
}

fn assert_values(what: &str, ours: &[f32], want: impl Iterator<Item = f64>, tolerance: f64) {
    let want: Vec<f64> = want.collect();
    assert_eq!(ours.len(), want.len(), "{what}");
    let size = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (ours, want) in ours.iter().zip(&want) {
        assert!((f64::from(*ours) - want).abs() < tolerance * size, "{what}: {ours} vs {want}");
    }
}

/// Gradients as projections: [g·probe, ‖g‖] by name; `list` is where their names stand in `clip.json`.
fn assert_gradients(list: &str, prefix: &str, ours: &std::collections::BTreeMap<String, Vec<f32>>) {
    let names: Vec<String> = serde_json::from_value(json("clip.json")[list].clone()).unwrap();
    let rows = Golden::open("clip.safetensors").get(&list.replace('_', "."));
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
    let c = json("clip.json")["small"].clone();
    let number = |key: &str| c[key].as_u64().unwrap() as usize;
    let (width, size, output) = (number("width"), number("image_size"), number("embed_dim"));
    let layers = serde_json::from_value(c["layers"].clone()).unwrap();
    for path in Path::ALL {
        let compute = path.compute().autodiff();
        let net = ClipResNet::with_shape(layers, width, 32 * width / 64, output, (size, 3), &compute);
        let net = filled(net, "visual.");
        let images = || images("images", [3, 3, size, size], &compute);
        let eval = values(net.forward(images(), &mut Pass::Eval));
        assert_values(&format!("{path:?} eval"), &eval, golden.get("image.eval").iter().copied(), 1e-4);
        let out = net.forward(images(), &mut Pass::Train(&mut BufferUpdates::default(), &Group::solo()));
        assert_values(
            &format!("{path:?} train"),
            &values(out.clone()),
            golden.get("image.train").iter().copied(),
            5e-4,
        );
        let probe = tensor("probe.image", out.dims(), compute.device());
        assert_gradients("grads", "visual.", &gradients(&net, &(out * probe).sum().backward()));
    }
}

#[test]
fn the_text_encoder_equals_open_clips() {
    let golden = Golden::open("clip.safetensors");
    let ids: Vec<u32> = golden.get("ids").iter().map(|&id| id as u32).collect();
    let ends: Vec<usize> = serde_json::from_value(json("clip.json")["ends"].clone()).unwrap();
    for path in Path::ALL {
        let compute = path.compute().autodiff();
        let net = filled(TextEncoder::new(&small_text(), OUTPUT, &compute), "");
        let out: Tensor<2> = net.forward(&ids, &ends, compute.device());
        assert_values("text", &values(out.clone()), golden.get("text.eval").iter().copied(), 1e-4);
        let probe = tensor("probe.text", out.dims(), compute.device());
        let grads = gradients(&net, &(out * probe).sum().backward());
        assert_gradients("grads", "", &grads);
        // Off the graph the same values.
        let plain = net.forward(&ids, &ends, compute.inner().device());
        assert!(!plain.is_autodiff());
        assert_values("text off the graph", &values(plain), golden.get("text.eval").iter().copied(), 1e-4);
    }
}

#[test]
fn clip_s_has_the_papers_parameter_count() {
    let counts = json("clip.json")["clip_s"].clone();
    let trained = |tensors: NamedTensors| -> u64 {
        let is_trained = |name: &str| !name.contains("running_");
        tensors.iter().filter(|(name, _)| is_trained(name)).map(|(_, tensor)| tensor.values.len() as u64).sum()
    };
    let model = export(&pair_model("clip-s", 224));
    let part = |prefix: &str| model.clone().into_iter().filter(|(name, _)| name.starts_with(prefix)).collect();
    let (vision, text) = (trained(part("encoder.")), trained(part("text.")));
    assert_eq!((Some(vision), Some(text)), (counts["vision"].as_u64(), counts["text"].as_u64()));
    assert_eq!(trained(to_open_clip(&model, 0.0)), 17_606_193, "with the logit scale");
}

#[test]
fn the_vision_transformer_equals_open_clips() {
    let golden = Golden::open("clip.safetensors");
    let c = json("clip.json")["vit"].clone();
    let number = |key: &str| c[key].as_u64().unwrap() as usize;
    let (width, image_size) = (number("width"), number("image_size"));
    let shape = (width, number("layers"), width / number("head_width"));
    for path in Path::ALL {
        let compute = path.compute().autodiff();
        let (patch, output) = (number("patch_size"), number("embed_dim"));
        let net = filled(ClipVit::with_shape(shape, patch, output, (image_size, 3), &compute), "visual.");
        let out = net.forward(images("images.vit", [3, 3, image_size, image_size], &compute), &mut Pass::Eval);
        assert_values(&format!("{path:?}"), &values(out.clone()), golden.get("vit.eval").iter().copied(), 1e-4);
        let probe = tensor("probe.vit", out.dims(), compute.device());
        assert_gradients("vit_grads", "visual.", &gradients(&net, &(out * probe).sum().backward()));
    }
}

#[test]
fn places_after_the_end_change_nothing() {
    let compute = Compute::cpu();
    let net = filled(TextEncoder::new(&small_text(), OUTPUT, &compute), "");
    let embed = |length: usize, filler: u32| {
        let mut ids = vec![filler; 2 * length];
        ids[..4].copy_from_slice(&[3, 9, 27, 49]);
        ids[length..length + 3].copy_from_slice(&[5, 8, 49]);
        values(net.forward(&ids, &[3, 2], compute.device()))
    };
    let short = embed(4, 0);
    for (a, b) in short.iter().zip(embed(12, 40)) {
        assert!((a - b).abs() < 1e-5, "{a} vs {b}");
    }
}

fn pair_model(name: &str, image_size: usize) -> Model {
    let encoder = EncoderConfig::named(name, image_size).unwrap();
    let config = ModelConfig { text: Some(encoder.spec().text()), head: None, image_size, channels: 3, encoder };
    Model::new(&config, 0, &Compute::cpu())
}

#[test]
fn weights_come_back_from_open_clips_names() {
    for name in ["clip-xs", "clip-vit-xs"] {
        let model = export(&pair_model(name, 64));
        let mut theirs = to_open_clip(&model, 2.5);
        assert_eq!((&theirs["logit_scale"].shape[..], theirs["logit_scale"].values[0]), (&[][..], 2.5));
        assert!(theirs.contains_key("visual.conv1.weight") && theirs.contains_key("token_embedding.weight"));
        theirs.insert("attn_mask".into(), HostTensor { shape: vec![1], values: vec![0.0] });
        assert_eq!(from_open_clip(&theirs), model);
    }
}

/// The spread of CLIP's initial weights, by name.
#[test]
fn weights_start_as_clips_do() {
    let mut model = export(&pair_model("clip-vit-xs", 64));
    model.append(&mut export(&pair_model("clip-xs", 64)));
    let deviation = |name: &str| {
        let values = &model[name].values;
        (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    // Width 128 and 4 layers of text, width 192 and 4 layers of image, CLIP's ResNet of width 24.
    for (name, want) in [
        ("text.token_embedding.weight", 0.02),
        ("text.positional_embedding", 0.01),
        ("text.text_projection", 128_f64.powf(-0.5)),
        ("text.transformer.resblocks.0.attn.in_proj_weight", 128_f64.powf(-0.5)),
        ("text.transformer.resblocks.3.attn.out_proj.weight", (128.0 * 8.0_f64).powf(-0.5)),
        ("text.transformer.resblocks.1.mlp.c_fc.weight", 256_f64.powf(-0.5)),
        ("text.transformer.resblocks.2.mlp.c_proj.weight", (128.0 * 8.0_f64).powf(-0.5)),
        ("encoder.positional_embedding", 192_f64.powf(-0.5)),
        ("encoder.class_embedding", 192_f64.powf(-0.5)),
        ("encoder.proj", 192_f64.powf(-0.5)),
        ("encoder.attnpool.positional_embedding", 768_f64.powf(-0.5)),
        ("encoder.attnpool.c_proj.weight", 768_f64.powf(-0.5)),
        ("encoder.layer1.0.conv2.weight", (3.0 * 24.0 * 9.0_f64).powf(-0.5)),
        ("encoder.layer1.0.bn3.weight", 0.0),
        ("encoder.layer1.0.bn2.weight", 1.0),
    ] {
        let found = deviation(name);
        assert!((found - want).abs() <= 0.15 * want, "{name}: {found} vs {want}");
    }
}
