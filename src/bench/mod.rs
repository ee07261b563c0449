//! Measurements of speed and memory: a whole training step, the kernels layer by layer, and a loss alone.

mod kernels;
mod loss;
mod step;
mod usage;

pub use kernels::{KernelReport, LayerReport, measure_kernels};
pub use loss::{LossReport, measure_loss};
pub use step::{StepBench, StepReport, WARM_UP};
pub use usage::{cpu_seconds, peak_rss_mb};

/// The middle of `values`; of two, the upper one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
