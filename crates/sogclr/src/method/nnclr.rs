//! NNCLR: the positive of a view is its nearest neighbour in a support set of earlier embeddings; a predictor on the
//! other view has to find it.

use super::own::OwnModule;
use super::predictor::Predictor;
use super::queue::{FeatureQueue, check_queue, default_queue};
use super::{Done, Method, Parts, Problem, Setting, Spec, Surroundings, check_temperature};
use crate::batch::Batch;
use crate::encoder::{Model, NamedTensors, ParamError, Pass};
use crate::loss::{Loss, NearestNce, SetName};
use crate::optim::NamedGrads;
use burn::module::Module;
use burn::tensor::{Gradients, Tensor};
use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

impl Spec for NnclrConfig {
    fn defaults(setting: &Setting) -> Self {
        let hidden = if setting.is_small { 512 } else { 4096 };
        Self { temperature: 0.1, queue: default_queue(setting), hidden }
    }

    fn check(&self) -> Result<(), Problem> {
        check_temperature(self.temperature)?;
        if self.hidden == 0 {
            return Err(("method.hidden".into(), "is 0; the predictor needs a width (try 512)".into()));
        }
        Ok(())
    }

    fn check_setting(&self, samples: usize, _: usize) -> Result<(), Problem> {
        check_queue(self.queue, samples)
    }

    fn is_two_view(&self) -> bool {
        true
    }

    fn suit(&self, setting: &Setting, around: &mut Surroundings) {
        around.head.layers = 3;
        if !setting.is_small {
            around.head.output = 256;
        }
    }

    fn loss(&self) -> Box<dyn Loss> {
        Box::new(NearestNce { temperature: self.temperature })
    }

    fn build(&self, parts: &Parts) -> Box<dyn Method> {
        let dim = parts.model.output();
        let own = Own { predictor: Predictor::new(dim, self.hidden, &parts.device) };
        let (own, support) = (OwnModule::new(own, parts.seed), FeatureQueue::new(self.queue, dim, parts.seed));
        Box::new(Nnclr { loss: self.loss(), own, support })
    }
}

/// Gives the predictor's parameters their names.
#[derive(Module, Debug)]
struct Own {
    predictor: Predictor,
}

struct Nnclr {
    loss: Box<dyn Loss>,
    own: OwnModule<Own>,
    support: FeatureQueue,
}

impl Method for Nnclr {
    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
    }

    fn companions(
        &self,
        _: &Model,
        _: &Batch,
        _: &[usize],
        views: &[(SetName, Tensor<2>)],
        pass: &mut Pass,
    ) -> Vec<(SetName, Tensor<2>)> {
        let predictor = &self.own.get().predictor;
        let views = views.iter().map(|(_, z)| z.clone()).enumerate();
        views.map(|(view, z)| (SetName::Predictor(view), predictor.forward(z, pass))).collect()
    }

    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        Some(self.support.rows())
    }

    fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        self.own.collect(gradients)
    }

    fn after_step(&mut self, done: Done) {
        self.support.push(done.sets.get(SetName::View(0)).expect("views were contrasted"));
        self.own.update(done);
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
