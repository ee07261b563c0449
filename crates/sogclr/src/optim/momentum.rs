//! The momentum form of Algorithm 1, lines 9–10: v = (1−β)v + βm, w = w − ηv, v₀ = 0.

use super::{At, Real, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaperMomentum {
    /// β, the weight of the new gradient; 0.1 is an ordinary momentum of 0.9.
    pub beta: f64,
}

impl Rule for PaperMomentum {
    fn slots(&self) -> usize {
        1
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, m: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(1.0 - self.beta) + m.times(self.beta);
        w - slots[0].clone().times(at.lr)
    }
}
