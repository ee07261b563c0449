//! Vision transformers against timm with the same weights: outputs and all gradients of tiny ones, names and shapes of the
//! named ones.

use crate::files::{Golden, hashed, json};
use crate::resnet::{gradients, images, tensor, values};
use burn::tensor::Device;
use serde_json::Value;
use sogclr::encoder::{Compute, EncoderConfig, Network, Pass, Pool, Vit};
use sogclr::params::{HostTensor, NamedTensors, export, import};
use std::collections::BTreeMap;

type Shapes = BTreeMap<String, Vec<usize>>;

fn shapes(tensors: NamedTensors) -> Shapes {
    tensors.into_iter().map(|(name, tensor)| (name, tensor.shape)).collect()
}

fn stored(value: &Value) -> Shapes {
    serde_json::from_value(value.clone()).unwrap()
}

/// `reference/vit.py`'s `fill`.
fn filled(net: Vit) -> Vit {
    let value = |(name, HostTensor { shape, values }): (String, HostTensor)| {
        let is_scale = name.contains("norm") && name.ends_with("weight");
        let new = |r: f32| if is_scale { 1.0 + 0.2 * r } else { 0.3 * r };
        let values = hashed(&name, values.len()).into_iter().map(new).collect();
        (name, HostTensor { shape, values })
    };
    let tensors = export(&net).into_iter().map(value).collect();
    import(net, &tensors).unwrap()
}

/// All values within 5e-6 of the tensor's largest: ε = 1e-5 in the norms, or GELU by tanh, would be off by more than 1e-5.
fn assert_close(what: &str, ours: &[f32], want: &[f64]) {
    assert_eq!(ours.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (ours, want) in ours.iter().zip(want) {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= 5e-6 * largest, "{what}: {ours} vs {want}, error {error} of {largest}");
    }
}

#[test]
fn outputs_and_gradients_equal_timms() {
    let (golden, info) = (Golden::open("vit.safetensors"), json("vit.json"));
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let tiny = |key: &str| number(&info["tiny"][key]);
    let (width, size) = (tiny("embed_dim"), tiny("img_size"));
    for (label, config) in info["configs"].as_object().unwrap() {
        let channels = number(&config["in_chans"]);
        let pool = match config["global_pool"].as_str().unwrap() {
            "token" => Pool::Class,
            "avg" => Pool::Mean,
            other => panic!("unknown pool {other}"),
        };
        for compute in [Compute::cpu(), Compute::plain(Device::flex())].map(|compute| compute.autodiff()) {
            let (depth, heads, patch) = (tiny("depth"), tiny("num_heads"), tiny("patch_size"));
            let net = Vit::with_shape(width, depth, heads, patch, pool, size, channels, &compute);
            assert_eq!(shapes(export(&net)), stored(&config["shapes"]), "{label}");
            let net = filled(net);
            let x = images("input", [number(&info["batch"]), channels, size, size], &compute);
            let out = net.forward(x, &mut Pass::Eval);
            let want = |field: &str| golden.get(&format!("{label}.{field}")).into_raw_vec_and_offset().0;
            let label = format!("{label}, {:?}", compute.layout());
            assert_close(&format!("{label}: output"), &values(out.clone()), &want("output"));
            let probe = tensor("probe", out.dims(), compute.device());
            let grads = gradients(&net, &(out * probe).sum().backward());
            assert_eq!(grads.len(), config["shapes"].as_object().unwrap().len(), "{label}: all have a gradient");
            for (name, ours) in &grads {
                let want = want(&format!("grad.{name}"));
                assert_close(&format!("{label}: {name}"), ours, &want);
                if name.ends_with("qkv.bias") {
                    // A softmax does not see what all its keys share.
                    let keys = width..2 * width;
                    assert!(want[keys.clone()].iter().all(|g| g.abs() < 1e-9), "{label}: {name}");
                    assert!(ours[keys].iter().all(|g| g.abs() < 5e-6), "{label}: {name}");
                }
            }
        }
    }
}

#[test]
fn names_shapes_and_counts_equal_timms() {
    let info = json("vit.json");
    for size in ["tiny", "small", "base"] {
        let want = &info["named"][format!("vit_{size}_patch16_224")];
        let block = stored(&want["block"]);
        let blocks = (0..want["blocks"].as_u64().unwrap()).flat_map(|index| {
            let renamed = |(name, shape): (&String, &Vec<usize>)| {
                (name.replacen("blocks.0.", &format!("blocks.{index}."), 1), shape.clone())
            };
            block.iter().map(renamed).collect::<Vec<_>>()
        });
        let all: Shapes = stored(&want["top"]).into_iter().chain(blocks).collect();
        let config = EncoderConfig::named(&format!("vit-{size}"), 224).unwrap();
        let ours = shapes(export(&config.build(224, 3, &Compute::cpu())));
        assert_eq!(ours, all, "{size}");
        assert_eq!(vec![config.feature_dim()], ours["norm.weight"], "{size}");
        let count: usize = ours.values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(Some(count as u64), want["parameters"].as_u64(), "{size}");
    }
}
