//! What can go wrong in a run.

use crate::config::ConfigError;
use crate::data::DataError;
use crate::loss::LossError;
use crate::params::ParamError;
use crate::storage::StorageError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("{0} already holds a run: resume it, or choose another folder")]
    Exists(PathBuf),
    #[error("{0} is not empty: choose another folder, or empty it first")]
    NotEmpty(PathBuf),
    #[error("{0} is not a run folder (it has no config.toml): name the folder of a run")]
    NotARun(PathBuf),
    #[error("{0} is in use by another process: wait for it, or stop it")]
    Locked(PathBuf),
    #[error("{0} has no checkpoint yet: begin the run again in another folder")]
    NoCheckpoint(PathBuf),
    #[error("{path} does not fit this run: {cause}")]
    Checkpoint { path: PathBuf, cause: String },
    #[error("the checkpoint does not fit this run: {0}")]
    Misfit(String),
    #[error(
        "config.toml was edited since the last checkpoint: {key} was {was} and is {is}; put it back, or begin a new run with it"
    )]
    Edited { key: String, was: String, is: String },
    #[error("{0} does not exist: check train.init")]
    NoInit(PathBuf),
    #[error("{0}")]
    Memory(String),
    #[error("the method {0:?} belongs to another program: train and resume the run there")]
    ExternalMethod(String),
    #[error(transparent)]
    Params(#[from] ParamError),
    #[error("training stopped at step {step}: {source}; the last checkpoint is intact")]
    Loss { step: usize, source: LossError },
    #[error(
        "training stopped at step {step}: parameter {name} is not finite; lower the learning rate, the last checkpoint is intact"
    )]
    Diverged { step: usize, name: String },
    #[error("training stopped at step {step}, a checkpoint was written: {source}")]
    DataLost { step: usize, source: DataError },
    #[error("training stopped at step {step} of {total}: the loader of images ended early; resume the run to go on")]
    Incomplete { step: usize, total: usize },
    #[error("the {device} device failed: {cause}; check the driver, or set train.device to cpu")]
    Device { device: &'static str, cause: String },
}

impl TrainError {
    /// Whether the input is at fault (exit code 2) rather than the run (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Config(_) | Self::Data(_) | Self::Exists(_) | Self::NotEmpty(_) | Self::NotARun(_) => true,
            Self::NoInit(_) | Self::Memory(_) | Self::ExternalMethod(_) => true,
            Self::NoCheckpoint(_)
            | Self::Checkpoint { .. }
            | Self::Misfit(_)
            | Self::Edited { .. }
            | Self::Params(_) => true,
            Self::Storage(_) | Self::Locked(_) | Self::Device { .. } => false,
            Self::Loss { .. } | Self::Diverged { .. } | Self::DataLost { .. } | Self::Incomplete { .. } => false,
        }
    }
}
