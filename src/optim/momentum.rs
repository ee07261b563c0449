//! The momentum form of Algorithm 1, lines 9–10: v = (1−β)v + βm, w = w − ηv, v₀ = 0.

use super::{At, Rule};
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaperMomentum {
    /// β, the weight of the new gradient; 0.1 is an ordinary momentum of 0.9.
    pub beta: f64,
}

impl Rule for PaperMomentum {
    fn slots(&self) -> usize {
        1
    }

    fn update(&self, w: Tensor<1>, m: Tensor<1>, slots: &mut [Tensor<1>], at: At) -> Tensor<1> {
        slots[0] = slots[0].clone() * (1.0 - self.beta) + m * self.beta;
        w - slots[0].clone() * at.lr
    }
}
