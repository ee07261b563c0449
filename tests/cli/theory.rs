//! `sogclr theory`: its files, and wrong input.

use crate::{failure, sogclr, train};
use std::path::Path;

fn theory(verb: &str, more: &[&str], out: &Path) -> assert_cmd::Command {
    let mut command = sogclr();
    command.args(["theory", verb]).args(more).arg("--out").arg(out);
    command
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The bias of eq. (6) falls with the batch, and the memory takes SogCLR's below it at the same batch.
#[test]
fn memory_lowers_the_bias() {
    let root = tempfile::tempdir().unwrap();
    let (run, out) = (root.path().join("run"), root.path().join("bias"));
    train(&run, &["--limit", "64"]);
    let run = run.to_str().unwrap().to_owned();
    theory("bias", &["--run", &run, "--images", "64", "--passes", "300", "--temperature", "0.3"], &out)
        .assert()
        .success();
    let study = json(&out.join("bias.json"));
    let find = |name: &str, batch: u64, gamma: Option<f64>, lagged: Option<bool>| {
        let rows = study["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| {
            row["name"] == name
                && row["batch"] == batch
                && gamma.is_none_or(|gamma| row["gamma"] == gamma)
                && lagged.is_none_or(|lagged| row["lagged"] == lagged)
        });
        row.unwrap_or_else(|| panic!("{name} at batch {batch} is missing")).clone()
    };
    let bias = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    let (small, large) = (find("eq6", 8, None, None), find("eq6", 32, None, None));
    assert!(bias(&large, "bias_v1") < 0.7 * bias(&small, "bias_v1"), "{small} {large}");
    let memory = find("sogclr", 16, Some(0.05), Some(true));
    let without = find("eq6", 16, None, None);
    assert!(bias(&memory, "bias_v2") < 0.7 * bias(&without, "bias_v1"), "{memory} {without}");
    assert!(bias(&memory, "cosine_v2") > 0.99);
    for file in ["bias.csv", "bias.md", "bias-batch.svg", "bias-gamma.svg", "bias-passes.svg"] {
        assert!(out.join(file).metadata().unwrap().len() > 100, "{file}");
    }
}

#[test]
fn convergence_follows_the_exact_gradient() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("convergence");
    let small = [
        "--images",
        "16",
        "--batches",
        "4,8",
        "--steps",
        "120",
        "--augmentations",
        "2",
        "--temperature",
        "0.5",
        "--rate",
        "1",
    ];
    theory("convergence", &small, &out).assert().success();
    let study = json(&out.join("convergence.json"));
    let runs = study["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        let points = run["points"].as_array().unwrap();
        let objective = |index: usize| points[index]["objective"].as_f64().unwrap();
        assert_eq!(points[0]["step"], 0);
        assert_eq!(points[points.len() - 1]["step"], 120);
        assert!(objective(points.len() - 1) < objective(0), "the objective falls: {run}");
        assert_eq!(objective(0), runs[0]["points"][0]["objective"].as_f64().unwrap(), "all begin alike");
    }
    for file in ["convergence.csv", "convergence-v1.svg", "convergence-v2.svg", "speed-up.svg"] {
        assert!(out.join(file).exists(), "{file}");
    }
}

#[test]
fn epsilon_is_measured_at_every_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1", "--epochs", "3"]);
    let path = run.to_str().unwrap();
    sogclr().args(["theory", "epsilon", path, "--images", "20", "--augmentations", "3"]).assert().success();
    let study = json(&run.join("epsilon/epsilon.json"));
    let steps: Vec<u64> =
        study["checkpoints"].as_array().unwrap().iter().map(|point| point["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [6, 12, 18]);
    let csv = std::fs::read_to_string(run.join("epsilon/epsilon.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 3 * 20);
}

#[test]
fn impossible_studies_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    for (verb, more, words) in [
        ("bias", &["--images", "100"][..], "power of two"),
        ("bias", &["--images", "64", "--passes", "1"], "--passes"),
        ("bias", &["--images", "64", "--augmentations", "1"], "--augmentations"),
        ("bias", &["--images", "64", "--temperature", "0"], "--temperature"),
        ("bias", &["--images", "64", "--run", "nowhere"], "nowhere"),
        ("convergence", &["--batches", "1"], "--batches"),
        ("convergence", &["--rate=-1"], "--rate"),
        ("convergence", &["--images", "1000000", "--batches", "4"], "fewer than"),
    ] {
        let (code, text) = failure(&mut theory(verb, more, &out));
        assert!(code == 2 && text.contains(words), "{verb} {more:?}: {code} {text}");
    }
    let (code, text) = failure(sogclr().args(["theory", "epsilon", "nowhere"]));
    assert!(code == 2 && text.contains("nowhere"), "{text}");
}
