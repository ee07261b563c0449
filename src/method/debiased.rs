//! Debiased contrastive learning: corrects for negatives of the anchor's own class.

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::Debiased;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DebiasedConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// τ₊, the share of negatives that are false: about 1/classes.
    pub prior: f64,
}

impl DebiasedConfig {
    pub(super) fn defaults(_: Preset) -> Self {
        Self { temperature: 0.5, prior: 0.1 }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)?;
        if !(0.0..1.0).contains(&self.prior) {
            return Err(("method.prior".into(), format!("is {}; it must be at least 0 and below 1", self.prior)));
        }
        Ok(())
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(Debiased { temperature: self.temperature, prior: self.prior })
    }
}
