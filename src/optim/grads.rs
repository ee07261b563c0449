//! Gradients by parameter name, flattened and off the autodiff graph.

use crate::encoder::Path;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use std::collections::BTreeMap;

/// One gradient for each trained parameter.
#[derive(Default)]
pub struct NamedGrads(BTreeMap<String, Tensor<1>>);

impl NamedGrads {
    /// Takes the gradients of `module`'s parameters out of a backward pass.
    pub fn collect<M: Module>(module: &M, gradients: &mut Gradients) -> Self {
        struct Collect<'a> {
            path: Path,
            gradients: &'a mut Gradients,
            found: NamedGrads,
        }
        impl ModuleVisitor for Collect<'_> {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.path.enter(name);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.exit();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(grad) = param.val().grad_remove(self.gradients) {
                    self.found.0.insert(self.path.name(), grad.inner().reshape([-1]));
                }
            }
        }
        let mut visitor = Collect { path: Path::default(), gradients, found: Self::default() };
        module.visit(&mut visitor);
        visitor.found
    }

    pub fn insert(&mut self, name: &str, grad: Tensor<1>) {
        self.0.insert(name.to_owned(), grad);
    }

    pub fn remove(&mut self, name: &str) -> Option<Tensor<1>> {
        self.0.remove(name)
    }

    /// Replaces every gradient, in the order of names.
    pub fn map(self, mut f: impl FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        Self(self.0.into_iter().map(|(name, grad)| (name, f(grad))).collect())
    }
}
