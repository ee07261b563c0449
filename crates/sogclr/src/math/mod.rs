//! Host-side numerics shared by losses and evaluations: unit-norm rows, log-space sums, blocked
//! similarities, and the one source of randomness.

mod layout;
mod log_space;
mod rng;
mod similarity;
mod unit_rows;

pub use layout::Layout;
pub use log_space::{log_add_exp, log_mix, log_sum_exp};
pub use rng::{Purpose, SampleRng};
pub use similarity::{map_rows, weighted_keys};
pub use sogclr_kernels::Isa;
pub use unit_rows::UnitRows;

/// Row-major host matrix; embeddings are `[rows, dim]`.
pub type Matrix = ndarray::Array2<f32>;
