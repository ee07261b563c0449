//! `sogclr report`: a run as one HTML page.

use crate::error::CliError;
use crate::output::{note, refuse_existing_file, say};
use crate::progress::Counter;
use clap::Args;
use sogclr::config::DeviceName;
use sogclr::report::{RunReport, Updates, page};
use sogclr::storage::write_atomic;
use sogclr::train::open_device;
use sogclr::trained::TrainedRun;
use std::path::{Path, PathBuf};

/// The file that `pretrain`, `demo` and `compare` leave in their folder.
const FILE: &str = "report.html";

/// See what a run has learned: one HTML page that needs no network.
///
/// First whether it is learning, and why; then curves, what the encoder sees, nearest neighbours, a map, the most crowded and
/// most isolated images, mixed-up classes and the settings. Several runs stand side by side. `pretrain`, `demo` and `compare`
/// write the page at their end.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sogclr report runs/photos                              # writes runs/photos/report.html\n  \
    sogclr report runs/photos runs/other --out both.html"
)]
pub struct Report {
    /// Folders that `sogclr pretrain --out` made
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// File for the page; report.html in the run's folder unless given, which is replaced
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Replace the file that --out names
    #[arg(long)]
    force: bool,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    device: Option<DeviceName>,
}

impl Report {
    pub fn run(self) -> Result<(), CliError> {
        let out = match (&self.out, &self.runs[..]) {
            (Some(out), _) if self.force => out.clone(),
            (Some(out), _) => {
                refuse_existing_file(out, "--out, or --force")?;
                out.clone()
            }
            (None, [run]) => run.join(FILE),
            (None, _) => {
                return Err(CliError::Input("several runs need a file for their page: --out FILE.html".into()));
            }
        };
        let verdict = write(&out, &self.runs, self.device)?;
        say!("{verdict}\nreport: {}", out.display());
        Ok(())
    }
}

/// Writes the page of `runs`, and gives the verdict on each.
fn write(out: &Path, runs: &[PathBuf], device: Option<DeviceName>) -> Result<String, CliError> {
    let opened: Vec<TrainedRun> = runs.iter().map(|run| TrainedRun::open(run)).collect::<Result<_, _>>()?;
    let mut reports = Vec::new();
    for run in &opened {
        let compute = open_device(device.unwrap_or(run.config.train.device))?;
        let bar = Counter::new("report: features", RunReport::features_of(run));
        reports.push(RunReport::of(run).with_pictures(run, compute, |count| bar.inc(count)));
    }
    write_atomic(out, page(&reports, Updates::None).as_bytes())?;
    let several = reports.len() > 1;
    let verdict = |run: &RunReport| if several { format!("{}: {}", run.name, run.judge().1) } else { run.judge().1 };
    Ok(reports.iter().map(verdict).collect::<Vec<_>>().join("\n"))
}

/// Leaves the page of `runs` in `folder`. What is in its way is said, and is no reason to fail what it reports on.
pub fn leave_report(folder: &Path, runs: &[PathBuf]) {
    if runs.is_empty() {
        return;
    }
    let out = folder.join(FILE);
    match write(&out, runs, None) {
        Ok(verdict) => say!("{verdict}\nreport: {}", out.display()),
        Err(error) => note!("no report: {error}"),
    }
}
