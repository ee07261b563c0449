//! `sogclr bench`: what it reports, and that a step's memory does not grow.

use crate::{failure, sogclr};
use serde_json::Value;

fn step(more: &[&str]) -> Value {
    let tiny = ["bench", "step", "--encoder", "resnet8", "--batch", "16", "--image-size", "32", "--json"];
    let output = sogclr().args(tiny).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_step_reports_speed_cpu_time_and_memory() {
    let report = step(&["--steps", "3", "--threads", "2"]);
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    let views = number("views_per_s") * number("step_ms_median") / 1e3;
    assert!((views - 32.0).abs() < 1e-6, "two views of 16 images in a step, not {views}");
    assert!(number("cpu_s_per_step") > 0.0 && number("peak_rss_mb") > 1.0);
    assert_eq!((number("threads"), number("steps")), (2.0, 3.0));
}

#[test]
fn memory_does_not_grow_with_the_number_of_steps() {
    let peak = |steps: &str| step(&["--steps", steps])["peak_rss_mb"].as_f64().unwrap();
    let (few, many) = (peak("2"), peak("40"));
    assert!(many < few + 4.0, "{few} MB after 2 steps, {many} MB after 40");
}

#[test]
fn nor_does_that_of_bf16() {
    for (encoder, batch, size) in [("resnet8", "16", "32"), ("vit-tiny", "2", "16")] {
        let peak = |steps: &str| {
            let flags = ["--encoder", encoder, "--batch", batch, "--image-size", size, "--precision", "bf16"];
            let output = sogclr().args(["bench", "step", "--json", "--steps", steps]).args(flags).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()["peak_rss_mb"].as_f64().unwrap()
        };
        let (few, many) = (peak("2"), peak("40"));
        assert!(many < few + 4.0, "{encoder}: {few} MB after 2 steps, {many} MB after 40");
    }
}

#[test]
fn kernels_lists_every_shape_and_the_peak() {
    for precision in ["f32", "bf16"] {
        lists_every_shape_and_the_peak(precision);
    }
}

fn lists_every_shape_and_the_peak(precision: &str) {
    let tiny = ["bench", "kernels", "--encoder", "resnet8", "--batch", "2", "--image-size", "8", "--json"];
    let output = sogclr().args(tiny).args(["--precision", precision]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["peak"].as_f64().unwrap() > 0.0);
    let layers = report["layers"].as_array().unwrap();
    let count: u64 = layers.iter().map(|layer| layer["count"].as_u64().unwrap()).sum();
    assert_eq!(count, 9, "stem, six 3x3 and two shortcuts");
    assert!(layers.iter().all(|layer| layer["weight_grad"].as_f64().unwrap() > 0.0));
    let (peak, bandwidth) = (report["peak"].as_f64().unwrap(), report["bandwidth"].as_f64().unwrap());
    let is_bound = |layer: &Value| {
        let limit = layer["limit"].as_f64().unwrap();
        limit > 0.0 && (limit < peak) == layer["is_memory_bound"].as_bool().unwrap()
    };
    assert!(bandwidth > 0.0 && layers.iter().all(is_bound), "{report}");
}

#[test]
fn the_making_of_views_is_timed() {
    let tiny = ["bench", "data", "--limit", "64", "--batch", "16", "--seconds", "0", "--threads", "2", "--json"];
    let output = sogclr().args(tiny).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["images"].as_u64(), report["threads"].as_u64()), (Some(64), Some(2)));
    assert!(["views_per_s_core", "views_per_s", "cpu_ms"].iter().all(|key| report[key].as_f64().unwrap() > 0.0));
    let shares = report["shares"].as_object().unwrap();
    assert!(shares.values().map(|share| share.as_f64().unwrap()).sum::<f64>() <= 1.0, "{report}");
}

#[test]
fn bad_sizes_are_refused() {
    for (flags, expected) in [
        (&["step", "--batch", "1"][..], "at least 2 images"),
        (&["step", "--steps", "0"], "at least 1 step"),
        (&["step", "--image-size", "4"], "at least 8 pixels"),
        (&["kernels", "--device", "wgpu"], "only the CPU"),
        (&["step", "--precision", "bf16", "--device", "wgpu"], "set train.device to cpu"),
    ] {
        let (code, message) = failure(sogclr().arg("bench").args(flags));
        assert_eq!(code, 2, "{flags:?}");
        assert!(message.contains(expected), "{flags:?}: {message}");
    }
}

#[test]
fn every_loss_can_be_timed() {
    for method in sogclr::method::MethodConfig::NAMES {
        let is_pairs = ["clip", "siglip", "fastclip"].contains(method) || method.ends_with("-pairs");
        let output = crate::sogclr()
            .args(["bench", "loss", "--method", method, "--batch", "6", "--dim", "5", "--repeats", "2", "--json"])
            .args(is_pairs.then_some("--pairs"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{method}: {}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["ms_median"].as_f64().is_some_and(|ms| ms > 0.0), "{method}: {report}");
    }
    let (code, text) = crate::failure(crate::sogclr().args(["bench", "loss", "--batch", "1"]));
    assert!(code == 2 && text.contains("--batch"), "{text}");
}

/// Activations are those of a micro-batch, whatever the batch.
#[test]
fn micro_batches_bound_the_memory() {
    let root = tempfile::tempdir().unwrap();
    let peak = |name: &str, more: &[&str]| {
        let run = root.path().join(name);
        let size = ["--limit", "256", "--image-size", "28", "--batch", "256", "--epochs", "1"];
        let wide = ["--set", "encoder.width=1.0"];
        crate::train(&run, &[&size[..], &wide, more].concat());
        let summary: serde_json::Value =
            serde_json::from_slice(&std::fs::read(run.join("summary.json")).unwrap()).unwrap();
        summary["train"]["peak_rss_mb"].as_f64().expect("this system tells")
    };
    let (whole, chunked) = (peak("whole", &[]), peak("chunked", &["--micro-batch", "16"]));
    assert!(chunked < 0.5 * whole, "{chunked} MB of {whole} MB");
}
