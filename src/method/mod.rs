//! Methods by name: a loss, and whatever else it trains with (momentum encoder, queue, predictor).
//!
//! Adding one: a new file with its configuration, and its name in [`MethodConfig`].

mod simclr;
mod sogclr;

pub use simclr::SimclrConfig;
pub use sogclr::SogclrConfig;

use crate::augment::Preset;
use crate::encoder::{Model, NamedTensors, ParamError};
use crate::loss::{Loss, SetName};
use crate::optim::{NamedGrads, Optimizer};
use burn::tensor::{Gradients, Tensor};
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

    /// Embedding sets beyond the views, such as momentum keys or predictions, from the crops `[views·B, 3, s, s]` of
    /// each group and the views' embeddings `[B, dim]`. On the autodiff graph where their gradient should flow.
    fn companions(&self, _model: &Model, _crops: &[Tensor<4>], _views: &[Tensor<2>]) -> Vec<(SetName, Tensor<2>)> {
        Vec::new()
    }

    /// Takes the gradients of the method's own modules out of the backward pass.
    fn collect(&self, _gradients: &mut Gradients) -> NamedGrads {
        NamedGrads::default()
    }

    /// Updates the method's own modules and the loss's own parameters, then whatever follows the new model.
    fn after_step(&mut self, _model: &Model, _optimizer: &mut Optimizer, _own: OwnGradients) {}

    /// The method's own tensors for the checkpoint.
    fn export(&self) -> NamedTensors {
        NamedTensors::new()
    }

    /// Restores what [`Method::export`] gave.
    fn import(&mut self, _tensors: &NamedTensors) -> Result<(), ParamError> {
        Ok(())
    }
}

/// What [`Method::after_step`] needs to train what belongs to the method.
pub struct OwnGradients {
    /// Of the method's modules, summed over the ranks.
    pub modules: NamedGrads,
    /// Of the loss's own parameters.
    pub parameters: Vec<(&'static str, f64)>,
    pub lr: f64,
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
