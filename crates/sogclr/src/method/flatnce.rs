//! FlatNCE: DCL's gradient, made for small batches.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{FlatNce, Loss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
