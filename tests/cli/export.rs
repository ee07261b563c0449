//! `sogclr export`: another engine computes what ours does.

use crate::{failure, sogclr};
use std::path::Path;

/// A run of two steps of `encoder`.
fn train(out: &Path, encoder: &[&str], size: &str, more: &[&str]) {
    let small = ["pretrain", "--batch", "8", "--epochs", "1", "--no-report", "--image-size", size];
    sogclr().args(small).args(encoder).args(more).arg("--out").arg(out).assert().success();
}

fn export(run: &Path, more: &[&str]) -> String {
    let output = sogclr().args(["export", "--to", "onnx"]).arg(run).args(more).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn another_engine_computes_the_features_of_every_family() {
    let root = tempfile::tempdir().unwrap();
    let narrow = "encoder.width=0.25";
    let encoders: [(&[&str], &str); 5] = [
        (&["--encoder", "resnet8", "--set", narrow], "8"),
        (&["--encoder", "resnet50", "--set", narrow, "--set", "encoder.stem=imagenet"], "32"),
        (&["--encoder", "vit-tiny"], "14"),
        (&["--encoder", "vit-tiny", "--set", "encoder.pool=mean"], "14"),
        (&["--encoder", "clip-xs", "--set", narrow], "32"),
    ];
    for (index, (encoder, size)) in encoders.into_iter().enumerate() {
        let run = root.path().join(index.to_string());
        train(&run, encoder, size, &["--limit", "16"]);
        for pixels in [&[][..], &["--unit-pixels", "--force"]] {
            let said = export(&run, pixels);
            assert!(said.contains("16 images in rten: largest difference"), "{encoder:?}: {said}");
        }
        assert!(run.join("encoder.onnx").exists() && !run.join("encoder-text.onnx").exists());
    }
}

#[test]
fn pairs_give_two_files_and_nothing_is_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    let emoji = ["--pairs", "emoji", "--limit", "16", "--set", "text.layers=1"];
    train(&run, &["--encoder", "clip-vit-xs", "--set", "encoder.width=0.3334"], "32", &emoji);
    let said = export(&run, &[]);
    assert!(said.contains("3 texts in rten") && run.join("encoder-text.onnx").exists(), "{said}");
    let (code, error) = failure(sogclr().args(["export", "--to", "onnx"]).arg(&run));
    assert_eq!((code, error.contains("--force")), (2, true), "{error}");
}
