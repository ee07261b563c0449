//! What an update is computed with: whole tensors on any device, or single values in a loop on the CPU.

use burn::tensor::Tensor;
use std::ops::{Add, Div, Mul, Sub};

/// A value of a parameter, or all of them at once.
pub trait Real:
    Clone + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Sized
{
    /// x·factor.
    fn times(self, factor: f64) -> Self;
    /// x + term.
    fn plus(self, term: f64) -> Self;
    /// √x.
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn times(self, factor: f64) -> Self {
        self * factor as f32
    }
    #[inline(always)]
    fn plus(self, term: f64) -> Self {
        self + term as f32
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl Real for Tensor<1> {
    fn times(self, factor: f64) -> Self {
        self * factor
    }
    fn plus(self, term: f64) -> Self {
        self + term
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}
