//! Whether images come as fast as the encoder takes them.

use super::{Flaw, Report};
use crate::bench::DataBench;
use crate::config::RunConfig;
use crate::data::{Dataset, Part};
use crate::estimate::Speed;
use crate::math::Layout;
use serde::Serialize;
use std::collections::HashSet;

/// Images that are read again and again for the measurement.
const IMAGES: usize = 128;
/// Seconds on one core, and on all.
const SECONDS: f64 = 1.0;

/// Views that can be made beside views that are wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Loading {
    /// Read, decoded and augmented in a second on one core, as the run would.
    pub views_per_s_core: f64,
    /// The same on all threads.
    pub views_per_s: f64,
    /// Threads.
    pub threads: usize,
    /// The encoder that the run would train.
    pub encoder: String,
    /// Views that a step of it takes in a second on the run's device; absent where it cannot be measured.
    pub wanted_per_s: Option<f64>,
}

impl Loading {
    /// Measures on images that can be read, spread over the training split; `None` if there are none, or if they do not fit the
    /// settings.
    pub fn measure(config: &RunConfig, data: &Dataset, report: &Report) -> Option<Self> {
        let of_train = report.findings.iter().filter(|found| found.image.part == Part::Train);
        let broken: HashSet<usize> =
            of_train.filter(|found| found.flaw == Flaw::Unreadable).map(|found| found.image.id).collect();
        let whole: Vec<usize> = (0..data.train.len()).filter(|id| !broken.contains(id)).collect();
        let count = whole.len().min(IMAGES);
        let spread: Vec<usize> = (0..count).map(|at| whole[at * whole.len() / count]).collect();
        if spread.is_empty() {
            return None;
        }
        let split = data.train.choose(&spread);
        let bench =
            DataBench { split: &split, augment: &config.augment, layout: Layout::ChannelsLast, seconds: SECONDS };
        let speed = bench.run().ok()?;
        let step = Speed::measure(config).ok();
        Some(Self {
            views_per_s_core: speed.views_per_s_core,
            views_per_s: speed.views_per_s,
            threads: rayon::current_num_threads(),
            encoder: config.encoder.spec().name().to_string(),
            wanted_per_s: step.map(|step| config.augment.view_count() as f64 / step.train),
        })
    }

    /// How many times faster views are made than the encoder takes them.
    pub fn headroom(&self) -> Option<f64> {
        Some(self.views_per_s / self.wanted_per_s?)
    }
}
