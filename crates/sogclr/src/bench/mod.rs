//! Measurements of speed and memory: a whole training step, the kernels layer by layer, a loss alone, and the making of views.

mod data;
mod index;
mod kernels;
mod loss;
mod step;

pub use data::{DataBench, DataShares, DataSpeed};
pub use index::{IndexSpeed, imagined, measure_index};
pub use kernels::{KernelSpeeds, LayerSpeed, measure_kernels};
pub use loss::{LossSpeed, measure_loss};
pub use step::{StepBench, StepSpeed, WARM_UP};

use crate::system::{cpu_seconds, peak_rss_mb};
use std::time::Instant;

/// What one repetition takes.
struct Timing {
    /// Median of the wall-clock seconds.
    seconds: f64,
    /// Mean CPU seconds over all threads, where the system tells.
    cpu_seconds: Option<f64>,
}

/// Times `repeats` calls of `work(index)`, after `warm_up` that are not counted.
fn time<E>(warm_up: usize, repeats: usize, mut work: impl FnMut(usize) -> Result<(), E>) -> Result<Timing, E> {
    (0..warm_up).try_for_each(&mut work)?;
    let (mut times, cpu) = (Vec::with_capacity(repeats), cpu_seconds());
    for index in warm_up..warm_up + repeats {
        let start = Instant::now();
        work(index)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let cpu_seconds = cpu.zip(cpu_seconds()).map(|(before, after)| (after - before) / repeats as f64);
    Ok(Timing { seconds: median(times), cpu_seconds })
}

/// The middle of `values`; of two, the upper one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
