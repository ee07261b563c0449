//! LARS as in SimCLR's program: momentum over lr·ratio·(g + wd·w), ratio = trust·‖w‖/‖g + wd·w‖.
//! Biases and batch-norm parameters have neither decay nor ratio.

use super::{At, LearningRate, Real, Rule, Scaling, check_share, check_size};
use crate::check::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Layer-wise scaled momentum.
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

impl Lars {
    /// Usual values and the learning rate that goes with them.
    pub fn defaults(is_small: bool) -> (Self, LearningRate) {
        // 0.075·√B is the paper's; 0.2·√B its authors' for SimCLR on CIFAR.
        let (base, weight_decay) = if is_small { (0.2, 1e-4) } else { (0.075, 1e-6) };
        (Self { momentum: 0.9, weight_decay, trust: 0.001 }, LearningRate::new(base, Scaling::Sqrt))
    }
}

impl Rule for Lars {
    fn check(&self) -> Result<(), Problem> {
        check_share("optimizer.momentum", self.momentum)?;
        check_size("optimizer.weight_decay", self.weight_decay)?;
        check_size("optimizer.trust", self.trust)
    }

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
