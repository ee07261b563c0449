//! LARS as in SimCLR's program: momentum over lr·ratio·(g + wd·w), ratio = trust·‖w‖/‖g + wd·w‖.
//! Biases and batch-norm parameters have neither decay nor ratio.

use super::{At, Rule, l2_norm};
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

    fn update(&self, w: Tensor<1>, g: Tensor<1>, slots: &mut [Tensor<1>], at: At) -> Tensor<1> {
        let scaled = if at.is_vector {
            g
        } else {
            let g = g + w.clone() * self.weight_decay;
            let (norm_w, norm_g) = (l2_norm(&w), l2_norm(&g));
            // ratio 1 where a norm is 0
            let undefined = (norm_w.clone() * norm_g.clone()).equal_scalar(0.0);
            let ratio = (norm_w * self.trust / norm_g).mask_fill(undefined, 1.0);
            g * ratio
        };
        slots[0] = slots[0].clone() * self.momentum + scaled * at.lr;
        w - slots[0].clone()
    }
}
