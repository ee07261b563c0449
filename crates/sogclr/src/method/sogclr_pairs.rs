//! SogCLR on image–text pairs: the paper's two-way objective.

use super::pairs::TEMPERATURE;
use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{Gamma, Loss, PairTemperature, TwoWay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
