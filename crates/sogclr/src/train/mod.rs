//! Training: the step, the loop around it, checkpoints and the run folder.

mod checkpoint;
mod device;
mod error;
mod memory;
mod metrics;
mod run;
mod signals;
mod step;
mod trainer;

pub use checkpoint::Checkpoint;
pub use device::open_device;
pub use error::TrainError;
pub use memory::{free_memory_gb, too_large};
pub use metrics::{Metric, Metrics};
pub use run::{Run, refuse_existing};
pub use signals::{Signals, Verdict};
pub use step::{StepOutput, step};
pub use trainer::{Outcome, StepReport, Trainer};
