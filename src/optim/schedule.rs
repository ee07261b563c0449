//! The learning rate: scaled by the batch, warmed up linearly from 0, then cosine to 0, step by step.

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
