//! Debiased contrastive learning: corrects for negatives of the anchor's own class.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Debiased, Loss};
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

impl Registered for DebiasedConfig {
    fn defaults(_: &Setting) -> Self {
        Self { temperature: 0.5, prior: 0.1 }
    }
}

impl Spec for DebiasedConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        if !(0.0..1.0).contains(&self.prior) {
            return Err(Problem::new("method.prior", format!("is {}; it must be at least 0 and below 1", self.prior)));
        }
        Ok(())
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Debiased { temperature: self.temperature, prior: self.prior })
    }
}
