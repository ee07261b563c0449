//! A recipe of the paper is a run of its study: both resolve to the same settings.

use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{Description, Modality};
use sogclr::study::{Budget, Study};
use std::path::Path;

/// What ImageNet is, as far as settings depend on it.
fn imagenet(is_pairs: bool) -> Description {
    let modality = if is_pairs { Modality::Pairs } else { Modality::Images };
    Description { modality, samples: 1_281_167, classes: Some(1000), size: 224, channels: 3, measured: None }
}

/// Study and cell that a header names: `# Cell:    sogclr reproduce STUDY --budget paper IMAGENET --only "CELL"`.
fn cell(text: &str) -> Option<(&str, &str)> {
    let line = text.lines().find_map(|line| line.strip_prefix("# Cell:    sogclr reproduce "))?;
    let (study, cell) = line.split_once(" --budget paper IMAGENET --only \"")?;
    Some((study, cell.strip_suffix('"')?))
}

#[test]
fn a_recipe_is_the_cell_that_it_names() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut checked = 0;
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_of_paper = name.starts_with("imagenet") || name.starts_with("clip-s");
        let Some((study, wanted)) = cell(&text) else {
            assert!(!is_of_paper, "{name} names no cell");
            continue;
        };
        for head in ["# Command: sogclr pretrain IMAGENET --config recipes/", "# Cost:    ", "# Paper:   "] {
            assert!(text.contains(head), "{name} lacks {head:?}");
        }
        assert!(text.contains(&format!("--config recipes/{name} ")), "{name}: its command names another recipe");
        let study = Study::named(study, Budget::Paper).unwrap_or_else(|| panic!("{name}: no study {study}"));
        let (rows, columns) = (study.rows.len(), study.columns.len());
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let found: Vec<_> = all.filter(|&(row, column)| study.title_of(row, column) == wanted).collect();
        assert_eq!(found.len(), 1, "{name}: {wanted:?} is no cell of {}", study.name);
        let (row, column) = found[0];
        let settings = study.settings(&study.rows[row], &study.columns[column], 0);
        let recipe = Overrides::from_file(&path).unwrap();
        let data = imagenet(name.starts_with("clip-s"));
        let [ours, theirs] = [recipe, settings].map(|given| RunConfig::resolve(&data, &given).unwrap().to_toml());
        assert!(ours == theirs, "{name}:\n{ours}\n\n{}:\n{theirs}", study.name);
        checked += 1;
    }
    assert_eq!(checked, 15);
}
