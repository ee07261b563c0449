//! `metrics.jsonl`: one line for each reported step, continued without gaps or repeats after a resume. Each line ends with a
//! short checksum of the rest of it, so that a damaged one is passed over, and only that one.

use super::StepOutput;
use super::signals::{Signals, Verdict};
use crate::storage::{StorageError, read_regular, write_atomic};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
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

    /// Every whole line, in order; none if there is no file.
    pub fn read(path: &Path) -> Vec<Metric> {
        let bytes = read_regular(path).unwrap_or_default();
        let mut last = 0;
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(parse);
        let is_next = |metric: &Metric| {
            let is_next = metric.step > last;
            last = last.max(metric.step);
            is_next
        };
        lines.filter(is_next).collect()
    }

    /// A sentence if lines after step `since` and up to `step` are not there or damaged. The file as it was is kept beside it.
    pub(super) fn lost(
        path: &Path,
        (since, step): (usize, usize),
        steps_per_epoch: usize,
        total_steps: usize,
    ) -> Result<Option<String>, StorageError> {
        let found: Vec<usize> = Self::read(path).iter().map(|line| line.step).collect();
        let is_due = |at: &usize| at.is_multiple_of(line_every(steps_per_epoch)) || *at == total_steps;
        let lost: Vec<usize> =
            (since + 1..=step).filter(is_due).filter(|at| found.binary_search(at).is_err()).collect();
        let (Some(first), Some(last)) = (lost.first(), lost.last()) else { return Ok(None) };
        if !path.exists() {
            return Ok(Some(format!("metrics.jsonl is gone: it begins again after step {step}")));
        }
        let kept = path.with_file_name("metrics-damaged.jsonl");
        let bytes = read_regular(path).map_err(|source| StorageError::Read { path: path.to_owned(), source })?;
        write_atomic(&kept, &bytes)?;
        let lines = if lost.len() == 1 {
            format!("the line of step {first}")
        } else {
            format!("{} lines between steps {first} and {last}", lost.len())
        };
        Ok(Some(format!(
            "metrics.jsonl is damaged: it lacks {lines}, the others are kept; {} is the file as it was",
            kept.display()
        )))
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

/// A line of metrics comes after every so many steps, and after the last.
pub(super) fn line_every(steps_per_epoch: usize) -> usize {
    steps_per_epoch.div_ceil(100)
}

const CHECK: &str = ",\"check\":\"";

fn line(metric: &Metric) -> String {
    let text = serde_json::to_string(metric).expect("plain data");
    let rest = text.strip_suffix('}').expect("an object");
    format!("{rest}{CHECK}{:.8}\"}}\n", blake3::hash(rest.as_bytes()).to_hex())
}

/// One line, if it is whole. Lines of before there were checksums end with a number.
fn parse(line: &[u8]) -> Option<Metric> {
    let text = std::str::from_utf8(line).ok()?;
    if let Some(rest) = text.strip_suffix("\"}") {
        let (rest, sum) = rest.rsplit_once(CHECK)?;
        blake3::hash(rest.as_bytes()).to_hex().starts_with(sum).then_some(())?;
        (sum.len() == 8).then_some(())?;
    }
    serde_json::from_str(text).ok()
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

    /// The file, with a line for each of these steps.
    fn written(folder: &Path, steps: std::ops::RangeInclusive<usize>) -> PathBuf {
        let path = folder.join("metrics.jsonl");
        let mut file = Metrics::open(&path, 0).unwrap();
        steps.for_each(|step| file.append(&metric(step)).unwrap());
        path
    }

    fn steps(path: &Path) -> Vec<usize> {
        Metrics::read(path).iter().map(|line| line.step).collect()
    }

    #[test]
    fn a_damaged_line_costs_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), 1..=3);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(Metrics::lost(&path, (0, 3), 50, 100).unwrap(), None);
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, flipped).unwrap();
            // The end of a line joins two.
            let (found, is_end) = (steps(&path), whole[bit / 8] == b'\n');
            assert!(
                found.len() == 2 || (is_end && found.len() == 1) || (bit / 8 == whole.len() - 1),
                "{bit} {found:?}"
            );
        }
        let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 12;
        let mut damaged = whole.clone();
        damaged[second] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let said = Metrics::lost(&path, (0, 3), 50, 100).unwrap().unwrap();
        assert!(said.contains("lacks the line of step 2"), "{said}");
        assert_eq!(std::fs::read(folder.path().join("metrics-damaged.jsonl")).unwrap(), damaged);
        drop(Metrics::open(&path, 3).unwrap());
        assert_eq!(steps(&path), [1, 3], "the others are kept");
    }

    #[test]
    fn a_file_that_is_gone_is_noticed_and_one_of_before_checksums_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert!(Metrics::lost(&path, (0, 4), 50, 100).unwrap().unwrap().contains("is gone"));
        assert_eq!(Metrics::lost(&path, (0, 0), 50, 100).unwrap(), None);
        // A line after every third step, and after the last.
        let text: String = [3, 6, 7].map(|step| serde_json::to_string(&metric(step)).unwrap() + "\n").concat();
        std::fs::write(&path, text).unwrap();
        assert_eq!(steps(&path), [3, 6, 7]);
        assert_eq!(Metrics::lost(&path, (0, 7), 300, 7).unwrap(), None);
        assert!(Metrics::lost(&path, (0, 9), 300, 9).unwrap().is_some());
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
