//! `sogclr loss` against PyTorch's golden data, and its error messages.

use crate::{failure, sogclr};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::path::{Path, PathBuf};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn write(path: &Path, tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(n, t, s, b)| (*n, TensorView::new(*t, s.clone(), b).unwrap()));
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

fn read(path: &Path, name: &str) -> Vec<f32> {
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Step `t` of a golden tensor `[T, …]` as raw bytes.
fn golden(name: &str, t: usize) -> Vec<u8> {
    golden_of("losses.safetensors", name, t)
}

fn golden_of(file: &str, name: &str, t: usize) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crates/sogclr/tests/golden").join(file);
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let view = tensors.tensor(name).unwrap();
    let step = view.data().len() / view.shape()[0];
    view.data()[t * step..(t + 1) * step].to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn loss_gradients_and_state_equal_pytorch() {
    let root = tempfile::tempdir().unwrap();
    let (input, out) = (root.path().join("in.safetensors"), root.path().join("out.safetensors"));
    let info =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/sogclr/tests/golden/losses.json")).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    let key = |key: &str, name: &str| format!("{key}={}", info[name].as_f64().unwrap());
    let (alpha, sigma, prior) = (key("alpha", "alpha"), key("sigma", "sigma"), key("prior", "prior"));
    let individual: Vec<String> =
        info["individual"].as_object().unwrap().iter().map(|(key, value)| format!("{key}={value}")).collect();
    let individual = format!("individual={{{}}}", individual.join(", "));
    // Configuration 0 is τ 0.1, γ 0.9; step 5 starts from the state after step 4. The golden data has no averaged
    // gradients of temperatures: their method starts from nothing.
    for (kind, t, arguments) in [
        ("default", 5, &["--gamma", "0.9"][..]),
        ("algorithm1", 5, &["--gamma", "0.9", "--set", "variant=algorithm1"]),
        ("released", 5, &["--gamma", "0.9", "--set", "variant=released"]),
        ("tf", 5, &["--gamma", "0.9", "--set", "variant=tf"]),
        ("sogclr_labels", 5, &["--gamma", "0.9", "--set", "by_label=true"]),
        ("isogclr", 0, &["--method", "isogclr", "--gamma", "0.9", "--set", &individual]),
        ("simclr", 5, &["--method", "simclr"]),
        ("simo", 5, &["--method", "simo", "--set", "momentum=0", "--set", &alpha]),
        ("dcl", 5, &["--method", "dcl"]),
        ("dclw", 5, &["--method", "dcl", "--set", &sigma]),
        ("flatnce", 5, &["--method", "flatnce"]),
        ("debiased", 5, &["--method", "debiased", "--set", &prior]),
        ("supcon", 5, &["--method", "supcon"]),
    ] {
        let is_sogclr = ["default", "algorithm1", "released", "tf", "sogclr_labels", "isogclr"].contains(&kind);
        let label = |id: &[u8]| info["labels"][i64::from_le_bytes(id.try_into().unwrap()) as usize].as_i64().unwrap();
        let mut tensors = vec![
            ("z_a", Dtype::F32, vec![4, 6], golden("z_a", t)),
            ("z_b", Dtype::F32, vec![4, 6], golden("z_b", t)),
            ("ids", Dtype::I64, vec![4], golden("ids", t)),
            (
                "labels",
                Dtype::I64,
                vec![4],
                golden("ids", t).chunks(8).flat_map(|id| label(id).to_le_bytes()).collect(),
            ),
        ];
        let seen = if is_sogclr && t > 0 { golden(&format!("{kind}.c0.log_u"), t - 1) } else { bytes(&[f32::NAN; 10]) };
        tensors.push(("log_u", Dtype::F32, vec![10], seen));
        write(&input, &tensors);
        sogclr()
            .arg("loss")
            .arg(&input)
            .args(["--temperature", "0.1"])
            .args(arguments)
            .arg("--out")
            .arg(&out)
            .assert()
            .success();
        let want = f64::from_le_bytes(golden(&format!("{kind}.c0.loss"), t).try_into().unwrap());
        assert!((f64::from(read(&out, "loss")[0]) - want).abs() < 1e-5 * want.abs().max(1.0), "{kind}");
        let mut fields = vec!["grad_a", "grad_b"];
        if is_sogclr {
            fields.push("log_u");
        }
        for field in fields {
            let want = floats(&golden(&format!("{kind}.c0.{field}"), t));
            for (ours, want) in read(&out, field).iter().zip(want) {
                let equal = (ours - want).abs() < 2e-4 * want.abs().max(1.0) || (ours.is_nan() && want.is_nan());
                assert!(equal, "{kind} {field}: {ours} vs {want}");
            }
        }
    }
}

#[test]
fn losses_with_keys_equal_pytorch() {
    let root = tempfile::tempdir().unwrap();
    let (input, out) = (root.path().join("in.safetensors"), root.path().join("out.safetensors"));
    // Step 0 meets the queue as it was drawn.
    let batch = |name: &'static str, golden_name: &str| (name, Dtype::F32, vec![4, 6], golden(golden_name, 0));
    let queue = {
        let file =
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/sogclr/tests/golden/losses.safetensors"))
                .unwrap();
        SafeTensors::deserialize(&file).unwrap().tensor("keyed.queue").unwrap().data().to_vec()
    };
    let everything = [
        batch("z_a", "z_a"),
        batch("z_b", "z_b"),
        batch("k_b", "keyed.k_b"),
        batch("p_a", "keyed.p_a"),
        batch("p_b", "keyed.p_b"),
        batch("z_jigsaw", "keyed.z_jigsaw"),
        ("queue", Dtype::F32, vec![7, 6], queue),
    ];
    for (kind, arguments, gradients) in [
        ("moco", &["--method", "moco"][..], &[("grad_a", "grad_z_a")][..]),
        ("simo_keys", &["--method", "simo", "--set", "alpha=64.0"], &[("grad_a", "grad_z_a")]),
        ("infomin", &["--method", "infomin"], &[("grad_a", "grad_z_a"), ("grad_jigsaw", "grad_z_jigsaw")]),
        ("nnclr", &["--method", "nnclr"], &[("grad_p_a", "grad_p_a"), ("grad_p_b", "grad_p_b")]),
    ] {
        write(&input, &everything);
        let verb = |input: &Path| {
            let mut command = sogclr();
            command.arg("loss").arg(input).args(["--temperature", "0.1"]).args(arguments).arg("--out").arg(&out);
            command
        };
        verb(&input).assert().success();
        let want = f64::from_le_bytes(golden(&format!("{kind}.c0.loss"), 0).try_into().unwrap());
        assert!((f64::from(read(&out, "loss")[0]) - want).abs() < 1e-5 * want.abs().max(1.0), "{kind}");
        for (field, golden_name) in gradients {
            let want = floats(&golden(&format!("{kind}.c0.{golden_name}"), 0));
            for (ours, want) in read(&out, field).iter().zip(want) {
                assert!((ours - want).abs() < 2e-4 * want.abs().max(1.0), "{kind} {field}: {ours} vs {want}");
            }
        }
        if kind != "simo_keys" {
            write(&input, &everything[..6]);
            let (code, text) = failure(&mut verb(&input));
            assert!(code == 2 && text.contains("queue is missing"), "{kind}: {text}");
        }
    }
}

#[test]
fn losses_without_negatives_equal_pytorch_and_have_no_objective() {
    let root = tempfile::tempdir().unwrap();
    let (input, out) = (root.path().join("in.safetensors"), root.path().join("out.safetensors"));
    let wide = |name: &str, t: usize| -> Vec<f64> {
        let bytes = golden_of("joint.safetensors", name, t);
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let views = &["grad_a", "grad_b"][..];
    let predictions = &["grad_p_a", "grad_p_b"][..];
    for (kind, sets, gradients, arguments) in [
        ("byol", &["p_a", "p_b", "k_a", "k_b"][..], predictions, &[][..]),
        ("simsiam", &["z_a", "z_b", "p_a", "p_b"], predictions, &[]),
        ("barlow-twins", &["z_a", "z_b"], views, &["--set", "lambda=0.0051"]),
        ("vicreg", &["z_a", "z_b"], views, &[]),
    ] {
        let tensor = |name: &&'static str| (*name, Dtype::F64, vec![5, 4], golden_of("joint.safetensors", name, 2));
        let tensors: Vec<_> = sets.iter().map(tensor).collect();
        let verb = |tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]| {
            write(&input, tensors);
            let mut command = sogclr();
            command.arg("loss").arg(&input).args(["--method", kind]).args(arguments).arg("--out").arg(&out);
            command
        };
        verb(&tensors).assert().success();
        let want = wide(&format!("{kind}.c0.loss"), 2)[0];
        assert!((f64::from(read(&out, "loss")[0]) - want).abs() < 1e-5 * want.abs().max(1.0), "{kind}");
        for field in gradients {
            for (ours, want) in read(&out, field).iter().zip(wide(&format!("{kind}.c0.{field}"), 2)) {
                assert!(
                    (f64::from(*ours) - want).abs() < 2e-5 * want.abs().max(1.0),
                    "{kind} {field}: {ours} vs {want}"
                );
            }
        }
        let file = std::fs::read(&out).unwrap();
        assert!(SafeTensors::deserialize(&file).unwrap().tensor("objective").is_err(), "{kind} has no objective");
        let (code, text) = failure(&mut verb(&tensors[..1]));
        assert!(code == 2 && text.contains("is missing"), "{kind}: {text}");
    }
}

#[test]
fn wrong_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let (input, out) = (root.path().join("in.safetensors"), root.path().join("out.safetensors"));
    let check = |tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)], more: &[&str], words: &str| {
        write(&input, tensors);
        let (code, text) = failure(sogclr().arg("loss").arg(&input).args(more).arg("--out").arg(&out));
        assert!(code == 2 && text.contains(words), "{code} {text}");
        assert!(!out.exists());
    };
    let z = |values: [f32; 4]| bytes(&values);
    let good = ("z_a", Dtype::F32, vec![2, 2], z([1.0, 0.0, 0.0, 1.0]));
    check(std::slice::from_ref(&good), &[], "z_b is missing");
    check(&[good.clone(), ("z_b", Dtype::F32, vec![4], z([1.0; 4]))], &[], "expected [B, d]");
    let b = ("z_b", Dtype::F32, vec![2, 2], z([1.0, 0.1, 0.2, 1.0]));
    check(&[good.clone(), ("z_b", Dtype::F32, vec![2, 2], z([f32::NAN, 0.1, 0.2, 1.0]))], &[], "not finite");
    let short = ("log_u", Dtype::F32, vec![1], bytes(&[0.5]));
    check(&[good.clone(), b.clone(), short], &[], "log_u has 1 entries for 2 samples");
    check(&[good.clone(), b.clone()], &["--temperature", "0"], "temperature");
    check(&[good.clone(), b.clone()], &["--method", "magic"], "known methods");
    check(&[good.clone(), b.clone()], &["--method", "simclr", "--gamma", "0.5"], "gamma");
    check(&[good.clone(), b.clone(), ("ids", Dtype::I64, vec![1], 7_i64.to_le_bytes().to_vec())], &[], "ids has 1");
    write(&input, &[good, b]);
    let (code, text) = failure(sogclr().arg("loss").arg(&input).arg("--out").arg(&input));
    assert!(code == 2 && text.contains("choose another"), "{text}");
    std::fs::write(&input, b"not safetensors").unwrap();
    let (code, text) = failure(sogclr().arg("loss").arg(&input).arg("--out").arg(&out));
    assert!(code == 2 && text.contains("in.safetensors"), "{text}");
}

/// What a call writes can be read by the next: the state goes on.
#[test]
fn state_goes_from_one_call_to_the_next() {
    let root = tempfile::tempdir().unwrap();
    let (input, out) = (root.path().join("in.safetensors"), root.path().join("out.safetensors"));
    let mut columns = ["log_u", "tau", "tau_grad"].map(|name| (name, vec![f32::NAN; 10]));
    for t in 0..2 {
        let mut tensors = vec![
            ("z_a", Dtype::F32, vec![4, 6], golden("z_a", t)),
            ("z_b", Dtype::F32, vec![4, 6], golden("z_b", t)),
            ("ids", Dtype::I64, vec![4], golden("ids", t)),
            ("labels", Dtype::I64, vec![4], (0..4_i64).flat_map(|v| (v / 2).to_le_bytes()).collect()),
        ];
        tensors.extend(columns.iter().map(|(name, v)| (*name, Dtype::F32, vec![v.len()], bytes(v))));
        write(&input, &tensors);
        let more = ["--method", "isogclr", "--temperature", "0.1", "--gamma", "0.9"];
        sogclr().arg("loss").arg(&input).args(more).arg("--out").arg(&out).assert().success();
        columns = ["log_u", "tau", "tau_grad"].map(|name| (name, read(&out, name)));
    }
    // Samples 2 and 3 were met twice, 0 and 1 in the first call alone; 6 and later never.
    let tau = &columns[1].1;
    assert!(tau[..6].iter().all(|tau| tau.is_finite() && *tau != 0.1), "{tau:?}");
    sogclr().arg("loss").arg(&input).args(["--method", "supcon"]).arg("--out").arg(&out).assert().success();
}
