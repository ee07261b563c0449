//! SogCLR on image–text pairs: the paper's two-way objective.
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! ĝ^I_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ij/τ),  ĝ^T_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ji/τ)
//! u^I_i ← (1−γ)u^I_i + γĝ^I_i, on i's first visit ĝ^I_i   as eq. (9), u^T_i likewise; no gradient
//! L = 1/(2B) Σᵢ [−2s_ii + Σⱼ≠ᵢ sg(exp(s_ij/τ)/((B−1)·u^I_i))·s_ij + Σⱼ≠ᵢ sg(exp(s_ji/τ)/((B−1)·u^T_i))·s_ji]
//! update both encoders by ∇L                              the new u^I and u^T are kept, as ln u
//! include_positive: all j and B in place of j ≠ i and B − 1
//! ```

use super::pairs::TEMPERATURE;
use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{Gamma, Loss, PairTemperature, TwoWay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SogCLR's hyper-parameters on image–text pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SogclrPairsConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
    /// Sum over the matched pair as well, as the paper prints the objective.
    pub include_positive: bool,
}

impl Registered for SogclrPairsConfig {
    fn defaults(_: &Setting) -> Self {
        Self { temperature: TEMPERATURE, gamma: Gamma::Constant { value: 0.8 }, include_positive: false }
    }
}

impl Spec for SogclrPairsConfig {
    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        self.gamma.check().map(|_| ())
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(TwoWay {
            temperature: self.temperature,
            learned: PairTemperature::Fixed,
            gamma: self.gamma,
            include_positive: self.include_positive,
        })
    }
}
