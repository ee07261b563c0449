//! SiMo without its momentum encoder: NT-Xent whose negatives count as α (EqCo's margin).

use super::{LossOnly, Method, check_temperature};
use crate::augment::Preset;
use crate::loss::NtXent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimoConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// α, the number of negatives to act like.
    pub alpha: f64,
}

impl SimoConfig {
    pub(super) fn defaults(_: Preset) -> Self {
        Self { temperature: 0.2, alpha: 65536.0 }
    }

    pub(super) fn check(&self) -> Result<(), (String, String)> {
        check_temperature(self.temperature)?;
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(("method.alpha".into(), format!("is {}; it must be positive (try 65536)", self.alpha)));
        }
        Ok(())
    }

    pub(super) fn build(&self) -> impl Method + use<> {
        LossOnly(NtXent { temperature: self.temperature, alpha: Some(self.alpha) })
    }
}
