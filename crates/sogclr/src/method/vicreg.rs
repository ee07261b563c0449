//! VICReg: invariance, variance and covariance, without negatives and without a second network.
//!
//! ```text
//! z₁, z₂ = head(encoder(x₁)), head(encoder(x₂))          raw, not normalised
//! invariance = mean (z₁ − z₂)²
//! variance   = ½Σ_views mean relu(1 − √(var z + ε))       over the batch, each dimension
//! covariance = Σ_views Σᵢ≠ⱼ cov(z)ᵢⱼ² / d
//! L = λ·invariance + μ·variance + ν·covariance
//! update encoder and head by ∇L
//! ```

use super::{Recipe, Registered, Setting, Spec, wide_head};
use crate::check::{Problem, require};
use crate::loss::{Loss, VicReg};
use crate::optim::{Lars, LearningRate, Scaling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// VICReg's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VicregConfig {
    /// λ, the weight of the distance between the views.
    pub invariance: f64,
    /// μ, the weight of standard deviations below 1.
    pub variance: f64,
    /// ν, the weight of covariances.
    pub covariance: f64,
}

impl Registered for VicregConfig {
    fn defaults(_: &Setting) -> Self {
        Self { invariance: 25.0, variance: 25.0, covariance: 1.0 }
    }
}

impl Spec for VicregConfig {
    fn check(&self) -> Result<(), Problem> {
        for (key, weight) in [
            ("method.invariance", self.invariance),
            ("method.variance", self.variance),
            ("method.covariance", self.covariance),
        ] {
            require(weight >= 0.0 && weight.is_finite(), key, || format!("is {weight}; it must be 0 or more"))?;
        }
        Ok(())
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        wide_head(setting, recipe);
        if !setting.is_small {
            recipe.optimizer = Lars { momentum: 0.9, weight_decay: 1e-6, trust: 0.001 }.into();
            recipe.learning_rate = LearningRate { base: 0.2, scaling: Scaling::Linear, ..recipe.learning_rate };
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(VicReg { invariance: self.invariance, variance: self.variance, covariance: self.covariance })
    }
}
