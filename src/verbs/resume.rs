//! `sogclr resume`: continue a run exactly where its last checkpoint left it.

use super::pretrain::{Measurable, finish, train};
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::output::{note, say};
use clap::Args;
use sogclr::train::Pretraining;
use std::ops::ControlFlow;
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
        let mut pretraining = Pretraining::resume(&self.run, crate::provenance())?;
        if let Some(warning) = pretraining.warning() {
            note!("{warning}");
        }
        let (done, total) = (pretraining.step(), pretraining.total_steps());
        if done == total {
            pretraining.train(|_| ControlFlow::Continue(()))?;
            say!("{} is complete ({total} steps)", self.run.display());
            return Ok(());
        }
        note!("continuing at step {done} of {total}");
        let stop = stop_on_ctrl_c()?;
        let measurable = Measurable::of(&pretraining);
        let outcome = train(&mut pretraining, &stop, "training")?;
        finish(outcome, pretraining.run(), measurable)
    }
}
