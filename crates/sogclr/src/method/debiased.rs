//! Debiased contrastive learning: corrects for negatives of the anchor's own class.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! e⁺_a = exp(s⁺_a/τ),  S_a = Σ_{b∈B_a} exp(s_ab/τ)        B_a are the N = 2(B−1) views of other images
//! N_a = max((S_a − τ₊·N·e⁺_a)/(1 − τ₊), N·exp(−1/τ))      what is left without the share τ₊ of false negatives
//! L = 1/(2B) Σ_a −ln e⁺_a/(e⁺_a + N_a)                    N_a has a gradient, unless it is at its least
//! update encoder and head by ∇L
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Debiased, Loss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The hyper-parameters of debiased contrastive learning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DebiasedConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// τ₊, the share of negatives that are false: about 1/classes.
    pub prior: f64,
}

impl Registered for DebiasedConfig {
    fn defaults(_: &Setting) -> Self {
        Self { temperature: 0.5, prior: 0.1 }
    }
}

impl Spec for DebiasedConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        if !(0.0..1.0).contains(&self.prior) {
            return Err(Problem::new("method.prior", format!("is {}; it must be at least 0 and below 1", self.prior)));
        }
        Ok(())
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Debiased { temperature: self.temperature, prior: self.prior })
    }
}
