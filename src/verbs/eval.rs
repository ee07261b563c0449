//! `sogclr eval linear` and `sogclr eval knn`; those of image–text pairs are in `eval_pairs`.

use super::eval_pairs::{RetrievalVerb, ZeroShotVerb};
use crate::error::CliError;
use crate::output::{note, say};
use crate::progress::Counter;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;
use sogclr::burn::tensor::Device;
use sogclr::config::{DeviceName, RunConfig};
use sogclr::data::{DataConfig, Dataset, Manifest, Split, open_images};
use sogclr::eval::{
    Accuracy, FrozenEncoder, Labelled, PaperProtocol, knn_predict, labelled_splits, linear_fast, linear_paper,
};
use sogclr::report::{accuracy_cell, table};
use sogclr::storage::load_tensors;
use sogclr::train::{Run, TrainError, open_device};
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
    pub fn open(&self, config: &RunConfig) -> Result<Dataset, CliError> {
        let mut config = config.clone();
        let own = config.data;
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
            return open_run_data(&self.run, &config);
        }
        let mut data = Dataset::open(&config.data, config.seed)?;
        if config.data.skip_bad {
            Manifest::build(&mut data.train, true, || {})?;
        }
        leave_out_bad_tests(&mut data, &config)?;
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
                    Ok(knn_predict(&train, &test, classes, verb.k))
                })
            }
        }
    }
}

/// The run's own data, narrowed to its manifest, and the test images that can be read.
pub fn open_run_data(folder: &Path, config: &RunConfig) -> Result<Dataset, CliError> {
    let mut data = Run::open_data_of(folder, config)?;
    leave_out_bad_tests(&mut data, config)?;
    Ok(data)
}

fn leave_out_bad_tests(data: &mut Dataset, config: &RunConfig) -> Result<(), CliError> {
    if let (Some(test), true) = (&mut data.test, config.data.skip_bad) {
        Manifest::build(test, true, || {})?;
    }
    Ok(())
}

/// Neighbours that vote, unless the user says otherwise.
const NEIGHBOURS: usize = 20;

/// The step of the run's newest checkpoint, with a word if training has not come to its end.
pub fn say_if_unfinished(run: &Path) -> Option<usize> {
    let step = Run::newest_step(run);
    if let (Some(step), None) = (step, Run::read_entry(run, "train")) {
        note!("this run is not finished: its encoder is that of step {step}");
    }
    step
}

/// What an encoder of images reaches.
#[derive(Serialize)]
pub struct Measured {
    /// By the fast protocol.
    pub linear: Accuracy,
    /// Of the same classifier on the images that it was fitted on.
    pub linear_train: Accuracy,
    pub knn: Accuracy,
}

/// Linear (fast protocol) and nearest-neighbour accuracy.
pub fn linear_and_knn(encoder: &FrozenEncoder, data: &Dataset) -> Result<Measured, CliError> {
    let (train, test) = labelled_splits(data)?;
    let (train, test) = features(encoder, &train, &test)?;
    let classes = data.classes.len();
    let knn = knn_predict(&train, &test, classes, NEIGHBOURS);
    let (linear, linear_train) = linear_fast(train, test, classes);
    Ok(Measured { linear, linear_train, knn })
}

/// Features of both splits with a progress bar.
pub fn features(encoder: &FrozenEncoder, train: &Split, test: &Split) -> Result<(Labelled, Labelled), CliError> {
    let bar = Counter::new("features", train.len() + test.len());
    let train = encoder.extract(train, |count| bar.inc(count))?;
    let test = encoder.extract(test, |count| bar.inc(count))?;
    drop(bar);
    Ok((train, test))
}

/// The images of `data` that can be read, and what is wrong with the others; without `data` the run's training images.
pub fn readable_images(run: &Path, config: &RunConfig, data: Option<&Path>) -> Result<(Split, Vec<String>), CliError> {
    let Some(path) = data else { return Ok((Run::open_data_of(run, config)?.train, Vec::new())) };
    let mut split = open_images(path)?;
    let bar = Counter::new("checking images", split.len());
    let (_, bad) = Manifest::build(&mut split, true, || bar.inc(1))?;
    Ok((split, bad))
}

/// The trained encoder of a run folder.
pub fn load_encoder(folder: &Path, config: &RunConfig, device: Device) -> Result<FrozenEncoder, CliError> {
    let path = folder.join("encoder.safetensors");
    if !path.exists() {
        return Err(TrainError::NoCheckpoint(folder.to_owned()).into());
    }
    let (weights, _) = load_tensors(&path)?;
    FrozenEncoder::load(&config.encoder, &weights, &config.augment, device)
        .map_err(|error| CliError::Input(format!("{}: {error}", path.display())))
}

fn evaluate(
    target: &Target,
    key: &str,
    title: &str,
    measure: impl Fn(&FrozenEncoder, &Split, &Split, usize) -> Result<Accuracy, CliError>,
) -> Result<(), CliError> {
    let config = Run::read_config(&target.run)?;
    let data = target.open(&config)?;
    let step = say_if_unfinished(&target.run);
    let (train, test) = labelled_splits(&data)?;
    if data.test.is_none() {
        note!("no test images: every fifth training image of each class is held out from the classifier");
        if config.method.spec().needs_labels() && target.data.is_none() {
            note!("warning: {} was trained with the labels of the held-out images", config.method.name());
        }
    }
    let device = open_device(target.device.unwrap_or(config.train.device))?;
    let encoder = load_encoder(&target.run, &config, device.clone())?;
    let untrained = FrozenEncoder::untrained(&config.encoder, config.seed, &config.augment, device);
    let classes = data.classes.len();
    let trained_accuracy = measure(&encoder, &train, &test, classes)?;
    let untrained_accuracy = measure(&untrained, &train, &test, classes)?;

    let result = json!({
        "data": data.title, "title": title, "training_images": train.len(), "test_images": test.len(),
        "step": step, "trained": trained_accuracy, "untrained": untrained_accuracy,
    });
    say!("{title} on {}: {} training, {} test images, {classes} classes", data.title, train.len(), test.len());
    let row = |name: &str, accuracy: &Accuracy| {
        vec![name.to_owned(), accuracy_cell(accuracy), format!("{:.1}", 100.0 * accuracy.top5)]
    };
    let rows = [row(config.method.name(), &trained_accuracy), row("untrained", &untrained_accuracy)];
    say!("{}", table(&["encoder", "top-1 % (95 % interval)", "top-5 %"], &rows));
    Ok(Run::summarise(&target.run, key, result)?)
}
