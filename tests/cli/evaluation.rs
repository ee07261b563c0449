//! Evaluation: the size of its images, kept checkpoints, results and features that are found again.

use crate::{failure, sogclr, train};
use serde_json::Value;
use std::path::Path;

/// What the verb prints.
fn print(verb: &[&str], run: &Path, more: &[&str]) -> String {
    let output = sogclr().args(verb).arg(run).args(more).output().unwrap();
    assert!(output.status.success(), "{verb:?} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn evaluations(run: &Path) -> Vec<Value> {
    let summary: Value = serde_json::from_slice(&std::fs::read(run.join("summary.json")).unwrap()).unwrap();
    summary["evaluations"].as_array().unwrap().clone()
}

#[test]
fn an_encoder_trained_on_small_crops_is_used_on_whole_images() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    sogclr()
        .args(["pretrain", "--limit", "16", "--encoder", "resnet8", "--batch", "8", "--epochs", "1"])
        .args(["--set", "encoder.width=0.25", "--views", "2x12+1x8", "--out"])
        .arg(&run)
        .assert()
        .success();
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("eval_size = 28"), "the embedded images have 28 pixels: {config}");
    assert!(std::fs::read_to_string(run.join("load.py")).unwrap().contains("RESIZE, SIZE = 28, 28"));
    assert!(print(&["eval", "linear"], &run, &[]).contains("10 classes, 28 pixels"));
    assert!(print(&["eval", "knn", "-k", "3"], &run, &["--image-size", "12"]).contains("10 classes, 12 pixels"));
    let sizes: Vec<_> = evaluations(&run).iter().map(|entry| entry["image_size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [28, 28, 28, 12, 12, 12]);

    // Also on other images.
    let photos = root.path().join("photos");
    for class in ["a", "b"] {
        std::fs::create_dir_all(photos.join(class)).unwrap();
        for image in 0..5 {
            let pixels = image::RgbImage::from_pixel(40, 40, image::Rgb([50 * image; 3]));
            pixels.save(photos.join(class).join(format!("{image}.png"))).unwrap();
        }
    }
    assert!(print(&["eval", "knn", "-k", "3"], &run, &[photos.to_str().unwrap()]).contains("2 classes, 28 pixels"));

    let features = |size: &[&str], name: &str| {
        let out = root.path().join(name);
        print(&["embed"], &run, &[&["--out", out.to_str().unwrap()][..], size].concat());
        std::fs::read(out).unwrap()
    };
    let native = features(&[], "native");
    assert_eq!(native, features(&["--image-size", "28"], "same"));
    assert_ne!(native, features(&["--image-size", "12"], "crop"));
    let (code, error) = failure(sogclr().args(["eval", "knn", "--image-size", "3"]).arg(&run));
    assert!(code == 2 && error.contains("--image-size is 3; it must lie between 8 and 4096"), "{error}");
}

#[test]
fn crops_and_evaluation_have_sizes_of_their_own() {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/imagenet1k-resnet50.toml");
    let show = |more: &[&str]| {
        let output = sogclr().args(["config", "show", "--config"]).arg(&recipe).args(more).output().unwrap();
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = show(&["--views", "4x160+2x96"]);
    assert!(text.contains("eval_size = 224") && text.contains("size = 160") && text.contains("size = 96"), "{text}");
    assert!(show(&["--views", "4x160+2x96", "--eval-size", "192"]).contains("eval_size = 192"));
    assert!(!show(&[]).contains("eval_size"), "crops of 224 pixels are evaluated so");
    // A configuration that is read again stays what it is.
    let root = tempfile::tempdir().unwrap();
    for more in [&["--views", "4x160+2x96"][..], &["--views", "4x160+2x96", "--eval-size", "160"], &[]] {
        let (once, path) = (show(more), root.path().join("config.toml"));
        std::fs::write(&path, &once).unwrap();
        let output = sogclr().args(["config", "show", "--config"]).arg(&path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), once);
    }
    let vit = ["config", "show", "--encoder", "vit-tiny", "--image-size", "32", "--eval-size", "64"];
    let (code, error) = failure(sogclr().args(vit));
    assert!(code == 2 && error.contains("--eval-size") && error.contains("takes no other size"), "{error}");
}

#[test]
fn every_kept_checkpoint_is_measured_once() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1", "--epochs", "3"]);
    let all = ["--all-checkpoints"];
    let first = print(&["eval", "linear"], &run, &all);
    let rows: Vec<&str> =
        first.lines().filter(|line| line.starts_with("| sogclr") || line.starts_with("| untrained")).collect();
    assert_eq!(rows.len(), 4, "{first}");
    for (row, name) in rows.iter().zip(["sogclr, epoch 1 ", "sogclr, epoch 2 ", "sogclr, epoch 3 ", "untrained"]) {
        assert!(row.contains(name), "{first}");
    }
    let steps: Vec<_> = evaluations(&run).iter().map(|entry| entry["step"].as_u64().unwrap()).collect();
    // The untrained encoder and the histogram of colours have no step.
    assert_eq!(steps, [6, 12, 18, 0, 0]);
    // The newest checkpoint is the encoder: its result is known.
    let alone = print(&["eval", "linear"], &run, &["--no-untrained"]);
    assert!(!alone.contains("untrained"));
    let cells = |row: &str| row.split('|').nth(2).unwrap().to_owned();
    assert_eq!(cells(rows[2]), cells(alone.lines().find(|line| line.contains("sogclr")).unwrap()));
    assert_eq!(evaluations(&run).len(), 5);
    // Features of four encoders and two splits, which knn takes from there.
    let count = || run.join("features").read_dir().unwrap().count();
    assert_eq!(count(), 8);
    print(&["eval", "knn", "-k", "3"], &run, &all);
    assert_eq!((count(), evaluations(&run).len()), (8, 10));
    // Other settings of a protocol stand beside the first.
    for lr in ["0.1", "0.2"] {
        print(&["eval", "linear", "--protocol", "paper", "--epochs", "1", "--batch", "16", "--lr", lr], &run, &[]);
    }
    assert_eq!(evaluations(&run).len(), 14);
    let (code, error) = failure(sogclr().args(["eval", "linear", "--lr", "0.2"]).arg(&run));
    assert!(code == 2 && error.contains("--lr belongs to --protocol paper"), "{error}");
    let (code, error) = failure(sogclr().args(["eval", "linear", "--protocol", "paper", "--batch", "0"]).arg(&run));
    assert!(code == 2 && error.contains("--batch is 0"), "{error}");
}
