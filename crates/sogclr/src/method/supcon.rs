//! SupCon: labels decide who is a positive.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b
//! P_a = the views of a's class other than a               its own other view at the least
//! L = 1/(2B) Σ_a 1/|P_a| Σ_{p∈P_a} [−s_ap/τ + ln Σ_{b≠a} exp(s_ab/τ)]
//! update encoder and head by ∇L
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Loss, SupCon};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SupCon's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SupconConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl Registered for SupconConfig {
    fn defaults(setting: &Setting) -> Self {
        Self { temperature: if setting.is_small { 0.1 } else { 0.07 } }
    }
}

impl Spec for SupconConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)
    }

    fn needs_labels(&self) -> bool {
        true
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SupCon { temperature: self.temperature })
    }
}
