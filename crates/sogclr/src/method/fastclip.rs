//! FastCLIP: two-way SogCLR with cosine γ. v1 keeps τ (`learned.kind = "fixed"`), v2 learns one for each image and text
//! (`"individual"`), v3 one for all (`"global"`, the default).
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! γ = γ_min + (1 − γ_min)·½(1 + cos(πe/E)) in epoch e < E, then γ_min
//! ĝ^I_i = 1/(B−1) Σⱼ≠ᵢ exp(s_ij/τ)                        the same with s_ji and u^T_i for text i
//! u^I_i ← (1−γ)u^I_i + γĝ^I_i, on i's first visit ĝ^I_i
//! p^I_ij = exp(s_ij/τ)/((B−1)·u^I_i)                      ĝ, u and p have no gradient
//! L = 1/(2B) Σᵢ [−2s_ii + Σⱼ≠ᵢ p^I_ij·s_ij + Σⱼ≠ᵢ p^T_ij·s_ji]
//! update both encoders by ∇L
//! v3: ∂F/∂τ = 1/(2B) Σᵢ [ln u^I_i + ln u^T_i + 2ρ − Σⱼ≠ᵢ (p^I_ij·s_ij + p^T_ij·s_ji)/τ]
//!     update τ by ∂F/∂τ with the run's optimiser at a fifth of the learning rate, at least 0.01
//! v2: τ^I_i and τ^T_i in place of τ, which move as in iSogCLR on pairs
//! v1: τ is fixed
//! ```

use super::learned::{Adjustable, Learned};
use super::pairs::{TEMPERATURE, check_learned};
use super::{BuildContext, LossOnly, Method, Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{GLOBAL_TAU, Gamma, Loss, PairTemperature, TwoWay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// FastCLIP's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastclipConfig {
    /// τ, or τ at the start.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
    /// How τ is found: `fixed` (v1), `individual` (v2) or `global` (v3).
    pub learned: PairTemperature,
}

/// The lowest τ that v3 learns.
const LOWEST: f64 = 0.01;

impl FastclipConfig {
    fn two_way(&self) -> TwoWay {
        TwoWay { learned: self.learned, ..TwoWay::new(self.temperature, self.gamma) }
    }
}

impl Registered for FastclipConfig {
    fn defaults(setting: &Setting) -> Self {
        // The authors' 6.5 on CC3M is 0.44·ln n. ρ is how far from uniform the softmax over all n samples shall be, at
        // most ln n.
        let rho = (0.44 * (setting.samples.max(2) as f64).ln()).min(6.5);
        Self {
            temperature: TEMPERATURE,
            gamma: Gamma::Cosine { min: 0.2, epochs: (setting.epochs / 2).max(1) },
            learned: PairTemperature::Global { rho: (rho * 100.0).round() / 100.0 },
        }
    }
}

impl Spec for FastclipConfig {
    fn check(&self) -> Result<(), Problem> {
        self.gamma.check()?;
        match &self.learned {
            PairTemperature::Fixed => check_temperature(self.temperature),
            PairTemperature::Individual(individual) => {
                check_temperature(self.temperature)?;
                individual.check("method.learned", self.temperature)
            }
            PairTemperature::Global { rho } if rho.is_finite() => check_learned(self.temperature, LOWEST),
            PairTemperature::Global { rho } => {
                Err(Problem::new("method.learned.rho", format!("is {rho}; it must be finite")))
            }
        }
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(self.two_way())
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        match self.learned {
            PairTemperature::Global { .. } => Box::new(Learned::new(self.two_way(), context.compute.device())),
            _ => Box::new(LossOnly(self.loss())),
        }
    }
}

impl Adjustable for TwoWay {
    /// lr_τ = lr/5
    const RATE: f64 = 0.2;

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![(GLOBAL_TAU, self.temperature)]
    }

    fn set(&mut self, _: &str, tau: f64) {
        self.temperature = tau.max(LOWEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Individual;

    /// `--set method.learned.kind=individual` replaces v3's table.
    #[test]
    fn the_second_version_needs_no_more_than_its_kind() {
        let read = |more: &str| {
            let gamma = "{ kind = 'cosine', min = 0.2, epochs = 5 }";
            let learned = format!("{{ kind = 'individual'{more} }}");
            toml::from_str::<FastclipConfig>(&format!("temperature = 0.07\ngamma = {gamma}\nlearned = {learned}"))
        };
        let config = read("").unwrap();
        assert_eq!(config.learned, PairTemperature::Individual(Individual::of_pairs()));
        assert_eq!(config.check(), Ok(()));
        let config = read(", rho = 6.0, beta = 0.0").unwrap();
        let given = Individual { rho: 6.0, beta: 0.0, ..Individual::of_pairs() };
        assert_eq!(config.learned, PairTemperature::Individual(given));
        assert_eq!(config.check().unwrap_err().key, "method.learned.beta");
        assert!(read(", rhos = 6.0").is_err());
    }
}
