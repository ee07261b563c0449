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
    theory("bias", &["--run", &run, "--images", "64", "--passes", "60", "--temperature", "0.3"], &out)
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
    let squared = |row: &serde_json::Value, key: &str| row[key]["squared"].as_f64().unwrap();
    let (small, large) = (find("eq6", 8, None, None), find("eq6", 32, None, None));
    assert!(squared(&large, "bias_v1") < 0.5 * squared(&small, "bias_v1"), "{small} {large}");
    let memory = find("sogclr", 16, Some(0.05), Some(true));
    let without = find("eq6", 16, None, None);
    assert!(squared(&memory, "bias_v2") < 0.5 * squared(&without, "bias_v2"), "{memory} {without}");
    assert!(memory["cosine_v2"].as_f64().unwrap() > 0.99);
    // After one pass u_{t−1} is the first estimate itself, whatever γ is; after three it is not.
    let after = |passes: u64, gamma: f64| {
        let rows = study["rows"].as_array().unwrap();
        let is_it = |row: &&serde_json::Value| row["after"] == passes && row["gamma"] == gamma && row["lagged"] == true;
        squared(rows.iter().find(is_it).unwrap(), "bias_v2")
    };
    assert_eq!(after(1, 0.1), after(1, 0.5));
    assert_ne!(after(3, 0.1), after(3, 0.5));
    // What is left against V1 is what separates the two objectives.
    let (left, apart) = (squared(&memory, "bias_v1").sqrt(), study["versions_apart"].as_f64().unwrap());
    assert!((left - apart).abs() < 0.3 * apart, "{left} {apart}");
    for file in ["bias.csv", "bias.md", "bias-batch.svg", "bias-gamma.svg", "bias-passes.svg"] {
        assert!(out.join(file).metadata().unwrap().len() > 100, "{file}");
    }
    assert!(!out.join("parts").exists(), "nothing is left to go on with");
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
        "60,120",
        "--seeds",
        "2",
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
    assert_eq!(runs.len(), 4 * 2 * 2 * 2, "estimators, batches, steps, seeds");
    assert!(
        runs.iter().all(|run| (0.0..1.0).contains(&run["least_norm"].as_f64().unwrap())),
        "below the root mean square"
    );
    let first = |name: &str| runs.iter().find(|run| run["name"] == name).unwrap()["mean_v1"].as_f64();
    assert_ne!(first("eq. (6)"), first("eq. (6) by (7)"), "with and without momentum");
    let curves = std::fs::read_to_string(out.join("curves.csv")).unwrap();
    let curves: Vec<Vec<&str>> = curves.lines().skip(1).map(|line| line.split(',').collect()).collect();
    for of_run in curves.chunk_by(|a, b| a[..2] == b[..2]) {
        let objective = |line: &[&str]| line[3].parse::<f64>().unwrap();
        assert_eq!(of_run[0][2], "0");
        assert!(objective(&of_run[of_run.len() - 1]) < objective(&of_run[0]), "the objective falls: {of_run:?}");
    }
    let charts = ["convergence-v1.svg", "convergence-v2.svg", "convergence-steps.svg", "speed-up.svg"];
    for file in [&charts[..], &["convergence.csv", "convergence.md"]].concat() {
        assert!(out.join(file).exists(), "{file}");
    }

    // A study whose results cannot be written keeps its parts, and the same command makes the same of them.
    let again = root.path().join("again");
    let blocked = again.join("convergence.json");
    std::fs::create_dir_all(&blocked).unwrap();
    let (_, text) = failure(&mut theory("convergence", &small, &again));
    assert!(text.contains("cannot write") && text.contains("convergence.json"), "{text}");
    std::fs::remove_dir(&blocked).unwrap();
    let second = theory("convergence", &small, &again).assert().success();
    let text = String::from_utf8_lossy(&second.get_output().stderr).into_owned();
    assert!(text.contains("going on with what an earlier start has finished"), "{text}");
    assert_eq!(json(&blocked), study);
    assert!(!again.join("parts").exists());
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
        ("bias", &["--images", "64", "--passes", "0"], "--passes"),
        ("bias", &["--images", "64", "--augmentations", "1"], "--augmentations"),
        ("bias", &["--images", "64", "--temperature", "0"], "--temperature"),
        ("bias", &["--images", "64", "--run", "nowhere"], "nowhere"),
        ("convergence", &["--batches", "1"], "--batches"),
        ("convergence", &["--rate=-1"], "--rate"),
        ("convergence", &["--images", "1000000", "--batches", "4"], "fewer than"),
    ] {
        let (code, text) = failure(&mut theory(verb, more, &out));
        assert!(code == 2 && text.contains(words), "{verb} {more:?}: {code} {text}");
        assert!(!out.exists(), "{verb} {more:?} made a folder");
    }
    let (code, text) = failure(sogclr().args(["theory", "epsilon", "nowhere"]));
    assert!(code == 2 && text.contains("nowhere"), "{text}");
}
