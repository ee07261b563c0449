//! `metrics.jsonl`: one line for each reported step, continued without gaps or repeats after a resume.

use super::StepOutput;
use super::signals::{Signals, Verdict};
use crate::storage::{StorageError, write_atomic};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Steps done, from 1.
    pub step: usize,
    /// Epochs done, with fraction.
    pub epoch: f64,
    /// Mean since the last line; likewise the objective.
    pub loss: f64,
    /// Running estimate of the global objective; absent for methods that contrast nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// Learning rate of this step.
    pub lr: f64,
    /// Of this step's batch.
    #[serde(flatten)]
    pub signals: Option<Signals>,
    /// On the run so far.
    pub verdict: Verdict,
    /// Images per second since the last line.
    pub images_per_s: f64,
    /// Share of that time spent waiting for data.
    pub data_wait: f64,
    /// Share of that time spent exchanging with other ranks, waiting for the slower ones included; absent in one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_wait: Option<f64>,
}

/// Sums over the steps since the last line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub steps: usize,
    pub loss: f64,
    #[serde(default)]
    pub objective: Option<f64>,
    pub seconds: f64,
    pub waited: f64,
    /// Absent in one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchanged: Option<f64>,
}

impl Window {
    /// The sum that a verdict watches: the objective, or the loss of a method without one.
    pub(super) fn falling(&self) -> f64 {
        self.objective.unwrap_or(self.loss)
    }

    pub(super) fn add(&mut self, out: &StepOutput, spent: &Spent) {
        self.steps += 1;
        self.loss += out.loss;
        self.objective = out.objective.map(|new| self.objective.unwrap_or(0.0) + new);
        self.seconds += spent.elapsed.as_secs_f64();
        self.waited += spent.waited.as_secs_f64();
        self.exchanged = spent.exchanged.map(|new| self.exchanged.unwrap_or(0.0) + new.as_secs_f64());
    }
}

/// Where the time of a step went.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// All of it.
    pub elapsed: Duration,
    /// Of which waiting for data.
    pub waited: Duration,
    /// Of which exchanging with other ranks, where there are others; waiting for the slower ones included.
    pub exchanged: Option<Duration>,
}

/// The open file.
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the file and drops every line after `step`, and a last line cut off by a crash.
    pub fn open(path: &Path, step: usize) -> Result<Self, StorageError> {
        let kept: String = Self::read(path).iter().filter(|m| m.step <= step).map(line).collect();
        write_atomic(path, kept.as_bytes())?;
        let error = |source| StorageError::Write { path: path.to_owned(), source };
        let file = OpenOptions::new().append(true).open(path).map_err(error)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Every whole line; none if there is no file.
    pub fn read(path: &Path) -> Vec<Metric> {
        let Ok(file) = File::open(path) else { return Vec::new() };
        BufReader::new(file).lines().map_while(Result::ok).map_while(|l| serde_json::from_str(&l).ok()).collect()
    }

    /// Seconds of training and images seen in all lines.
    pub fn time(path: &Path, batch: usize) -> (f64, f64) {
        let (mut seconds, mut images, mut last_step) = (0.0, 0.0, 0);
        for line in Self::read(path) {
            let seen = ((line.step - last_step) * batch) as f64;
            last_step = line.step;
            images += seen;
            seconds += seen / line.images_per_s;
        }
        (seconds, images)
    }

    /// Writes one more line.
    pub fn append(&mut self, metric: &Metric) -> Result<(), StorageError> {
        let source = self.file.write_all(line(metric).as_bytes());
        source.map_err(|source| StorageError::Write { path: self.path.clone(), source })
    }

    /// Makes the lines so far survive a crash; called before a checkpoint that counts on them.
    pub fn sync(&self) -> Result<(), StorageError> {
        self.file.sync_data().map_err(|source| StorageError::Write { path: self.path.clone(), source })
    }
}

fn line(metric: &Metric) -> String {
    serde_json::to_string(metric).expect("plain data") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(step: usize) -> Metric {
        let signals = (step > 1).then_some(Signals {
            accuracy: 0.5,
            alignment: 0.1,
            uniformity: -1.0,
            spread: 0.9,
            effective_rank: 7.0,
        });
        Metric {
            step,
            epoch: 0.5,
            loss: -1.0,
            objective: Some(0.25),
            lr: 0.1,
            signals,
            verdict: Verdict::Falling,
            images_per_s: 10.0,
            data_wait: 0.0,
            rank_wait: None,
        }
    }

    #[test]
    fn reopening_drops_later_and_broken_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = Metrics::open(&path, 0).unwrap();
        (1..=4).for_each(|step| file.append(&metric(step)).unwrap());
        file.file.write_all(b"{\"step\": 5, \"lo").unwrap();
        let mut file = Metrics::open(&path, 3).unwrap();
        file.append(&metric(4)).unwrap();
        let steps: Vec<usize> = Metrics::read(&path).iter().map(|m| m.step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        assert_eq!(Metrics::read(&path)[1], metric(2));
        assert_eq!(Metrics::time(&path, 5), (2.0, 20.0), "four steps of five images at ten a second");
    }
}
