//! SimCLR, the baseline that the paper trains: NT-Xent.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Loss, NtXent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
