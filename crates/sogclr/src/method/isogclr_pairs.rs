//! iSogCLR on image–text pairs: every image and every text learns its own temperature.
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! ĝ^I_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ij/τ^I_i)                    the same with s_ji, τ^T_i, u^T_i and v^T_i for text i
//! u^I_i ← (1−γ)u^I_i + γĝ^I_i, on i's first visit ĝ^I_i
//! p^I_ij = exp(s_ij/τ^I_i)/((B−1)·u^I_i)                  ĝ, u, p and τ have no gradient
//! L = 1/(2B) Σᵢ [−2s_ii + Σⱼ≠ᵢ p^I_ij·s_ij + Σⱼ≠ᵢ p^T_ij·s_ji]
//! update both encoders by ∇L
//! ∂F/∂τ^I_i = ln u^I_i + ρ − Σⱼ≠ᵢ p^I_ij·s_ij/τ^I_i
//! v^I_i ← (1−β)v^I_i + β·clip(∂F/∂τ^I_i)                  to ±`clip`; v^I_i = 0 at the start
//! τ^I_i ← τ^I_i − η·v^I_i within `range`                  τ^I_i = `temperature` at the start
//! ```

use super::pairs::TEMPERATURE;
use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{Gamma, Individual, Loss, PairTemperature, TwoWay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// iSogCLR's hyper-parameters on image–text pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsogclrPairsConfig {
    /// τ of every image and text at the start.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
    /// How the temperatures move.
    pub individual: Individual,
}

impl Registered for IsogclrPairsConfig {
    fn defaults(_: &Setting) -> Self {
        let gamma = Gamma::Constant { value: 0.8 };
        Self { temperature: TEMPERATURE, gamma, individual: Individual::of_pairs() }
    }
}

impl Spec for IsogclrPairsConfig {
    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        self.gamma.check()?;
        self.individual.check("method.individual", self.temperature)
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        let learned = PairTemperature::Individual(self.individual);
        Box::new(TwoWay { learned, ..TwoWay::new(self.temperature, self.gamma) })
    }
}
