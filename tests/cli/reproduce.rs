//! `sogclr reproduce`: records, tables, and going on.

use crate::{failure, sogclr};
use std::path::Path;

/// CIFAR-10's files with random pictures: classes differ in their mean colour.
fn cifar(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    for (file, images) in [(1, 2000), (2, 0), (3, 0), (4, 0), (5, 0), (0, 200)] {
        let mut bytes = Vec::new();
        for image in 0..images.max(1) as usize {
            let class = (image % 10) as u8;
            bytes.push(class);
            bytes.extend((0..3072).map(|pixel| 20 * class + ((image * 31 + pixel * 7) % 50) as u8));
        }
        let name = if file == 0 { "test_batch.bin".into() } else { format!("data_batch_{file}.bin") };
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn reproduce(root: &Path, arguments: &[&str]) -> assert_cmd::Command {
    let mut command = sogclr();
    command.current_dir(root).arg("reproduce").args(arguments);
    command
}

#[test]
fn a_study_writes_its_table_and_never_trains_a_run_twice() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    cifar(&root.join("pictures"));
    let output = reproduce(root, &["epsilon", "pictures"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("| SogCLR, batch 32 |"), "{text}");
    for file in ["epsilon-minutes.md", "epsilon-minutes.csv", "epsilon-minutes-histogram/epsilon.svg"] {
        assert!(root.join("evidence").join(file).exists(), "{file}");
    }
    let cells: Vec<_> = root.join("evidence/cells").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(cells.len(), 1);
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&cells[0]).unwrap()).unwrap();
    assert_eq!(record["data"], "CIFAR-10");
    let epochs: Vec<f64> =
        record["curve"].as_array().unwrap().iter().map(|point| point["epoch"].as_f64().unwrap()).collect();
    assert_eq!(epochs, [0.0, 3.0, 6.0], "the untrained encoder and every kept checkpoint");
    assert!(!std::fs::read_to_string(&cells[0]).unwrap().contains(root.to_str().unwrap()), "no path of this machine");

    // The learning curves share that run; without the pictures only what is recorded can be shown.
    let (code, text) = failure(&mut reproduce(root, &["curves", "--seeds", "1"]));
    assert!(code == 2 && text.contains("1 of 2 runs are not done") && text.contains("get-cifar10"), "{text}");
    std::fs::remove_dir_all(root.join("runs")).unwrap();
    let output = reproduce(root, &["epsilon"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(root.join("runs/reproduce").read_dir().unwrap().count(), 0, "nothing was trained again");
    let list = reproduce(root, &[]).output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.lines().any(|line| line.contains("epsilon") && line.contains("1 of 1")), "{list}");

    // A record of other settings is not taken for this study's.
    let text = std::fs::read_to_string(&cells[0]).unwrap().replace("\"temperature\": 0.", "\"temperature\": 1.");
    std::fs::write(&cells[0], &text).unwrap();
    let (_, said) = failure(&mut reproduce(root, &["epsilon", "pictures"]));
    assert!(said.contains("not what its checksum says"), "{said}");
    // Without its checksum it is a record of before there were any.
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record.as_object_mut().unwrap().retain(|key, _| !["checksum", "sogclr.blake3"].contains(&key.as_str()));
    std::fs::write(&cells[0], format!("{record:#}\n")).unwrap();
    let (code, text) = failure(&mut reproduce(root, &["epsilon", "pictures"]));
    assert!(code == 2 && text.contains("made with other settings: remove it"), "{text}");
    let text = std::fs::read_to_string(&cells[0]).unwrap();
    std::fs::write(&cells[0], text.replace("\"CIFAR-10\"", "\"photos.gz\"")).unwrap();
    let (code, text) = failure(&mut reproduce(root, &["epsilon", "pictures"]));
    assert!(code == 2 && text.contains("other data, photos.gz, not CIFAR-10: name that"), "{text}");
}

/// ImageNet in small: pictures of 20 pixels in a folder for each class of ImageNet-S and for one more.
fn imagenet(folder: &Path) {
    let list = include_str!("../../crates/sogclr/assets/imagenet-s.tsv");
    let classes = list.lines().filter_map(|line| Some(line.split_once('\t')?.0)).chain(["n99999999"]);
    for (class, id) in classes.enumerate() {
        for (split, images) in [("train", 2), ("val", 1)] {
            let inside = folder.join(split).join(id);
            std::fs::create_dir_all(&inside).unwrap();
            for image in 0..images {
                let pixels = image::RgbImage::from_fn(20, 20, |x, y| {
                    image::Rgb([class as u8 * 2, x as u8 * 9, y as u8 + image])
                });
                pixels.save(inside.join(format!("{image}.png"))).unwrap();
            }
        }
    }
}

/// The paper's study on a network, an image size and a length that take seconds.
const SMALL: &[&str] = &[
    "--budget",
    "paper",
    "--set",
    "data.image_size=16",
    "--set",
    "encoder.name=resnet8",
    "--set",
    "encoder.width=0.25",
    "--set",
    "train.batch=20",
    "--set",
    "train.epochs=2",
    "--set",
    "train.keep_every=1",
    "--set",
    "head={ hidden = 16, output = 8 }",
];

#[test]
fn the_paper_s_own_study_runs_on_a_small_imagenet() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    imagenet(&root.join("imagenet"));
    let run = |more: &[&str]| reproduce(root, &[&["batch-epochs", "imagenet"], SMALL, more].concat()).output().unwrap();
    let only = ["--only", "ImageNet-S, SogCLR, batch 256, 100 epochs"];
    let output = run(&only);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let estimate = text.lines().find(|line| line.contains("| all 1 runs")).unwrap_or_default();
    assert!(estimate.contains(" s ") && estimate.contains(" MB"), "time and disk come first: {text}");
    let row = text.lines().rfind(|line| line.contains("| ImageNet-S, SogCLR, batch 256")).unwrap().to_owned();
    assert!(row.contains("71.8 / 76.3 / 78.7 / 79.4"), "{text}");

    let cells: Vec<_> = root.join("evidence/cells").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(cells.len(), 1);
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&cells[0]).unwrap()).unwrap();
    assert_eq!(record["images"], 200, "two of each class of ImageNet-S");
    assert_eq!(record["result"]["linear_paper"]["images"], 100);
    let curve: Vec<_> =
        record["curve"].as_array().unwrap().iter().map(|point| point["epoch"].as_f64().unwrap()).collect();
    assert_eq!(curve, [0.0, 1.0, 2.0]);

    // Nothing is trained, measured or estimated twice.
    let again = String::from_utf8_lossy(&run(&only).stdout).into_owned();
    assert!(again.contains(&row) && !again.contains("estimate"), "{again}");
    // Two processes of one launcher share what is missing.
    let columns = ["--only", "ImageNet-S, SimCLR, batch 256", "--set", "train.epochs=1"];
    let mut shares = Vec::new();
    for rank in ["0", "1"] {
        let mut command = reproduce(root, &[&["batch-epochs", "imagenet"], SMALL, &columns].concat());
        let output = command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "2").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        shares.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    assert!(shares[0].contains("process 0 of 2 takes 2 of 4 runs"), "{}", shares[0]);
}

#[test]
fn what_takes_longer_than_a_day_wants_to_be_agreed_to() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    imagenet(&root.join("imagenet"));
    let long = ["gamma", "imagenet", "--only", "γ = 0.8, 100 epochs", "--set", "train.epochs=1000000"];
    let (code, text) = failure(&mut reproduce(root, &[&long, SMALL, &["--set", "train.epochs=1000000"]].concat()));
    assert!(
        code == 2 && text.contains("days") && text.contains("--yes") && text.contains("nothing was begun"),
        "{text}"
    );
    assert!(!root.join("runs").exists() && !root.join("evidence").exists());
    let (code, text) = failure(&mut reproduce(root, &["gamma", "--budget", "paper"]));
    assert!(code == 2 && text.contains("name the folder of ImageNet as DATA"), "{text}");
    let (code, text) = failure(&mut reproduce(root, &["tuning", "--budget", "paper", "imagenet"]));
    assert!(code == 2 && text.contains("no study \"tuning\" of budget paper"), "{text}");
    let list = String::from_utf8_lossy(&reproduce(root, &[]).output().unwrap().stdout).into_owned();
    let row = list.lines().find(|line| line.contains("| gamma ")).unwrap();
    assert_eq!(row.matches("0 of ").count(), 3, "all budgets: {list}");
}

#[test]
fn impossible_studies_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["table-12"][..], "known ones are tuning, scale, adamw-tuning, adamw, batch-epochs"),
        (&["gamma"], "get-cifar10"),
        (&["gamma", "--seeds", "0"], "--seeds"),
        (&["gamma", "nowhere"], "nowhere"),
        (&["gamma", "--only", "γ = 2"], "γ = 1: no memory, 6 epochs"),
        (&["gamma", "--pairs", "emoji"], "leave --pairs out"),
        (&["bimodal", "pictures"], "--pairs"),
    ] {
        let (code, text) = failure(&mut reproduce(root.path(), arguments));
        assert!(code == 2 && text.contains(words), "{arguments:?}: {code} {text}");
        assert_eq!(root.path().read_dir().unwrap().count(), 0, "{arguments:?} wrote something");
    }
}

#[test]
fn the_page_of_evidence_shows_the_tables_as_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/evidence.md")).unwrap();
    let mut tables = 0;
    for part in page.split("<!-- evidence/").skip(1) {
        let (name, rest) = part.split_once(" -->\n").unwrap();
        let shown = rest.split_once("\n<!-- end -->").unwrap().0;
        let table = std::fs::read_to_string(root.join("evidence").join(name)).unwrap();
        assert!(shown == table.trim_end(), "{name} has changed: run scripts/evidence-tables");
        tables += 1;
    }
    assert!(tables > 5, "{tables} tables");
}
