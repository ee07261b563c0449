//! SimCLR, the baseline that the paper trains: NT-Xent.

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::NtXent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimclrConfig {
    /// τ, from 0.005.
    pub temperature: f64,
}

impl SimclrConfig {
    pub(super) fn defaults(preset: Preset) -> Self {
        // 0.2 is its authors' advice for small batches of small images.
        Self { temperature: if matches!(preset, Preset::Cifar | Preset::Grey) { 0.2 } else { 0.1 } }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(NtXent { temperature: self.temperature, alpha: None })
    }
}
