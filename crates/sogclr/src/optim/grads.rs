//! Gradients by parameter name, flattened and off the autodiff graph.

use crate::encoder::{NamedVisitor, visit_named};
use burn::module::{Module, Param};
use burn::tensor::{Gradients, Tensor};
use std::collections::BTreeMap;

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

    pub fn insert(&mut self, name: &str, grad: Tensor<1>) {
        self.0.insert(name.to_owned(), grad);
    }

    pub fn remove(&mut self, name: &str) -> Option<Tensor<1>> {
        self.0.remove(name)
    }

    /// All values, in the order of names.
    pub fn into_values(self) -> Vec<f64> {
        let values = |grad: Tensor<1>| grad.into_data().try_to_vec::<f32>().expect("gradients are f32");
        self.0.into_values().flat_map(values).map(f64::from).collect()
    }

    /// Replaces every gradient, in the order of names.
    pub fn map(self, mut f: impl FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        Self(self.0.into_iter().map(|(name, grad)| (name, f(grad))).collect())
    }
}
