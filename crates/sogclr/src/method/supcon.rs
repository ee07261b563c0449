//! SupCon: labels decide who is a positive.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Loss, SupCon};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
