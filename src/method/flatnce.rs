//! FlatNCE: DCL's gradient, made for small batches.

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::FlatNce;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlatnceConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl FlatnceConfig {
    pub(super) fn defaults(preset: Preset) -> Self {
        Self { temperature: if matches!(preset, Preset::Cifar | Preset::Grey) { 0.2 } else { 0.1 } }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(FlatNce { temperature: self.temperature })
    }
}
