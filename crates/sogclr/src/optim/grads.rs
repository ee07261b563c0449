//! Gradients by parameter name, flattened and off the autodiff graph.

use crate::comm::{Group, Pending, Sum};
use crate::cpu::in_place;
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

    /// The parameters that it has gradients of.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Takes out the gradients of the parameters `names`.
    pub fn take(&mut self, names: &[String]) -> Self {
        Self(names.iter().filter_map(|name| self.0.remove_entry(name)).collect())
    }

    /// Begins to add the gradients over the ranks; in one process they are their own sum.
    pub fn begin_sum(self, group: &Group) -> Summing {
        if group.size() == 1 || self.0.is_empty() {
            return Summing::Whole(self);
        }
        Summing::OnItsWay(group.beside(|sum| {
            let (names, grads): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
            Self(names.into_iter().zip(sum_tensors(grads, sum)).collect())
        }))
    }
}

/// Gradients of which the sum over the ranks is on its way.
pub enum Summing {
    /// It is there.
    Whole(NamedGrads),
    /// A thread makes it.
    OnItsWay(Pending<NamedGrads>),
}

impl Summing {
    /// Waits for the sums.
    pub fn wait(self) -> NamedGrads {
        match self {
            Self::Whole(grads) => grads,
            Self::OnItsWay(pending) => pending.wait(),
        }
    }
}

fn sum_tensors(grads: Vec<Tensor<1>>, sum: Sum) -> Vec<Tensor<1>> {
    in_place(grads, |grads| sum_slices(grads, sum)).unwrap_or_else(|grads| {
        let device = grads[0].device();
        let mut values: Vec<Vec<f32>> = grads.into_iter().map(to_host).collect();
        sum_slices(&mut values.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(), sum);
        values.into_iter().map(|values| Tensor::from_floats(values.as_slice(), &device)).collect()
    })
}

/// Fewer values than this go in one message with others: a message costs about as much as they do.
const ALONE: usize = 1 << 15;

/// Large gradients where they lie, the small ones together.
fn sum_slices(grads: &mut [&mut [f32]], sum: Sum) {
    let (mut large, mut small): (Vec<_>, Vec<_>) = grads.iter_mut().partition(|grad| grad.len() >= ALONE);
    let mut packed: Vec<f32> = small.iter().flat_map(|grad| grad.iter()).copied().collect();
    sum(&mut packed);
    let mut rest = packed.as_slice();
    for grad in &mut small {
        let (sums, others) = rest.split_at(grad.len());
        grad.copy_from_slice(sums);
        rest = others;
    }
    large.iter_mut().for_each(|grad| sum(grad));
}
