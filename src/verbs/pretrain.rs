//! `sogclr pretrain`: from images to a trained encoder.

use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::options::RunOptions;
use crate::output::{note, say};
use crate::progress::{Counter, TrainProgress, duration};
use clap::Args;
use serde_json::{Value, json};
use sogclr::bench::peak_rss_mb;
use sogclr::comm::Solo;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{Dataset, Manifest, Split};
use sogclr::storage::write_atomic;
use sogclr::train::{Metrics, Outcome, Run, TrainError, Trainer, free_memory_gb, too_large};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Pre-train an encoder on your images, without labels, or two encoders on image–text pairs.
///
/// Everything has a default that fits the data; the resolved configuration is printed and kept in RUN/config.toml.
/// The encoder is in RUN/encoder.safetensors after every checkpoint, with torchvision's parameter names. Ctrl-C writes
/// a checkpoint; `sogclr resume RUN` goes on from there.
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
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
}

impl Pretrain {
    pub fn run(self) -> Result<(), CliError> {
        refuse_existing(&self.out)?;
        let Prepared { run, trainer, split, measurable } =
            prepare(&self.options.overrides()?, &self.out, Verbosity::Full)?;
        // Until here there is nothing to save.
        let stop = stop_on_ctrl_c()?;
        finish(train(&run, trainer, split, &stop, "training")?, &run, measurable)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    Full,
    Quiet,
}

/// A run that can begin.
pub struct Prepared {
    pub run: Run,
    pub trainer: Trainer,
    pub split: Split,
    measurable: Measurable,
}

/// Resolves the configuration, checks the data and makes the run folder.
pub fn prepare(overrides: &Overrides, out: &Path, verbosity: Verbosity) -> Result<Prepared, CliError> {
    let (config, data) = RunConfig::resolve(overrides)?;
    let measurable = Measurable::of(&data);
    if verbosity == Verbosity::Full {
        say!("{}", config.to_toml());
        describe(&data);
    }
    if let Some(first) = data.problems.first() {
        note!("left out {} of the pairs, first: {first}", data.problems.len());
    }
    if let Some(init) = config.train.init.as_ref().filter(|path| !path.exists()) {
        return Err(CliError::Input(format!("{} does not exist: check --init", init.display())));
    }
    if let Some(problem) = free_memory_gb().and_then(|free| too_large(&config, free)) {
        return Err(CliError::Input(problem));
    }
    let mut split = data.train;
    let bar = Counter::new("checking images", split.len() + data.test.as_ref().map_or(0, Split::len));
    let (manifest, mut bad) = Manifest::build(&mut split, config.data.skip_bad, || bar.inc(1))?;
    if let Some(mut test) = data.test {
        bad.extend(Manifest::build(&mut test, config.data.skip_bad, || bar.inc(1))?.1);
    }
    drop(bar);
    if let Some(first) = bad.first() {
        note!("left out {} unreadable images, first: {first}", bad.len());
        // What fitted all images may not fit those that are left.
        config.validate(split.len())?;
    }
    let trainer = Trainer::new(&config, split.len())?;
    let run = Run::create(out, config, &manifest)?;
    let left_out = [data.problems, bad].concat();
    if !left_out.is_empty() {
        write_atomic(&out.join("problems.txt"), (left_out.join("\n") + "\n").as_bytes())?;
    }
    Ok(Prepared { run, trainer, split, measurable })
}

fn describe(data: &Dataset) {
    let captions: usize = (0..data.train.len()).map(|id| data.train.captions(id).len()).sum();
    let labels = match captions {
        0 if data.train.is_labelled() => format!("{} classes", data.classes.len()),
        0 => "unlabelled".to_owned(),
        captions => format!("{captions} captions"),
    };
    let test = data.test.as_ref().map_or("no test images".to_owned(), |t| format!("{} test images", t.len()));
    note!("data: {}, {} training images, {test}, {labels}", data.title, data.train.len());
}

/// Trains to the end or to Ctrl-C, and writes the summary.
pub fn train(
    run: &Run,
    mut trainer: Trainer,
    split: Split,
    stop: &AtomicBool,
    label: &str,
) -> Result<Outcome, TrainError> {
    let (began, first_step) = (Instant::now(), trainer.step());
    let mut progress = TrainProgress::new(label, trainer.plan().total_steps(), first_step);
    let samples = split.len();
    let mut last = None;
    let outcome = trainer.train(run, Arc::new(split), &Solo, stop, |report| {
        progress.step(report);
        last = Some((report.loss, report.objective));
    })?;
    if outcome == Outcome::Finished {
        summarise(
            run,
            samples,
            trainer.step(),
            json!({
                "loss": last.map(|(loss, _)| loss),
                "objective": last.map(|(_, objective)| objective),
                "peak_rss_mb": peak_rss_mb(),
            }),
        )?;
        note!("{label}: done in {}", duration(began.elapsed()));
    }
    Ok(outcome)
}

/// Writes the `train` entry of `summary.json`; `more` is what only a run to its end knows.
pub fn summarise(run: &Run, samples: usize, steps: usize, more: Value) -> Result<(), TrainError> {
    // Of the whole run, also where it was resumed.
    let (seconds, images) = Metrics::time(&run.metrics_path(), run.config.train.batch);
    let mut summary = json!({
        "method": run.config.method.name(),
        "encoder": run.config.encoder,
        "feature_dim": run.config.encoder.feature_dim(),
        "samples": samples,
        "steps": steps,
        "seconds": seconds,
        "images_per_s": images / seconds.max(1e-9),
    });
    if let (Value::Object(summary), Value::Object(more)) = (&mut summary, more) {
        summary.extend(more);
    }
    Ok(Run::summarise(run.folder(), "train", summary)?)
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
    pub fn of(data: &Dataset) -> Self {
        match (data.train.has_captions(), &data.test) {
            (true, Some(_)) => Self::HeldOutPairs,
            (true, None) => Self::TrainingPairs,
            (false, _) if data.train.is_labelled() => Self::Classes,
            (false, _) => Self::UnlabelledImages,
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
pub fn finish(outcome: Outcome, run: &Run, measurable: Measurable) -> Result<(), CliError> {
    let folder = run.folder().display();
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
