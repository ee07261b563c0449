//! Parameters by name: export, import and initialisation, and the way of values from the device to the host. The name of a
//! parameter is its path in the module tree, which is torchvision's state-dict name.

use crate::math::{Matrix, SampleRng};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use std::collections::{BTreeMap, BTreeSet};

/// A parameter on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Row-major: the last axis runs fastest.
    pub values: Vec<f32>,
}

/// Parameters by name, in a stable order.
pub type NamedTensors = BTreeMap<String, HostTensor>;

/// Why tensors do not fit a model.
#[derive(Debug, thiserror::Error)]
pub enum ParamError {
    /// The model has this parameter and the weights do not.
    #[error("weights lack parameter {0}: they belong to another model")]
    Missing(String),
    /// The weights have this parameter and the model does not.
    #[error("weights hold parameter {0}, which this model does not have: they belong to another model")]
    Unexpected(String),
    /// The optimiser's state of this parameter has another size, or is not whole.
    #[error("the optimiser's state for {0} does not fit: it belongs to another model or optimiser")]
    Optimizer(String),
    /// A parameter differs in shape.
    #[error(
        "parameter {name} has shape {found:?} in the weights and {wanted:?} in the model: they belong to another model"
    )]
    Shape {
        /// The parameter.
        name: String,
        /// Shape in the weights.
        found: Vec<usize>,
        /// Shape in the model.
        wanted: Vec<usize>,
    },
}

/// Looks at every parameter with its name.
pub(crate) trait NamedVisitor {
    fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>);
}

/// Replaces every parameter, given its name.
pub(crate) trait NamedMapper {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>>;
}

/// Keeps the path of the parameter that a traversal is at.
struct Named<'a, T> {
    path: Vec<String>,
    inner: &'a mut T,
}

impl<T> Named<'_, T> {
    /// The variant of an enum is no part of the name.
    const ENUM: &'static str = "Enum:";

    fn enter(&mut self, name: &str, container: &str) {
        if !container.starts_with(Self::ENUM) {
            self.path.push(name.to_owned());
        }
    }

    fn exit(&mut self, container: &str) {
        if !container.starts_with(Self::ENUM) {
            self.path.pop();
        }
    }
}

pub(crate) fn visit_named<M: Module>(module: &M, visitor: &mut impl NamedVisitor) {
    module.visit(&mut Named { path: Vec::new(), inner: visitor });
}

pub(crate) fn map_named<M: Module>(module: M, mapper: &mut impl NamedMapper) -> M {
    module.map(&mut Named { path: Vec::new(), inner: mapper })
}

impl<T: NamedVisitor> ModuleVisitor for Named<'_, T> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, container: &str) {
        self.exit(container);
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.inner.visit(self.path.join("."), param);
    }
}

impl<T: NamedMapper> ModuleMapper for Named<'_, T> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, container: &str) {
        self.exit(container);
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.inner.map(self.path.join("."), param)
    }
}

/// The values of a tensor, in order.
pub fn to_host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().expect("tensors of this crate are f32")
}

/// A tensor of two dimensions as a matrix on the host.
pub fn to_matrix(tensor: Tensor<2>) -> Matrix {
    let dims = tensor.dims();
    Matrix::from_shape_vec(dims, to_host(tensor)).expect("as many values as the shape says")
}

/// Copies every parameter and buffer of `module` to the host.
pub fn export<M: Module>(module: &M) -> NamedTensors {
    struct Export(NamedTensors);
    impl NamedVisitor for Export {
        fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            let tensor = param.val().inner();
            let shape = tensor.dims().to_vec();
            let values = to_host(tensor);
            self.0.insert(name, HostTensor { shape, values });
        }
    }
    let mut visitor = Export(NamedTensors::new());
    visit_named(module, &mut visitor);
    visitor.0
}

/// Fills `module` with `tensors`, which must be exactly its parameters.
pub fn import<M: Module>(module: M, tensors: &NamedTensors) -> Result<M, ParamError> {
    struct Import<'a> {
        tensors: &'a NamedTensors,
        names: BTreeSet<String>,
        error: Option<ParamError>,
    }
    impl NamedMapper for Import<'_> {
        fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let wanted = param.val().dims().to_vec();
            self.names.insert(name.clone());
            match self.tensors.get(&name) {
                Some(host) if host.shape == wanted => replace(param, &host.values),
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
    let mut mapper = Import { tensors, names: BTreeSet::new(), error: None };
    let module = map_named(module, &mut mapper);
    if let Some(error) = mapper.error {
        return Err(error);
    }
    match tensors.keys().find(|name| !mapper.names.contains(*name)) {
        Some(extra) => Err(ParamError::Unexpected(extra.clone())),
        None => Ok(module),
    }
}

/// Draws every weight of two or more dimensions: convolutions He-normal over their fan-out (as torchvision),
/// linear layers N(0, 1/fan-in). Vectors keep the values they were built with.
pub fn initialise<M: Module>(module: M, seed: u64) -> M {
    initialise_by(module, seed, |_, dims| match dims {
        [output, _, height, width] => Some((2.0 / (output * height * width) as f64).sqrt()),
        [_, input] => Some((1.0 / *input as f64).sqrt()),
        _ => None,
    })
}

/// Draws the parameters for which `deviation(name, shape)` gives a standard deviation; the others keep their values.
pub(crate) fn initialise_by<M: Module>(module: M, seed: u64, deviation: impl Fn(&str, &[usize]) -> Option<f64>) -> M {
    struct Initialise<F> {
        seed: u64,
        deviation: F,
    }
    impl<F: Fn(&str, &[usize]) -> Option<f64>> NamedMapper for Initialise<F> {
        fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let dims = param.val().dims();
            let Some(deviation) = (self.deviation)(&name, &dims) else { return param };
            let mut rng = SampleRng::weights(self.seed, &name);
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|_| rng.normal() * deviation as f32).collect();
            replace(param, &values)
        }
    }
    map_named(module, &mut Initialise { seed, deviation })
}

/// `param` with new values on its own device, keeping its identity and whether it is trained.
fn replace<const D: usize>(param: Param<Tensor<D>>, values: &[f32]) -> Param<Tensor<D>> {
    param.map(|old| {
        let data = TensorData::new(values.to_vec(), old.dims());
        Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
    })
}
