//! Optimisers over named parameters. State is keyed on the parameter's name, so a checkpoint fits any later
//! construction of the same model.
//!
//! Adding one: a new file with a [`Rule`], and a variant of [`OptimizerConfig`].

mod adamw;
mod grads;
mod lars;
mod momentum;
mod real;
mod schedule;
mod sgd;
mod update;

pub use adamw::AdamW;
pub use grads::NamedGrads;
pub use lars::Lars;
pub use momentum::PaperMomentum;
pub use real::Real;
pub use schedule::{LearningRate, Scaling, warmup_cosine};
pub use sgd::Sgd;

use crate::encoder::{HostTensor, NamedMapper, NamedTensors, ParamError, map_named};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How gradients become updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Layer-wise scaled momentum; the paper's choice on ImageNet.
    Lars(Lars),
    /// SGD with (Nesterov) momentum.
    Sgd(Sgd),
    /// Adam with decoupled weight decay.
    Adamw(AdamW),
    /// v = (1−β)v + βm, w = w − ηv: Algorithm 1 as printed.
    Momentum(PaperMomentum),
}

impl OptimizerConfig {
    /// What is wrong with the values, as (key, problem).
    pub fn check(&self) -> Result<(), (String, String)> {
        let share = |key: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err((format!("optimizer.{key}"), format!("is {value}; it must be at least 0 and below 1"))),
        };
        let size = |key: &str, value: f64| match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err((format!("optimizer.{key}"), format!("is {value}; it must be 0 or more"))),
        };
        match self {
            Self::Lars(lars) => {
                share("momentum", lars.momentum)?;
                size("weight_decay", lars.weight_decay)?;
                size("trust", lars.trust)
            }
            Self::Sgd(sgd) => {
                share("momentum", sgd.momentum)?;
                size("weight_decay", sgd.weight_decay)
            }
            Self::Adamw(adamw) => {
                share("beta1", adamw.beta1)?;
                share("beta2", adamw.beta2)?;
                size("epsilon", adamw.epsilon)?;
                size("weight_decay", adamw.weight_decay)
            }
            Self::Momentum(momentum) if momentum.beta > 0.0 && momentum.beta <= 1.0 => Ok(()),
            Self::Momentum(momentum) => {
                Err(("optimizer.beta".into(), format!("is {}; it must be above 0 and at most 1", momentum.beta)))
            }
        }
    }

    fn slots(&self) -> usize {
        match self {
            Self::Lars(rule) => rule.slots(),
            Self::Sgd(rule) => rule.slots(),
            Self::Adamw(rule) => rule.slots(),
            Self::Momentum(rule) => rule.slots(),
        }
    }

    fn update(&self, w: Tensor<1>, g: Tensor<1>, slots: &mut Vec<Tensor<1>>, at: At) -> Tensor<1> {
        match self {
            Self::Lars(rule) => update::update(rule, w, g, slots, at),
            Self::Sgd(rule) => update::update(rule, w, g, slots, at),
            Self::Adamw(rule) => update::update(rule, w, g, slots, at),
            Self::Momentum(rule) => update::update(rule, w, g, slots, at),
        }
    }
}

/// One parameter's update, for all of its values at once or for one after the other.
pub trait Rule: Copy + Sync {
    /// How many states a parameter has, one or two; they start at zero.
    fn slots(&self) -> usize;

    /// The gradient with what decays the weights.
    fn decayed<T: Real>(&self, _w: T, g: T, _at: At) -> T {
        g
    }

    /// Where given, the decayed gradient is scaled by trust·‖w‖/‖g‖, norms over the whole parameter.
    fn trust(&self, _at: At) -> Option<f64> {
        None
    }

    /// What an update computes once for all values of a parameter; `update` finds it in [`At::constants`].
    fn constants(&self, _at: At) -> [f64; 2] {
        [0.0; 2]
    }

    /// The new parameter, from the gradient after decay and scaling.
    fn update<T: Real>(&self, w: T, g: T, slots: &mut [T], at: At) -> T;
}

/// Where an update stands.
#[derive(Clone, Copy)]
pub struct At {
    pub lr: f64,
    /// Number of this update, from 1.
    pub step: u64,
    /// Biases and batch-norm parameters.
    pub is_vector: bool,
    /// The rule's own.
    pub constants: [f64; 2],
}

/// An optimiser and its state.
pub struct Optimizer {
    config: OptimizerConfig,
    slots: BTreeMap<String, Vec<Tensor<1>>>,
    step: u64,
}

impl Optimizer {
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, slots: BTreeMap::new(), step: 0 }
    }

    /// Applies one update to every parameter that has a gradient.
    pub fn step<M: Module>(&mut self, module: M, grads: NamedGrads, lr: f64) -> M {
        self.step += 1;
        self.also(module, grads, lr)
    }

    /// Applies the current step to one more module, whose parameters have other names.
    pub fn also<M: Module>(&mut self, module: M, grads: NamedGrads, lr: f64) -> M {
        map_named(module, &mut Update { optimizer: self, grads, lr })
    }

    /// The state as host tensors named `<slot>.<parameter>`.
    pub fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        for (name, slots) in &self.slots {
            for (index, slot) in slots.iter().enumerate() {
                let values = slot.clone().into_data().try_to_vec::<f32>().expect("optimiser state is f32");
                tensors.insert(format!("{index}.{name}"), HostTensor { shape: vec![values.len()], values });
            }
        }
        tensors
    }

    /// Restores what [`Optimizer::export`] gave after `step` updates of the parameters `trained`.
    pub fn import(
        config: OptimizerConfig,
        step: u64,
        tensors: &NamedTensors,
        trained: &[&NamedTensors],
        device: &Device,
    ) -> Result<Self, ParamError> {
        let mut slots = BTreeMap::<String, Vec<Tensor<1>>>::new();
        // Names begin with the slot's index and the map is ordered, so a parameter's slots arrive in order.
        for (name, host) in tensors {
            let fits = |(_, name): &(&str, &str)| {
                let mut found = trained.iter().filter_map(|tensors| tensors.get(*name));
                found.any(|parameter| parameter.values.len() == host.values.len())
            };
            let split = name.split_once('.').filter(fits);
            let (_, name) = split.ok_or_else(|| ParamError::Optimizer(name.clone()))?;
            let data = TensorData::new(host.values.clone(), [host.values.len()]);
            slots.entry(name.to_owned()).or_default().push(Tensor::from_data(data, device));
        }
        if let Some((name, _)) = slots.iter().find(|(_, slots)| slots.len() != config.slots()) {
            return Err(ParamError::Optimizer(name.clone()));
        }
        Ok(Self { config, slots, step })
    }
}

struct Update<'a> {
    optimizer: &'a mut Optimizer,
    grads: NamedGrads,
    lr: f64,
}

impl NamedMapper for Update<'_> {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(grad) = self.grads.remove(&name) else { return param };
        let config = &self.optimizer.config;
        let slots = self.optimizer.slots.entry(name).or_insert_with(|| vec![grad.zeros_like(); config.slots()]);
        let at = At { lr: self.lr, step: self.optimizer.step, is_vector: D == 1, constants: [0.0; 2] };
        param.map(|value| {
            let dims = value.dims();
            let new = config.update(value.inner().reshape([-1]), grad, slots, at);
            new.reshape(dims).autodiff().require_grad()
        })
    }
}
