//! The learning rate: scaled by the batch, warmed up linearly from 0, then cosine to 0, step by step.

use crate::check::{Problem, require};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the learning rate follows the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// base·√B, the paper's rule (base 0.075)
    Sqrt,
    /// base·B/256
    Linear,
    /// base as it is
    None,
}

/// The learning rate and its schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    /// Learning rate before scaling by the batch size.
    pub base: f64,
    /// `sqrt` (base·√B), `linear` (base·B/256) or `none`.
    pub scaling: Scaling,
    /// Epochs of linear warm-up from 0; may be a fraction.
    pub warmup_epochs: f64,
    /// Steps of linear warm-up, in place of `warmup_epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<usize>,
}

impl LearningRate {
    /// Without warm-up.
    pub fn new(base: f64, scaling: Scaling) -> Self {
        Self { base, scaling, warmup_epochs: 0.0, warmup_steps: None }
    }

    /// Refuses what does not fit a run of `epochs` of `steps_per_epoch` steps.
    pub fn check(&self, epochs: usize, steps_per_epoch: usize) -> Result<(), Problem> {
        let Self { base, warmup_epochs, .. } = *self;
        require(base > 0.0 && base.is_finite(), "learning_rate.base", || {
            format!("is {base}; it must be a positive number")
        })?;
        require((0.0..=epochs as f64).contains(&warmup_epochs), "learning_rate.warmup_epochs", || {
            format!("is {warmup_epochs}; the run has {epochs} epochs")
        })?;
        let (steps, total) = (self.warmup_steps.unwrap_or(0), epochs * steps_per_epoch);
        require(steps <= total, "learning_rate.warmup_steps", || format!("is {steps}; the run has {total} steps"))
    }

    /// The largest learning rate of the run.
    pub fn peak(&self, batch: usize) -> f64 {
        match self.scaling {
            Scaling::Sqrt => self.base * (batch as f64).sqrt(),
            Scaling::Linear => self.base * batch as f64 / 256.0,
            Scaling::None => self.base,
        }
    }

    /// The learning rate of step `t` of `epochs`·`steps_per_epoch`.
    pub fn at(&self, t: usize, batch: usize, epochs: usize, steps_per_epoch: usize) -> f64 {
        let total = (epochs * steps_per_epoch) as f64;
        let warmup = match self.warmup_steps {
            Some(steps) => steps as f64,
            None => (self.warmup_epochs * steps_per_epoch as f64).round(),
        };
        warmup_cosine(self.peak(batch), t as f64, warmup, total)
    }
}

/// peak·t/W for t < W, then peak·½(1 + cos(π(t−W)/(T−W))).
pub fn warmup_cosine(peak: f64, t: f64, warmup: f64, total: f64) -> f64 {
    if t < warmup {
        peak * t / warmup
    } else {
        peak * 0.5 * (1.0 + (std::f64::consts::PI * (t - warmup) / (total - warmup).max(1.0)).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_in_steps_replaces_that_in_epochs() {
        let rate = LearningRate { base: 0.5, scaling: Scaling::None, warmup_epochs: 2.0, warmup_steps: Some(4) };
        // 3 epochs of 4 steps: t/4 up to step 4, then ½(1 + cos(π(t − 4)/8))
        let shares = [0.0, 0.25, 0.5, 0.75, 1.0, 0.961_939_766, 0.853_553_391, 0.691_341_716, 0.5, 0.308_658_284];
        for (t, share) in shares.into_iter().enumerate() {
            let ours = rate.at(t, 8, 3, 4);
            assert!((ours - 0.5 * share).abs() < 1e-9, "step {t}: {ours}");
        }
        let none = LearningRate { warmup_steps: Some(0), ..rate };
        assert_eq!(none.at(0, 8, 3, 4), 0.5);
    }
}
