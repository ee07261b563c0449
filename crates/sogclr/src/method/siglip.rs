//! SigLIP, the modern baseline of image–text pairs; scale and bias are learned.
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! L = 1/B Σᵢⱼ −ln σ(y_ij·(s_ij/τ + b))                    y_ij = 1 for i = j, otherwise −1
//! update both encoders by ∇L
//! update ln(1/τ) and b by ∂L/∂ln(1/τ) and ∂L/∂b with the run's optimiser; ln(1/τ) is at most ln 100
//! ```

use super::clip::MAX_SCALE;
use super::learned::{Adjustable, Learned};
use super::pairs::check_learned;
use super::{BuildContext, Method, Registered, Setting, Spec};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{BIAS, LOG_SCALE, Loss, SigLip};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SigLIP's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SiglipConfig {
    /// τ at the start, from 0.01.
    pub temperature: f64,
    /// Bias of the logits at the start; negative, as most pairs do not match.
    pub bias: f64,
}

impl SiglipConfig {
    fn siglip(&self) -> SigLip {
        SigLip { temperature: self.temperature, bias: self.bias }
    }
}

impl Registered for SiglipConfig {
    fn defaults(_: &Setting) -> Self {
        Self { temperature: 0.1, bias: -10.0 }
    }
}

impl Spec for SiglipConfig {
    fn check(&self) -> Result<(), Problem> {
        check_learned(self.temperature, 1.0 / MAX_SCALE)?;
        if self.bias.is_finite() {
            return Ok(());
        }
        Err(Problem::new("method.bias", format!("is {}; it must be finite (try -10)", self.bias)))
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(self.siglip())
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        Box::new(Learned::new(self.siglip(), context.compute.device()))
    }
}

impl Adjustable for SigLip {
    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![(LOG_SCALE, -self.temperature.ln()), (BIAS, self.bias)]
    }

    fn set(&mut self, name: &str, value: f64) {
        match name {
            LOG_SCALE => self.temperature = (-value.min(MAX_SCALE.ln())).exp(),
            _ => self.bias = value,
        }
    }
}
