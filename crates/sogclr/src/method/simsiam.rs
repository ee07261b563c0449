//! SimSiam: BYOL without a second network; stopping the gradient of the target is enough.
//!
//! ```text
//! z₁, z₂ = head(encoder(x₁)), head(encoder(x₂))
//! p₁, p₂ = predictor(z₁), predictor(z₂)
//! L = −½·mean cos(p₁, sg z₂) − ½·mean cos(p₂, sg z₁)
//! update encoder and head by ∇L at the learning rate of the step
//! update the predictor by ∇L at the largest rate of the run, which does not decay
//! ```

use super::own::OwnModule;
use super::predictor::{Predictor, Predictors, check_hidden};
use super::{BuildContext, Method, Recipe, Registered, Setting, Spec, StepEnd};
use crate::batch::Batch;
use crate::check::Problem;
use crate::encoder::{Model, Pass};
use crate::loss::{Loss, SetName, SimSiam};
use crate::optim::{LearningRate, NamedGrads, Scaling, Sgd};
use crate::params::{NamedTensors, ParamError};
use burn::tensor::{Gradients, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SimSiam's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimsiamConfig {
    /// Width of the predictor, a quarter of the embedding's.
    pub hidden: usize,
}

impl Registered for SimsiamConfig {
    fn defaults(setting: &Setting) -> Self {
        Self { hidden: if setting.is_small { 128 } else { 512 } }
    }
}

impl Spec for SimsiamConfig {
    fn check(&self) -> Result<(), Problem> {
        check_hidden(self.hidden)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        recipe.head.layers = 3;
        let width = if setting.is_small { 512 } else { 2048 };
        (recipe.head.hidden, recipe.head.output) = (width, width);
        if !setting.is_small {
            recipe.optimizer = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 }.into();
            recipe.learning_rate = LearningRate::new(0.05, Scaling::Linear);
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(SimSiam)
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        let predictor = Predictor::new(context.model.output(), self.hidden, &context.compute);
        Box::new(SimsiamMethod { own: Predictors::new(predictor, context.seed) })
    }
}

struct SimsiamMethod {
    own: OwnModule<Predictors>,
}

impl Method for SimsiamMethod {
    fn loss(&self) -> &dyn Loss {
        &SimSiam
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
        let lr = end.peak_lr;
        self.own.update(StepEnd { lr, ..end });
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.own.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.own.import(tensors)
    }
}
