//! Methods by name: a loss, and whatever else it trains with (momentum encoder, queue, predictor).
//!
//! Adding one: a new file with its configuration, and its name in [`MethodConfig`].

mod dcl;
mod debiased;
mod flatnce;
mod isogclr;
mod simclr;
mod simo;
mod sogclr;
mod supcon;

pub use dcl::DclConfig;
pub use debiased::DebiasedConfig;
pub use flatnce::FlatnceConfig;
pub use isogclr::IsogclrConfig;
pub use simclr::SimclrConfig;
pub use simo::SimoConfig;
pub use sogclr::SogclrConfig;
pub use supcon::SupconConfig;

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
    /// NT-Xent without the positive in the denominator; SogCLR without memory.
    Dcl(DclConfig),
    /// FlatNCE: DCL's gradient.
    Flatnce(FlatnceConfig),
    /// NT-Xent with EqCo's margin: few negatives act like many.
    Simo(SimoConfig),
    /// SogCLR with a learned temperature for each sample.
    Isogclr(IsogclrConfig),
    /// NT-Xent corrected for false negatives.
    Debiased(DebiasedConfig),
    /// Supervised contrastive loss; needs labels.
    Supcon(SupconConfig),
}

/// Does the same for the configuration of every method.
macro_rules! each {
    ($method:expr, $config:ident => $body:expr) => {
        match $method {
            MethodConfig::Sogclr($config) => $body,
            MethodConfig::Simclr($config) => $body,
            MethodConfig::Dcl($config) => $body,
            MethodConfig::Flatnce($config) => $body,
            MethodConfig::Simo($config) => $body,
            MethodConfig::Isogclr($config) => $body,
            MethodConfig::Debiased($config) => $body,
            MethodConfig::Supcon($config) => $body,
        }
    };
}

impl MethodConfig {
    pub const NAMES: &[&str] = &["sogclr", "simclr", "dcl", "flatnce", "simo", "isogclr", "debiased", "supcon"];

    /// The method's defaults for data of this kind; `None` for an unknown name.
    pub fn defaults(name: &str, preset: Preset) -> Option<Self> {
        Some(match name {
            "sogclr" => Self::Sogclr(SogclrConfig::defaults(preset)),
            "simclr" => Self::Simclr(SimclrConfig::defaults(preset)),
            "dcl" => Self::Dcl(DclConfig::defaults(preset)),
            "flatnce" => Self::Flatnce(FlatnceConfig::defaults(preset)),
            "simo" => Self::Simo(SimoConfig::defaults(preset)),
            "isogclr" => Self::Isogclr(IsogclrConfig::defaults(preset)),
            "debiased" => Self::Debiased(DebiasedConfig::defaults(preset)),
            "supcon" => Self::Supcon(SupconConfig::defaults(preset)),
            _ => return None,
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sogclr(_) => "sogclr",
            Self::Simclr(_) => "simclr",
            Self::Dcl(_) => "dcl",
            Self::Flatnce(_) => "flatnce",
            Self::Simo(_) => "simo",
            Self::Isogclr(_) => "isogclr",
            Self::Debiased(_) => "debiased",
            Self::Supcon(_) => "supcon",
        }
    }

    /// What is wrong with the values, as (key, problem).
    pub fn check(&self) -> Result<(), (String, String)> {
        each!(self, config => config.check())
    }

    /// Whether the method looks at labels.
    pub fn needs_labels(&self) -> bool {
        matches!(self, Self::Supcon(_)) || matches!(self, Self::Sogclr(config) if config.by_label)
    }

    pub fn build(&self) -> Box<dyn Method> {
        each!(self, config => Box::new(config.build()))
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
