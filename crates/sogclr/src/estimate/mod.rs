//! What a run will take, in seconds and bytes, before it is begun: from a few measured steps of its own network, method and
//! augmentation on random images.

mod forecast;
mod plan;

pub use forecast::Forecast;
pub use plan::{Candidate, Plan, Reason};

use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::{DataError, Image, Samples, Source, Split};
use crate::eval::{FrozenEncoder, PaperProtocol};
use crate::math::{Purpose, SampleRng};
use crate::params::NamedTensors;
use crate::study::Measure;
use crate::train::{NEWEST, Trainer, open_device, open_for};
use crate::trained::TrainedError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Images of a measured step: enough to fill a few cores, or a GPU.
const CPU_BATCH: usize = 4;
const GPU_BATCH: usize = 32;
/// Steps that are timed after the first, as long as they fit into the time.
const STEPS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(15);

/// What a machine does with the network of a run.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Seconds of training for each image of the batch, all of its views.
    pub train: f64,
    /// Seconds for each image that is evaluated.
    pub forward: f64,
    /// Bytes of a checkpoint without what is kept for each sample.
    pub checkpoint: u64,
    /// Bytes of a checkpoint for each sample.
    pub sample: u64,
}

/// What a run takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Seconds of training.
    pub training: f64,
    /// Seconds of evaluation, kept checkpoints included.
    pub evaluation: f64,
    /// Bytes of the run folder.
    pub disk: u64,
}

impl Estimate {
    /// Both together.
    pub fn seconds(&self) -> f64 {
        self.training + self.evaluation
    }
}

impl std::ops::Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            training: self.training + other.training,
            evaluation: self.evaluation + other.evaluation,
            disk: self.disk + other.disk,
        }
    }
}

impl Speed {
    /// Times a few steps of `config` with a small batch, on random images of the size that it is evaluated at.
    pub fn measure(config: &RunConfig) -> Result<Self, TrainedError> {
        let few = if config.train.device.is_cpu() { CPU_BATCH } else { GPU_BATCH };
        // Batch norm of some methods sees whole groups.
        let groups = config.method.spec().norm_groups();
        let batch = few.next_multiple_of(2 * groups).min(config.train.batch);
        let images = random_images(config, batch);
        let mut small = config.clone();
        small.train.batch = batch;
        small.train.micro_batch = None;
        small.train.init = None;
        small.train.epochs = STEPS + 1;
        let mut trainer = Trainer::new(&small, batch, &open_for(&small.train, 0)?)?;
        let train = trainer.time_steps(Arc::new(images.clone()), &Group::solo(), PATIENCE)?.seconds / batch as f64;
        let checkpoint = trainer.checkpoint();
        let bytes = |tensors: &NamedTensors| tensors.values().map(|tensor| 4 * tensor.values.len() as u64).sum::<u64>();
        Ok(Self {
            train,
            forward: forward_seconds(config, &images)?,
            checkpoint: [&checkpoint.model, &checkpoint.optimizer, &checkpoint.method_tensors].map(bytes).iter().sum(),
            sample: 4 * checkpoint.state.columns().count() as u64,
        })
    }

    /// What a run on `samples` training and `tests` test images takes.
    pub fn of_run(&self, config: &RunConfig, measure: Measure, samples: usize, tests: usize) -> Estimate {
        let train = &config.train;
        let steps = samples / train.batch;
        // A second forward pass for the embeddings, which is about a third of forward and backward.
        let again = if train.micro_batch.is_some_and(|micro| micro < train.batch) { 4.0 / 3.0 } else { 1.0 };
        let kept = train.keep_every.map_or(0, |every| train.epochs / every.max(1));
        let (images, times) = match measure {
            Measure::LinearPaper => (PaperProtocol::default().views(samples, tests), kept + 1),
            Measure::Linear => (samples + tests, kept + 1),
            Measure::Retrieval | Measure::ZeroShot => (tests, 1),
        };
        Estimate {
            training: again * self.train * (train.epochs * steps * train.batch) as f64,
            evaluation: self.forward * (images * times) as f64,
            disk: (kept + NEWEST) as u64 * (self.checkpoint + self.sample * samples as u64),
        }
    }
}

/// Seconds of one image through the frozen encoder, decoding aside.
fn forward_seconds(config: &RunConfig, images: &Split) -> Result<f64, TrainedError> {
    let compute = open_device(config.train.device)?;
    let (model, size) = (config.model(), config.eval_size());
    let encoder = FrozenEncoder::untrained(&model, config.seed, &config.augment, size, compute);
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let began = Instant::now();
        encoder.extract(images, |_| {})?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best / images.len() as f64)
}

struct Noise {
    count: usize,
    size: usize,
    channels: usize,
}

impl Source for Noise {
    fn count(&self) -> usize {
        self.count
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        let mut rng = SampleRng::new(0, Purpose::Augment, 0, index as u64, 0);
        let values = (0..self.size * self.size * self.channels).map(|_| rng.uniform(0.0, 256.0) as u8).collect();
        Ok(Image { width: self.size, height: self.size, channels: self.channels, data: Samples::U8(values) })
    }
}

/// Images of two classes with captions where the run has texts.
fn random_images(config: &RunConfig, count: usize) -> Split {
    let size = config.augment.views[0].size.max(config.eval_size());
    let noise = Noise { count, size, channels: config.augment.channels() };
    let split = Split::new(Arc::new(noise), Some((0..count).map(|index| (index % 2) as u32).collect()));
    let captions = || (0..count).map(|index| vec![format!("This is a photo of number {index}")]).collect();
    if config.text.is_some() { split.with_captions(captions()) } else { split }
}

/// A duration in the unit that suits it.
pub fn duration_text(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// Bytes in the unit that suits them.
pub fn bytes_text(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e9 => format!("{:.0} MB", b / 1e6),
        b if b < 1e12 => format!("{:.1} GB", b / 1e9),
        b => format!("{:.1} TB", b / 1e12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use crate::encoder::Compute;

    fn config(settings: &[&str]) -> RunConfig {
        let mut overrides = Overrides::default();
        for setting in [&["encoder.name=resnet8", "encoder.width=0.25", "data.image_size=8"], settings].concat() {
            overrides.set(setting).unwrap();
        }
        RunConfig::open(&overrides).unwrap().0
    }

    #[test]
    fn a_run_is_its_epochs_and_a_micro_batch_costs_a_second_forward_pass() {
        let speed = Speed { train: 0.01, forward: 0.001, checkpoint: 1000, sample: 4 };
        let mut run = config(&["train.batch=32", "train.epochs=10", "train.keep_every=5"]);
        let found = speed.of_run(&run, Measure::Linear, 100, 50);
        assert!((found.training - 10.0 * 96.0 * 0.01).abs() < 1e-9, "whole batches only: {found:?}");
        assert!((found.evaluation - 3.0 * 150.0 * 0.001).abs() < 1e-9, "two kept and the end: {found:?}");
        assert_eq!(found.disk, 4 * 1400);
        run.train.micro_batch = Some(16);
        let again = speed.of_run(&run, Measure::LinearPaper, 100, 50);
        assert!((again.training / found.training - 4.0 / 3.0).abs() < 1e-9);
        assert!((again.evaluation - 3.0 * (90.0 * 100.0 + 150.0) * 0.001).abs() < 1e-9, "{again:?}");
    }

    #[test]
    fn a_checkpoint_is_as_large_as_the_file() {
        for method in ["sogclr", "moco", "byol"] {
            let config = config(&["train.batch=64", &format!("method.kind={method}")]);
            let speed = Speed::measure(&config).unwrap();
            assert!(speed.train > 0.0 && speed.forward > 0.0);
            let trainer = Trainer::new(&config, 500, &Compute::cpu()).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            trainer.checkpoint().save(file.path()).unwrap();
            let size = file.path().metadata().unwrap().len();
            let told = speed.checkpoint + 500 * speed.sample;
            // A fresh optimiser has no state yet; names and shapes take a few bytes.
            assert!(told as f64 > 0.8 * size as f64 && told < 3 * size, "{method}: {told} and {size}");
        }
    }

    #[test]
    fn units_suit_the_size() {
        assert_eq!([30.0, 600.0, 40_000.0, 1e6].map(duration_text), ["30 s", "10 min", "11.1 h", "11.6 days"]);
        assert_eq!([2_500_000, 3_600_000_000, 2_000_000_000_000].map(bytes_text), ["2 MB", "3.6 GB", "2.0 TB"]);
    }
}
