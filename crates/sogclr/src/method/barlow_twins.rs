//! Barlow Twins: redundancy reduction, without negatives and without a second network.
//!
//! ```text
//! z₁, z₂ = head(encoder(x₁)), head(encoder(x₂))          raw, not normalised
//! y₁, y₂ = each dimension standardised over the batch
//! C = y₁ᵀy₂ / B                                          [d, d]
//! L = Σᵢ (1 − Cᵢᵢ)² + λ·Σᵢ≠ⱼ Cᵢⱼ²
//! update encoder and head by ∇L
//! ```

use super::{Recipe, Registered, Setting, Spec, wide_head};
use crate::check::{Problem, require};
use crate::loss::{BarlowTwins, Loss};
use crate::optim::{Lars, LearningRate, Scaling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Barlow Twins' hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BarlowTwinsConfig {
    /// λ, the weight of correlations between different dimensions.
    pub lambda: f64,
}

impl Registered for BarlowTwinsConfig {
    fn defaults(_: &Setting) -> Self {
        Self { lambda: 0.0051 }
    }
}

impl Spec for BarlowTwinsConfig {
    fn check(&self) -> Result<(), Problem> {
        let lambda = self.lambda;
        require(lambda >= 0.0 && lambda.is_finite(), "method.lambda", || {
            format!("is {lambda}; it must be 0 or more (try 0.0051)")
        })
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        wide_head(setting, recipe);
        if !setting.is_small {
            recipe.optimizer = Lars { momentum: 0.9, weight_decay: 1.5e-6, trust: 0.001 }.into();
            recipe.learning_rate = LearningRate { base: 0.2, scaling: Scaling::Linear, ..recipe.learning_rate };
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(BarlowTwins { lambda: self.lambda })
    }
}
