//! Optimisers over named parameters. State is keyed on the parameter's name, so a checkpoint fits any later
//! construction of the same model.
//!
//! Adding one: a new file with a [`Rule`] and its defaults, and one line in `optimizers!`.

mod adamw;
mod grads;
mod lars;
mod momentum;
mod real;
mod schedule;
mod sgd;
mod update;

pub use adamw::AdamW;
pub use grads::{NamedGrads, Summing, pull_back};
pub use lars::Lars;
pub use momentum::PaperMomentum;
pub use real::Real;
pub use schedule::{LearningRate, Scaling, warmup_cosine};
pub use sgd::Sgd;

use crate::check::{Problem, require};
use crate::params::to_host;
use crate::params::{HostTensor, NamedMapper, NamedTensors, ParamError, map_named};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The optimisers, told apart by `kind`.
macro_rules! optimizers {
    ($($(#[$doc:meta])* $name:literal $variant:ident($rule:ty),)*) => {
        /// How gradients become updates.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
        pub enum OptimizerConfig {
            $($(#[$doc])* $variant($rule),)*
        }

        $(impl From<$rule> for OptimizerConfig {
            fn from(rule: $rule) -> Self {
                Self::$variant(rule)
            }
        })*

        impl OptimizerConfig {
            /// The names of all optimisers.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The optimiser of that name and the learning rate that suits it; small images want more of both.
            pub fn named(name: &str, is_small: bool) -> Result<(Self, LearningRate), Problem> {
                match name {
                    $($name => {
                        let (rule, rate) = <$rule>::defaults(is_small);
                        Ok((Self::$variant(rule), rate))
                    })*
                    other => {
                        let known = Self::NAMES.join(", ");
                        Err(Problem::new("optimizer.kind", format!("is {other:?}; known optimisers are {known}")))
                    }
                }
            }

            /// Refuses impossible values.
            pub fn check(&self) -> Result<(), Problem> {
                match self {
                    $(Self::$variant(rule) => rule.check(),)*
                }
            }

            fn slots(&self) -> usize {
                match self {
                    $(Self::$variant(rule) => rule.slots(),)*
                }
            }

            fn update(&self, w: Tensor<1>, g: Tensor<1>, slots: &mut Vec<Tensor<1>>, at: At) -> Tensor<1> {
                match self {
                    $(Self::$variant(rule) => update::update(rule, w, g, slots, at),)*
                }
            }
        }
    };
}

optimizers! {
    /// Layer-wise scaled momentum; the paper's choice on ImageNet.
    "lars" Lars(Lars),
    /// SGD with (Nesterov) momentum.
    "sgd" Sgd(Sgd),
    /// Adam with decoupled weight decay.
    "adamw" Adamw(AdamW),
    /// v = (1−β)v + βm, w = w − ηv: Algorithm 1 as printed.
    "momentum" Momentum(PaperMomentum),
}

/// At least 0 and below 1.
fn check_share(key: &str, value: f64) -> Result<(), Problem> {
    require((0.0..1.0).contains(&value), key, || format!("is {value}; it must be at least 0 and below 1"))
}

/// 0 or more.
fn check_size(key: &str, value: f64) -> Result<(), Problem> {
    require(value >= 0.0 && value.is_finite(), key, || format!("is {value}; it must be 0 or more"))
}

/// One parameter's update, for all of its values at once or for one after the other.
pub trait Rule: Copy + Sync {
    /// Refuses impossible values.
    fn check(&self) -> Result<(), Problem>;

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
    /// The learning rate.
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
    /// Before the first update: no parameter has a state yet.
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, slots: BTreeMap::new(), step: 0 }
    }

    /// Applies one update to every parameter that has a gradient.
    pub fn step<M: Module>(&mut self, module: M, grads: NamedGrads, lr: f64) -> M {
        self.step += 1;
        self.update_module(module, grads, lr)
    }

    /// Applies the current step to one more module, whose parameters have other names.
    pub fn update_module<M: Module>(&mut self, module: M, grads: NamedGrads, lr: f64) -> M {
        map_named(module, &mut Update { optimizer: self, grads, lr })
    }

    /// The state as host tensors named `<slot>.<parameter>`.
    pub fn export(&self) -> NamedTensors {
        let mut tensors = NamedTensors::new();
        for (name, slots) in &self.slots {
            for (index, slot) in slots.iter().enumerate() {
                let values = to_host(slot.clone());
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
