//! Gradients by parameter name, flattened and off the autodiff graph.

use crate::comm::Group;
use crate::math::Matrix;
use crate::params::to_host;
use crate::params::{NamedVisitor, visit_named};
use burn::module::{Module, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::collections::BTreeMap;

/// The gradients of Σ h·sg(∂L/∂h): what a loss gave for embeddings goes back through the network that made them. `h` and
/// `dh` are `[rows, dim]`.
///
/// # Panics
/// If there is no term, or shapes differ.
pub fn pull_back(terms: impl IntoIterator<Item = (Tensor<2>, Matrix)>) -> Gradients {
    let term = |(h, dh): (Tensor<2>, Matrix)| {
        let dh = TensorData::new(dh.iter().copied().collect::<Vec<f32>>(), h.dims());
        let dh = Tensor::<2>::from_data(dh, &h.device());
        (h * dh).sum()
    };
    terms.into_iter().map(term).reduce(|sum, term| sum + term).expect("a loss has a gradient").backward()
}

/// One gradient for each trained parameter.
#[derive(Default)]
pub struct NamedGrads(BTreeMap<String, Tensor<1>>);

impl NamedGrads {
    /// Takes the gradients of `module`'s parameters out of a backward pass.
    pub fn collect<M: Module>(module: &M, gradients: &mut Gradients) -> Self {
        struct Collect<'a> {
            gradients: &'a mut Gradients,
            found: NamedGrads,
        }
        impl NamedVisitor for Collect<'_> {
            fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
                if let Some(grad) = param.val().grad_remove(self.gradients) {
                    self.found.0.insert(name, grad.inner().reshape([-1]));
                }
            }
        }
        let mut visitor = Collect { gradients, found: Self::default() };
        visit_named(module, &mut visitor);
        visitor.found
    }

    /// Adds the gradients of another part of the batch.
    pub fn add(&mut self, other: Self) {
        for (name, grad) in other.0 {
            let sum = match self.0.remove(&name) {
                Some(sum) => sum + grad,
                None => grad,
            };
            self.0.insert(name, sum);
        }
    }

    /// Sets the gradient of the parameter `name`, flattened.
    pub fn insert(&mut self, name: &str, grad: Tensor<1>) {
        self.0.insert(name.to_owned(), grad);
    }

    /// Takes out the gradient of the parameter `name`.
    pub fn remove(&mut self, name: &str) -> Option<Tensor<1>> {
        self.0.remove(name)
    }

    /// All values, in the order of names.
    pub fn into_values(self) -> Vec<f64> {
        self.0.into_values().flat_map(to_host).map(f64::from).collect()
    }

    /// Every gradient, added over the ranks.
    pub fn summed(self, group: &Group) -> Self {
        let (names, grads): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        Self(names.into_iter().zip(group.sum_tensors(grads)).collect())
    }
}
