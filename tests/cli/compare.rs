//! `sogclr compare`: the table, its files, and going on after an interruption.

use crate::{TINY, failure, sogclr};
use std::path::Path;

fn compare(out: &Path, more: &[&str]) -> assert_cmd::Command {
    let mut command = sogclr();
    command.arg("compare").args(&TINY[1..]).args(["--epochs", "1", "--seeds", "2"]).args(more).arg("--out").arg(out);
    command
}

fn table(out: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(out.join("compare.json")).unwrap()).unwrap()
}

#[test]
fn a_race_writes_one_table_and_goes_on_where_it_was_interrupted() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    let methods = &["--methods", "simclr,moco"];
    let output = compare(&out, methods).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let whole = table(&out);
    let names: Vec<&str> = whole["rows"].as_array().unwrap().iter().map(|r| r["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["simclr", "moco", "untrained"]);
    for row in whole["rows"].as_array().unwrap() {
        assert_eq!(row["linear"].as_array().unwrap().len(), 2, "two seeds");
        assert!(row["linear"][0].as_f64().is_some_and(|v| (0.0..=1.0).contains(&v)));
        let costs = if row["method"] == "untrained" { 0 } else { 2 };
        assert_eq!(row["seconds"].as_array().unwrap().len(), costs);
        assert_eq!(row["peak_rss_mb"].as_array().unwrap().len(), costs);
    }
    assert!(text.contains("moco") && text.contains(" ± "), "{text}");
    let csv = std::fs::read_to_string(out.join("compare.csv")).unwrap();
    assert_eq!(csv.lines().count(), 4, "{csv}");
    assert!(std::fs::read_to_string(out.join("compare.md")).unwrap().contains("| untrained"));

    // One run lost its end, another was never begun; the third is left alone.
    let summary = |cell: &str| out.join(cell).join("summary.json");
    std::fs::remove_file(summary("moco-seed0")).unwrap();
    std::fs::remove_file(out.join("moco-seed0/checkpoints/step-000000006.safetensors")).unwrap();
    std::fs::remove_dir_all(out.join("moco-seed1")).unwrap();
    let untouched = std::fs::metadata(out.join("simclr-seed0/encoder.safetensors")).unwrap().modified().unwrap();
    compare(&out, methods).assert().success();
    let again = table(&out);
    for (before, after) in whole["rows"].as_array().unwrap().iter().zip(again["rows"].as_array().unwrap()) {
        assert_eq!(before["linear"], after["linear"]);
        assert_eq!(before["knn"], after["knn"]);
    }
    let now = std::fs::metadata(out.join("simclr-seed0/encoder.safetensors")).unwrap().modified().unwrap();
    assert_eq!(untouched, now, "a finished run is not trained again");

    let (code, text) = failure(&mut compare(&out, &["--methods", "simclr,moco", "--set", "method.temperature=0.3"]));
    assert!(code == 2 && text.contains("other settings"), "{text}");
}

#[test]
fn impossible_races_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    for (more, words) in [
        (&["--methods", "simclr,bylo"][..], "known methods"),
        (&["--methods", "simclr,simclr"], "twice"),
        (&["--methods", "simclr", "--seeds", "0"], "--seeds"),
        (&["--methods", "simclr", "--method", "dcl"], "--methods, a list"),
        (&["--methods", "simclr,moco", "--set", "method.queue=5"], "queue"),
        (&["--methods", "simclr,dcl", "--set", "method.kind=dcl"], "leave it out"),
    ] {
        let (code, text) = failure(&mut compare(&out, more));
        assert!(code == 2 && text.contains(words), "{more:?}: {code} {text}");
        assert!(!out.exists(), "{more:?} wrote something");
    }
    let unlabelled = root.path().join("images");
    std::fs::create_dir(&unlabelled).unwrap();
    for i in 0..10 {
        image::GrayImage::from_pixel(8, 8, image::Luma([i * 20])).save(unlabelled.join(format!("{i}.png"))).unwrap();
    }
    let output = sogclr().arg("compare").arg(&unlabelled).args(["--batch", "4", "--out"]).arg(&out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("label"), "{text}");
    assert!(!out.exists());
}

#[test]
fn a_recipes_seed_is_the_first_and_foreign_folders_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    compare(&out, &["--methods", "dcl", "--seeds", "1", "--set", "seed=7"]).assert().success();
    assert!(out.join("dcl-seed7/encoder.safetensors").exists());
    let mine = out.join("simclr-seed7");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("notes.txt"), "mine").unwrap();
    let (code, text) = failure(&mut compare(&out, &["--methods", "dcl,simclr", "--seeds", "1", "--set", "seed=7"]));
    assert!(code == 2 && text.contains("not empty"), "{text}");
    assert!(mine.join("notes.txt").exists());
}

/// A method whose run fails is reported, and the others still race.
#[test]
fn a_run_that_fails_does_not_end_the_race() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    let wild = ["--set", "optimizer.kind=sgd", "--set", "learning_rate.base=1e30"];
    let (code, text) = failure(&mut compare(&out, &[&["--methods", "simclr,dcl", "--seeds", "1"], &wild[..]].concat()));
    assert!(code == 1 && text.contains("simclr-seed0 did not finish"), "{code} {text}");
    let rows = table(&out)["rows"].clone();
    assert_eq!(rows[0]["failures"].as_array().unwrap().len(), 1);
    assert_eq!(rows[1]["method"], "dcl", "the second method had its turn");
}

#[test]
fn methods_with_labels_need_test_images_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let (data, out) = (root.path().join("data"), root.path().join("race"));
    for class in ["a", "b"] {
        std::fs::create_dir_all(data.join(class)).unwrap();
        for i in 0..6 {
            let picture = image::GrayImage::from_pixel(8, 8, image::Luma([i * 20]));
            picture.save(data.join(class).join(format!("{i}.png"))).unwrap();
        }
    }
    let mut command = sogclr();
    command.arg("compare").arg(&data).args(["--batch", "4", "--methods", "supcon", "--out"]).arg(&out);
    let (code, text) = failure(&mut command);
    assert!(code == 2 && text.contains("--test"), "{text}");
}

/// SIGTERM to the race alone: the run in training writes its checkpoint, nothing new begins, and the race goes on later.
#[cfg(unix)]
#[test]
fn a_stopped_race_stops_its_run_and_goes_on_later() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    let arguments = |command: &mut std::process::Command| {
        command.arg("compare").args(&TINY[1..]).args(["--epochs", "400", "--seeds", "1", "--methods", "dcl,simclr"]);
        command.arg("--out").arg(&out);
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sogclr"));
    arguments(&mut command);
    let mut race = command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let metrics = out.join("dcl-seed0/metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::process::Command::new("kill").arg(race.id().to_string()).status().unwrap();
    assert_eq!(race.wait().unwrap().code(), Some(130));
    let steps = std::fs::read_to_string(&metrics).unwrap().lines().count();
    assert!(steps < 2400, "stopped before the end");
    assert!(!out.join("simclr-seed0").exists(), "nothing new was begun");
    let names = std::fs::read_dir(out.join("dcl-seed0/checkpoints")).unwrap();
    let newest = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).max().unwrap();
    assert_eq!(newest, format!("step-{steps:09}.safetensors"), "a checkpoint at the last step");
}

/// Hours of training are not thrown away because a newer program wrote them.
#[test]
fn checkpoints_that_cannot_be_read_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    let methods = &["--methods", "dcl", "--seeds", "1"];
    compare(&out, methods).assert().success();
    let run = out.join("dcl-seed0");
    std::fs::remove_file(run.join("summary.json")).unwrap();
    let checkpoints = || -> Vec<_> { run.join("checkpoints").read_dir().unwrap().map(|e| e.unwrap().path()).collect() };
    checkpoints().iter().for_each(|path| std::fs::write(path, b"of another version").unwrap());
    let kept = checkpoints().len();
    let (code, text) = failure(&mut compare(&out, methods));
    assert!(code == 2 && text.contains("safetensors"), "{code} {text}");
    assert_eq!(checkpoints().len(), kept);
}

#[test]
fn a_race_is_not_continued_on_other_images() {
    let root = tempfile::tempdir().unwrap();
    let (data, out) = (root.path().join("data"), root.path().join("race"));
    let picture = |class: &str, value: u8| {
        let folder = data.join(class);
        std::fs::create_dir_all(&folder).unwrap();
        let pixels = image::RgbImage::from_pixel(8, 8, image::Rgb([value, 255 - value, 80]));
        pixels.save(folder.join(format!("{value}.png"))).unwrap();
    };
    (0..12).for_each(|i| picture(if i % 2 == 0 { "a" } else { "b" }, 20 * i));
    let race = |methods: &str| {
        let mut command = sogclr();
        command.arg("compare").arg(&data).args(["--methods", methods, "--seeds", "1", "--encoder", "resnet8"]);
        command.args(["--image-size", "8", "--batch", "4", "--epochs", "1", "--out"]).arg(&out);
        command
    };
    race("simclr").assert().success();
    race(" simclr, dcl").assert().success();
    picture("a", 255);
    let (code, text) = failure(&mut race("simclr,dcl"));
    assert!(code == 2 && text.contains("was run with 12 images, and there are 13 now"), "{text}");
}
