//! One sentence for the user and an exit code.

use crate::options::FLAGS;
use sogclr::comm::Halt;
use sogclr::config::ConfigError;
use sogclr::data::DataError;
use sogclr::eval::EvalError;
use sogclr::pack::PackError;
use sogclr::race::CellError;
use sogclr::storage::StorageError;
use sogclr::train::TrainError;
use sogclr::trained::TrainedError;
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

impl From<Halt<CliError>> for CliError {
    fn from(halt: Halt<CliError>) -> Self {
        match halt {
            Halt::Here(error) => error,
            Halt::Elsewhere { rank, host, cause } => TrainError::Elsewhere { rank, host, cause }.into(),
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        if let ConfigError::Data(error) = error {
            return error.into();
        }
        if let ConfigError::Device(name) = error {
            let text =
                format!("{name} is not in this build: build it again with `--features {name}`, or use --device cpu");
            return Self::Input(text);
        }
        Self::input(error)
    }
}

impl From<DataError> for CliError {
    fn from(error: DataError) -> Self {
        if let DataError::BesideSplits { train, test, .. } = &error {
            let test = test.as_ref().map_or(String::new(), |test| format!(" --test {}", test.display()));
            let text = format!("{error}; to leave the others out: sogclr pretrain {}{test} --out RUN", train.display());
            return Self::Input(text);
        }
        Self::input(error)
    }
}

impl From<StorageError> for CliError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Write { .. } => Self::Failed(with_flags(&error.to_string())),
            _ => Self::input(error),
        }
    }
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        let text = match &error {
            TrainError::Exists(folder) => {
                let folder = folder.display();
                format!(
                    "{folder} already holds a run: continue it with `sogclr resume {folder}`, or choose another --out"
                )
            }
            TrainError::NotEmpty(folder) => {
                format!("{} is not empty: choose another --out, or empty it first", folder.display())
            }
            TrainError::NotARun(folder) => format!(
                "{} is not a run folder (it has no config.toml): name the folder that `sogclr pretrain --out` made",
                folder.display()
            ),
            TrainError::Data(DataError::Changed(what)) => format!(
                "the data changed since the run began: {what}; restore it, go on with what there is now by `sogclr resume RUN \
                 --data PATH`, or start a new run"
            ),
            // What was edited in a file is mended there.
            error @ TrainError::Edited { .. } => error.to_string(),
            error => with_flags(&error.to_string()),
        };
        match error {
            TrainError::Config(inner) => inner.into(),
            TrainError::Storage(inner) => inner.into(),
            error if error.is_input() => Self::Input(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<EvalError> for CliError {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::NonFinite => Self::Failed(error.to_string()),
            _ => Self::input(error),
        }
    }
}

impl From<TrainedError> for CliError {
    fn from(error: TrainedError) -> Self {
        match error {
            TrainedError::Run(error) => error.into(),
            TrainedError::Eval(error) => error.into(),
            TrainedError::Storage(error) => error.into(),
            TrainedError::NoTestPairs(title) => Self::Input(format!(
                "{title} has no test pairs: train with --test HELD_OUT, or name them, `sogclr eval retrieval RUN PAIRS`"
            )),
            error => Self::input(error),
        }
    }
}

impl From<PackError> for CliError {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Storage(error) => error.into(),
            PackError::NoSize => Self::Input(format!("--size is too small: {error}")),
            error => Self::input(error),
        }
    }
}

impl From<CellError> for CliError {
    fn from(error: CellError) -> Self {
        match error {
            CellError::Train(error) => error.into(),
            CellError::Trained(error) => error.into(),
            error => Self::input(error),
        }
    }
}

impl CliError {
    fn input(error: impl fmt::Display) -> Self {
        Self::Input(with_flags(&error.to_string()))
    }
}

/// The library names keys of the configuration; those with a flag of their own get it beside them.
pub fn with_flags(text: &str) -> String {
    FLAGS.iter().fold(text.to_owned(), |text, (key, flag)| {
        // Whole keys only: `train.batch` is no part of another.
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        let found = text.match_indices(key).map(|(at, _)| at + key.len()).find(|&end| ends(&text[end..]));
        match found {
            Some(end) => format!("{} ({flag}){}", &text[..end], &text[end..]),
            None => text,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::with_flags;

    #[test]
    fn keys_get_their_flags() {
        assert_eq!(with_flags("train.batch is 1; more"), "train.batch (--batch) is 1; more");
        assert_eq!(with_flags("set train.micro_batch to 8"), "set train.micro_batch (--micro-batch) to 8");
        assert_eq!(with_flags("train.batchsize: use train.batch"), "train.batchsize: use train.batch (--batch)");
        assert_eq!(with_flags("head.hidden is 0"), "head.hidden is 0");
    }
}
