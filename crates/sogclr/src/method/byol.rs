//! BYOL: a predictor on one view finds what a slowly following copy of the network makes of the other.
//!
//! ```text
//! z₁, z₂ = head(encoder(x₁)), head(encoder(x₂))          online network
//! p₁, p₂ = predictor(z₁), predictor(z₂)
//! k₁, k₂ = follower(x₁), follower(x₂)                    no gradient
//! L = mean (2 − 2·cos(p₁, k₂)) + (2 − 2·cos(p₂, k₁))
//! update encoder, head and predictor by ∇L
//! m = 1 − (1 − m₀)·½(1 + cos(πt/T))                      m₀ → 1
//! follower ← m·follower + (1 − m)·(encoder, head)
//! ```

use super::momentum::{MomentumEncoder, check_momentum, cosine_momentum};
use super::own::OwnModule;
use super::predictor::{Predictor, Predictors, check_hidden};
use super::{BuildContext, Method, Recipe, Registered, Setting, Spec, StepEnd};
use crate::batch::Batch;
use crate::check::Problem;
use crate::comm::Group;
use crate::encoder::{Model, Pass};
use crate::loss::{Byol, Loss, SetName};
use crate::math::Matrix;
use crate::optim::{Lars, LearningRate, NamedGrads, Scaling};
use crate::params::{NamedTensors, ParamError};
use burn::tensor::{Gradients, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// BYOL's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ByolConfig {
    /// m of the momentum encoder at the start; it rises to 1 along a cosine.
    pub momentum: f64,
    /// Width of the predictor.
    pub hidden: usize,
}

impl Registered for ByolConfig {
    fn defaults(setting: &Setting) -> Self {
        // Its authors' for 1000 epochs; short runs of small images need a target that follows sooner.
        let (momentum, hidden) = if setting.is_small { (0.98, 512) } else { (0.996, 4096) };
        Self { momentum, hidden }
    }
}

impl Spec for ByolConfig {
    fn check(&self) -> Result<(), Problem> {
        check_momentum(self.momentum)?;
        check_hidden(self.hidden)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        recipe.head.norm_output = false;
        recipe.head.output = 256;
        recipe.head.hidden = if setting.is_small { 512 } else { 4096 };
        if !setting.is_small {
            recipe.optimizer = Lars { momentum: 0.9, weight_decay: 1.5e-6, trust: 0.001 }.into();
            recipe.learning_rate = LearningRate { base: 0.2, scaling: Scaling::Linear, ..recipe.learning_rate };
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Byol)
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        Box::new(ByolMethod {
            own: Predictors::new(Predictor::new(context.model.output(), self.hidden, &context.compute), context.seed),
            follower: MomentumEncoder::new(context, self.momentum),
            start: self.momentum,
        })
    }
}

struct ByolMethod {
    own: OwnModule<Predictors>,
    follower: MomentumEncoder,
    /// m₀
    start: f64,
}

impl Method for ByolMethod {
    fn loss(&self) -> &dyn Loss {
        &Byol
    }

    fn keys(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        let order: Vec<usize> = (0..batch.share.len()).collect();
        let at_once = batch.share.of_chunk(chunk);
        let embed = |view| self.follower.embed(&batch.crops[0], view, &order, at_once, group);
        let key = |view: usize| (SetName::Key(view), embed(view));
        vec![key(0), key(1)]
    }

    fn further_sets(
        &self,
        _: &Model,
        _: &Batch,
        _: &[usize],
        views: &[(SetName, Tensor<2>)],
        pass: &mut Pass,
    ) -> Vec<(SetName, Tensor<2>)> {
        self.own.get().predict(views, pass)
    }

    fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        self.own.collect(gradients)
    }

    fn after_step(&mut self, end: StepEnd) {
        let momentum = cosine_momentum(self.start, end.at.step, end.at.total_steps);
        self.follower.follow_by(end.model, momentum);
        self.own.update(end);
    }

    fn starts_from(&mut self, model: &Model) -> Result<(), ParamError> {
        self.follower.copy(model)
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.follower.export(&mut tensors);
        self.own.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.follower.import(tensors)?;
        self.own.import(tensors)
    }
}
