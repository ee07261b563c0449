//! One sentence for the user and an exit code.

use sogclr::config::ConfigError;
use sogclr::data::DataError;
use sogclr::eval::EvalError;
use sogclr::storage::StorageError;
use sogclr::train::TrainError;
use std::fmt;

#[derive(Debug)]
pub enum CliError {
    /// The input is wrong: exit code 2.
    Input(String),
    /// The run failed: exit code 1.
    Failed(String),
    /// Asked to stop, everything saved: exit code 130, so that a script does not go on.
    Stopped(String),
}

impl CliError {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Failed(_) => 1,
            Self::Stopped(_) => 130,
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (Self::Input(text) | Self::Failed(text) | Self::Stopped(text)) = self;
        f.write_str(text)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<DataError> for CliError {
    fn from(error: DataError) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<StorageError> for CliError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Write { .. } => Self::Failed(error.to_string()),
            _ => Self::Input(error.to_string()),
        }
    }
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Storage(inner) => inner.into(),
            error if error.is_input() => Self::Input(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<EvalError> for CliError {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::NonFinite => Self::Failed(error.to_string()),
            _ => Self::Input(error.to_string()),
        }
    }
}
