//! iSogCLR: SogCLR with a learned temperature for each sample, kept in the state beside u.

use super::sogclr::check_gamma;
use super::{Problem, Setting, Spec, check_temperature};
use crate::loss::{Gamma, Individual, Loss, SogClr, Variant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsogclrConfig {
    /// τ of every sample at the start.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u.
    pub gamma: Gamma,
    pub individual: Individual,
}

impl Spec for IsogclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // Its authors' on ImageNet and on CIFAR.
        let (rho, rate, beta) = if setting.is_small { (0.4, 0.03, 0.5) } else { (0.3, 0.01, 0.9) };
        let individual = Individual { rho, rate, beta, clip: 3.0, range: [0.05, 0.7] };
        Self { temperature: 0.1, gamma: Gamma::Constant { value: 0.8 }, individual }
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        check_gamma(&self.gamma)?;
        check_individual(&self.individual, self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SogClr {
            temperature: self.temperature,
            gamma: self.gamma,
            variant: Variant::Default,
            epsilon: 0.0,
            by_label: false,
            individual: Some(self.individual),
        })
    }
}

pub(super) fn check_individual(individual: &Individual, temperature: f64) -> Result<(), Problem> {
    let Individual { rho, rate, beta, clip, range: [low, high] } = *individual;
    let wrong = |key: &str, problem: String| Err((format!("method.individual.{key}"), problem));
    if !(0.005..=10.0).contains(&low) || !(low..=10.0).contains(&high) {
        return wrong("range", format!("is {low}–{high}; it must rise within 0.005–10"));
    }
    if !(low..=high).contains(&temperature) {
        let problem = format!("is {temperature}; it must lie in the range {low}–{high}");
        return Err(("method.temperature".into(), problem));
    }
    if !(beta > 0.0 && beta <= 1.0) {
        return wrong("beta", format!("is {beta}; it must be above 0 and at most 1"));
    }
    if !(rate >= 0.0 && clip >= 0.0 && rho.is_finite() && rate.is_finite()) {
        return wrong("rate", format!("is {rate} with clip {clip} and rho {rho}; use finite numbers from 0"));
    }
    Ok(())
}
