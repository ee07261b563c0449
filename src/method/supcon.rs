//! SupCon: labels decide who is a positive.

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::SupCon;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SupconConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl SupconConfig {
    pub(super) fn defaults(preset: Preset) -> Self {
        Self { temperature: if matches!(preset, Preset::Cifar | Preset::Grey) { 0.1 } else { 0.07 } }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(SupCon { temperature: self.temperature })
    }
}
