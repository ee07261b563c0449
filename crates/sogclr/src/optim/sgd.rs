//! SGD with momentum, PyTorch's form: v = μv + (g + wd·w), w −= lr·v, or lr·(g + μv) with Nesterov.

use super::{At, Real, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

impl Rule for Sgd {
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
