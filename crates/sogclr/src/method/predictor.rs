//! A small network on top of the embeddings: linear, batch norm, ReLU, linear.

use super::own::OwnModule;
use crate::check::{Problem, require};
use crate::encoder::{BatchNorm, Compute, Linear, Pass};
use crate::loss::SetName;
use burn::module::Module;
use burn::tensor::Tensor;

/// Predicts the embedding of one view from that of another.
#[derive(Module, Debug)]
pub struct Predictor {
    hidden: Linear,
    bn: BatchNorm,
    output: Linear,
}

impl Predictor {
    /// `dim` → `hidden` → `dim`; weights are zero until an initialisation or an import fills them.
    pub fn new(dim: usize, hidden: usize, compute: &Compute) -> Self {
        Self {
            hidden: Linear::new(dim, hidden, compute),
            bn: BatchNorm::new(hidden, compute),
            output: Linear::new(hidden, dim, compute).with_bias(),
        }
    }

    /// embeddings `[N, dim]` → predictions `[N, dim]`
    pub fn forward(&self, x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        self.output.forward(self.bn.forward(self.hidden.forward(x), None, true, pass))
    }
}

/// Gives the predictor's parameters their names in a checkpoint.
#[derive(Module, Debug)]
pub(super) struct Predictors {
    predictor: Predictor,
}

impl Predictors {
    /// Drawn by the seed.
    pub fn new(predictor: Predictor, seed: u64) -> OwnModule<Self> {
        OwnModule::new(Self { predictor }, seed)
    }

    /// A prediction from each view.
    pub fn predict(&self, views: &[(SetName, Tensor<2>)], pass: &mut Pass) -> Vec<(SetName, Tensor<2>)> {
        let views = views.iter().map(|(_, z)| z.clone()).enumerate();
        views.map(|(view, z)| (SetName::Predictor(view), self.predictor.forward(z, pass))).collect()
    }
}

pub(super) fn check_hidden(hidden: usize) -> Result<(), Problem> {
    require(hidden >= 1, "method.hidden", || "is 0; the predictor needs a width (try 512)".into())
}
