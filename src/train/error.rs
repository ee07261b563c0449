//! What can go wrong in a run.

use crate::config::ConfigError;
use crate::data::DataError;
use crate::encoder::ParamError;
use crate::loss::LossError;
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
    #[error("{0} already holds a run: continue it with `sogclr resume {0}`, or choose another --out")]
    Exists(PathBuf),
    #[error("{0} is not a run folder (it has no config.toml): name the folder that `sogclr pretrain --out` made")]
    NotARun(PathBuf),
    #[error("{0} is in use by another process: wait for it, or stop it")]
    Locked(PathBuf),
    #[error("{0} has no checkpoint yet: start the run again with `sogclr pretrain` and another --out")]
    NoCheckpoint(PathBuf),
    #[error("{path} does not fit this run: {cause}")]
    Checkpoint { path: PathBuf, cause: String },
    #[error(transparent)]
    Params(#[from] ParamError),
    #[error("training stopped at step {step}: {source}; the last checkpoint is intact")]
    Loss { step: usize, source: LossError },
    #[error("the {device} device failed: {cause}; check the driver, or use --device cpu")]
    Device { device: &'static str, cause: String },
}

impl TrainError {
    /// Whether the input is at fault (exit code 2) rather than the run (exit code 1).
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Storage(_) | Self::Loss { .. } | Self::Device { .. } | Self::Locked(_))
    }
}
