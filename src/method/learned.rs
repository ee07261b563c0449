//! A loss whose own parameters are learned, such as a temperature: by the run's optimiser, without decay.

use super::own::OwnModule;
use super::{Done, Method};
use crate::encoder::{NamedTensors, ParamError};
use crate::loss::{BIAS, GLOBAL_TAU, LOG_SCALE, Loss};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// A loss that can be given other parameters.
pub(super) trait Adjustable: Loss {
    /// Share of the learning rate that its parameters move with.
    const RATE: f64 = 1.0;

    fn parameters(&self) -> Vec<(&'static str, f64)>;

    /// Takes a new value, within its bounds.
    fn set(&mut self, name: &str, value: f64);
}

/// Gives the parameters their names in the checkpoint.
#[derive(Module, Debug)]
struct Scalars {
    log_scale: Option<Param<Tensor<1>>>,
    bias: Option<Param<Tensor<1>>>,
    tau: Option<Param<Tensor<1>>>,
}

impl Scalars {
    fn new(values: &[(&str, f64)], device: &Device) -> Self {
        let param = |name: &str| {
            let (_, value) = values.iter().find(|(other, _)| *other == name)?;
            Some(Param::from_tensor(Tensor::full([1], *value as f32, device)))
        };
        Self { log_scale: param(LOG_SCALE), bias: param(BIAS), tau: param(GLOBAL_TAU) }
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Param<Tensor<1>>)> {
        let all = [(LOG_SCALE, &self.log_scale), (BIAS, &self.bias), (GLOBAL_TAU, &self.tau)];
        all.into_iter().filter_map(|(name, param)| Some((name, param.as_ref()?)))
    }
}

pub(super) struct Learned<L> {
    loss: L,
    own: OwnModule<Scalars>,
    device: Device,
}

impl<L: Adjustable> Learned<L> {
    pub fn new(loss: L, device: &Device) -> Self {
        let own = OwnModule::new(Scalars::new(&loss.parameters(), device), 0);
        Self { loss, own, device: device.clone() }
    }

    /// Gives the loss the values of the module, and the module what they were bounded to.
    fn settle(&mut self) {
        let values: Vec<(&str, f64)> = self
            .own
            .get()
            .named()
            .map(|(name, param)| (name, f64::from(param.val().inner().into_scalar::<f32>())))
            .collect();
        values.iter().for_each(|(name, value)| self.loss.set(name, *value));
        let bounded = self.loss.parameters();
        let is_same = |(name, value): &(&str, f64)| values.iter().any(|(n, v)| n == name && *v as f32 == *value as f32);
        if !bounded.iter().all(is_same) {
            self.own.map(|_| Scalars::new(&bounded, &self.device));
        }
    }
}

impl<L: Adjustable> Method for Learned<L> {
    fn loss(&self) -> &dyn Loss {
        &self.loss
    }

    fn after_step(&mut self, mut done: Done) {
        let device = self.device.clone().inner();
        for (name, grad) in &done.parameters {
            done.modules.insert(name, Tensor::full([1], *grad as f32, &device));
        }
        let lr = L::RATE * done.lr;
        self.own.update(Done { lr, ..done });
        self.settle();
    }

    fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        self.own.export(&mut tensors);
        tensors
    }

    fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        self.own.import(tensors)?;
        self.settle();
        Ok(())
    }
}
