//! `sogclr pretrain`: from images to a trained encoder.

use super::report::leave_report;
use crate::error::{CliError, with_flags};
use crate::interrupt::stop_on_ctrl_c;
use crate::options::RunOptions;
use crate::output::{is_quiet, is_verbose, note, say};
use crate::progress::{Counter, TrainProgress, duration};
use crate::summary::{describe, settings, time_told, warn_of};
use clap::Args;
use sogclr::comm::Group;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{Modality, Split};
use sogclr::estimate::Forecast;
use sogclr::train::{Outcome, Pretraining, free_memory_gb, too_large};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pre-train an encoder on your images, without labels, or two encoders on image–text pairs.
///
/// Everything has a default that fits the data; what differs from the defaults is printed, and all settings are kept in
/// RUN/config.toml (--verbose or `sogclr config show` prints them). On a CPU the defaults for photographs are those of a run of
/// hours (ResNet-18, 128 pixels), on a GPU the paper's. Before the first step it says how long the run will take.
/// The encoder is in RUN/encoder.safetensors after every checkpoint, with torchvision's or timm's parameter names. Ctrl-C
/// writes a checkpoint; `sogclr resume RUN` goes on from there.
///
/// Under mpirun or srun (docs/distributed.md) the processes share every batch and train what one would, sooner.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(after_help = "Examples:\n  sogclr pretrain photos/ --out runs/photos --encoder resnet18 --batch 64\n  \
    sogclr pretrain --config recipes/cifar10-resnet18.toml data/cifar-10-batches-bin --out runs/cifar\n  \
    sogclr pretrain --pairs captions.tsv --images photos/ --out runs/pairs --batch 64\n\n\
    Next: sogclr eval linear RUN (needs labels), or sogclr eval retrieval RUN (image–text pairs)")]
pub struct Pretrain {
    #[command(flatten)]
    options: RunOptions,
    /// New folder for the run
    #[arg(long, value_name = "RUN", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Leave out RUN/report.html, which takes some seconds at the end
    #[arg(long)]
    no_report: bool,
    /// Choose encoder, image size, batch and epochs for so many hours, measured on your images; what you name stays
    ///
    /// The choice is fixed in RUN/config.toml before the first step, so that file gives the same run on any machine.
    #[arg(long, value_name = "H", conflicts_with = "epochs", value_parser = super::plan::hours)]
    hours: Option<f64>,
    /// Print the settings and how long the run will take, and stop
    #[arg(long)]
    dry_run: bool,
    /// Leave out how long the run will take
    #[arg(long, hide = true)]
    unannounced: bool,
    #[command(flatten)]
    watchdog: Watchdog,
}

/// What several processes heed.
#[derive(Args)]
pub struct Watchdog {
    /// Under mpirun or srun: seconds after which a process that the others wait for ends the run
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    watchdog: u64,
}

impl Watchdog {
    pub fn watch(&self, group: &Group) {
        group.watch(Duration::from_secs(self.watchdog));
    }
}

impl Pretrain {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        let mut overrides = self.options.overrides()?;
        if let Some(hours) = self.hours {
            if group.size() > 1 {
                return Err(CliError::Input("--hours measures one process: name --epochs under mpirun".into()));
            }
            overrides = planned(&overrides, hours)?;
        }
        let Some(out) = self.out.filter(|_| !self.dry_run) else { return dry_run(&overrides) };
        let free = if group.is_first() { refuse_existing(&out) } else { Ok(()) };
        group.together(free)?;
        let mut pretraining = prepare(&overrides, &out, group, Verbosity::Full)?;
        if group.size() == 1 && !self.unannounced && !is_quiet() {
            announce(&pretraining);
        }
        let measurable = Measurable::of(&pretraining);
        // Until here there is nothing to save.
        let stop = stop_on_ctrl_c()?;
        self.watchdog.watch(group);
        let outcome = train(&mut pretraining, &stop, "training")?;
        finish(outcome, pretraining.folder(), measurable)?;
        if group.is_first() && !self.no_report {
            leave_report(pretraining.folder(), &[pretraining.folder().to_owned()]);
        }
        Ok(())
    }
}

/// `overrides` with what fits into the time.
fn planned(overrides: &Overrides, hours: f64) -> Result<Overrides, CliError> {
    let (_, data) = RunConfig::open(overrides)?;
    let plan = super::plan::make(&data, overrides, hours)?;
    for reason in &plan.reasons {
        note!("  {} {}: {}", reason.key, reason.value, reason.why);
    }
    let settings: toml::Table = plan.config.to_toml().parse().expect("what a configuration is written as");
    Ok(settings.into())
}

/// What a run would be, and how long it would take.
fn dry_run(overrides: &Overrides) -> Result<(), CliError> {
    let (config, data) = RunConfig::open(overrides)?;
    describe(&data);
    warn_of(&data);
    say!("{}", config.to_toml());
    if let Some(problem) = free_memory_gb().and_then(|free| too_large(&config, free)) {
        return Err(CliError::Input(with_flags(&problem)));
    }
    let forecast = Forecast::measure(&config, &data.train)?;
    time_told(&config, &forecast).iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// Says how long the run will take, measured on a few of its images; a run that cannot be measured says so itself.
fn announce(run: &Pretraining) {
    if let Ok(forecast) = Forecast::measure(run.config(), run.split()) {
        time_told(run.config(), &forecast).iter().for_each(|line| note!("{line}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    Full,
    Quiet,
}

/// Resolves the configuration, checks the data and makes the run folder.
pub fn prepare(
    overrides: &Overrides,
    out: &Path,
    group: &Group,
    verbosity: Verbosity,
) -> Result<Pretraining, CliError> {
    let (config, data) = group.together(RunConfig::open(overrides).map_err(CliError::from))?;
    if verbosity == Verbosity::Full {
        if is_verbose() {
            say!("{}", config.to_toml());
        }
        describe(&data);
        warn_of(&data);
        settings(&config, &data)?;
    }
    if let Some(first) = data.problems.first() {
        let count = data.problems.len();
        match &config.data.quarantine {
            None => note!("left out {count} of the pairs, first: {first}"),
            Some(_) => note!("left out, {count} remarks in {}, first: {first}", out.join("problems.txt").display()),
        }
    }
    let pairs_left_out = data.problems.len();
    let images = data.train.len() + data.test.as_ref().map_or(0, Split::len);
    let bar = Counter::images("checking", images / group.size());
    let pretraining = Pretraining::begin(config, data, out, crate::provenance(), group, || bar.inc(1));
    drop(bar);
    let pretraining = pretraining?;
    if let Some(warning) = pretraining.warning() {
        note!("{warning}");
    }
    let bad = &pretraining.left_out()[pairs_left_out..];
    if let Some(first) = bad.first() {
        note!("left out {} unreadable images, first: {first}", bad.len());
    }
    Ok(pretraining)
}

/// Trains to the end or to Ctrl-C.
pub fn train(pretraining: &mut Pretraining, stop: &AtomicBool, label: &str) -> Result<Outcome, CliError> {
    let began = Instant::now();
    let mut progress = TrainProgress::new(label, pretraining.total_steps(), pretraining.step());
    let outcome = pretraining.train(|report| {
        progress.step(report);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if outcome == Outcome::Finished {
        note!("{label}: done in {}", duration(began.elapsed()));
    }
    Ok(outcome)
}

/// What the run's own data allows to measure.
#[derive(Clone, Copy)]
pub enum Measurable {
    Classes,
    HeldOutPairs,
    UnlabelledImages,
    TrainingPairs,
}

impl Measurable {
    pub fn of(pretraining: &Pretraining) -> Self {
        let split = pretraining.split();
        match (split.modality(), pretraining.has_test()) {
            (Modality::Pairs, true) => Self::HeldOutPairs,
            (Modality::Pairs, false) => Self::TrainingPairs,
            (Modality::Images, _) if split.is_labelled() => Self::Classes,
            (Modality::Images, _) => Self::UnlabelledImages,
        }
    }

    fn how(self, run: &str) -> String {
        match self {
            Self::Classes => format!("linear {run}"),
            Self::HeldOutPairs => format!("retrieval {run}"),
            Self::UnlabelledImages => format!("knn {run} LABELLED_IMAGES"),
            Self::TrainingPairs => format!("retrieval {run} HELD_OUT_PAIRS"),
        }
    }
}

/// Says what to do next.
pub fn finish(outcome: Outcome, folder: &Path, measurable: Measurable) -> Result<(), CliError> {
    let folder = folder.display();
    match outcome {
        Outcome::Finished => {
            say!("encoder: {folder}/encoder.safetensors");
            say!("load it in PyTorch: {folder}/load.py");
            say!("measure it: sogclr eval {}", measurable.how(&folder.to_string()));
            Ok(())
        }
        Outcome::Stopped => {
            Err(CliError::Stopped(format!("stopped, checkpoint written; continue with: sogclr resume {folder}")))
        }
    }
}

/// Fails before any work is done if the folder is taken or cannot be made.
pub fn refuse_existing(out: &Path) -> Result<(), CliError> {
    sogclr::train::refuse_existing(out)?;
    let mut existing = out;
    while !existing.exists() {
        match existing.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => existing = parent,
            _ => existing = Path::new("."),
        }
    }
    let unwritable = |reason: String| CliError::Input(format!("cannot write to {}: {reason}", existing.display()));
    if !existing.is_dir() {
        return Err(unwritable("it is not a folder".into()));
    }
    let probe = existing.join(format!(".sogclr-{}", std::process::id()));
    std::fs::write(&probe, b"").map_err(|error| unwritable(format!("{error}; choose another --out")))?;
    let _ = std::fs::remove_file(probe);
    Ok(())
}
