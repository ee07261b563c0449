//! `sogclr config show` and `sogclr config reference`.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::say;
use clap::Subcommand;
use sogclr::config::{RunConfig, reference_markdown};

#[derive(Subcommand)]
pub enum ConfigVerb {
    /// Print the configuration that `pretrain` would use for this data and these flags
    Show(Box<RunOptions>),
    /// Print the reference of all configuration keys, as Markdown
    Reference,
}

impl ConfigVerb {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Self::Show(options) => say!("{}", RunConfig::open(&options.overrides()?)?.0.to_toml().trim_end()),
            Self::Reference => say!("{}", reference_markdown().trim_end()),
        }
        Ok(())
    }
}
