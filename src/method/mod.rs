//! Methods by name: a loss, and whatever else it trains with (momentum encoder, queue, predictor).
//!
//! Adding one: a new file with its configuration, and one line in [`MethodConfig`] and its two matches.

mod simclr;
mod sogclr;

pub use simclr::SimclrConfig;
pub use sogclr::SogclrConfig;

use crate::augment::Preset;
use crate::encoder::{Model, NamedTensors, ParamError};
use crate::loss::{Loss, SetName};
use crate::math::Matrix;
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The method and its hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum MethodConfig {
    /// One moving average for each sample: small batches, global objective.
    Sogclr(SogclrConfig),
    /// NT-Xent, the baseline that wants large batches.
    Simclr(SimclrConfig),
}

impl MethodConfig {
    pub const NAMES: &[&str] = &["sogclr", "simclr"];

    /// The method's defaults for data of this kind; `None` for an unknown name.
    pub fn defaults(name: &str, preset: Preset) -> Option<Self> {
        match name {
            "sogclr" => Some(Self::Sogclr(SogclrConfig::defaults(preset))),
            "simclr" => Some(Self::Simclr(SimclrConfig::defaults(preset))),
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sogclr(_) => "sogclr",
            Self::Simclr(_) => "simclr",
        }
    }

    /// What is wrong with the values, as (key, problem).
    pub fn check(&self) -> Result<(), (String, String)> {
        match self {
            Self::Sogclr(config) => config.check(),
            Self::Simclr(config) => config.check(),
        }
    }

    pub fn build(&self) -> Box<dyn Method> {
        match self {
            Self::Sogclr(config) => Box::new(config.build()),
            Self::Simclr(config) => Box::new(config.build()),
        }
    }
}

/// A method in training.
pub trait Method: Send + Sync {
    fn loss(&self) -> &dyn Loss;

    /// Embedding sets beyond the views, such as momentum keys, from the crops `[views·B, 3, s, s]` of each group.
    fn companion_sets(&self, _model: &Model, _crops: &[Tensor<4>]) -> Vec<(SetName, Matrix)> {
        Vec::new()
    }

    /// Called after the model's update.
    fn after_step(&mut self, _model: &Model) {}

    /// The method's own tensors for the checkpoint.
    fn export(&self) -> NamedTensors {
        NamedTensors::new()
    }

    /// Restores what [`Method::export`] gave.
    fn import(&mut self, _tensors: &NamedTensors) -> Result<(), ParamError> {
        Ok(())
    }
}

/// A method that is its loss and nothing more.
struct LossOnly<L>(L);

impl<L: Loss> Method for LossOnly<L> {
    fn loss(&self) -> &dyn Loss {
        &self.0
    }
}

fn check_temperature(temperature: f64) -> Result<(), (String, String)> {
    if (0.005..=10.0).contains(&temperature) {
        return Ok(());
    }
    Err(("method.temperature".into(), format!("is {temperature}; it must lie between 0.005 and 10 (try 0.1)")))
}
