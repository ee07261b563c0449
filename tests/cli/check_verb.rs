//! `sogclr check`, the list that it makes and `pretrain` heeds, and `sogclr views`.

use crate::{failure, sogclr};
use image::{Rgb, RgbImage};
use std::path::Path;

const TINY: &[&str] = &["--image-size", "8", "--encoder", "resnet8", "--batch", "4", "--epochs", "1"];

/// A picture of its own for each number.
fn picture(path: &Path, number: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let level = |x: u32, y: u32| {
        ((x / 4 * 31 + y / 4 * 17 + 1).wrapping_mul(number + 3).wrapping_mul(2_654_435_761) >> 24) as u8
    };
    RgbImage::from_fn(32, 32, |x, y| Rgb([level(x, y), level(y, x), level(x, x)])).save(path).unwrap();
}

/// Ten training and two test images, of which one leaks, one is there twice and one is broken.
fn data(root: &Path) {
    for number in 0..8 {
        picture(&root.join(format!("train/{}/{number}.png", if number < 4 { "a" } else { "b" })), number);
    }
    picture(&root.join("train/a/twice.png"), 2);
    picture(&root.join("train/b/leak.png"), 90);
    picture(&root.join("val/a/0.png"), 90);
    picture(&root.join("val/b/1.png"), 91);
    std::fs::write(root.join("train/b/broken.jpg"), b"nothing").unwrap();
}

#[test]
fn check_finds_what_is_wrong_and_pretrain_leaves_it_out() {
    let root = tempfile::tempdir().unwrap();
    let (photos, out, run) = (root.path().join("photos"), root.path().join("out"), root.path().join("run"));
    data(&photos);
    let check = |more: &[&str]| {
        let output = sogclr().arg("check").arg(&photos).args(TINY).arg("--out").arg(&out).args(more).output().unwrap();
        let [said, noted] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), said, noted)
    };
    let (code, said, noted) = check(&[]);
    assert_eq!(code, Some(0), "{noted}");
    for words in ["11 training images, 2 test images", "unreadable: 1", "b/broken.jpg", "also a test image: 1"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said.contains("duplicate: 1") && said.contains("views/s") && said.contains("--quarantine"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("check.json")).unwrap()).unwrap();
    assert_eq!((json["findings"].as_array().unwrap().len(), &json["train"]), (3, &11.into()), "{json}");
    assert!(json["loading"]["views_per_s"].as_f64().unwrap() > 0.0);
    assert!(image::open(out.join("suspicious.png")).unwrap().width() > 500);
    let (code, _, noted) = check(&[]);
    assert!(code == Some(2) && noted.contains("choose another --out"), "an edited list is not lost: {noted}");

    let list = out.join("quarantine.txt");
    let pretrain = |data: &Path, run: &Path| {
        let mut command = sogclr();
        command.arg("pretrain").arg(data).args(TINY).arg("--quarantine").arg(&list).arg("--out").arg(run);
        command
    };
    let output = pretrain(&photos, &run).output().unwrap();
    let noted = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && noted.contains("3 remarks in"), "{noted}");
    let manifest = sogclr().arg("manifest").arg(&run).output().unwrap().stdout;
    let manifest = String::from_utf8(manifest).unwrap();
    assert_eq!(manifest.lines().count(), 8, "{manifest}");
    assert!(!["twice", "leak", "broken"].iter().any(|name| manifest.contains(name)), "{manifest}");
    assert!(
        std::fs::read_to_string(run.join("problems.txt")).unwrap().contains("b/leak.png is in the quarantine list")
    );
    // The run keeps the list: it goes on and is evaluated without the file.
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("quarantine = "), "{config}");
    std::fs::rename(&list, out.join("moved")).unwrap();
    sogclr().arg("resume").arg(&run).assert().success();
    sogclr().args(["eval", "knn", "-k", "3"]).arg(&run).assert().success();
    let (code, text) = failure(&mut pretrain(&photos, &root.path().join("other")));
    assert!(code == 2 && text.contains("quarantine.txt"), "{text}");
    // A list of other data.
    std::fs::write(&list, "x.png\n").unwrap();
    let (code, text) = failure(&mut pretrain(&photos, &root.path().join("other")));
    assert!(code == 2 && text.contains("other data"), "{text}");
}

#[test]
fn sound_data_needs_nothing_and_what_cannot_be_read_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let (photos, out) = (root.path().join("photos"), root.path().join("out"));
    for number in 0..3 {
        picture(&photos.join(format!("{number}.png")), number);
    }
    // Too few images for a run of 8: loading is not measured, and nothing is wrong with them.
    let check = ["--batch", "8", "--json", "--out"];
    let output = sogclr().arg("check").arg(&photos).args(check).arg(&out).output().unwrap();
    let noted = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && noted.contains("loading is not measured"), "{noted}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["findings"].as_array().unwrap().len(), &json["balance"]), (0, &serde_json::Value::Null));
    assert!(!out.join("suspicious.png").exists() && out.join("quarantine.txt").exists());
    let (code, text) =
        failure(sogclr().arg("check").arg(root.path().join("nothing")).arg("--out").arg(root.path().join("o")));
    assert!(code == 2 && text.contains("does not exist") && !root.path().join("o").exists(), "{text}");
}

#[test]
fn views_shows_images_beside_what_the_encoder_sees() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("views.png");
    let views = |more: &[&str]| {
        let mut command = sogclr();
        command.args(["views", "--limit", "20", "--image-size", "12", "--rows", "3", "--columns", "4", "--out"]);
        command.arg(&file).args(more);
        command
    };
    views(&[]).assert().success();
    let (width, height) = image::image_dimensions(&file).unwrap();
    assert_eq!((width, height), (5 * 168 + 8, 3 * 193 + 8));
    let (code, text) = failure(&mut views(&[]));
    assert!(code == 2 && text.contains("views.png exists"), "{text}");
    let (first, _) = (std::fs::read(&file).unwrap(), std::fs::remove_file(&file).unwrap());
    views(&["--set", "augment.flip=1"]).assert().success();
    assert_ne!(std::fs::read(&file).unwrap(), first, "the flags of pretrain count");
    std::fs::remove_file(&file).unwrap();
    let (code, _) = failure(&mut views(&["--set", "augment.flip=2"]));
    assert!(code == 2 && !file.exists());
}
