//! CLIP, the baseline of image–text pairs: InfoNCE over the batch.
//!
//! ```text
//! z = h/‖h‖, h = image(x);  z′ = h/‖h‖, h = text(t)       [B, d]; s_ij = zᵢ·z′ⱼ
//! L = 1/(2B) Σᵢ [−2s_ii/τ + ln Σⱼ exp(s_ij/τ) + ln Σⱼ exp(s_ji/τ)]
//! update both encoders by ∇L
//! learn_temperature: update ln(1/τ) by ∂L/∂ln(1/τ) with the run's optimiser, at most ln 100; otherwise τ is fixed
//! ```

use super::learned::{Adjustable, Learned};
use super::pairs::{TEMPERATURE, check_learned};
use super::{BuildContext, LossOnly, Method, Registered, Setting, Spec, check_temperature};
use crate::check::Problem;
use crate::data::Modality;
use crate::loss::{Clip, LOG_SCALE, Loss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CLIP's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipConfig {
    /// τ, from 0.005; 0.01 where it is learned.
    pub temperature: f64,
    /// Learn ln(1/τ), as CLIP's authors do; the paper keeps τ fixed.
    pub learn_temperature: bool,
}

/// The largest 1/τ that is learned.
pub(super) const MAX_SCALE: f64 = 100.0;

impl ClipConfig {
    fn clip(&self) -> Clip {
        Clip { temperature: self.temperature }
    }
}

impl Registered for ClipConfig {
    fn defaults(_: &Setting) -> Self {
        Self { temperature: TEMPERATURE, learn_temperature: false }
    }
}

impl Spec for ClipConfig {
    fn check(&self) -> Result<(), Problem> {
        match self.learn_temperature {
            true => check_learned(self.temperature, 1.0 / MAX_SCALE),
            false => check_temperature(self.temperature),
        }
    }

    fn modality(&self) -> Modality {
        Modality::Pairs
    }

    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(self.clip())
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        match self.learn_temperature {
            true => Box::new(Learned::new(self.clip(), context.compute.device())),
            false => Box::new(LossOnly(self.loss())),
        }
    }
}

impl Adjustable for Clip {
    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![(LOG_SCALE, -self.temperature.ln())]
    }

    fn set(&mut self, _: &str, log_scale: f64) {
        self.temperature = (-log_scale.min(MAX_SCALE.ln())).exp();
    }
}
