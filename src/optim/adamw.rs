//! AdamW, PyTorch's form: decay w by lr·wd, then the bias-corrected Adam step.

use super::{At, Real, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdamW {
    /// Memory of the mean gradient.
    pub beta1: f64,
    /// Memory of the mean square.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// Decoupled decay of all parameters.
    pub weight_decay: f64,
}

impl Rule for AdamW {
    fn slots(&self) -> usize {
        2
    }

    #[inline(always)]
    fn update<T: Real>(&self, w: T, g: T, slots: &mut [T], at: At) -> T {
        slots[0] = slots[0].clone().times(self.beta1) + g.clone().times(1.0 - self.beta1);
        slots[1] = slots[1].clone().times(self.beta2) + (g.clone() * g).times(1.0 - self.beta2);
        let correct = |beta: f64| 1.0 / (1.0 - beta.powi(at.step.min(i32::MAX as u64) as i32));
        let mean = slots[0].clone().times(correct(self.beta1));
        let deviation = slots[1].clone().times(correct(self.beta2)).sqrt().plus(self.epsilon);
        w.times(1.0 - at.lr * self.weight_decay) - (mean / deviation).times(at.lr)
    }
}
