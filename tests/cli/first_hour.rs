//! What a new user meets in the first hour: the data line, settings in words, estimates, progress, advice.

use crate::{TINY, failure, sogclr};
use std::path::Path;

fn picture(path: &Path, width: u32, height: u32, value: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let pixel = |x: u32, y: u32| image::Rgb([(x * 9) as u8, (y * 7) as u8 ^ value, value]);
    image::RgbImage::from_fn(width, height, pixel).save(path).unwrap();
}

/// Standard error of a command that succeeds.
fn told(command: &mut assert_cmd::Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn the_data_line_says_where_splits_and_classes_come_from() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    for (index, name) in
        ["train/a/x/1", "train/a/y/2", "train/b/3", "train/b/4", "val/a/5", "val/b/6"].iter().enumerate()
    {
        picture(&data.join(format!("{name}.png")), 100, 20, 30 * index as u8);
    }
    picture(&data.join("test/a/7.png"), 20, 20, 0);
    std::fs::write(data.join("train/a/phone.HEIC"), b"x").unwrap();
    std::fs::write(data.join("train/LICENSE"), b"x").unwrap();
    let run = |out: &str, more: &[&str]| {
        let small = ["pretrain", "--image-size", "8", "--encoder", "resnet8", "--width", "0.25", "--batch", "2"];
        let mut command = sogclr();
        command.args(small).args(["--epochs", "1"]).args(more).arg(&data).arg("--out").arg(root.path().join(out));
        command
    };
    let text = told(&mut run("first", &[]));
    for words in [
        "4 training images in train/, test: val/, 2 test images, 2 classes by the first folder",
        "test/ is left aside: name it with --test",
        "--labels leaf makes 3 classes",
        "passed over: .heic: 1, no extension: 1",
        "warning: 4 training images are few",
        "like strips or sheets of sprites",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let text = told(&mut run("second", &["--exclude", "x", "--exclude", "4.*", "--labels", "path:1"]));
    assert!(text.contains("2 training images in train/") && text.contains("2 classes by folder 1"), "{text}");
    picture(&data.join("more/1.png"), 8, 8, 1);
    let (code, text) = failure(&mut run("third", &[]));
    let command = format!("sogclr pretrain {0}/train --test {0}/val --out RUN", data.display());
    assert!(code == 2 && text.contains(&command), "{text}");
}

#[test]
fn common_settings_are_flags() {
    let show = |more: &[&str]| {
        let output = sogclr().args(["config", "show", "--encoder", "resnet8"]).args(more).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let flags = ["--width", "0.5", "--temperature", "0.3", "--gamma", "0.7", "--optimizer", "sgd", "--lr", "0.02"];
    let text = show(&[&flags[..], &["--weight-decay", "0.003"]].concat());
    for words in
        ["width = 0.5", "temperature = 0.3", "value = 0.7", "kind = \"sgd\"", "base = 0.02", "weight_decay = 0.003"]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(show(&["--gamma", "cosine"]).contains("min = 0.2"));
}

#[test]
fn a_key_that_does_not_exist_points_to_the_nearest() {
    let out = tempfile::tempdir().unwrap();
    for (assignment, nearest) in [
        ("method.temprature=0.1", "did you mean method.temperature (--temperature)?"),
        ("temperature=0.1", "did you mean method.temperature (--temperature)?"),
        ("train.batchsize=8", "did you mean train.batch (--batch)?"),
        ("augment.jitter.huee=0.1", "did you mean augment.jitter.hue?"),
        ("batch=8", "did you mean train.batch (--batch)?"),
    ] {
        let (code, text) =
            failure(sogclr().args(TINY).args(["--set", assignment]).arg("--out").arg(out.path().join("run")));
        assert!(code == 2 && text.contains(nearest), "{assignment}: {text}");
    }
    let output = sogclr().args(["pretrain", "--epoch", "3"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--epochs"));
}

#[test]
fn a_dry_run_tells_settings_and_time_and_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let output = sogclr().args(TINY).args(["--dry-run", "--out"]).arg(&out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("epochs = 2") && text.contains("time: about "), "{text}");
    assert!(!out.exists());
}

#[test]
fn a_run_says_what_is_not_usual_how_long_it_takes_and_little_more() {
    let root = tempfile::tempdir().unwrap();
    let run = |more: &[&str], out: &str| {
        let output = sogclr().args(TINY).args(more).arg("--out").arg(root.path().join(out)).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (out, told) = run(&[], "usual");
    assert!(told.contains("settings: sogclr, resnet8, 8 pixels, batch 8, 2 epochs, cpu"), "{told}");
    assert!(told.contains("head.hidden = 16") && !told.contains("augment.flip"), "{told}");
    assert!(told.contains("time: about ") && told.contains("(2 epochs at"), "{told}");
    assert!(
        !out.contains("[train]")
            && told.lines().filter(|line| line.starts_with("training ")).all(|line| line.chars().count() <= 80)
    );
    assert!(run(&["--verbose"], "verbose").0.contains("[train]"));
    assert_eq!(run(&["--quiet"], "quiet").1, "");
}

#[test]
fn what_is_kept_is_not_destroyed_and_can_be_overridden() {
    let show = |more: &[&str]| {
        let output = sogclr()
            .args(["config", "show", "--image-size", "96", "--set", "augment.preset=imagenet"])
            .args(more)
            .output();
        String::from_utf8_lossy(&output.unwrap().stdout).parse::<toml::Table>().unwrap()
    };
    let kept = show(&["--keep", "colour, orientation"]);
    let augment = kept["augment"].as_table().unwrap();
    assert_eq!(augment["jitter"]["hue"].as_float(), Some(0.0));
    assert_eq!((augment["flip"].as_float(), augment["grey"].as_float()), (Some(0.0), Some(0.0)));
    assert!(!augment.contains_key("keep"), "the settings say it all");
    assert_eq!(show(&["--keep", "colour", "--set", "augment.grey=0.1"])["augment"]["grey"].as_float(), Some(0.1));
    let (code, text) = failure(sogclr().args(["config", "show", "--keep", "colours"]));
    assert!(code == 2 && text.contains("augment.keep (--keep) has \"colours\"; use colour, orientation"), "{text}");
}

#[test]
fn evaluations_hold_the_encoder_against_a_histogram_of_colours() {
    let root = tempfile::tempdir().unwrap();
    let (run, data) = (root.path().join("run"), root.path().join("data"));
    crate::train(&run, &[]);
    // Grey noise, coloured by class: a histogram tells them.
    for class in 0..2_u8 {
        for index in 0..40_u8 {
            picture(&data.join(format!("{class}/{index}.png")), 8, 8, 40 + 150 * class + index);
        }
    }
    let output = sogclr().args(["eval", "all", "--json"]).args([&run, &data]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let documents: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(documents.len(), 2, "linear and nearest neighbours: {text}");
    let rows = documents[0]["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["encoder"].as_str().unwrap()).collect();
    assert_eq!(names, ["sogclr", "untrained", "colour histogram"]);
    assert_eq!(rows[2]["accuracy"]["top1"].as_f64(), Some(1.0));
    assert!(!documents[0]["remarks"].as_array().unwrap().is_empty(), "no encoder is better than that: {text}");
}

#[test]
fn a_plan_fills_the_hours_and_its_run_is_fixed_in_its_settings() {
    let root = tempfile::tempdir().unwrap();
    let small = ["--limit", "48", "--image-size", "8", "--encoder", "resnet8", "--width", "0.25", "--batch", "8"];
    let plan = |more: &[&str]| {
        let output = sogclr().arg("plan").args(small).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = plan(&["--hours", "1000"]);
    for words in [
        "images/s",
        "resnet8 *",
        "method.gamma",
        "predicted end",
        "--encoder resnet8 --image-size 8 --batch 8 --epochs 800",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(plan(&["--epochs", "3"]).contains("(3 epochs at"), "how long a given run takes");
    let out = root.path().join("run");
    sogclr().arg("pretrain").args(small).args(["--hours", "1e-9", "--out"]).arg(&out).assert().success();
    assert!(std::fs::read_to_string(out.join("config.toml")).unwrap().contains("epochs = 1\n"));
    let again = root.path().join("again");
    sogclr().args(["pretrain", "--config"]).arg(out.join("config.toml")).arg("--out").arg(&again).assert().success();
    let weights = |run: &Path| std::fs::read(run.join("encoder.safetensors")).unwrap();
    assert_eq!(weights(&out), weights(&again));
    let (code, _) = failure(sogclr().arg("pretrain").args(small).args(["--hours", "0", "--out"]).arg(&again));
    assert_eq!(code, 2);
}

#[test]
fn advice_is_a_table_and_a_command() {
    let small = ["--limit", "60", "--image-size", "8", "--width", "0.25", "--minutes", "0.001"];
    let output = sogclr().arg("advise").args(small).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in ["as usual", "orientation", "linear top-1 %", "rotation % (no labels)", "RankMe"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.contains("sogclr pretrain --keep") || text.contains("leave it as it is"), "{text}");
    let output = sogclr().arg("advise").args(small).arg("--json").output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["best"].is_string() && document["rows"].as_array().unwrap().len() >= 4);
}

#[test]
fn shells_and_manuals_know_every_verb_and_the_version_says_what_is_built_in() {
    let root = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = sogclr().args(["completions", shell]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("--keep-every") && text.contains("advise"), "{shell}");
    }
    let pages = root.path().join("man1");
    sogclr().arg("man").arg(&pages).assert().success();
    let page = std::fs::read_to_string(pages.join("sogclr-pretrain.1")).unwrap();
    assert!(page.contains("weight") && pages.join("sogclr-eval-linear.1").exists());
    let output = sogclr().arg("--version").env("NO_COLOR", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("features: ") && text.contains("kernels for ") && !text.contains('\u{1b}'), "{text}");
}
