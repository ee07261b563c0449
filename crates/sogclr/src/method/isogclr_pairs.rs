//! iSogCLR on image–text pairs: every image and every text learns its own temperature.

use super::pairs::TEMPERATURE;
use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{Gamma, Individual, Loss, PairTemperature, TwoWay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IsogclrPairsConfig {
    /// τ of every image and text at the start.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u^I and u^T.
    pub gamma: Gamma,
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
        Box::new(TwoWay {
            temperature: self.temperature,
            learned: PairTemperature::Individual(self.individual),
            gamma: self.gamma,
            include_positive: false,
        })
    }
}
