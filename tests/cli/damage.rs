//! Nothing silently wrong: damaged files of a run, runs that died early, inputs without an end.

use crate::{TINY, failure, sogclr, train};
use std::path::{Path, PathBuf};

fn flip(path: &Path, from_end: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn newest(run: &Path) -> PathBuf {
    let entries = run.join("checkpoints").read_dir().unwrap();
    entries.map(|entry| entry.unwrap().path()).max().unwrap()
}

/// What a successful `resume` says on standard error.
fn resumed(run: &Path) -> String {
    let output = sogclr().arg("resume").arg(run).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1"]);
    let encoder = run.join("encoder.safetensors");
    let whole = std::fs::read(&encoder).unwrap();
    flip(&newest(&run), 100);
    let said = resumed(&run);
    assert!(said.contains("going back to step 6") && said.contains("step-000000012.safetensors is damaged"), "{said}");
    assert!(whole == std::fs::read(&encoder).unwrap(), "the resumed run differs");

    // A checkpoint under another name would go on elsewhere.
    std::fs::rename(newest(&run), run.join("checkpoints/step-000000009.safetensors")).unwrap();
    let said = resumed(&run);
    assert!(said.contains("step-000000009.safetensors does not fit this run: it is of step 12"), "{said}");
    assert!(whole == std::fs::read(&encoder).unwrap(), "the resumed run differs");
}

#[test]
fn a_damaged_encoder_manifest_or_summary_is_no_silent_change() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &[]);
    sogclr().args(["eval", "knn"]).arg(&run).assert().success();
    let encoder = run.join("encoder.safetensors");
    let whole = std::fs::read(&encoder).unwrap();
    flip(&encoder, 20);
    let (code, text) = failure(sogclr().args(["eval", "knn"]).arg(&run));
    assert!(code == 2 && text.contains("encoder.safetensors is damaged") && text.contains("resume"), "{code} {text}");
    let said = resumed(&run);
    assert!(said.contains("written again from the checkpoint"), "{said}");
    assert!(whole == std::fs::read(&encoder).unwrap());

    flip(&run.join("summary.json"), 200);
    let (code, text) = failure(sogclr().args(["eval", "knn"]).arg(&run));
    assert!(code == 2 && text.contains("summary.json") && text.contains("remove it"), "{code} {text}");
    std::fs::remove_file(run.join("summary.json")).unwrap();
    sogclr().args(["eval", "knn"]).arg(&run).assert().success();

    let config = run.join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("checkpoint_minutes = 10.0", "checkpoint_minutes = 18.0")).unwrap();
    assert!(resumed(&run).contains("config.toml is not what the run began with"));
    std::fs::remove_file(run.join("checksums.b3")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    assert!(code == 2 && text.contains("checksums.b3"), "{code} {text}");
    // A run of before there were checksums has neither.
    let origin = run.join("provenance.json");
    let text = std::fs::read_to_string(&origin).unwrap();
    std::fs::write(&origin, text.replace("checksums.b3", "")).unwrap();
    resumed(&run);
}

#[test]
fn a_damaged_line_of_metrics_costs_no_other_and_a_lost_file_is_told() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1"]);
    let metrics = run.join("metrics.jsonl");
    let text = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, text.replacen("\"step\":3", "\"step\":3x", 1)).unwrap();
    std::fs::remove_file(newest(&run)).unwrap();
    let said = resumed(&run);
    assert!(said.contains("it lacks the line of step 3, the others are kept"), "{said}");
    let kept = std::fs::read_to_string(&metrics).unwrap();
    assert_eq!(kept.lines().count(), 11, "{kept}");
    assert!(std::fs::read_to_string(run.join("metrics-damaged.jsonl")).unwrap().contains("3x"));
    std::fs::remove_file(&metrics).unwrap();
    let said = resumed(&run);
    assert!(said.contains("metrics.jsonl is gone"), "{said}");
}

#[test]
fn a_run_that_died_before_its_first_checkpoint_begins_again() {
    let root = tempfile::tempdir().unwrap();
    let [whole, early] = ["whole", "early"].map(|name| root.path().join(name));
    train(&whole, &[]);
    let encoder = |run: &Path| std::fs::read(run.join("encoder.safetensors")).unwrap();
    // As it stands after each of the first files is written.
    for left in [&["config.toml"][..], &["config.toml", "manifest.bin"], &["config.toml", "encoder.safetensors"]] {
        std::fs::create_dir_all(early.join("checkpoints")).unwrap();
        for file in left {
            std::fs::copy(whole.join(file), early.join(file)).unwrap();
        }
        std::fs::write(early.join("metrics.jsonl"), "").unwrap();
        let said = resumed(&early);
        assert!(said.contains("starting from the beginning"), "{left:?}: {said}");
        assert!(encoder(&whole) == encoder(&early), "{left:?}: another result");
        std::fs::remove_dir_all(&early).unwrap();
    }
    // Before its settings were written, `pretrain` begins it.
    std::fs::create_dir_all(early.join("checkpoints")).unwrap();
    std::fs::write(early.join(".lock"), "").unwrap();
    std::fs::write(early.join("config.toml.77.partial"), "seed").unwrap();
    train(&early, &[]);
    assert!(encoder(&whole) == encoder(&early));
    // One whose checkpoints were removed is not begun again over its results.
    std::fs::remove_dir_all(early.join("checkpoints")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&early));
    assert!(code == 2 && text.contains("has no checkpoint"), "{code} {text}");
}

fn tensors(path: &Path, name: &str, shape: Vec<usize>, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
    std::fs::write(path, safetensors::serialize([(name, view)], None).unwrap()).unwrap();
}

#[test]
fn weights_and_embeddings_that_cannot_be_used_are_named() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("a.safetensors");
    tensors(&file, "conv1.weight", vec![2], &[1.0, f32::NAN]);
    let init = ["--init", file.to_str().unwrap(), "--out"];
    let (code, text) = failure(sogclr().args(TINY).args(init).arg(root.path().join("run")));
    assert!(code == 2 && text.contains("conv1.weight holds a NaN") && !text.contains("learning rate"), "{code} {text}");
    for shape in [vec![4, 0], vec![0, 4]] {
        tensors(&file, "z_a", shape, &[]);
        let (code, text) = failure(sogclr().arg("loss").arg(&file).arg("--out").arg(root.path().join("out")));
        assert!(code == 2 && text.contains("expected [B, d], neither of them 0"), "{code} {text}");
    }
    #[cfg(unix)]
    for arguments in [["--init", "/dev/zero"], ["--config", "/dev/zero"]] {
        let (code, text) = failure(sogclr().args(TINY).args(arguments).arg("--out").arg(root.path().join("run")));
        assert!(code == 2 && text.contains("/dev/zero") && text.contains("no file but a pipe"), "{code} {text}");
    }
}

#[test]
fn more_threads_than_there_can_be_are_capped_with_a_sentence() {
    let output = sogclr().args(["config", "show", "--threads", "2000"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("--threads 2000 is more than 8"), "{said}");
    let deep = format!("a{}=1", ".a".repeat(50_000));
    let (code, text) = failure(sogclr().args(["config", "show", "--set", &deep]));
    assert!(code == 2 && text.contains("16 parts at most"), "{code} {text}");
}

#[cfg(unix)]
#[test]
fn a_pipe_that_is_called_an_image_and_a_name_with_escapes_are_told() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for i in 0..4_u8 {
        image::RgbImage::from_pixel(12, 12, image::Rgb([i * 20, 9, 9])).save(data.join(format!("{i}.png"))).unwrap();
    }
    assert!(std::process::Command::new("mkfifo").arg(data.join("p.jpg")).status().unwrap().success());
    std::fs::write(data.join("\u{1b}[31mred\nline.jpg"), b"no picture").unwrap();
    let settings = ["pretrain", "--image-size", "8", "--encoder", "resnet8", "--batch", "2", "--epochs", "1"];
    let run = |more: &[&str]| {
        let output = sogclr().args(settings).args(more).arg(&data).arg("--out").arg(root.path().join("run")).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&[]);
    assert!(code == Some(2) && text.contains("p.jpg: it is no file but a pipe"), "{text}");
    assert!(text.contains("\\u{1b}[31mred\\nline.jpg") && !text.contains('\u{1b}'), "{text}");
    let (code, text) = run(&["--skip-bad"]);
    assert!(code == Some(0) && text.contains("left out 2 unreadable images"), "{text}");
    let problems = std::fs::read_to_string(root.path().join("run/problems.txt")).unwrap();
    assert_eq!(problems.lines().count(), 2, "{problems}");
}

#[test]
fn an_embed_that_failed_leaves_nothing_in_the_way_of_the_next() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &[]);
    let out = root.path().join("out");
    // A folder where a temporary file should go makes the write of the table fail.
    let script = format!(
        "mkdir '{0}.tsv.'$$'.partial'; exec '{1}' embed '{2}' --out '{0}'",
        out.display(),
        env!("CARGO_BIN_EXE_sogclr"),
        run.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("cannot write"), "{said}");
    sogclr().arg("embed").arg(&run).arg("--out").arg(&out).assert().success();
}
