//! Wrong input: one sentence that names the cause and the fix, exit code 2 (1 if the run itself failed), and nothing
//! written.

use crate::{TINY, failure, sogclr, train};
use std::path::Path;

/// (more arguments, words the message must have)
const CASES: &[(&[&str], &str)] = &[
    (&["--batch", "1"], "at least 2"),
    (&["--batch", "49"], "only 48 training images"),
    (&["--epochs", "0"], "train.epochs"),
    (&["--set", "method.temperature=0"], "method.temperature"),
    (&["--set", "method.temperature=-0.1"], "method.temperature"),
    (&["--set", "method.temperature=nan"], "method.temperature"),
    (&["--set", "method.gamma.value=0"], "method.gamma"),
    (&["--set", "method.gamma.value=1.5"], "method.gamma"),
    (&["--set", "method.variant=tf", "--set", "method.gamma.value=0.4"], "diverges"),
    (&["--set", "method.temprature=0.1"], "temprature"),
    (&["--set", "train.batchsize=8"], "batchsize"),
    (&["--set", "learning_rate.base=fast"], "base"),
    (&["--set", "learning_rate.base=-1"], "learning_rate.base"),
    (&["--set", "head.layers=7"], "head.layers"),
    (&["--set", "augment.flip=2"], "augment.flip"),
    (&["--set", "nonsense"], "key=value"),
    (&["--set", "train.checkpoint_minutes=inf"], "checkpoint_minutes"),
    (&["--epochs", "9223372036854775807"], "train.epochs"),
    (&["--set", "optimizer.momentum=-3"], "optimizer.momentum"),
    (&["--set", "optimizer.weight_decay=nan"], "optimizer.weight_decay"),
    (&["--set", "augment.jitter.hue=nan"], "augment.jitter"),
    (&["--set", "augment.mean=[nan, 0, 0]"], "augment.mean"),
    (&["--method", "bylo"], "known methods are sogclr, simclr"),
    (&["--method", "simo", "--set", "method.alpha=0"], "method.alpha"),
    (&["--method", "debiased", "--set", "method.prior=1"], "method.prior"),
    (&["--method", "dcl", "--set", "method.sigma=-1"], "method.sigma"),
    (&["--method", "isogclr", "--set", "method.temperature=0.9"], "method.temperature"),
    (&["--method", "moco", "--set", "method.queue=49"], "the data has 48 images"),
    (&["--method", "nnclr", "--set", "method.queue=0"], "method.queue"),
    (&["--method", "moco", "--set", "method.norm_groups=3"], "divide the batch of 8"),
    (&["--method", "moco", "--set", "method.momentum=1"], "method.momentum"),
    (&["--method", "infomin", "--views", "4x8+2x6"], "exactly 2 of one size"),
    (&["--method", "infomin", "--set", "method.norm_groups=2", "--micro-batch", "2"], "normalises 4 images together"),
    (&["--views", "2by8"], "2x224 or 4x160+2x96"),
    (&["--views", "2x8+"], "2x224 or 4x160+2x96"),
    (&["--views", "0x8"], "2x224 or 4x160+2x96"),
    (&["--views", "2x6+2x8"], "large crops first"),
    (&["--views", "1x8"], "positives need 2"),
    (&["--views", "2x16", "--eval-size", "4"], "it must lie between 8 and 4096"),
    (&["--set", "method.repulsion=0"], "method.repulsion is 0; it must be positive"),
    (&["--micro-batch", "3"], "must divide the batch of 8"),
    (&["--micro-batch", "0"], "train.micro_batch"),
    (&["--set", "augment.jigsaw={grid=3, scale=[0.6, 1.0]}"], "has no use for it"),
    (&["--method", "infomin", "--set", "augment.jigsaw.scale=[2, 3]"], "augment.jigsaw.scale"),
    (&["--views", "1000000x8"], "at most 100"),
    (&["--set", "head.hidden=1000000000"], "head.hidden is 1000000000; it must lie between 2 and 65536"),
    (&["--set", "head.output=1"], "head.output is 1"),
    (&["--set", "augment.jitter.hue=3"], "augment.jitter.hue is 3"),
    (&["--set", "augment.rand_augment={count=2, magnitude=11}"], "rand_augment.magnitude"),
    (&["--encoder", "vgg"], "vgg"),
    (&["--device", "tpu"], "tpu"),
    (&["--precision", "f16"], "f16"),
    (&["--precision", "bf16", "--device", "wgpu"], "--precision"),
    (&["--limit", "99999"], "10000 training images"),
    (&["--threads", "0"], "--threads"),
    (&["--classes", "no-such-file"], "no-such-file"),
    (&["--config", "no-such-recipe.toml"], "no-such-recipe.toml"),
    (&["--test", "no-such-folder"], "no-such-folder"),
    (&["no-such-folder"], "does not exist"),
];

#[test]
fn wrong_settings_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    for (arguments, words) in CASES {
        let (code, text) = failure(sogclr().args(TINY).args(*arguments).arg("--out").arg(&out));
        assert!(code == 2 && text.contains(words), "{arguments:?}: exit {code}, {text}");
        assert!(text.starts_with("error: ") && !text.contains("panicked"), "{text}");
        assert!(!out.exists(), "{arguments:?} wrote something");
    }
}

#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
#[test]
fn devices_that_are_not_built_in_are_named() {
    let root = tempfile::tempdir().unwrap();
    for device in ["wgpu", "cuda"] {
        let command = &mut sogclr();
        let (code, text) = failure(command.args(TINY).args(["--device", device, "--out"]).arg(root.path().join("r")));
        assert!(code == 2 && text.contains(&format!("--features {device}")), "{text}");
    }
}

fn pretrain_folder(folder: &Path, more: &[&str]) -> (i32, String) {
    let out = folder.parent().unwrap().join("run");
    let settings = ["pretrain", "--image-size", "8", "--encoder", "resnet8", "--batch", "2", "--epochs", "1"];
    failure(sogclr().args(settings).args(more).arg(folder).arg("--out").arg(out))
}

#[test]
fn broken_images_are_met_before_training() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let (code, text) = pretrain_folder(&data, &[]);
    assert!(code == 2 && text.contains("holds no images"), "{text}");

    let picture = image::RgbImage::from_fn(40, 40, |x, y| image::Rgb([(x * 6) as u8, (y * 6) as u8, 40]));
    for name in ["a.png", "b.jpg", "c.png"] {
        picture.save(data.join(name)).unwrap();
    }
    let whole = std::fs::read(data.join("b.jpg")).unwrap();
    let truncated = whole[..whole.len() / 2].to_vec();
    for (what, bytes) in [("truncated", truncated), ("random", b"\x00\x01random bytes".to_vec()), ("empty", vec![])] {
        std::fs::write(data.join("b.jpg"), bytes).unwrap();
        let (code, text) = pretrain_folder(&data, &[]);
        assert!(code == 2 && text.contains("b.jpg") && text.contains("--skip-bad"), "{what}: {code} {text}");
        assert!(!root.path().join("run").exists(), "{what} wrote something");
    }
    let (code, text) = pretrain_folder(&data, &["--skip-bad"]);
    assert!(code == 0, "{text}");
    let manifest = sogclr().arg("manifest").arg(root.path().join("run")).output().unwrap().stdout;
    assert_eq!(manifest.iter().filter(|&&byte| byte == b'\n').count(), 2, "the broken image is left out");
}

fn picture(path: &Path, value: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_fn(12, 12, |x, y| image::Rgb([value, (x * 20) as u8, (y * 20) as u8])).save(path).unwrap();
}

#[test]
fn a_run_that_left_images_out_can_be_evaluated_and_too_few_images_are_named() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    for (class, value) in [("a", 30), ("b", 200)] {
        for i in 0..6 {
            picture(&data.join(class).join(format!("{i}.png")), value + i);
        }
    }
    std::fs::write(data.join("b/broken.jpg"), b"x").unwrap();
    let (code, text) = pretrain_folder(&data, &["--skip-bad"]);
    assert!(code == 0, "{text}");
    let run = root.path().join("run");
    sogclr().args(["eval", "linear"]).arg(&run).assert().success();

    let few = root.path().join("few");
    picture(&few.join("a/0.png"), 1);
    picture(&few.join("b/0.png"), 2);
    for verb in ["linear", "knn"] {
        let (code, text) = failure(sogclr().args(["eval", verb]).arg(&run).arg(&few));
        assert!(code == 2 && text.contains("no images to test"), "{verb}: {code} {text}");
    }
}

#[test]
fn a_test_image_that_is_broken_or_of_an_unknown_class_is_met_before_training() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    for i in 0..4 {
        picture(&data.join(format!("train/a/{i}.png")), i);
        picture(&data.join(format!("train/b/{i}.png")), 90 + i);
    }
    std::fs::create_dir_all(data.join("val/a")).unwrap();
    std::fs::write(data.join("val/a/bad.png"), b"x").unwrap();
    let (code, text) = pretrain_folder(&data, &[]);
    assert!(code == 2 && text.contains("bad.png"), "{code} {text}");
    std::fs::remove_file(data.join("val/a/bad.png")).unwrap();
    picture(&data.join("val/zebra/0.png"), 5);
    let (code, text) = pretrain_folder(&data, &[]);
    assert!(code == 2 && text.contains("zebra"), "{code} {text}");
}

#[test]
fn an_existing_run_and_an_unwritable_folder_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    train(&out, &[]);
    let before = std::fs::read(out.join("encoder.safetensors")).unwrap();
    let (code, text) = failure(sogclr().args(TINY).arg("--out").arg(&out));
    assert!(code == 2 && text.contains("sogclr resume"), "{text}");
    assert_eq!(before, std::fs::read(out.join("encoder.safetensors")).unwrap());

    let file = root.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let (code, text) = failure(sogclr().args(TINY).arg("--out").arg(file.join("run")));
    assert!(code == 2 && text.contains("cannot write"), "{text}");
}

#[test]
fn folders_that_are_not_runs_and_data_without_labels_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for verb in [&["resume"][..], &["eval", "linear"], &["eval", "knn"]] {
        let (code, text) = failure(sogclr().args(verb).arg(root.path()));
        assert!(code == 2 && text.contains("not a run folder"), "{verb:?}: {text}");
    }
    let run = root.path().join("run");
    train(&run, &[]);
    let loose = root.path().join("loose");
    std::fs::create_dir(&loose).unwrap();
    image::RgbImage::new(8, 8).save(loose.join("a.png")).unwrap();
    let (code, text) = failure(sogclr().args(["eval", "linear"]).arg(&run).arg(&loose));
    assert!(code == 2 && text.contains("no labels"), "{text}");
    image::RgbImage::new(8, 8).save(loose.join("b.png")).unwrap();
    let out = root.path().join("supcon");
    let supcon = ["--limit", "2", "--batch", "2", "--method", "supcon", "--out"];
    let (code, text) = failure(sogclr().args(TINY).arg(&loose).args(supcon).arg(&out));
    assert!(code == 2 && text.contains("needs labels") && !out.exists(), "{text}");
    let one_class = root.path().join("one-class");
    std::fs::create_dir_all(one_class.join("cats")).unwrap();
    for name in ["a.png", "b.png"] {
        image::RgbImage::new(8, 8).save(one_class.join("cats").join(name)).unwrap();
    }
    let by_label = ["--limit", "2", "--batch", "2", "--set", "method.by_label=true", "--out"];
    for more in [&supcon[..], &by_label[..]] {
        let (code, text) = failure(sogclr().args(TINY).arg(&one_class).args(more).arg(&out));
        assert!(code == 2 && text.contains("one class only: add images") && !out.exists(), "{text}");
    }
    let (code, text) = failure(sogclr().args(["eval", "knn", "-k", "400"]).arg(&run));
    assert!(code == 2 && text.contains("-k is 400, but only 48"), "{text}");
    let (code, text) = failure(sogclr().args(["eval", "linear", "--protocol", "paper", "--epochs", "0"]).arg(&run));
    assert!(code == 2 && text.contains("--epochs is 0"), "{text}");
    let (code, text) = failure(sogclr().args(["eval", "knn", "--test", "no-such-folder"]).arg(&run));
    assert!(code == 2 && text.contains("no-such-folder does not exist") && !text.contains("moved"), "{text}");
    let (code, text) = failure(sogclr().args(["eval", "knn", "-k", "0"]).arg(&run));
    assert!(code == 2 && text.contains("-k"), "{text}");
    std::fs::write(run.join("encoder.safetensors"), b"garbage").unwrap();
    let (code, text) = failure(sogclr().args(["eval", "linear"]).arg(&run));
    assert!(code == 2 && text.contains("encoder.safetensors"), "{text}");
}

#[test]
fn divergence_ends_the_run_with_its_cause_and_keeps_the_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let wild =
        ["--set", "optimizer.kind=sgd", "--set", "learning_rate.base=1e30", "--set", "learning_rate.warmup_epochs=0"];
    let (code, text) = failure(sogclr().args(TINY).args(wild).arg("--out").arg(&out));
    assert!(code == 1 && text.contains("not finite") && text.contains("learning rate"), "{code} {text}");
    assert!(out.join("checkpoints/step-000000000.safetensors").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_sogclr"))
        .args(["config", "show"])
        .stdout(full)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}
