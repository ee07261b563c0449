//! Collectives of the training step. One process is not a special case: [`Solo`] returns its input.

use crate::math::Matrix;
use crate::params::to_host;
use burn::tensor::{Tensor, TensorData};

/// What the step needs of a group of equal processes.
pub trait Collective: Send + Sync {
    /// This process among the others, from 0.
    fn rank(&self) -> usize;

    /// Number of processes.
    fn size(&self) -> usize;

    /// The rows of every rank, rank after rank.
    fn all_gather(&self, rows: Matrix) -> Matrix;

    /// Adds `values` over the ranks, in place.
    fn all_reduce_sum(&self, values: &mut [f32]);

    /// [`Collective::all_reduce_sum`] of a tensor on a device.
    fn all_reduce_tensor(&self, tensor: Tensor<1>) -> Tensor<1> {
        let device = tensor.device();
        let mut values = to_host(tensor);
        self.all_reduce_sum(&mut values);
        let len = values.len();
        Tensor::from_data(TensorData::new(values, [len]), &device)
    }
}

/// A group of one.
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_gather(&self, rows: Matrix) -> Matrix {
        rows
    }

    fn all_reduce_sum(&self, _: &mut [f32]) {}

    fn all_reduce_tensor(&self, tensor: Tensor<1>) -> Tensor<1> {
        tensor
    }
}
