//! How long a run will take here, from a few steps on its own images by a trainer that is thrown away: the run itself is not
//! touched. The steps are those of small batches where whole ones would take long.

use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::Split;
use crate::train::{StepTime, TrainError, Trainer, open_for};
use std::sync::Arc;
use std::time::Duration;

/// Images of the two small batches whose times give the whole one's.
const FEW: [usize; 2] = [8, 16];
/// A step that is short enough to be measured whole, and how long whole ones are.
const SHORT: f64 = 1.5;
const PATIENCE: Duration = Duration::from_secs(3);
const STEPS: usize = 12;

/// What a run takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds of a step.
    pub step: f64,
    /// Share of a step spent waiting for data.
    pub waited: f64,
    /// Steps of the run.
    pub steps: usize,
    /// Epochs of the run.
    pub epochs: usize,
    /// Images of a step.
    pub batch: usize,
}

impl Forecast {
    /// Times a few steps of `config` on images of `split`.
    pub fn measure(config: &RunConfig, split: &Split) -> Result<Self, TrainError> {
        let (batch, epochs) = (config.train.batch, config.train.epochs);
        let chunk = config.train.micro_batch.unwrap_or(batch).min(batch);
        // A second forward pass for the embeddings, which is about a third of forward and backward.
        let again = if chunk < batch { 4.0 / 3.0 } else { 1.0 };
        let StepTime { seconds, waited } = chunk_time(config, split, chunk)?;
        let step = again * seconds * batch as f64 / chunk as f64;
        Ok(Self { step, waited, steps: epochs * (split.len() / batch), epochs, batch })
    }

    /// Seconds of the whole run.
    pub fn seconds(&self) -> f64 {
        self.step * self.steps as f64
    }

    /// Images of a second.
    pub fn speed(&self) -> f64 {
        self.batch as f64 / self.step
    }

    /// Epochs that fit into so many seconds; at least one.
    pub fn epochs_in(&self, seconds: f64) -> usize {
        let epoch = self.seconds() / self.epochs as f64;
        ((seconds / epoch) as usize).max(1)
    }
}

/// What a step of `images` takes.
fn chunk_time(config: &RunConfig, split: &Split, images: usize) -> Result<StepTime, TrainError> {
    let groups = 2 * config.method.spec().norm_groups();
    let [few, more] = FEW.map(|count| count.next_multiple_of(groups).min(images));
    let time = |batch: usize, steps: usize, patience: Duration| -> Result<StepTime, TrainError> {
        let mut small = config.clone();
        (small.train.batch, small.train.micro_batch, small.train.init) = (batch, None, None);
        let some = split.spread(4 * batch);
        small.train.epochs = steps.div_ceil(some.len() / batch);
        let mut trainer = Trainer::new(&small, some.len(), &open_for(&small.train, 0)?)?;
        trainer.time_steps(Arc::new(some), &Group::solo(), patience)
    };
    // Two at the least: the first sets up memory.
    let of_more = time(more, 3, Duration::ZERO)?;
    if of_more.seconds * images as f64 / more as f64 <= SHORT {
        return time(images, STEPS, PATIENCE);
    }
    if few == more || images == more {
        return time(images, 3, PATIENCE);
    }
    let times = [(few, time(few, 3, Duration::ZERO)?.seconds), (more, of_more.seconds)];
    Ok(StepTime { seconds: extrapolate(times, images), ..of_more })
}

/// The straight line through two times; through the second and zero where they do not rise.
fn extrapolate([(few, low), (more, high)]: [(usize, f64); 2], images: usize) -> f64 {
    let slope = (high - low) / (more - few) as f64;
    let proportional = high / more as f64;
    // An image costs no more than its share of a step, and not much less.
    let slope = if slope > 0.5 * proportional { slope.min(proportional) } else { proportional };
    high + slope * (images - more) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    #[test]
    fn large_batches_are_on_the_line_of_small_ones() {
        assert_eq!(extrapolate([(8, 1.0), (16, 1.8)], 64), 1.8 + 0.1 * 48.0);
        assert!((extrapolate([(8, 1.0), (16, 0.9)], 64) - 3.6).abs() < 1e-9, "noise");
        assert!((extrapolate([(8, 0.2), (16, 1.6)], 64) - 6.4).abs() < 1e-9, "no dearer than in a small batch");
    }

    #[test]
    fn a_forecast_counts_whole_batches_of_every_epoch() {
        let mut overrides = Overrides::default();
        let small = ["encoder.name=resnet8", "encoder.width=0.25", "data.image_size=8", "data.limit=50"];
        small.iter().chain(&["train.batch=16", "train.epochs=10"]).for_each(|setting| overrides.set(setting).unwrap());
        let (mut config, data) = RunConfig::open(&overrides).unwrap();
        let found = Forecast::measure(&config, &data.train).unwrap();
        assert!(found.step > 0.0 && found.speed() > 0.0);
        assert_eq!((found.steps, found.epochs_in(0.5 * found.seconds() + 1e-9), found.epochs_in(0.0)), (30, 5, 1));
        config.train.micro_batch = Some(8);
        assert!(Forecast::measure(&config, &data.train).unwrap().step > 0.0);
    }
}
