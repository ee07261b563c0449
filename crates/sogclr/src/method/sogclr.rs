//! SogCLR, the paper's method.

use super::{Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::loss::{Gamma, Loss, SogClr, Variant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SogclrConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// γ, the weight of the new estimate in u.
    pub gamma: Gamma,
    /// Which reading of Algorithm 1.
    pub variant: Variant,
    /// ε₀ added to u in the weight; 0 leaves it out.
    pub epsilon: f64,
    /// Use labels: positives are all images of a class, negatives those of other classes.
    pub by_label: bool,
}

impl Registered for SogclrConfig {
    fn defaults(setting: &Setting) -> Self {
        // The paper's 0.1 on ImageNet; the same as SimCLR's on small images, where 0.1 to 0.3 differ little.
        let temperature = if setting.is_small { 0.2 } else { 0.1 };
        Self {
            temperature,
            gamma: Gamma::Constant { value: 0.8 },
            variant: Variant::Default,
            epsilon: 0.0,
            by_label: false,
        }
    }
}

impl Spec for SogclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        let lowest = self.gamma.check()?;
        if self.variant == Variant::Tf && lowest <= 0.5 {
            let problem =
                format!("falls to {lowest:.1}; u diverges for γ ≤ 0.5 in the tf variant, choose another variant");
            return Err(Problem::new("method.gamma", problem));
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(Problem::new("method.epsilon", format!("is {}; it must be 0 or more", self.epsilon)));
        }
        Ok(())
    }

    fn needs_labels(&self) -> bool {
        self.by_label
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SogClr {
            temperature: self.temperature,
            gamma: self.gamma,
            variant: self.variant,
            epsilon: self.epsilon,
            by_label: self.by_label,
            individual: None,
        })
    }
}
