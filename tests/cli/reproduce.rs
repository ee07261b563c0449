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
    std::fs::write(&cells[0], text).unwrap();
    let (code, text) = failure(&mut reproduce(root, &["epsilon", "pictures"]));
    assert!(code == 2 && text.contains("made with other settings: remove it"), "{text}");
    let text = std::fs::read_to_string(&cells[0]).unwrap().replace("\"CIFAR-10\"", "\"photos.gz\"");
    std::fs::write(&cells[0], text).unwrap();
    let (code, text) = failure(&mut reproduce(root, &["epsilon", "pictures"]));
    assert!(code == 2 && text.contains("other data, photos.gz, not CIFAR-10: name that"), "{text}");
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
