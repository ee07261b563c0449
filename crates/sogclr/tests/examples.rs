//! Every example runs as its own text says.

use std::path::PathBuf;
use std::process::Command;

/// What `example` printed; cargo builds examples beside the tests.
fn run(example: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let folder: PathBuf = test.ancestors().nth(2).unwrap().join("examples");
    let output = Command::new(folder.join(example)).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_run_is_trained_and_its_encoder_embeds() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let text = run("pretrain", &[out.to_str().unwrap()]);
    assert!(text.contains("200 images, batch 20, 2 epochs") && text.contains("epoch 2: loss"), "{text}");
    let text = run("embed", &[out.to_str().unwrap()]);
    assert!(text.starts_with("200 images, 32 features each\n") && text.contains("is nearest to"), "{text}");
}

#[test]
fn images_of_four_channels_and_a_loss_of_ones_own_are_trained() {
    let folder = tempfile::tempdir().unwrap();
    for example in ["own_data", "own_loss"] {
        let out = folder.path().join(example);
        let text = run(example, &[out.to_str().unwrap()]);
        assert!(text.contains("step 20 of 20: loss"), "{text}");
        let config = std::fs::read_to_string(out.join("config.toml")).unwrap();
        let own = if example == "own_data" { "own = \"stripes\"" } else { "name = \"spectral\"" };
        assert!(config.contains(own), "{config}");
    }
}

#[test]
fn a_model_of_ones_own_learns() {
    let text = run("own_model", &[]);
    let objective = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let objectives: Vec<f64> = text.lines().map(objective).collect();
    assert_eq!(objectives.len(), 4, "{text}");
    assert!(objectives[3] < objectives[0], "{text}");
}

#[test]
fn examples_are_short() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 60, "{} has {lines} lines", path.display());
    }
}
