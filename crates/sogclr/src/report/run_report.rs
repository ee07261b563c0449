//! Everything that a report says of one run.

use super::looked::Looked;
use super::verdict::{Evidence, Judgement};
use crate::config::RunConfig;
use crate::encoder::Compute;
use crate::train::{Metric, Metrics, TrainSummary};
use crate::trained::{EvaluationOf, TrainedRun};
use serde_json::Value;

/// A run as it is now; training may go on meanwhile.
pub struct RunReport {
    /// The name of its folder, or of that and the folder above.
    pub name: String,
    /// The settings.
    pub config: RunConfig,
    /// The lines of `metrics.jsonl`.
    pub metrics: Vec<Metric>,
    /// What training took; `None` until it has finished.
    pub summary: Option<TrainSummary>,
    /// What evaluations found.
    pub evaluations: Vec<(EvaluationOf, Value)>,
    /// Training images, by the manifest.
    pub samples: usize,
    /// What the encoder makes of images.
    pub looked: Option<Looked>,
    /// Why there are no pictures, where there should be some.
    pub problem: Option<String>,
}

impl RunReport {
    /// What the run wrote down; looks at no image.
    pub fn of(run: &TrainedRun) -> Self {
        let full = std::path::absolute(run.folder()).unwrap_or_else(|_| run.folder().to_owned());
        let names = full.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned());
        let names: Vec<String> = names.collect::<Vec<_>>().into_iter().rev().collect();
        Self {
            name: names.join("/"),
            config: run.config.clone(),
            metrics: Metrics::read(&run.folder().join("metrics.jsonl")),
            summary: run.summary(),
            evaluations: run.evaluations(),
            samples: run.train_len().unwrap_or_default(),
            looked: None,
            problem: None,
        }
    }

    /// Images that go through an encoder for its pictures, about.
    pub fn features_of(run: &TrainedRun) -> usize {
        Looked::passes(run)
    }

    /// The same with pictures; without them, and the reason instead, where the images or the encoder cannot be had.
    pub fn with_pictures(self, run: &TrainedRun, compute: Compute, progress: impl Fn(usize) + Sync) -> Self {
        match Looked::at(run, compute, progress) {
            Ok(looked) => Self { looked: Some(looked), ..self },
            Err(error) => Self { problem: Some(error.to_string()), ..self },
        }
    }

    /// Is it learning? The judgement, and a sentence with its reasons.
    pub fn judge(&self) -> (Judgement, String) {
        let votes = self.looked.as_ref().and_then(|looked| Some((looked.votes.as_ref()?.shares, looked.images.len())));
        let evidence = Evidence {
            metrics: self.metrics.clone(),
            dimension: self.config.model().output(),
            batch: self.config.train.batch,
            epochs: self.config.train.epochs,
            is_finished: self.summary.is_some(),
            neighbours: votes.map(|(shares, _)| shares),
            images: votes.map_or(0, |(_, images)| images),
        };
        evidence.judge()
    }
}
