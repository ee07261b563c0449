//! The paper's tables and figures as studies: which runs each needs and what the paper printed. One file each in `studies/`;
//! `studies/shared.toml` has the budgets and every method's tuned settings. A finished run is a small [`Record`].

mod record;

pub use record::{CurvePoint, Measure, Outcome, Record};

use crate::check::parse_name;
use crate::config::Overrides;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;
use toml::Table;

const SHARED: &str = include_str!("../../studies/shared.toml");
/// Name and file, in the order of the paper.
const STUDIES: &[(&str, &str)] = &[
    ("tuning", include_str!("../../studies/tuning.toml")),
    ("scale", include_str!("../../studies/scale.toml")),
    ("adamw-tuning", include_str!("../../studies/adamw-tuning.toml")),
    ("adamw", include_str!("../../studies/adamw.toml")),
    ("batch-epochs", include_str!("../../studies/batch-epochs.toml")),
    ("batch-impact", include_str!("../../studies/batch-impact.toml")),
    ("batch-steps", include_str!("../../studies/batch-steps.toml")),
    ("curves", include_str!("../../studies/curves.toml")),
    ("gamma", include_str!("../../studies/gamma.toml")),
    ("epsilon", include_str!("../../studies/epsilon.toml")),
    ("bimodal", include_str!("../../studies/bimodal.toml")),
    ("captions-tuning", include_str!("../../studies/captions-tuning.toml")),
    ("captions", include_str!("../../studies/captions.toml")),
    ("widths", include_str!("../../studies/widths.toml")),
    ("small-batch", include_str!("../../studies/small-batch.toml")),
    ("methods", include_str!("../../studies/methods.toml")),
    ("tricks", include_str!("../../studies/tricks.toml")),
];

/// What a study may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Budget {
    /// Every run takes seconds: shows that it works, too short for differences
    Minutes,
    /// Every run takes minutes on two cores
    Hours,
    /// The paper's own settings on ImageNet: every run takes days on a GPU
    Paper,
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        parse_name(name)
    }
}

impl Budget {
    /// From the smallest to the largest.
    pub const ALL: [Self; 3] = [Self::Minutes, Self::Hours, Self::Paper];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minutes => "minutes",
            Self::Hours => "hours",
            Self::Paper => "paper",
        }
    }
}

/// What the encoders are trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Images alone.
    Images,
    /// Image–text pairs.
    Pairs,
    /// Labelled images with their classes as captions.
    Captions,
}

impl Kind {
    /// As `shared.toml` calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Pairs => "pairs",
            Self::Captions => "captions",
        }
    }
}

/// What is made of the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Show {
    /// The result of each row in each column.
    #[default]
    Table,
    /// Accuracy on test and training images along training.
    Curves,
    /// Theorem 2's ε at the checkpoints of the first seed.
    Epsilon,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyFile {
    title: String,
    paper: String,
    published: Option<String>,
    kind: Kind,
    #[serde(default)]
    show: Show,
    seeds: Option<u64>,
    reference: Option<String>,
    axis: String,
    #[serde(default)]
    log_axis: bool,
    rows: Vec<Row>,
    minutes: Vec<Column>,
    hours: Vec<Column>,
    full: Option<FullSize>,
}

/// The paper's own runs, of which there is one seed each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FullSize {
    published: Option<String>,
    rows: Vec<Row>,
    columns: Vec<Column>,
}

/// One line of a study: a method and its settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What the table calls the row.
    pub name: String,
    /// Whose tuned settings it takes.
    #[serde(default)]
    tuned: Option<String>,
    #[serde(default)]
    with: Table,
    /// What the paper printed for it.
    #[serde(default)]
    pub paper: String,
}

/// Settings that change along a row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// What the table calls the column.
    pub name: String,
    /// Where it stands on the chart's axis; without it the chart has a line for each row.
    #[serde(default)]
    pub x: Option<f64>,
    #[serde(default)]
    with: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    minutes: BTreeMap<String, Table>,
    hours: BTreeMap<String, Table>,
    paper: BTreeMap<String, Table>,
    tuned: BTreeMap<String, Table>,
}

/// A study at a budget.
#[derive(Clone, Debug)]
pub struct Study {
    /// What users call it.
    pub name: &'static str,
    /// What it is about.
    pub title: String,
    /// Where the paper has it.
    pub paper: String,
    /// What the paper's figures beside ours are.
    pub published: Option<String>,
    /// What the encoders are trained on.
    pub kind: Kind,
    /// What is made of the runs.
    pub show: Show,
    /// Seeds unless the user says otherwise.
    pub seeds: u64,
    /// The row that the others are compared with.
    pub reference: Option<String>,
    /// Label of the chart's x axis, and head of the table's first column.
    pub axis: String,
    /// Whether the x axis is logarithmic.
    pub log_axis: bool,
    /// What it may cost.
    pub budget: Budget,
    /// Methods with their settings.
    pub rows: Vec<Row>,
    /// Settings that each row is run with, at this budget.
    pub columns: Vec<Column>,
    base: Table,
    tuned: BTreeMap<String, Table>,
}

impl Study {
    /// The names of all studies.
    pub fn names() -> impl Iterator<Item = &'static str> {
        STUDIES.iter().map(|(name, _)| *name)
    }

    /// The study of that name; `None` if there is none, or none at this budget: not every study has a part of full size.
    pub fn named(name: &str, budget: Budget) -> Option<Self> {
        let (name, text) = STUDIES.iter().find(|(known, _)| *known == name)?;
        let mut file: StudyFile = toml::from_str(text).expect("studies are checked by a test");
        let shared: Shared = toml::from_str(SHARED).expect("studies are checked by a test");
        let (columns, mut bases) = match budget {
            Budget::Minutes => (file.minutes, shared.minutes),
            Budget::Hours => (file.hours, shared.hours),
            Budget::Paper => {
                let full = file.full?;
                (file.rows, file.seeds) = (full.rows, Some(1));
                file.published = full.published.or(file.published);
                // Tuned settings are those of small images.
                file.reference = None;
                (full.columns, shared.paper)
            }
        };
        let base = bases.remove(file.kind.name());
        Some(Self {
            name,
            title: file.title,
            paper: file.paper,
            published: file.published,
            kind: file.kind,
            show: file.show,
            seeds: file.seeds.unwrap_or(3),
            reference: file.reference,
            axis: file.axis,
            log_axis: file.log_axis,
            budget,
            rows: file.rows,
            columns,
            base: base.expect("every budget has its settings"),
            tuned: shared.tuned,
        })
    }

    /// By what its runs are measured.
    pub fn measure(&self) -> Measure {
        match (self.kind, self.budget) {
            (Kind::Images, Budget::Paper) => Measure::LinearPaper,
            (Kind::Images, _) => Measure::Linear,
            (Kind::Pairs, _) => Measure::Retrieval,
            (Kind::Captions, _) => Measure::ZeroShot,
        }
    }

    /// What a cell is called.
    pub fn title_of(&self, row: usize, column: usize) -> String {
        format!("{}, {}", self.rows[row].name, self.columns[column].name)
    }

    /// Whether a cell is meant by `text`: the name of its row or column or, if no row or column is called so, a part of its title.
    pub fn is_named(&self, row: usize, column: usize, text: &str) -> bool {
        let is_whole = |row: usize, column: usize| {
            [&self.rows[row].name, &self.columns[column].name, &self.title_of(row, column)]
                .iter()
                .any(|name| *name == text)
        };
        let mut cells = (0..self.rows.len()).flat_map(|row| (0..self.columns.len()).map(move |column| (row, column)));
        match cells.any(|(row, column)| is_whole(row, column)) {
            true => is_whole(row, column),
            false => self.title_of(row, column).contains(text),
        }
    }

    /// The settings of one run: budget, tuned settings, row, column, seed; the later wins.
    pub fn settings(&self, row: &Row, column: &Column, seed: u64) -> Overrides {
        let mut all = Overrides::from(self.base.clone());
        let tuned = row.tuned.as_ref().map(|name| self.tuned.get(name).expect("studies are checked by a test"));
        for table in tuned.into_iter().chain([&row.with, &column.with]) {
            all.lay_table(table);
        }
        all.lay("seed", toml::Value::Integer(seed as i64));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use crate::data::{Description, Modality};

    /// Every file parses, its rows name tuned settings that exist, and no two of its runs are the same.
    #[test]
    fn every_study_is_well_formed() {
        for name in Study::names() {
            for budget in Budget::ALL {
                let Some(study) = Study::named(name, budget) else {
                    assert_eq!(budget, Budget::Paper, "{name} is missing");
                    continue;
                };
                assert!(!study.rows.is_empty() && !study.columns.is_empty(), "{name} has no runs");
                let is_row = |reference: &String| study.rows.iter().any(|row| &row.name == reference);
                assert!(study.reference.as_ref().is_none_or(is_row), "{name}: {:?} is no row", study.reference);
                let mut keys = std::collections::BTreeSet::new();
                for row in &study.rows {
                    for column in &study.columns {
                        let settings = study.settings(row, column, 0);
                        let cell = format!("{name}, {}: {}, {}", budget.name(), row.name, column.name);
                        assert!(keys.insert(Record::key(&settings)), "{cell} is a run twice");
                        let (modality, classes) = match study.kind {
                            Kind::Images => (Modality::Images, Some(10)),
                            Kind::Pairs => (Modality::Pairs, None),
                            Kind::Captions => (Modality::Pairs, Some(10)),
                        };
                        let (samples, size) = match budget {
                            Budget::Paper => (1_281_167, 224),
                            _ => (50_000, 32),
                        };
                        let data = Description { modality, samples, classes, size, channels: 3, measured: None };
                        if let Err(error) = RunConfig::resolve(&data, &settings) {
                            panic!("{cell}: {error}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_whole_name_means_no_longer_one() {
        let study = Study::named("gamma", Budget::Hours).unwrap();
        let named = |text: &str| {
            let rows = (0..study.rows.len()).filter(|row| study.is_named(*row, 0, text));
            rows.map(|row| study.rows[row].name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(named("γ = 0.9"), ["γ = 0.9"]);
        assert_eq!(named("tf, γ = 0.9"), ["tf, γ = 0.9"]);
        assert_eq!(named("f, γ = 0.9"), ["tf, γ = 0.99", "tf, γ = 0.9"]);
        assert_eq!(named("γ = 0.9, 10 epochs"), ["γ = 0.9"]);
        assert_eq!(named("γ = 0.9, 10"), ["γ = 0.9", "tf, γ = 0.9", "κ of tf at γ = 0.9"]);
        assert_eq!((named("10 epochs").len(), named("30 epochs").len(), named("").len()), (18, 0, 18));
    }

    #[test]
    fn later_settings_win() {
        let study = Study::named("batch-epochs", Budget::Minutes).unwrap();
        let with = |text: &str| text.parse::<Table>().unwrap();
        let row = Row {
            name: String::new(),
            tuned: Some("simclr".into()),
            with: with("train.batch = 7\nlearning_rate.base = 9.0"),
            paper: String::new(),
        };
        let column = Column { name: String::new(), x: None, with: with("train.batch = 8") };
        let table = study.settings(&row, &column, 5).table().clone();
        assert_eq!(table["train"]["batch"].as_integer(), Some(8));
        assert_eq!(table["learning_rate"]["base"].as_float(), Some(9.0));
        assert_eq!(table["method"]["kind"].as_str(), Some("simclr"), "tuned settings name the method");
        assert_eq!(table["seed"].as_integer(), Some(5));
    }
}
