//! iSogCLR: SogCLR with a learned temperature for each sample, kept in the state beside u.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
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

impl Registered for IsogclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // Its authors' on ImageNet and on CIFAR.
        let (rho, rate, beta) = if setting.is_small { (0.4, 0.03, 0.5) } else { (0.3, 0.01, 0.9) };
        let individual = Individual { rho, rate, beta, clip: 3.0, range: [0.05, 0.7] };
        Self { temperature: 0.1, gamma: Gamma::Constant { value: 0.8 }, individual }
    }
}

impl Spec for IsogclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        self.gamma.check()?;
        self.individual.check("method.individual", self.temperature)
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
