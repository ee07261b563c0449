//! DCL: the positive stays out of the denominator; the SimCLR that the paper analyses.
//!
//! ```text
//! z = h/‖h‖, h = head(encoder(x)) of both views           anchors a, [2B, d]; s_ab = z_a·z_b, s⁺_a with the other view
//! w_a = 1                                                 DCL
//! w_a = 2 − B·softmax_a(s⁺_a/σ)                           DCLW, over the B anchors of a's view; it has a gradient
//! L = 1/(2B) Σ_a [−w_a·s⁺_a/τ + ln Σ_{b∈B_a} exp(s_ab/τ)]   eqs. (1), (2); B_a are the 2(B−1) views of other images
//! update encoder and head by ∇L                           for w = 1 the mean of eq. (6) divided by τ, ε = 0
//! ```

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Dcl, Loss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// DCL's hyper-parameters.
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
