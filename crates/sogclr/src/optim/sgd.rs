//! SGD with momentum, PyTorch's form: v = μv + (g + wd·w), w −= lr·v, or lr·(g + μv) with Nesterov.

use super::{At, LearningRate, Real, Rule, Scaling, check_share, check_size};
use crate::check::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SGD with momentum, in Nesterov's form if asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// Share of the last update that is kept.
    pub momentum: f64,
    /// Nesterov's form.
    pub nesterov: bool,
    /// L2 penalty of all parameters.
    pub weight_decay: f64,
}

impl Sgd {
    /// Usual values and the learning rate that goes with them.
    pub fn defaults(_: bool) -> (Self, LearningRate) {
        let sgd = Self { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
        (sgd, LearningRate::new(0.3, Scaling::Linear))
    }
}

impl Rule for Sgd {
    fn check(&self) -> Result<(), Problem> {
        check_share("optimizer.momentum", self.momentum)?;
        check_size("optimizer.weight_decay", self.weight_decay)
    }

    fn slots(&self) -> usize {
        1
    }

    #[inline(always)]
    fn decayed<T: Real>(&self, w: T, g: T, _: At) -> T {
        g + w.times(self.weight_decay)
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, g: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(self.momentum) + g.clone();
        let direction = if self.nesterov { g + slots[0].clone().times(self.momentum) } else { slots[0].clone() };
        w - direction.times(at.lr)
    }
}
