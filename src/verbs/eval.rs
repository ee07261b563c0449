//! `sogclr eval linear` and `sogclr eval knn`; those of image–text pairs are in `eval_pairs`.

use super::eval_pairs::{RetrievalVerb, ZeroShotVerb};
use crate::error::CliError;
use crate::output::{note, say};
use crate::progress::Counter;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sogclr::config::DeviceName;
use sogclr::data::{DataConfig, Dataset, Manifest, Split};
use sogclr::eval::{
    Accuracy, FrozenEncoder, Labelled, Measured, NEIGHBOURS, PaperProtocol, knn_accuracy, labelled_splits, linear_fast,
    linear_paper, measure,
};
use sogclr::report::{accuracy_cell, table};
use sogclr::train::{Run, open_device};
use sogclr::trained::{TrainedRun, leave_out_bad_tests};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Eval {
    Linear(Linear),
    Knn(Knn),
    Retrieval(RetrievalVerb),
    Zeroshot(ZeroShotVerb),
}

#[derive(Args)]
pub struct Target {
    /// Folder that `sogclr pretrain --out` made
    pub run: PathBuf,
    /// Labelled data to evaluate on; the run's own data if left out
    pub data: Option<PathBuf>,
    /// Folder with test images, if DATA has no val/ or test/ of its own
    #[arg(long, value_name = "DIR")]
    test: Option<PathBuf>,
    /// File with one class name on each line: use only these
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Use only N training images, the same share of each class
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Leave out images that cannot be read
    #[arg(long)]
    pub skip_bad: bool,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    pub device: Option<DeviceName>,
}

impl Target {
    /// The run's own data, narrowed to its manifest, or the data that was named.
    pub fn open(&self, run: &mut TrainedRun) -> Result<Dataset, CliError> {
        let config = &mut run.config;
        let own = config.data.clone();
        config.data = match &self.data {
            Some(path) => DataConfig { path: Some(path.clone()), skip_bad: own.skip_bad, ..Default::default() },
            None => own,
        };
        let given = &mut config.data;
        given.skip_bad |= self.skip_bad;
        given.limit = self.limit.or(given.limit);
        given.classes = self.classes.clone().or(given.classes.take());
        given.test = self.test.clone().or(given.test.take());
        if self.data.is_none() && self.limit.is_none() && self.classes.is_none() {
            return Ok(run.data()?);
        }
        let mut data = Dataset::open(&config.data, config.seed)?;
        if config.data.skip_bad {
            Manifest::build(&mut data.train, true, || {})?;
        }
        leave_out_bad_tests(&mut data, config)?;
        Ok(data)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// Features once, then a convex solve: seconds, deterministic
    Fast,
    /// The paper's: SGD with Nesterov momentum, batch 4096, lr 1.6, crops and flips
    Paper,
}

/// Train a linear classifier on the frozen features before the head.
///
/// The encoder stays in inference mode, and its weights as they are. The untrained encoder is measured beside it. Results also
/// go to RUN/summary.json.
#[derive(Args)]
pub struct Linear {
    #[command(flatten)]
    target: Target,
    #[arg(long, value_enum, default_value = "fast")]
    protocol: Protocol,
    /// Epochs of the paper's protocol; 90 unless given
    #[arg(long, value_name = "E")]
    epochs: Option<usize>,
}

/// Let the nearest training features vote, by cosine similarity.
///
/// Needs no training. The untrained encoder is measured beside it. Results also go to RUN/summary.json.
#[derive(Args)]
pub struct Knn {
    #[command(flatten)]
    target: Target,
    /// Neighbours that vote
    #[arg(short, long, default_value_t = NEIGHBOURS)]
    k: usize,
}

impl Eval {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Self::Linear(verb) if verb.protocol == Protocol::Paper => {
                let mut protocol = PaperProtocol::default();
                protocol.epochs = verb.epochs.unwrap_or(protocol.epochs);
                if protocol.epochs == 0 {
                    return Err(CliError::Input("--epochs is 0: the classifier needs at least 1".into()));
                }
                let key = "eval_linear_paper";
                evaluate(&verb.target, key, "linear, paper's protocol", |encoder, train, test, classes| {
                    let bar = Counter::new("linear epochs", protocol.epochs);
                    let accuracy = linear_paper(encoder, train, test, classes, &protocol, |_, _| bar.inc(1));
                    drop(bar);
                    Ok(accuracy?)
                })
            }
            Self::Linear(verb) => {
                if verb.epochs.is_some() {
                    return Err(CliError::Input("--epochs belongs to --protocol paper".into()));
                }
                evaluate(&verb.target, "eval_linear_fast", "linear, fast protocol", |encoder, train, test, classes| {
                    let (train, test) = features(encoder, train, test)?;
                    Ok(linear_fast(train, test, classes).0)
                })
            }
            Self::Retrieval(verb) => verb.run(),
            Self::Zeroshot(verb) => verb.run(),
            Self::Knn(verb) => {
                if verb.k == 0 {
                    return Err(CliError::Input("-k is 0: at least one neighbour must vote".into()));
                }
                let title = format!("{} nearest neighbours", verb.k);
                evaluate(&verb.target, "eval_knn", &title, |encoder, train, test, classes| {
                    if verb.k > train.len() {
                        let problem = format!("-k is {}, but only {} training images can vote", verb.k, train.len());
                        return Err(CliError::Input(problem));
                    }
                    let (train, test) = features(encoder, train, test)?;
                    Ok(knn_accuracy(&train, &test, classes, verb.k))
                })
            }
        }
    }
}

/// The step of the run's newest checkpoint, with a word if training has not come to its end.
pub fn say_if_unfinished(run: &TrainedRun) -> Option<usize> {
    let step = run.step();
    if let (Some(step), None) = (step, run.summary()) {
        note!("this run is not finished: its encoder is that of step {step}");
    }
    step
}

/// Linear (fast protocol) and nearest-neighbour accuracy, with a progress bar.
pub fn measured(encoder: &FrozenEncoder, data: &Dataset) -> Result<Measured, CliError> {
    let bar = Counter::new("features", data.train.len() + data.test.as_ref().map_or(0, Split::len));
    Ok(measure(encoder, data, |count| bar.inc(count))?)
}

/// Features of both splits with a progress bar.
fn features(encoder: &FrozenEncoder, train: &Split, test: &Split) -> Result<(Labelled, Labelled), CliError> {
    let bar = Counter::new("features", train.len() + test.len());
    Ok(sogclr::eval::features(encoder, train, test, |count| bar.inc(count))?)
}

/// The images of `data` that can be read, and what is wrong with the others; without `data` the run's training images.
pub fn readable_images(run: &TrainedRun, data: Option<&Path>) -> Result<(Split, Vec<String>), CliError> {
    Ok(run.images(data, |count| {
        let bar = Counter::new("checking images", count);
        move || bar.inc(1)
    })?)
}

/// An entry of `summary.json`.
#[derive(Serialize)]
struct EvalSummary<'a> {
    data: &'a str,
    title: &'a str,
    training_images: usize,
    test_images: usize,
    step: Option<usize>,
    trained: Accuracy,
    untrained: Accuracy,
}

fn evaluate(
    target: &Target,
    key: &str,
    title: &str,
    measure: impl Fn(&FrozenEncoder, &Split, &Split, usize) -> Result<Accuracy, CliError>,
) -> Result<(), CliError> {
    let mut run = TrainedRun::open(&target.run)?;
    let data = target.open(&mut run)?;
    let (step, config) = (say_if_unfinished(&run), &run.config);
    let (train, test) = labelled_splits(&data)?;
    if data.test.is_none() {
        note!("no test images: every fifth training image of each class is held out from the classifier");
        if config.method.spec().needs_labels() && target.data.is_none() {
            note!("warning: {} was trained with the labels of the held-out images", config.method.name());
        }
    }
    let compute = open_device(target.device.unwrap_or(config.train.device))?;
    let (encoder, untrained) = (run.encoder(compute.clone())?, run.untrained_encoder(compute));
    let classes = data.classes.len();
    let trained_accuracy = measure(&encoder, &train, &test, classes)?;
    let untrained_accuracy = measure(&untrained, &train, &test, classes)?;

    let result = EvalSummary {
        data: &data.title,
        title,
        training_images: train.len(),
        test_images: test.len(),
        step,
        trained: trained_accuracy,
        untrained: untrained_accuracy,
    };
    say!("{title} on {}: {} training, {} test images, {classes} classes", data.title, train.len(), test.len());
    let row = |name: &str, accuracy: &Accuracy| {
        vec![name.to_owned(), accuracy_cell(accuracy), format!("{:.1}", 100.0 * accuracy.top5)]
    };
    let rows = [row(config.method.name(), &trained_accuracy), row("untrained", &untrained_accuracy)];
    say!("{}", table(&["encoder", "top-1 % (95 % interval)", "top-5 %"], &rows));
    Ok(Run::set_entry(&target.run, key, &result)?)
}
