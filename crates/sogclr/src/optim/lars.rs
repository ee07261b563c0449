//! LARS as in SimCLR's program: momentum over lr·ratio·(g + wd·w), ratio = trust·‖w‖/‖g + wd·w‖.
//! Biases and batch-norm parameters have neither decay nor ratio.

use super::{At, Real, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lars {
    /// Share of the last update that is kept.
    pub momentum: f64,
    /// L2 penalty of weights of two or more dimensions.
    pub weight_decay: f64,
    /// Trust coefficient: the size of an update relative to the weights.
    pub trust: f64,
}

impl Rule for Lars {
    fn slots(&self) -> usize {
        1
    }

    #[inline(always)]
    fn decayed<T: Real>(&self, w: T, g: T, at: At) -> T {
        if at.is_vector { g } else { g + w.times(self.weight_decay) }
    }

    fn trust(&self, at: At) -> Option<f64> {
        (!at.is_vector).then_some(self.trust)
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, g: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(self.momentum) + g.times(at.lr);
        w - slots[0].clone()
    }
}
