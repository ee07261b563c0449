//! What can go wrong in a run.

use crate::comm::Halt;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::loss::LossError;
use crate::params::ParamError;
use crate::storage::StorageError;
use std::path::PathBuf;

/// Why a run does not begin, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file cannot be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The folder already holds a run.
    #[error("{0} already holds a run: resume it, or choose another folder")]
    Exists(PathBuf),
    /// The folder holds something that is not a run.
    #[error("{0} is not empty: choose another folder, or empty it first")]
    NotEmpty(PathBuf),
    /// The folder holds no run.
    #[error("{0} is not a run folder (it has no config.toml): name the folder of a run")]
    NotARun(PathBuf),
    /// Another process has the run open.
    #[error("{0} is in use by another process: wait for it, or stop it")]
    Locked(PathBuf),
    /// There is no checkpoint, or none any more.
    #[error(
        "{0} has no checkpoint: if the run has just begun, resume it; else restore one, or begin again in another folder"
    )]
    NoCheckpoint(PathBuf),
    /// A file of the run, or the weights to start from, does not fit.
    #[error("{path} does not fit this run: {cause}")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        cause: String,
    },
    /// A checkpoint belongs to another run; what differs.
    #[error("the checkpoint does not fit this run: {0}")]
    Misfit(String),
    /// A setting that decides the result was changed in the middle of the run.
    #[error(
        "config.toml was edited since the last checkpoint: {key} was {was} and is {is}; put it back, or begin a new run with it"
    )]
    Edited {
        /// The setting.
        key: String,
        /// Its value in the checkpoint.
        was: String,
        /// Its value now.
        is: String,
    },
    /// The weights to start from do not exist.
    #[error("{0} does not exist: check train.init")]
    NoInit(PathBuf),
    /// A step would not fit into the memory; how much it needs, and what to change.
    #[error("{0}")]
    Memory(String),
    /// The run's method is one that this program does not have.
    #[error("the method {0:?} belongs to another program: train and resume the run there")]
    ExternalMethod(String),
    /// Tensors do not fit the model.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A batch has no loss.
    #[error("training stopped at step {step}: {source}; the last checkpoint is intact")]
    Loss {
        /// Steps done.
        step: usize,
        /// Why not.
        source: LossError,
    },
    /// A parameter holds a NaN or an infinity; the checkpoint is not written.
    #[error(
        "training stopped at step {step}: parameter {name} is not finite; lower the learning rate, the last checkpoint is intact"
    )]
    Diverged {
        /// Steps done.
        step: usize,
        /// The parameter.
        name: String,
    },
    /// Images cannot be read any more.
    #[error("training stopped at step {step}, a checkpoint was written: {source}")]
    DataLost {
        /// Steps done.
        step: usize,
        /// The first that failed.
        source: DataError,
    },
    /// The loader ended before the last step.
    #[error("training stopped at step {step} of {total}: the loader of images ended early; resume the run to go on")]
    Incomplete {
        /// Steps done.
        step: usize,
        /// Steps of the whole run.
        total: usize,
    },
    /// Another rank has a problem.
    #[error("rank {rank} on {host}: {cause}")]
    Elsewhere {
        /// Which.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it says.
        cause: String,
    },
    /// The ranks were not started alike.
    #[error(
        "rank {rank} on {host} has {what} {there}, rank 0 has {here}: start the same program with the same settings and \
         data on every machine"
    )]
    Unlike {
        /// The first that differs.
        rank: usize,
        /// Where it runs.
        host: String,
        /// In what.
        what: String,
        /// What it has.
        there: String,
        /// What rank 0 has.
        here: String,
    },
    /// A rank reads a copy of the data that is not the one that was checked; the first difference.
    #[error("its copy of the data is another: {0}; copy the data again, or use one disk")]
    OtherCopy(String),
    /// The ranks' replicas of a tensor are no longer the same; the checkpoint is not written.
    #[error(
        "training stopped at step {step}: {tensor} of rank {rank} on {host} is not that of rank 0; check that machine's \
         memory, the last checkpoint is intact"
    )]
    Drift {
        /// Steps done.
        step: usize,
        /// The first that differs.
        rank: usize,
        /// Where it runs.
        host: String,
        /// The tensor.
        tensor: String,
    },
    /// A GPU does not compute.
    #[error("the {device} device failed: {cause}; check the driver, or set train.device to cpu")]
    Device {
        /// Its name in `train.device`.
        device: &'static str,
        /// What it says.
        cause: String,
    },
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
            Self::Unlike { .. } | Self::OtherCopy(_) => true,
            Self::Storage(_) | Self::Locked(_) | Self::Device { .. } => false,
            Self::Elsewhere { .. } | Self::Drift { .. } => false,
            Self::Loss { .. } | Self::Diverged { .. } | Self::DataLost { .. } | Self::Incomplete { .. } => false,
        }
    }
}

impl<E: Into<TrainError>> From<Halt<E>> for TrainError {
    fn from(halt: Halt<E>) -> Self {
        match halt {
            Halt::Here(error) => error.into(),
            Halt::Elsewhere { rank, host, cause } => Self::Elsewhere { rank, host, cause },
        }
    }
}
