//! SimCLR, the baseline that the paper trains: NT-Xent.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! B_a = the views of other images                         2(B−1) negatives
//! L = 1/(2B) Σ_a [−s⁺_a/τ + ln(exp(s⁺_a/τ) + Σ_{b∈B_a} exp(s_ab/τ))]
//! update encoder and head by ∇L                           no memory: the batch stands for the data
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Loss, NtXent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SimCLR's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimclrConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl Registered for SimclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // 0.2 is its authors' advice for small batches of small images.
        Self { temperature: if setting.is_small { 0.2 } else { 0.1 } }
    }
}

impl Spec for SimclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(NtXent { temperature: self.temperature, alpha: None })
    }
}
