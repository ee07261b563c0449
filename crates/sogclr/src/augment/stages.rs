//! Where the time of a view goes.

use std::time::{Duration, Instant};

/// What is done for a view, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Crop, resize and flip, up to planes of floats.
    Resize,
    /// Jitter, greyscale and RandAugment.
    Colour,
    /// Gaussian blur.
    Blur,
    /// Mean and standard deviation, in the layout of the network.
    Normalise,
}

/// What each stage has taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageTimes([Duration; 4]);

impl StageTimes {
    /// Seconds that `stage` has taken.
    pub fn seconds(&self, stage: Stage) -> f64 {
        self.0[stage as usize].as_secs_f64()
    }
}

/// Takes times where they are wanted.
#[derive(Default)]
pub(super) struct Clock(Option<StageTimes>);

impl Clock {
    pub fn running() -> Self {
        Self(Some(StageTimes::default()))
    }

    pub fn times(&self) -> Option<StageTimes> {
        self.0
    }

    /// The start of a stage.
    pub fn start(&self) -> Option<Instant> {
        self.0.map(|_| Instant::now())
    }

    /// The end of the stage that began at `start`.
    pub fn stop(&mut self, stage: Stage, start: Option<Instant>) {
        if let (Some(times), Some(start)) = (&mut self.0, start) {
            times.0[stage as usize] += start.elapsed();
        }
    }
}
