//! The wgpu backend gives the CPU's losses (on any Vulkan device; Mesa's software one will do).

use crate::train;
use std::path::Path;

fn losses(run: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["loss"].as_f64().unwrap()).collect()
}

#[test]
fn wgpu_follows_the_cpu() {
    let root = tempfile::tempdir().unwrap();
    let (cpu, gpu) = (root.path().join("cpu"), root.path().join("gpu"));
    train(&cpu, &["--epochs", "1"]);
    train(&gpu, &["--epochs", "1", "--device", "wgpu"]);
    let (cpu, gpu) = (losses(&cpu), losses(&gpu));
    assert_eq!(cpu.len(), 6);
    for (step, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
        assert!((cpu - gpu).abs() < 2e-3, "step {step}: cpu {cpu}, wgpu {gpu}");
    }
}
