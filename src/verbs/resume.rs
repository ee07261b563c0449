//! `sogclr resume`: continue a run exactly where its last checkpoint left it.

use super::pretrain::{Measurable, Watchdog, finish, train};
use super::report::leave_report;
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::output::{complain, note, say};
use crate::progress::Counter;
use clap::Args;
use sogclr::comm::Group;
use sogclr::encoder::Precision;
use sogclr::train::Pretraining;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Continue a run that was stopped, killed or lost power.
///
/// Goes on from the last complete checkpoint, inside the epoch, and ends with the same bytes as a run that was never
/// interrupted. The number of processes (mpirun) may be another than before, and --precision may change with a word about it. Refuses if the images changed, or settings in RUN/config.toml that decide what the run becomes.
#[derive(Args)]
pub struct Resume {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
    /// Leave out RUN/report.html, which takes some seconds at the end
    #[arg(long)]
    no_report: bool,
    /// Store activations as f32 or bf16 from here on; the run then ends with other bytes than one that was never stopped
    #[arg(long, value_name = "NAME")]
    precision: Option<Precision>,
    /// Where the data lies now, if it was moved or changed
    ///
    /// Images that the run knows, told by their content, keep their u, wherever they lie and whatever they are called; the run
    /// goes on with all that there are now, at the same share of its epochs. Unchanged data is gone on with exactly.
    #[arg(long, value_name = "PATH", conflicts_with = "precision")]
    data: Option<PathBuf>,
    #[command(flatten)]
    watchdog: Watchdog,
}

impl Resume {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        let mut pretraining = match &self.data {
            None => Pretraining::resume_as(&self.run, self.precision, crate::provenance(), group)?,
            Some(data) => {
                let checking = |images: usize| {
                    let bar = Counter::new("checking images", images);
                    move || bar.inc(1)
                };
                Pretraining::resume_on(&self.run, data, crate::provenance(), group, checking)?
            }
        };
        if let Some(warning) = pretraining.warning() {
            complain!("{warning}");
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
        self.watchdog.watch(group);
        let outcome = train(&mut pretraining, &stop, "training")?;
        finish(outcome, pretraining.folder(), measurable)?;
        if group.is_first() && !self.no_report {
            leave_report(pretraining.folder(), &[self.run]);
        }
        Ok(())
    }
}
