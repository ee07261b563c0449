//! NNCLR: the positive of a view is its nearest neighbour in a support set of earlier embeddings; a predictor on the
//! other view has to find it.
//!
//! ```text
//! h₁, h₂ = head(encoder(x₁)), head(encoder(x₂))
//! z₁, z₂ = h₁/‖h₁‖, h₂/‖h₂‖                               [B, d]
//! p₁, p₂ = predictor(h₁), predictor(h₂)                   [B, d], each row divided by its length
//! n₁, n₂ = the row of Q nearest to each row of z₁, z₂     no gradient; Q [K, d], z₁ of earlier batches
//! ℓ(n, p) = 1/B Σᵢ [−nᵢ·pᵢ/τ + ln Σⱼ exp(nᵢ·pⱼ/τ)]
//! L = ½ℓ(n₁, p₂) + ½ℓ(n₂, p₁)
//! update encoder, head and predictor by ∇L
//! Q ← z₁ in place of the oldest rows                      at the start random directions
//! ```

use super::own::OwnModule;
use super::predictor::{Predictor, Predictors, check_hidden};
use super::queue::{FeatureQueue, check_queue, default_queue};
use super::{BuildContext, Method, Recipe, Registered, Setting, Spec, StepEnd, check_temperature};
use crate::batch::Batch;
use crate::check::Problem;
use crate::encoder::{Model, Pass};
use crate::loss::{Loss, NearestNce, SetName};
use crate::optim::NamedGrads;
use crate::params::{NamedTensors, ParamError};
use burn::tensor::{Gradients, Tensor};
use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// NNCLR's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NnclrConfig {
    /// τ, from 0.005.
    pub temperature: f64,
    /// Embeddings of the first view kept as support set; at most as many as there are images.
    pub queue: usize,
    /// Width of the predictor.
    pub hidden: usize,
}

impl Registered for NnclrConfig {
    fn defaults(setting: &Setting) -> Self {
        let hidden = if setting.is_small { 512 } else { 4096 };
        Self { temperature: 0.1, queue: default_queue(setting), hidden }
    }
}

impl Spec for NnclrConfig {
    fn temperature(&self) -> Option<f64> {
        Some(self.temperature)
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        check_hidden(self.hidden)
    }

    fn check_setting(&self, samples: usize, _: usize) -> Result<(), Problem> {
        check_queue(self.queue, samples)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn adjust(&self, setting: &Setting, recipe: &mut Recipe) {
        recipe.head.layers = 3;
        if !setting.is_small {
            recipe.head.output = 256;
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(NearestNce { temperature: self.temperature })
    }

    fn build(&self, context: &BuildContext) -> Box<dyn Method> {
        let dim = context.model.output();
        let own = Predictors::new(Predictor::new(dim, self.hidden, &context.compute), context.seed);
        let support = FeatureQueue::new(self.queue, dim, context.seed);
        Box::new(Nnclr { loss: self.loss(), own, support })
    }
}

struct Nnclr {
    loss: Box<dyn Loss>,
    own: OwnModule<Predictors>,
    support: FeatureQueue,
}

impl Method for Nnclr {
    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
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

    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        Some(self.support.rows())
    }

    fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        self.own.collect(gradients)
    }

    fn after_step(&mut self, end: StepEnd) {
        self.support.push(end.sets.get(SetName::View(0)).expect("views were contrasted").unit());
        self.own.update(end);
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.own.export(&mut tensors);
        self.support.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.support.import(tensors)?;
        self.own.import(tensors)
    }
}
