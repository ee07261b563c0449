//! Training: the step, the loop around it, checkpoints and the run folder.

mod adopt;
mod checkpoint;
mod device;
mod error;
mod init;
mod memory;
mod metrics;
mod pretrain;
mod ranks;
mod run;
mod signals;
mod step;
mod trainer;

pub use crate::system::free_memory_gb;
pub use checkpoint::Checkpoint;
pub use device::{open_device, open_device_of, open_for};
pub use error::TrainError;
pub use memory::{step_gb, too_large};
pub use metrics::{Metric, Metrics, Spent};
pub use pretrain::{Pretraining, TrainSummary};
pub(crate) use run::NEWEST;
pub use run::{Run, refuse_existing};
pub use signals::{Signals, Verdict};
pub use step::{Learner, StepOutput, StepPlan};
pub use trainer::{Outcome, StepReport, StepTime, Trainer};
