//! The check of images, what is remembered of it, and runs that go on with other images.

use crate::{TINY, failure, sogclr};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A picture of an hour ago.
fn picture(folder: &Path, name: &str, value: u8) {
    std::fs::create_dir_all(folder).unwrap();
    let picture = image::RgbImage::from_fn(12, 12, |x, y| image::Rgb([value, (x * 20) as u8, (y * 20) as u8]));
    picture.save(folder.join(name)).unwrap();
    age(&folder.join(name));
}

fn age(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

fn pictures(folder: &Path) {
    (0..16).for_each(|i| picture(folder, &format!("{i:02}.png"), 10 * i));
}

/// Exit code, and all of standard error.
fn pretrain(root: &Path, run: &str, more: &[&str]) -> (i32, String) {
    let mut command = sogclr();
    command.env("XDG_CACHE_HOME", root.join("cache")).args(&TINY[..1]).arg(root.join("data"));
    // Without --limit.
    command.args(&TINY[3..]).arg("--out").arg(root.join(run)).args(more);
    let output = command.output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_check_is_remembered_and_a_damaged_memory_is_named() {
    let root = tempfile::tempdir().unwrap();
    pictures(&root.path().join("data"));
    let encoder = |run: &str| std::fs::read(root.path().join(run).join("encoder.safetensors")).unwrap();
    assert_eq!(pretrain(root.path(), "first", &[]).0, 0);
    let cache = root.path().join("cache/sogclr/checks");
    let files: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::write(&files[0], b"something else").unwrap();
    let (code, text) = pretrain(root.path(), "second", &[]);
    assert!(code == 0 && text.contains("are not used: it is not a file of this program"), "{text}");
    let (code, text) = pretrain(root.path(), "third", &[]);
    assert!(code == 0 && !text.contains("not used"), "{text}");
    assert!(encoder("first") == encoder("second") && encoder("second") == encoder("third"));
    // What was good is remembered; what breaks is met all the same.
    std::fs::write(root.path().join("data/03.png"), b"broken").unwrap();
    age(&root.path().join("data/03.png"));
    let (code, text) = pretrain(root.path(), "fourth", &[]);
    assert!(code == 2 && text.contains("1 of 16 images cannot be read") && text.contains("03.png"), "{text}");
}

#[test]
fn an_image_that_nobody_looked_at_stops_the_run_by_name() {
    let root = tempfile::tempdir().unwrap();
    pictures(&root.path().join("data"));
    std::fs::write(root.path().join("data/05.png"), b"broken").unwrap();
    let (code, text) = pretrain(root.path(), "run", &["--check", "none"]);
    let last = text.lines().last().unwrap_or_default();
    assert!(code == 1 && last.contains("a checkpoint was written") && last.contains("05.png"), "{code} {text}");
    let (code, text) = pretrain(root.path(), "other", &["--check", "some"]);
    assert!(code == 2 && text.contains("`check`") && text.contains("`sample`"), "{code} {text}");

    // Without the image it goes on, and says what it still knows.
    std::fs::remove_file(root.path().join("data/05.png")).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(root.path().join("run")));
    assert!(code == 2 && text.contains("05.png is gone") && text.contains("--data"), "{code} {text}");
    let output =
        sogclr().arg("resume").arg(root.path().join("run")).arg("--data").arg(root.path().join("data")).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("15 of 15 images; 0 are new, 1 are gone"), "{text}");
}

#[test]
fn a_run_starts_from_another_and_says_what_does_not_fit() {
    let root = tempfile::tempdir().unwrap();
    pictures(&root.path().join("data"));
    assert_eq!(pretrain(root.path(), "first", &[]).0, 0);
    picture(&root.path().join("data"), "new.png", 222);
    let first = root.path().join("first");
    let first = first.to_str().unwrap();
    let (code, text) = pretrain(root.path(), "second", &["--init", first]);
    assert!(code == 0 && text.contains("u carried over for 16 of 17 images; 1 are new, 0 are gone"), "{code} {text}");
    std::fs::write(root.path().join("data/00.png"), b"broken").unwrap();
    let (code, text) = pretrain(root.path(), "third", &["--init", first, "--encoder", "resnet14"]);
    let said = "its encoder is resnet8 of width 0.25";
    assert!(code == 2 && text.contains(said) && !text.contains("00.png"), "{code} {text}");
    let file = format!("{first}/encoder.safetensors");
    let (code, text) = pretrain(root.path(), "third", &["--init", &file, "--encoder", "resnet14"]);
    let said = "it holds resnet8 of width 0.25, the encoder of this run is resnet14 of width 0.25";
    assert!(code == 2 && text.contains(said) && !text.contains("00.png"), "{code} {text}");
}
