//! DCL: the positive stays out of the denominator; the SimCLR that the paper analyses.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Dcl, Loss};
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

impl Registered for DclConfig {
    fn defaults(setting: &Setting) -> Self {
        Self { temperature: if setting.is_small { 0.2 } else { 0.1 }, sigma: None }
    }
}

impl Spec for DclConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        match self.sigma {
            Some(sigma) if !(sigma > 0.0 && sigma.is_finite()) => {
                Err(Problem::new("method.sigma", format!("is {sigma}; it must be positive (try 0.5)")))
            }
            _ => Ok(()),
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Dcl { temperature: self.temperature, sigma: self.sigma })
    }
}
