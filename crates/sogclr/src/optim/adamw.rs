//! AdamW, PyTorch's form: decay w by lr·wd, then the bias-corrected Adam step. Vectors do not decay, as in open_clip.

use super::{At, LearningRate, Real, Rule, Scaling, check_share, check_size};
use crate::check::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdamW {
    /// Memory of the mean gradient.
    pub beta1: f64,
    /// Memory of the mean square.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// Decoupled decay of matrices; biases, norms and learned temperatures do not decay.
    pub weight_decay: f64,
}

impl AdamW {
    /// Usual values and the learning rate that goes with them.
    pub fn defaults(_: bool) -> (Self, LearningRate) {
        let adamw = Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-2 };
        (adamw, LearningRate::new(1e-3, Scaling::None))
    }
}

impl Rule for AdamW {
    fn check(&self) -> Result<(), Problem> {
        check_share("optimizer.beta1", self.beta1)?;
        check_share("optimizer.beta2", self.beta2)?;
        check_size("optimizer.epsilon", self.epsilon)?;
        check_size("optimizer.weight_decay", self.weight_decay)
    }

    fn slots(&self) -> usize {
        2
    }

    /// 1/(1 − βᵗ), which make up for the start at zero.
    fn constants(&self, at: At) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 / (1.0 - beta.powi(at.step.min(i32::MAX as u64) as i32)))
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, g: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(self.beta1) + g.clone().times(1.0 - self.beta1);
        slots[1] = slots[1].clone().times(self.beta2) + (g.clone() * g).times(1.0 - self.beta2);
        let [mean_factor, square_factor] = at.constants;
        let mean = slots[0].clone().times(mean_factor);
        let deviation = slots[1].clone().times(square_factor).sqrt().plus(self.epsilon);
        let decay = if at.is_vector { 0.0 } else { at.lr * self.weight_decay };
        w.times(1.0 - decay) - (mean / deviation).times(at.lr)
    }
}
