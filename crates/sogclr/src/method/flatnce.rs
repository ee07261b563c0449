//! FlatNCE: DCL's gradient, made for small batches.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! v_a = ln Σ_{b∈B_a} exp((s_ab − s⁺_a)/τ)                 B_a are the 2(B−1) views of other images
//! L = 1/(2B) Σ_a [exp(v_a − sg v_a) − 1]                  always 0; ∇L = 1/(2B) Σ_a ∇v_a, as DCL's
//! update encoder and head by ∇L
//! report 1/(2B) Σ_a ln(1 + exp(v_a)) as the loss
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{FlatNce, Loss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// FlatNCE's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlatnceConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl Registered for FlatnceConfig {
    fn defaults(setting: &Setting) -> Self {
        Self { temperature: if setting.is_small { 0.2 } else { 0.1 } }
    }
}

impl Spec for FlatnceConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(FlatNce { temperature: self.temperature })
    }
}
