//! Parameters by name: export, import, initialisation and the commit of batch-norm buffers. The name of a
//! parameter is its path in the module tree, which is torchvision's state-dict name.

use super::batch_norm::BufferUpdates;
use crate::math::SampleRng;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use std::collections::BTreeMap;

/// A parameter on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Parameters by name, in a stable order.
pub type NamedTensors = BTreeMap<String, HostTensor>;

#[derive(Debug, thiserror::Error)]
pub enum ParamError {
    #[error("weights lack parameter {0}: they belong to another model")]
    Missing(String),
    #[error("weights hold parameter {0}, which this model does not have: they belong to another model")]
    Unexpected(String),
    #[error("the optimiser's state for {0} does not fit: it belongs to another model or optimiser")]
    Optimizer(String),
    #[error(
        "parameter {name} has shape {found:?} in the weights and {wanted:?} in the model: they belong to another model"
    )]
    Shape { name: String, found: Vec<usize>, wanted: Vec<usize> },
}

/// The path of the parameter that a traversal is at.
#[derive(Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    pub(crate) fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    pub(crate) fn name(&self) -> String {
        self.0.join(".")
    }
}

/// Copies every parameter and buffer of `module` to the host.
pub fn export<M: Module>(module: &M) -> NamedTensors {
    struct Export {
        path: Path,
        tensors: NamedTensors,
    }
    impl ModuleVisitor for Export {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val().inner();
            let shape = tensor.dims().to_vec();
            let values = tensor.into_data().try_to_vec::<f32>().expect("parameters are f32");
            self.tensors.insert(self.path.name(), HostTensor { shape, values });
        }
    }
    let mut visitor = Export { path: Path::default(), tensors: BTreeMap::new() };
    module.visit(&mut visitor);
    visitor.tensors
}

/// Fills `module` with `tensors`, which must be exactly its parameters.
pub fn import<M: Module>(module: M, tensors: &NamedTensors) -> Result<M, ParamError> {
    struct Import<'a> {
        path: Path,
        tensors: &'a NamedTensors,
        used: usize,
        names: Vec<String>,
        error: Option<ParamError>,
    }
    impl ModuleMapper for Import<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let name = self.path.name();
            let wanted = param.val().dims().to_vec();
            self.names.push(name.clone());
            match self.tensors.get(&name) {
                Some(host) if host.shape == wanted => {
                    self.used += 1;
                    replace(param, &host.values)
                }
                found => {
                    self.error.get_or_insert(match found {
                        Some(host) => ParamError::Shape { name, found: host.shape.clone(), wanted },
                        None => ParamError::Missing(name),
                    });
                    param
                }
            }
        }
    }
    let mut mapper = Import { path: Path::default(), tensors, used: 0, names: Vec::new(), error: None };
    let module = module.map(&mut mapper);
    match mapper.error {
        Some(error) => Err(error),
        None if mapper.used < tensors.len() => {
            let extra = tensors.keys().find(|name| !mapper.names.contains(name)).expect("one is not used");
            Err(ParamError::Unexpected(extra.clone()))
        }
        None => Ok(module),
    }
}

/// Draws every weight of two or more dimensions: convolutions He-normal over their fan-out (as torchvision),
/// linear layers N(0, 1/fan-in). Vectors keep the values they were built with.
pub fn initialise<M: Module>(module: M, seed: u64) -> M {
    struct Initialise {
        path: Path,
        seed: u64,
    }
    impl ModuleMapper for Initialise {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let dims = param.val().dims();
            let variance = match dims.as_slice() {
                [output, _, height, width] => 2.0 / (output * height * width) as f32,
                [_, input] => 1.0 / *input as f32,
                _ => return param,
            };
            let mut rng = SampleRng::weights(self.seed, &self.path.name());
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|_| rng.normal() * variance.sqrt()).collect();
            replace(param, &values)
        }
    }
    module.map(&mut Initialise { path: Path::default(), seed })
}

/// Writes the running statistics that a training pass collected.
pub fn apply_buffers<M: Module>(module: M, updates: BufferUpdates) -> M {
    struct Apply(BufferUpdates);
    impl ModuleMapper for Apply {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.take(param.id) {
                Some(value) => param.map(|old| {
                    let value = value.reshape(old.dims());
                    if old.is_autodiff() { value.autodiff() } else { value }
                }),
                None => param,
            }
        }
    }
    module.map(&mut Apply(updates))
}

/// `param` with new values on its own device, keeping its identity and whether it is trained.
fn replace<const D: usize>(param: Param<Tensor<D>>, values: &[f32]) -> Param<Tensor<D>> {
    param.map(|old| {
        let data = TensorData::new(values.to_vec(), old.dims());
        Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
    })
}
