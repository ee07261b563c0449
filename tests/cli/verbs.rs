//! Every verb once, from start to end.

use crate::{failure, sogclr, train};
use std::path::Path;

fn write_images(root: &Path, classes: &[&str], each: u8) {
    for (c, class) in classes.iter().enumerate() {
        let folder = root.join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for i in 0..each {
            let pixels = image::RgbImage::from_fn(20, 24, |x, y| {
                image::Rgb([(x as u8) * 9 + i, (y as u8) * 7, if c == 0 { 20 + i } else { 220 - i }])
            });
            pixels.save(folder.join(format!("{i}.png"))).unwrap();
        }
    }
}

#[test]
fn pretrain_fills_the_run_folder_and_evaluations_add_to_its_summary() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--keep-every", "1"]);
    for name in ["config.toml", "manifest.bin", "metrics.jsonl", "encoder.safetensors", "summary.json"] {
        assert!(run.join(name).exists(), "{name}");
    }
    let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 12, "two epochs of six steps");
    assert!(run.join("checkpoints/step-000000006.safetensors").exists(), "--keep-every keeps epoch 1");
    let output = sogclr().arg("manifest").arg(&run).output().unwrap();
    let manifest = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && manifest.lines().count() == 48, "{manifest}");
    let first: serde_json::Value = serde_json::from_str(manifest.lines().next().unwrap()).unwrap();
    assert_eq!((first["size"].as_u64(), first["hash"].as_str().map(str::len)), (Some(784), Some(64)), "{first}");

    for verb in [
        &["eval", "linear"][..],
        &["eval", "knn", "-k", "5"],
        &["eval", "linear", "--protocol", "paper", "--epochs", "2"],
    ] {
        let output = sogclr().args(verb).arg(&run).output().unwrap();
        assert!(output.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("untrained"));
    }
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(run.join("summary.json")).unwrap()).unwrap();
    let found = summary["evaluations"].as_array().unwrap();
    let names: Vec<_> =
        found.iter().map(|entry| (entry["evaluation"].as_str().unwrap(), entry["step"].as_u64())).collect();
    let of = |name, rows: usize| [[(name, Some(12)), (name, Some(0)), (name, Some(0))][..rows].to_vec()].concat();
    let want = [of("linear", 3), of("knn", 3), of("linear", 2)].concat();
    assert_eq!(names, want, "trained and untrained by each protocol, and a histogram by the quick ones");
    let top1 = found[0]["result"]["top1"].as_f64().unwrap();
    assert!((0.1..=1.0).contains(&top1), "better than nothing: {top1}");
    assert_prints(sogclr().arg("resume").arg(&run), "is complete");
}

fn assert_prints(command: &mut assert_cmd::Command, text: &str) {
    let output = command.output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(text));
}

#[test]
fn a_folder_of_images_trains_and_evaluates_with_labels_from_its_folders() {
    let root = tempfile::tempdir().unwrap();
    write_images(&root.path().join("data"), &["cold", "warm"], 10);
    let run = root.path().join("run");
    sogclr()
        .args(["pretrain", "--image-size", "16", "--encoder", "resnet8", "--batch", "4", "--epochs", "1"])
        .args(["--set", "encoder.width=0.25", "--method", "simclr"])
        .arg(root.path().join("data"))
        .arg("--out")
        .arg(&run)
        .assert()
        .success();
    let output = sogclr().args(["eval", "linear"]).arg(&run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("16 training, 4 test images, 2 classes"), "{text}");
}

#[test]
fn the_key_reference_in_the_docs_is_the_one_the_types_give() {
    let output = sogclr().args(["config", "reference"]).output().unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.md");
    let committed = std::fs::read_to_string(page).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), committed, "run: sogclr config reference > docs/config.md");
}

#[test]
fn every_recipe_resolves_on_the_embedded_data() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let mut count = 0;
    // Those of the paper's ImageNet-S choose classes, all of which the embedded data has.
    let root = tempfile::tempdir().unwrap();
    let classes = root.path().join("classes.txt");
    std::fs::write(&classes, "bag\ndress\n").unwrap();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let more = match (path.ends_with("flickr8k.toml"), text.contains("imagenet-s\"")) {
            (true, _) => vec!["--pairs", "emoji"],
            // Their warm-up is longer than a run on so few images.
            (_, true) if text.contains("warmup_steps") => {
                vec!["--classes", classes.to_str().unwrap(), "--set", "learning_rate.warmup_steps=10"]
            }
            (_, true) => vec!["--classes", classes.to_str().unwrap()],
            _ => Vec::new(),
        };
        let output = sogclr().args(["config", "show", "--config"]).arg(&path).args(more).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", path.display());
        count += 1;
    }
    assert!(count >= 19);
}

#[test]
fn a_flag_overrides_the_method_and_the_size_of_a_recipe() {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/cifar10-resnet18.toml");
    let show = |more: &[&str]| {
        let output = sogclr().args(["config", "show", "--config"]).arg(&recipe).args(more).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = show(&["--method", "simclr", "--image-size", "16"]);
    assert!(text.contains("kind = \"simclr\"") && text.contains("size = 16") && !text.contains("gamma"), "{text}");
}

#[test]
fn help_names_the_next_step() {
    for verb in ["demo", "pretrain", "resume", "eval", "loss", "config"] {
        let output = sogclr().args([verb, "--help"]).output().unwrap();
        assert!(output.status.success() && output.stdout.len() > 100, "{verb}");
    }
    assert_prints(sogclr().arg("--help"), "sogclr demo");
    assert_eq!(sogclr().arg("frobnicate").output().unwrap().status.code(), Some(2));
}

#[test]
fn metrics_tell_whether_it_learns() {
    let root = tempfile::tempdir().unwrap();
    let last = |name: &str, more: &[&str]| -> (serde_json::Value, String) {
        let run = root.path().join(name);
        let output = sogclr().args(crate::TINY).arg("--verbose").arg("--out").arg(&run).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        (serde_json::from_str(lines.lines().last().unwrap()).unwrap(), text)
    };
    let is_of_views = |name: &&&str| !["clip", "siglip", "fastclip"].contains(*name) && !name.ends_with("-pairs");
    for method in sogclr::method::MethodConfig::NAMES.iter().filter(is_of_views) {
        let (line, text) = last(method, &["--method", method]);
        for key in ["accuracy", "alignment", "uniformity", "spread", "effective_rank"] {
            assert!(line[key].as_f64().is_some_and(f64::is_finite), "{method}: {key} in {line}");
        }
        assert_eq!(line["verdict"], "early", "{method}: {line}");
        for word in ["accuracy", "alignment", "uniformity", "spread", "rank", "too early to tell"] {
            assert!(text.contains(word), "{method}: {word} in {text}");
        }
    }
    // Weight decay that leaves nothing of the last layer but its bias.
    let shrink = ["--method", "moco", "--set", "optimizer.kind=sgd", "--set", "optimizer.weight_decay=20.0"];
    let shrink = [&shrink[..], &["--set", "learning_rate.base=1.5", "--set", "optimizer.momentum=0.0"]].concat();
    let (line, text) = last("collapsed", &[&shrink[..], &["--epochs", "10"]].concat());
    assert_eq!(line["verdict"], "collapsed", "{line}");
    assert!(text.contains("COLLAPSED"), "{text}");
}

#[test]
fn features_are_written_with_the_names_of_their_images() {
    let root = tempfile::tempdir().unwrap();
    let (run, data) = (root.path().join("run"), root.path().join("pictures"));
    train(&run, &[]);
    std::fs::create_dir(&data).unwrap();
    for value in [10_u8, 200, 90] {
        image::GrayImage::from_pixel(12, 12, image::Luma([value])).save(data.join(format!("{value}.png"))).unwrap();
    }
    std::fs::write(data.join("broken.png"), b"no picture").unwrap();
    let out = root.path().join("features.safetensors");
    let output = sogclr().arg("embed").args([&run, &data]).arg("--out").arg(&out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("broken.png"), "{text}");
    let names = std::fs::read_to_string(root.path().join("features.safetensors.tsv")).unwrap();
    assert_eq!(names, "0\t10.png\n1\t200.png\n2\t90.png\n");
    let bytes = std::fs::read(&out).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let features = file.tensor("features").unwrap();
    assert_eq!(features.shape(), [3, 16]);
    let row = |row: usize| features.data()[row * 64..][..64].to_vec();
    assert!(row(0) != row(1) && row(1) != row(2), "pictures that differ have features that differ");
    let (encoder, nowhere) = (run.join("encoder.safetensors"), root.path().join("nowhere/features.safetensors"));
    for (file, words) in [(out, "exists: remove it"), (encoder, "exists: remove it"), (nowhere, "make it first")] {
        let (code, text) = failure(sogclr().arg("embed").args([&run, &data]).arg("--out").arg(&file));
        assert!(code == 2 && text.contains(words), "{text}");
    }
    // The run folder holds a program that loads the encoder.
    let script = std::fs::read_to_string(run.join("load.py")).unwrap();
    assert!(script.contains("STAGES = [(1, 4, 1), (1, 8, 2), (1, 16, 2)]"), "{script}");
    assert!(!script.contains("SETTINGS"), "{script}");
}
