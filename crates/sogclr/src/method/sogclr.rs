//! SogCLR, the paper's method.

use super::{Problem, Setting, Spec, check_temperature};
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

impl Spec for SogclrConfig {
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

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        let lowest = check_gamma(&self.gamma)?;
        if self.variant == Variant::Tf && lowest <= 0.5 {
            let problem = format!("is {lowest}; u diverges for γ ≤ 0.5 in the tf variant, choose another variant");
            return Err(("method.gamma".into(), problem));
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(("method.epsilon".into(), format!("is {}; it must be 0 or more", self.epsilon)));
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

/// The lowest γ of a schedule that makes sense.
pub(super) fn check_gamma(gamma: &Gamma) -> Result<f64, Problem> {
    let lowest = match *gamma {
        Gamma::Constant { value } => value,
        Gamma::Cosine { min, .. } => min,
        Gamma::Adaptive { offset } if offset.is_finite() => return Ok(f64::MIN_POSITIVE),
        Gamma::Adaptive { offset } => {
            return Err(("method.gamma.offset".into(), format!("is {offset}; it must be finite (try 10)")));
        }
    };
    if !(lowest > 0.0 && lowest <= 1.0) {
        return Err(("method.gamma".into(), format!("is {lowest}; it must be above 0 and at most 1 (try 0.8)")));
    }
    if matches!(gamma, Gamma::Cosine { epochs: 0, .. }) {
        return Err(("method.gamma.epochs".into(), "is 0; cosine γ falls over at least 1 epoch".into()));
    }
    Ok(lowest)
}
