//! One finished run of a study as a small file, so that studies grow over days and share runs.

use crate::config::{Overrides, RunConfig};
use crate::eval::{Measured, PaperMeasured, Retrieval, ZeroShot};
use crate::provenance::Provenance;
use crate::storage::{StorageError, load_table, save_table};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Linear accuracy after some epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Epochs done.
    pub epoch: f64,
    /// Top-1 share of the test images.
    pub test: f64,
    /// Top-1 share of the training images.
    pub train: f64,
}

/// What a run was and what it reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The whole configuration, without paths.
    pub config: Value,
    /// Title of the data, without its folder.
    pub data: String,
    /// Training images.
    pub images: usize,
    /// What it reached.
    pub result: Outcome,
    /// Along training, where checkpoints were kept.
    pub curve: Vec<CurvePoint>,
    /// Seconds of training.
    pub seconds: f64,
    /// Most memory of the process at once in MiB, where the system tells.
    pub peak_rss_mb: Option<f64>,
    /// Threads of the pool.
    pub threads: usize,
    /// What the system calls the processor.
    pub processor: String,
    /// Who trained; absent in records of before there were versions, whose numerics are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What a run reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    /// An encoder of images.
    Images(Measured),
    /// An encoder of images, by the paper's linear protocol.
    Paper(PaperMeasured),
    /// Two encoders of image–text pairs.
    Pairs(Retrieval),
    /// Two encoders of images and the names of their classes.
    Captions(ZeroShot),
}

/// By what a finished run is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Linear accuracy by the fast protocol, and nearest neighbours.
    Linear,
    /// Linear accuracy by the paper's protocol.
    LinearPaper,
    /// Recall among held-out pairs.
    Retrieval,
    /// Zero-shot accuracy with CLIP's 80 prompts.
    ZeroShot,
}

impl Measure {
    /// What suits a run.
    pub fn of(config: &RunConfig) -> Self {
        match (&config.text, &config.data.template) {
            (None, _) => Self::Linear,
            (Some(_), None) => Self::Retrieval,
            (Some(_), Some(_)) => Self::ZeroShot,
        }
    }

    /// What is shown of a run: (key in files, title in tables).
    pub fn columns(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Linear => &[("linear", "linear top-1 %"), ("knn", "kNN top-1 %")],
            Self::LinearPaper => &[("linear_paper", "linear top-1 %")],
            Self::Retrieval => &[
                ("image_to_text", "image to text R@1 %"),
                ("text_to_image", "text to image R@1 %"),
                ("mean_recall", "mean recall %"),
            ],
            Self::ZeroShot => &[("zero_shot", "zero-shot top-1 %")],
        }
    }

    /// What studies compare.
    pub fn headline(self) -> &'static str {
        match self {
            Self::Retrieval => "mean recall %",
            _ => self.columns()[0].1,
        }
    }
}

impl Outcome {
    /// By what it was measured.
    pub fn measure(&self) -> Measure {
        match self {
            Self::Images(_) => Measure::Linear,
            Self::Paper(_) => Measure::LinearPaper,
            Self::Pairs(_) => Measure::Retrieval,
            Self::Captions(_) => Measure::ZeroShot,
        }
    }

    /// The shares in [0, 1] of [`Measure::columns`].
    pub fn values(&self) -> Vec<f64> {
        match self {
            Self::Images(found) => vec![found.linear.top1, found.knn.top1],
            Self::Paper(found) => vec![found.linear_paper.top1],
            Self::Pairs(found) => vec![found.image_to_text.at1, found.text_to_image.at1, found.mean_recall],
            Self::Captions(found) => vec![found.zero_shot.top1],
        }
    }

    /// The figure that studies compare.
    pub fn headline(&self) -> f64 {
        match self {
            Self::Pairs(found) => found.mean_recall,
            other => other.values()[0],
        }
    }

    /// Accuracy on test and training images, where it is of images.
    pub fn test_and_train(&self) -> Option<(f64, f64)> {
        match self {
            Self::Images(found) => Some((found.linear.top1, found.linear_train.top1)),
            Self::Paper(found) => Some((found.linear_paper.top1, found.linear_paper_train.top1)),
            Self::Pairs(_) | Self::Captions(_) => None,
        }
    }
}

impl Record {
    /// The version of the numerics that the run was computed with.
    pub fn numerics(&self) -> u32 {
        self.provenance.as_ref().map_or(0, |origin| origin.numerics)
    }

    /// Names a run by its settings: method, batch, seed and a hash of everything.
    pub fn key(settings: &Overrides) -> String {
        let at = |section: &str, key: &str| {
            let value = settings.table().get(section).and_then(|table| table.get(key));
            value.map(|value| value.to_string().trim_matches('"').to_owned())
        };
        let text = serde_json::to_string(settings.table()).expect("plain data");
        let hash = blake3::hash(text.as_bytes()).to_hex();
        let seed = settings.table().get("seed").and_then(toml::Value::as_integer).unwrap_or_default();
        let method = at("method", "kind").unwrap_or_else(|| "sogclr".into());
        let batch = at("train", "batch").unwrap_or_default();
        format!("{method}-b{batch}-seed{seed}-{}", &hash[..12])
    }

    /// `config` as a record keeps it: paths belong to a machine.
    pub fn portable(config: &RunConfig) -> Value {
        let mut config = config.clone();
        let data = &mut config.data;
        let paths = [&mut data.path, &mut data.test, &mut data.classes, &mut data.class_names, &mut data.pairs];
        for path in paths.into_iter().chain([&mut data.images, &mut data.quarantine]) {
            *path = None;
        }
        config.train.init = None;
        // As in records of before, and no data set of a study has an orientation.
        data.ignore_orientation = true;
        serde_json::to_value(config).expect("plain data")
    }

    fn path(folder: &Path, key: &str) -> PathBuf {
        folder.join(format!("{key}.json"))
    }

    /// The record of that key; `None` if there is none.
    pub fn load(folder: &Path, key: &str) -> Result<Option<Self>, StorageError> {
        let path = Self::path(folder, key);
        if !path.exists() {
            return Ok(None);
        }
        let record = serde_json::from_value(Value::Object(load_table(&path, "a record")?));
        record.map(Some).map_err(|error| StorageError::Format { path, cause: format!("not a record ({error})") })
    }

    /// Writes the record of that key, in place of an older one.
    pub fn save(&self, folder: &Path, key: &str) -> Result<(), StorageError> {
        let Value::Object(table) = serde_json::to_value(self).expect("plain data") else { unreachable!("a struct") };
        save_table(&Self::path(folder, key), table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Overrides {
        text.parse::<toml::Table>().unwrap().into()
    }

    #[test]
    fn a_key_depends_on_every_setting_and_not_on_their_order() {
        let one = Record::key(&settings("seed = 2\ntrain.batch = 32\nmethod.kind = \"dcl\"\nmethod.temperature = 0.1"));
        let same =
            Record::key(&settings("method.temperature = 0.1\nmethod.kind = \"dcl\"\ntrain.batch = 32\nseed = 2"));
        let other =
            Record::key(&settings("seed = 2\ntrain.batch = 32\nmethod.kind = \"dcl\"\nmethod.temperature = 0.2"));
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert!(one.starts_with("dcl-b32-seed2-"), "{one}");
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(folder.path(), "none").unwrap(), None);
        let half = crate::eval::Accuracy { top1: 0.5, top5: 0.9, interval: [0.4, 0.6], images: 10 };
        let record = Record {
            // Not every reader of numbers gives this one back.
            config: serde_json::json!({ "seed": 1, "mean": 0.457_827_508_449_554_44 }),
            data: "toy".into(),
            images: 3,
            result: Outcome::Images(Measured { linear: half, linear_train: half, knn: half }),
            curve: vec![CurvePoint { epoch: 2.0, test: 0.1, train: 0.3 }],
            seconds: 1.5,
            peak_rss_mb: None,
            threads: 2,
            processor: "p".into(),
            provenance: Some(Provenance::of("test")),
        };
        record.save(folder.path(), "one").unwrap();
        assert_eq!(Record::load(folder.path(), "one").unwrap(), Some(record));
        std::fs::write(folder.path().join("torn.json"), "{").unwrap();
        let error = Record::load(folder.path(), "torn").unwrap_err().to_string();
        assert!(error.contains("torn.json") && error.contains("not a record"), "{error}");
    }
}
