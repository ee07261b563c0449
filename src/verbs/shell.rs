//! `sogclr completions` and `sogclr man`: what a shell and a manual know of the program.

use crate::error::CliError;
use crate::output::say;
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// Print completions for a shell.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr completions bash > ~/.local/share/bash-completion/completions/sogclr")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command(), "sogclr", &mut script);
        say!("{}", String::from_utf8_lossy(&script).trim_end());
        Ok(())
    }
}

/// Write a manual page for every verb.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr man ~/.local/share/man/man1")]
pub struct Man {
    /// Folder for the pages; made if it is not there
    folder: PathBuf,
}

impl Man {
    pub fn run(self) -> Result<(), CliError> {
        let folder = &self.folder;
        let unwritable =
            |error: std::io::Error| CliError::Input(format!("cannot write to {}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        clap_mangen::generate_to(crate::command(), folder).map_err(unwritable)?;
        say!("manual pages: {}", folder.display());
        Ok(())
    }
}
