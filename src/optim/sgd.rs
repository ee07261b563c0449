//! SGD with momentum, PyTorch's form: v = μv + (g + wd·w), w −= lr·v, or lr·(g + μv) with Nesterov.

use super::{At, Rule};
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

    fn update(&self, w: Tensor<1>, g: Tensor<1>, slots: &mut [Tensor<1>], at: At) -> Tensor<1> {
        let g = g + w.clone() * self.weight_decay;
        slots[0] = slots[0].clone() * self.momentum + g.clone();
        let direction = if self.nesterov { g + slots[0].clone() * self.momentum } else { slots[0].clone() };
        w - direction * at.lr
    }
}
