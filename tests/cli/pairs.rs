//! Image–text pairs: training, resume, retrieval, zero-shot, search, and what can be wrong with them.

use crate::{failure, sogclr};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run of seconds: small encoders, 8 pairs in a step.
const SMALL: &[&str] = &[
    "pretrain",
    "--image-size",
    "32",
    "--encoder",
    "clip-xs",
    "--batch",
    "8",
    "--epochs",
    "2",
    "--set",
    "encoder.width=0.25",
    "--set",
    "text={ width = 16, layers = 1, heads = 2, context = 12, vocabulary = 49408 }",
];

fn train(out: &Path, more: &[&str]) {
    sogclr().args(SMALL).arg("--out").arg(out).args(more).assert().success();
}

fn bytes(run: &Path, name: &str) -> Vec<u8> {
    std::fs::read(run.join(name)).unwrap()
}

/// Red and blue pictures in folders of their class, and a table of their captions.
fn colours(root: &Path, each: u8) -> (PathBuf, PathBuf) {
    let images = root.join("images");
    let mut table = String::from("image\tcaption\n");
    for (class, colour) in [("red_square", [230, 20, 30]), ("blue_square", [10, 40, 220])] {
        std::fs::create_dir_all(images.join(class)).unwrap();
        for i in 0..each {
            let name = format!("{class}/{i}.png");
            let pixels = image::RgbImage::from_fn(40, 36, |x, y| {
                image::Rgb(colour.map(|c: u8| c ^ ((x + y + u32::from(i)) as u8 % 16)))
            });
            pixels.save(images.join(&name)).unwrap();
            let word = class.split('_').next().unwrap();
            table += &format!("{name}\ta {word} thing\n{name}\tsomething {word}\n");
        }
    }
    let file = root.join("captions.tsv");
    std::fs::write(&file, table).unwrap();
    (file, images)
}

// Long: one run, and every verb on it.
#[test]
fn pairs_train_and_the_two_encoders_find_each_other() {
    let root = tempfile::tempdir().unwrap();
    let (table, images) = colours(root.path(), 12);
    let run = root.path().join("run");
    let (table, images) = (table.to_str().unwrap(), images.to_str().unwrap());
    train(&run, &["--pairs", table, "--images", images, "--test", table, "--epochs", "30"]);
    for name in ["config.toml", "open_clip.json", "encoder.safetensors", "manifest.bin", "metrics.jsonl"] {
        assert!(run.join(name).exists(), "{name}");
    }
    let print = |arguments: &[&str]| {
        let output = sogclr().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let folder = run.to_str().unwrap();
    let text = print(&["eval", "retrieval", folder]);
    assert!(text.contains("24 images, 48 captions"), "{text}");
    // One of 24 images, by chance.
    assert!(text.contains("| untrained ") && text.contains("| chance       | 4.2 "), "{text}");
    let warning = |arguments: &[&str]| {
        let output = sogclr().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    };
    // Here the test pairs are the training pairs, which is worth a warning.
    let seen = "warning: the run was trained on 24 of these 24 images";
    for more in [&[][..], &[table, "--images", images]] {
        let text = warning(&[&["eval", "retrieval", folder], more].concat());
        assert!(text.contains(seen), "{text}");
    }
    let text = warning(&["eval", "zeroshot", folder, images]);
    assert!(text.contains(seen), "{text}");
    print(&["eval", "linear", folder, images]);

    // Two classes that are told apart by a word are learned within seconds.
    let templates = root.path().join("templates.txt");
    std::fs::write(&templates, "a {} thing\n\nsomething [CLASS]\n").unwrap();
    let names = root.path().join("names.txt");
    std::fs::write(&names, "blue\nred\n").unwrap();
    let (templates, names) = (templates.to_str().unwrap(), names.to_str().unwrap());
    let text = print(&["eval", "zeroshot", folder, images, "--templates", templates, "--class-names", names]);
    assert!(text.contains("24 images, 2 classes, 2 templates"), "{text}");
    let summary: serde_json::Value = serde_json::from_slice(&bytes(&run, "summary.json")).unwrap();
    let found = |name: &str| {
        let all = summary["evaluations"].as_array().unwrap();
        all.iter().rfind(|entry| entry["evaluation"] == name).unwrap_or_else(|| panic!("{name}"))["result"].clone()
    };
    let top1 = found("zeroshot")["top1"].as_f64().unwrap();
    assert!(top1 > 0.95, "{text}");
    assert!(found("retrieval")["mean_recall"].as_f64().is_some());

    let text = print(&["search", folder, "something blue", "--images", images, "-n", "6"]);
    assert_eq!(text.lines().filter(|line| line.contains("blue_square")).count(), 6, "{text}");
    assert!(image::open(run.join("search.png")).is_ok());

    // A folder that is divided is searched whole.
    let whole = root.path().join("whole");
    for (class, part) in [("red_square", "train/red"), ("blue_square", "val/blue")] {
        std::fs::create_dir_all(whole.join(part)).unwrap();
        for i in 0..12 {
            let file = Path::new(images).join(class).join(format!("{i}.png"));
            std::fs::copy(file, whole.join(part).join(format!("{i}.png"))).unwrap();
        }
    }
    let text = print(&["search", folder, "something blue", "--images", whole.to_str().unwrap(), "-n", "24"]);
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!((count("  train/red/"), count("  val/blue/")), (12, 12), "{text}");
    let archive = root.path().join("photos.zip");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&archive).unwrap());
    for name in ["red_square/0.png", "blue_square/0.png"] {
        zip.start_file(format!("photos/{name}"), zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&std::fs::read(Path::new(images).join(name)).unwrap()).unwrap();
    }
    zip.finish().unwrap();
    let text = print(&["search", folder, "something blue", "--images", archive.to_str().unwrap()]);
    assert!(text.lines().next().unwrap().ends_with("  photos.zip/photos/blue_square/0.png"), "{text}");

    let (code, text) =
        failure(sogclr().args(["eval", "zeroshot", folder, images, "--class-names", templates, "--templates", names]));
    assert!(code == 2 && text.contains("no [CLASS]"), "{text}");
    std::fs::write(root.path().join("one.txt"), "red\n").unwrap();
    let one = root.path().join("one.txt");
    let (code, text) = failure(sogclr().args(["eval", "zeroshot", folder, images, "--limit", "3"]));
    assert!(code == 2 && text.contains("leave --limit out"), "{code} {text}");
    let (code, text) = failure(sogclr().args(["eval", "zeroshot", folder, images, "--class-names"]).arg(one));
    assert!(code == 2 && text.contains("1 names for 2 classes"), "{text}");
}

#[test]
fn every_method_of_pairs_resumes_to_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    for (name, method, settings) in [
        ("sogclr", "sogclr", &[][..]),
        ("paper's objective", "sogclr", &["--set", "method.include_positive=true"]),
        ("clip", "clip", &["--micro-batch", "4"]),
        ("clip that learns its temperature", "clip", &["--set", "method.learn_temperature=true"]),
        ("isogclr", "isogclr", &["--encoder", "clip-vit-xs", "--set", "encoder.width=0.3333"]),
        ("fastclip", "fastclip", &["--threads", "1"]),
        ("fastclip v1", "fastclip", &["--set", "method.learned={ kind = 'fixed' }"]),
        ("siglip", "siglip", &[]),
    ] {
        let run = root.path().join(name);
        train(
            &run,
            &[&["--pairs", "emoji", "--limit", "48", "--keep-every", "1", "--method", method], settings].concat(),
        );
        let last = "checkpoints/step-000000012.safetensors";
        let whole = (bytes(&run, last), bytes(&run, "encoder.safetensors"));
        // As if the second epoch had never been saved.
        std::fs::remove_file(run.join(last)).unwrap();
        sogclr().arg("resume").arg(&run).assert().success();
        assert!((bytes(&run, last), bytes(&run, "encoder.safetensors")) == whole, "{name}");
    }
}

/// The gradient of the whole batch reaches both encoders, also in chunks: batch norm aside, a vision transformer learns the
/// same.
#[test]
fn micro_batches_of_pairs_give_the_same_run() {
    let root = tempfile::tempdir().unwrap();
    let weights = |name: &str, more: &[&str]| {
        let run = root.path().join(name);
        let vit = ["--encoder", "clip-vit-xs", "--set", "encoder.width=0.3333", "--epochs", "1"];
        train(&run, &[&["--pairs", "emoji", "--limit", "24"], &vit[..], more].concat());
        sogclr::storage::load_tensors(&run.join("encoder.safetensors")).unwrap().0
    };
    let (whole, chunks) = (weights("whole", &[]), weights("chunks", &["--micro-batch", "2"]));
    for (name, tensor) in &whole {
        let largest =
            tensor.values.iter().zip(&chunks[name].values).fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(largest < 2e-4, "{name}: {largest}");
    }
}

#[test]
fn what_is_wrong_with_pairs_is_named_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let (table, images) = colours(root.path(), 8);
    let good = std::fs::read_to_string(&table).unwrap();
    let out = root.path().join("run");
    let images = images.to_str().unwrap();
    let refused = |file: &Path, more: &[&str]| {
        let mut command = sogclr();
        command.args(SMALL).arg("--pairs").arg(file).args(["--images", images]).args(more).arg("--out").arg(&out);
        let (code, text) = failure(&mut command);
        assert!(code == 2 && !out.exists(), "exit {code}: {text}");
        text
    };
    for (name, content, words) in [
        ("missing.tsv", good.clone() + "no.png\tnothing\n", "missing.tsv:34: image no.png is missing"),
        ("empty.tsv", good.clone() + "red_square/0.png\t \n", "empty.tsv:34: the caption is empty"),
        ("columns.csv", "a,b,c\n1,2,3\n".into(), "columns.csv:1: the columns are"),
    ] {
        let file = root.path().join(name);
        std::fs::write(&file, content).unwrap();
        let text = refused(&file, &[]);
        assert!(text.contains(words), "{name}: {text}");
    }
    for (more, words) in [
        (&["--method", "simclr"][..], "simclr is for images alone"),
        (&["--encoder", "resnet7"], "known encoders are resnet8"),
        (&["--set", "text.output=3"], "fixes it to 256"),
        (&["--image-size", "40"], "multiple of 32"),
        (&["--views", "2x32"], "exactly 1"),
        (&["--set", "text.heads=3"], "must divide the width"),
        (&["--set", "learning_rate.warmup_steps=1000"], "the run has 4 steps"),
        (
            &["--method", "clip", "--set", "method={ kind = 'clip', temperature = 0.006, learn_temperature = true }"],
            "0.01",
        ),
        (&["--template", "a [CLASS]"], "has captions of its own"),
        (&["--set", "data.class_names=names.txt"], "without data.template"),
    ] {
        let text = refused(&table, more);
        assert!(text.contains(words), "{more:?}: {text}");
    }
    let (code, text) = failure(sogclr().args(SMALL).args(["--method", "clip", "--out"]).arg(&out));
    assert!(code == 2 && text.contains("--pairs"), "{text}");

    // Left out when asked, counted, and training goes on.
    let file = root.path().join("missing.tsv");
    let mut command = sogclr();
    command.args(SMALL).arg("--pairs").arg(file).args(["--images", images, "--skip-bad"]);
    let output = command.arg("--out").arg(&out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("left out 1 of the pairs, first: "), "{text}");
    let problems = String::from_utf8(bytes(&out, "problems.txt")).unwrap();
    assert!(
        problems.lines().count() == 1 && problems.contains("missing.tsv:34: image no.png is missing"),
        "{problems}"
    );
    // Without held-out pairs there is nothing honest to measure.
    let (code, text) = failure(sogclr().args(["eval", "retrieval"]).arg(&out));
    assert!(code == 2 && text.contains("no test pairs"), "{text}");
}

#[test]
fn retrieval_says_what_it_leaves_out() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    train(&run, &["--pairs", "emoji", "--limit", "16", "--epochs", "1"]);
    let (table, images) = colours(root.path(), 2);
    let retrieval = |more: &[&str]| {
        let mut command = sogclr();
        command.args(["eval", "retrieval"]).arg(&run).arg(&table).arg("--images").arg(&images).args(more);
        command
    };
    let output = retrieval(&[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !text.contains("warning") && !text.contains("left out"), "{text}");
    // The images lie beside a table that has no folder in its name.
    std::fs::copy(&table, images.join("held.tsv")).unwrap();
    sogclr().current_dir(&images).args(["eval", "retrieval"]).arg(&run).arg("held.tsv").assert().success();

    std::fs::write(images.join("red_square/0.png"), "no picture").unwrap();
    let (code, text) = failure(&mut retrieval(&[]));
    assert!(
        code == 2 && text.contains("1 of 4 images") && text.ends_with("leave them out by data.skip_bad (--skip-bad)"),
        "{text}"
    );
    let good = std::fs::read_to_string(&table).unwrap();
    std::fs::write(&table, good + "no.png\tnothing\n").unwrap();
    let (code, text) = failure(&mut retrieval(&[]));
    assert!(
        code == 2 && text.contains("1 of 9 captions") && text.ends_with("leave them out by data.skip_bad (--skip-bad)"),
        "{text}"
    );

    let output = retrieval(&["--skip-bad"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("left out 1 of the pairs, first: "), "{text}");
    assert!(text.contains("left out 1 unreadable images, first: "), "{text}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("3 images, 6 captions"), "{text}");
}

#[test]
fn changed_captions_are_not_resumed_and_image_runs_have_no_texts() {
    let root = tempfile::tempdir().unwrap();
    let (table, images) = colours(root.path(), 8);
    let run = root.path().join("run");
    train(&run, &["--pairs", table.to_str().unwrap(), "--images", images.to_str().unwrap()]);
    let text = std::fs::read_to_string(&table).unwrap().replacen("a red thing", "a pink thing", 1);
    std::fs::write(&table, text).unwrap();
    let (code, text) = failure(sogclr().arg("resume").arg(&run));
    assert!(code == 2 && text.contains("red_square/0.png has other captions"), "{text}");

    let plain = root.path().join("plain");
    crate::train(&plain, &[]);
    for verb in [&["eval", "retrieval"][..], &["eval", "zeroshot"]] {
        let (code, text) = failure(sogclr().args(verb).arg(&plain));
        assert!(code == 2 && text.contains("no text encoder"), "{text}");
    }
}

#[test]
fn labelled_folders_become_pairs_through_a_template() {
    let root = tempfile::tempdir().unwrap();
    let (_, images) = colours(root.path(), 8);
    let run = root.path().join("run");
    let template = ["--template", "This is a photo of [CLASS]"];
    train(&run, &[&[images.to_str().unwrap()], &template[..], &["--method", "clip"]].concat());
    let output = sogclr().args(["eval", "zeroshot"]).arg(&run).arg(&images).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // ImageNet's folders say nothing to a text encoder.
    std::fs::rename(images.join("red_square"), images.join("n00000002")).unwrap();
    std::fs::rename(images.join("blue_square"), images.join("n00000001")).unwrap();
    let names = root.path().join("names.tsv");
    std::fs::write(&names, "n00000002\tred thing\nn00000003\tother\nn00000001\tblue thing\n").unwrap();
    let named = root.path().join("named");
    let mut command = sogclr();
    command.args(SMALL).arg(&images).args(template).arg("--out").arg(&named);
    let (code, text) = failure(&mut command);
    assert!(code == 2 && text.contains("classes such as n00000001 have no names") && !named.exists(), "{text}");
    let setting = format!("data.class_names={}", names.display());
    train(&named, &[&[images.to_str().unwrap()], &template[..], &["--set", &setting]].concat());

    let zeroshot = |more: &[&str]| {
        let mut command = sogclr();
        command.args(["eval", "zeroshot"]).arg(&named).arg(&images).args(more);
        command
    };
    let (code, text) = failure(&mut zeroshot(&[]));
    assert!(code == 2 && text.contains("--class-names FILE"), "{text}");
    zeroshot(&["--class-names", names.to_str().unwrap()]).assert().success();
}

#[test]
fn a_race_of_pairs_is_measured_by_retrieval() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("race");
    let race = |more: &[&str]| {
        let mut command = sogclr();
        command.arg("compare").args(&SMALL[1..]).args(["--epochs", "1", "--seeds", "2", "--out"]).arg(&out).args(more);
        command
    };
    race(&["--pairs", "emoji", "--limit", "16", "--methods", "sogclr,clip"]).assert().success();
    let table: serde_json::Value = serde_json::from_slice(&bytes(&out, "compare.json")).unwrap();
    let names: Vec<&str> =
        table["rows"].as_array().unwrap().iter().map(|row| row["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["sogclr", "clip", "untrained"]);
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(row["mean_recall"].as_array().unwrap().len(), 2, "{row}");
    }
    let text = String::from_utf8(bytes(&out, "compare.md")).unwrap();
    assert!(text.contains("text to image R@1 %"), "{text}");

    let (pairs, images) = colours(root.path(), 8);
    let (pairs, images) = (pairs.to_str().unwrap(), images.to_str().unwrap());
    let (code, text) = failure(&mut race(&["--pairs", pairs, "--images", images]));
    assert!(code == 2 && text.contains("no test pairs"), "{text}");
}

#[test]
fn a_run_starts_from_exported_weights() {
    let root = tempfile::tempdir().unwrap();
    let weights = |run: &Path| sogclr::storage::load_tensors(&run.join("encoder.safetensors")).unwrap().0;
    let first = root.path().join("first");
    let emoji = ["--pairs", "emoji", "--limit", "16", "--epochs", "1"];
    train(&first, &emoji);
    let file = first.join("encoder.safetensors");
    let second = root.path().join("second");
    // At this rate nothing moves but batch norm's running statistics.
    let still = ["--seed", "9", "--set", "learning_rate.base=1e-12", "--init", file.to_str().unwrap()];
    train(&second, &[&emoji[..], &still].concat());
    let (before, after) = (weights(&first), weights(&second));
    for (name, tensor) in before.iter().filter(|(name, _)| !name.contains("running_")) {
        let moved = tensor.values.iter().zip(&after[name].values).fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(moved < 1e-6, "{name}: {moved}");
    }
    // Weights of another model are refused, and so are those of pairs for images alone.
    for arguments in [&[&SMALL[1..], &emoji, &["--set", "text.layers=2"]].concat()[..], &crate::TINY[1..]] {
        let out = root.path().join("third");
        let mut command = sogclr();
        command.arg("pretrain").args(arguments).arg("--init").arg(&file).arg("--out").arg(&out);
        let (code, text) = failure(&mut command);
        assert!(code == 2 && text.contains("belong to another model") && !out.exists(), "{text}");
    }

    let image = root.path().join("image");
    crate::train(&image, &[]);
    let file = image.join("encoder.safetensors");
    let again = root.path().join("again");
    crate::train(&again, &["--set", "learning_rate.base=1e-12", "--init", file.to_str().unwrap()]);
    let difference = |name: &str| weights(&image)[name].values[0] - weights(&again)[name].values[0];
    assert!(difference("conv1.weight").abs() < 1e-6);
}
