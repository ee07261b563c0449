//! Views for the encoder: how many there are in a second, and where the time of one goes.

use crate::augment::{AugmentConfig, Augmenter, Stage};
use crate::batch::render;
use crate::data::{DataError, Split};
use crate::math::{Layout, SampleRng};
use crate::system::cpu_seconds;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Images that the cores share at once.
const BATCH: usize = 64;

/// What to measure.
pub struct DataBench<'a> {
    /// The images; they are read once before, so the disk is not measured where they fit into memory.
    pub split: &'a Split,
    /// How views are made of an image.
    pub augment: &'a AugmentConfig,
    /// The order of pixels.
    pub layout: Layout,
    /// At least so many seconds on one core, and on all of them.
    pub seconds: f64,
}

/// Speed on one core and on all of them.
#[derive(Clone, Debug, Serialize)]
pub struct DataSpeed {
    /// Views per second on one core.
    pub views_per_s_core: f64,
    /// Milliseconds of CPU time of a view on one core; `null` where the system does not tell.
    pub cpu_ms_core: Option<f64>,
    /// Views per second on all threads.
    pub views_per_s: f64,
    /// Milliseconds of CPU time of a view on all threads; `null` where the system does not tell.
    pub cpu_ms: Option<f64>,
    /// How one core divides its time.
    pub shares: DataShares,
}

/// Parts of one.
#[derive(Clone, Debug, Serialize)]
pub struct DataShares {
    /// Reading and decoding.
    pub decode: f64,
    /// Crop, resize and flip.
    pub resize: f64,
    /// Jitter and greyscale.
    pub colour: f64,
    /// Gaussian blur.
    pub blur: f64,
    /// Normalisation.
    pub normalise: f64,
}

/// Seconds, CPU seconds and views of a part of the measurement.
struct Run {
    seconds: f64,
    cpu: Option<f64>,
    views: usize,
}

impl Run {
    /// Passes over the data, each an epoch of its own, until `least` seconds are over. `pass` says how many views it made.
    fn of(least: f64, mut pass: impl FnMut(usize) -> Result<usize, DataError>) -> Result<Self, DataError> {
        let (start, before, mut views) = (Instant::now(), cpu_seconds(), 0);
        for epoch in 0.. {
            views += pass(epoch)?;
            if start.elapsed().as_secs_f64() >= least {
                break;
            }
        }
        let cpu = before.zip(cpu_seconds()).map(|(before, after)| after - before);
        Ok(Self { seconds: start.elapsed().as_secs_f64(), cpu, views })
    }

    fn views_per_s(&self) -> f64 {
        self.views as f64 / self.seconds
    }

    fn cpu_ms(&self) -> Option<f64> {
        Some(1e3 * self.cpu? / self.views as f64)
    }
}

impl DataBench<'_> {
    /// Makes all views of a pass over the data, again and again.
    pub fn run(&self) -> Result<DataSpeed, DataError> {
        let Self { split, augment, layout, seconds } = *self;
        let (views, channels) = (augment.view_count(), augment.channels());
        let area = augment.views.iter().map(|group| group.count * channels * group.size * group.size).sum();
        let draw = |augmenter: &mut Augmenter, image: &_, id: usize, epoch: usize, mut out: &mut [f32]| {
            let mut view = 0;
            for group in &augment.views {
                for _ in 0..group.count {
                    let place;
                    (place, out) = out.split_at_mut(channels * group.size * group.size);
                    augmenter.view(image, group, &mut SampleRng::augment(0, epoch, id, view), place);
                    view += 1;
                }
            }
        };

        let (mut decode, mut out) = (Duration::ZERO, vec![0.0; area]);
        let mut augmenter = Augmenter::new(augment, layout).timed();
        for id in 0..split.len() {
            split.image(id)?;
        }
        let core = Run::of(seconds, |epoch| {
            for id in 0..split.len() {
                let start = Instant::now();
                let image = split.image(id)?;
                decode += start.elapsed();
                draw(&mut augmenter, &image, id, epoch, &mut out);
            }
            Ok(views * split.len())
        })?;

        let ids: Vec<usize> = (0..split.len()).collect();
        let mut batch = vec![0.0; BATCH.min(split.len()) * area];
        let all = Run::of(seconds, |epoch| {
            for ids in ids.chunks(BATCH) {
                let places = batch.chunks_exact_mut(area).take(ids.len()).collect();
                render(split, augment, layout, ids, places, |augmenter, image, id, out| {
                    draw(augmenter, image, id, epoch, out);
                })?;
            }
            Ok(views * split.len())
        })?;

        let times = augmenter.times().expect("it is timed");
        let share = |stage| times.seconds(stage) / core.seconds;
        Ok(DataSpeed {
            views_per_s_core: core.views_per_s(),
            cpu_ms_core: core.cpu_ms(),
            views_per_s: all.views_per_s(),
            cpu_ms: all.cpu_ms(),
            shares: DataShares {
                decode: decode.as_secs_f64() / core.seconds,
                resize: share(Stage::Resize),
                colour: share(Stage::Colour),
                blur: share(Stage::Blur),
                normalise: share(Stage::Normalise),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Preset;
    use crate::data::{DataConfig, Dataset};

    #[test]
    fn every_stage_has_its_share() {
        let config = DataConfig { limit: Some(20), ..Default::default() };
        let split = Dataset::open(&config, 0).unwrap().train;
        let mut augment = AugmentConfig::preset(Preset::Grey, 28);
        augment.set_views(&[(2, 28), (1, 12)]);
        let bench = |augment: &_| {
            DataBench { split: &split, augment, layout: Layout::ChannelsLast, seconds: 0.0 }.run().unwrap()
        };
        let sharp = bench(&augment);
        let DataShares { decode, resize, colour, blur, normalise } = sharp.shares;
        assert!(blur == 0.0 && [decode, resize, colour, normalise].iter().all(|&share| share > 0.0), "{sharp:?}");
        assert!(decode + resize + colour + normalise <= 1.0, "{sharp:?}");
        assert!(sharp.views_per_s_core > 0.0 && sharp.views_per_s > 0.0);
        augment.blur.probability = 1.0;
        assert!(bench(&augment).shares.blur > 0.0);
    }
}
