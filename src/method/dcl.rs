//! DCL: the positive stays out of the denominator; the SimCLR that the paper analyses.

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::Dcl;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DclConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// Weigh close pairs less (DCLW): σ of the weights; absent: all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
}

impl DclConfig {
    pub(super) fn defaults(preset: Preset) -> Self {
        Self { temperature: if matches!(preset, Preset::Cifar | Preset::Grey) { 0.2 } else { 0.1 }, sigma: None }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)?;
        match self.sigma {
            Some(sigma) if !(sigma > 0.0 && sigma.is_finite()) => {
                Err(("method.sigma".into(), format!("is {sigma}; it must be positive (try 0.5)")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(Dcl { temperature: self.temperature, sigma: self.sigma })
    }
}
