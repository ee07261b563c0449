//! The momentum form of Algorithm 1, lines 9–10: v = (1−β)v + βm, w = w − ηv, v₀ = 0.

use super::{At, LearningRate, Real, Rule, Scaling};
use crate::check::{Problem, require};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Momentum as Algorithm 1 prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaperMomentum {
    /// β, the weight of the new gradient; 0.1 is an ordinary momentum of 0.9.
    pub beta: f64,
}

impl PaperMomentum {
    /// Usual values and the learning rate that goes with them.
    pub fn defaults(_: bool) -> (Self, LearningRate) {
        (Self { beta: 0.1 }, LearningRate::new(3.0, Scaling::Linear))
    }
}

impl Rule for PaperMomentum {
    fn check(&self) -> Result<(), Problem> {
        let beta = self.beta;
        require(beta > 0.0 && beta <= 1.0, "optimizer.beta", || format!("is {beta}; it must be above 0 and at most 1"))
    }

    fn slots(&self) -> usize {
        1
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, m: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(1.0 - self.beta) + m.times(self.beta);
        w - slots[0].clone().times(at.lr)
    }
}
