//! `sogclr resume`: continue a run exactly where its last checkpoint left it.

use super::pretrain::{Measurable, finish, summarise, train};
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::output::{note, say};
use clap::Args;
use serde_json::json;
use sogclr::train::{Run, Trainer};
use std::path::PathBuf;

/// Continue a run that was stopped, killed or lost power.
///
/// Goes on from the last complete checkpoint, inside the epoch, and ends with the same bytes as a run that was never
/// interrupted. Refuses if the images changed, or settings in RUN/config.toml that decide what the run becomes.
#[derive(Args)]
pub struct Resume {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
}

impl Resume {
    pub fn run(self) -> Result<(), CliError> {
        let run = Run::open(&self.run)?;
        let data = run.open_data()?;
        let (checkpoint, broken) = run.latest()?;
        if let Some(error) = broken {
            note!("going back to step {}: {error}", checkpoint.step);
        }
        let trainer = Trainer::restore(&run.config, data.train.len(), checkpoint)?;
        let (done, total) = (trainer.step(), trainer.plan().total_steps());
        if done == total {
            if Run::read_entry(&self.run, "train").is_none() {
                summarise(&run, data.train.len(), total, json!({}))?;
            }
            say!("{} is complete ({total} steps)", self.run.display());
            return Ok(());
        }
        note!("continuing at step {done} of {total}");
        let stop = stop_on_ctrl_c()?;
        let measurable = Measurable::of(&data);
        finish(train(&run, trainer, data.train, &stop, "training")?, &run, measurable)
    }
}
