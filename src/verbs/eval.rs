//! `sogclr eval linear` and `sogclr eval knn`; those of image–text pairs are in `eval_pairs`.

use super::eval_pairs::{RetrievalVerb, ZeroShotVerb};
use crate::error::CliError;
use crate::output::{complain, note, say};
use crate::progress::Counter;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use sogclr::comm::Group;
use sogclr::config::DeviceName;
use sogclr::data::{DataConfig, Dataset, Manifest, Modality, Split};
use sogclr::encoder::Compute;
use sogclr::eval::{
    Accuracy, Comparison, FrozenEncoder, Labelled, Measured, NEIGHBOURS, PaperProtocol, colour_histograms,
    knn_accuracy, labelled_splits, linear_fast, linear_paper, measure,
};
use sogclr::report::{accuracy_cell, table};
use sogclr::train::{Run, open_device_of};
use sogclr::trained::{EvaluationOf, TrainedRun, leave_out_bad_tests};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Eval {
    All(All),
    Linear(Linear),
    Knn(Knn),
    Retrieval(RetrievalVerb),
    Zeroshot(ZeroShotVerb),
}

#[derive(Args, Clone)]
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
    /// What the classes are, as in `pretrain`: first, leaf, path:N, or a .csv file of image and class
    #[arg(long, value_name = "WHAT")]
    labels: Option<String>,
    /// Use only N training images, the same share of each class
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Leave out images that cannot be read
    #[arg(long)]
    pub skip_bad: bool,
    /// Side of the images in pixels; the run's own size of evaluation unless given
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    pub device: Option<DeviceName>,
}

/// The run in `folder`, evaluated at `size` pixels where that is given.
pub fn open_run(folder: &Path, size: Option<usize>) -> Result<TrainedRun, CliError> {
    let mut run = TrainedRun::open(folder)?;
    if let Some(remark) = run.edited()? {
        complain!("{remark}");
    }
    if let Some(size) = size {
        run.set_eval_size(size).map_err(|problem| CliError::Input(format!("--image-size {}", problem.text)))?;
    }
    Ok(run)
}

impl Target {
    /// The run that was named, at the size that was given.
    pub fn run(&self) -> Result<TrainedRun, CliError> {
        open_run(&self.run, self.image_size)
    }

    /// The run's own data, narrowed to its manifest, or the data that was named.
    pub fn open(&self, run: &mut TrainedRun) -> Result<Dataset, CliError> {
        let config = &mut run.config;
        let own = config.data.clone();
        config.data = match &self.data {
            Some(path) => {
                let DataConfig { skip_bad, eval_size, ignore_orientation, pixels, .. } = own;
                let path = Some(path.clone());
                DataConfig { path, skip_bad, eval_size, ignore_orientation, pixels, ..Default::default() }
            }
            None => own,
        };
        let given = &mut config.data;
        given.skip_bad |= self.skip_bad;
        given.limit = self.limit.or(given.limit);
        given.labels = self.labels.clone().or(given.labels.take());
        given.check().map_err(sogclr::config::ConfigError::from)?;
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
/// The encoder stays in inference mode, and its weights as they are. The untrained encoder and a 64-bin
/// histogram of colours with the same classifier are measured beside it (by the paper's protocol the encoder alone); if the trained
/// one is not better, it says so, and what to try. Results also go to RUN/summary.json, each under its data, protocol and checkpoint; what stands there is not measured again. Features
/// of images that are not augmented are kept in RUN/features (up to 4 GiB, safe to remove). The paper's protocol, stopped,
/// goes on from its last epoch.
#[derive(Args)]
#[command(after_help = "Examples:\n  sogclr eval linear runs/photos labelled-photos/\n  \
    sogclr eval linear runs/imagenet --protocol paper --no-untrained\n  \
    sogclr eval linear runs/imagenet --all-checkpoints     # accuracy along training")]
pub struct Linear {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    which: Which,
    #[arg(long, value_enum, default_value = "fast")]
    protocol: Protocol,
    /// Epochs of the paper's protocol; 90 unless given
    #[arg(long, value_name = "E")]
    epochs: Option<usize>,
    /// Images of a step of the paper's protocol; 4096 unless given
    #[arg(long, value_name = "B")]
    batch: Option<usize>,
    /// Learning rate of the paper's protocol for 256 images, multiplied by B/256; 0.1 unless given
    #[arg(long, value_name = "LR")]
    lr: Option<f64>,
}

/// Which encoders of a run are measured.
#[derive(Args, Clone, Copy)]
struct Which {
    /// Measure every checkpoint that the run has kept (pretrain --keep-every), not the newest alone
    #[arg(long)]
    all_checkpoints: bool,
    /// Leave out what the encoder is held against: the untrained one, which costs as much, and a histogram of colours
    #[arg(long)]
    no_untrained: bool,
    /// Print JSON in place of a table
    #[arg(long)]
    json: bool,
}

/// Let the nearest training features vote, by cosine similarity.
///
/// Needs no training. The untrained encoder and a 64-bin histogram of colours are measured beside it. Results also go to RUN/summary.json, each under its data,
/// k and checkpoint; features are kept in RUN/features (up to 4 GiB, safe to remove).
#[derive(Args)]
pub struct Knn {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    which: Which,
    /// Neighbours that vote
    #[arg(short, long, default_value_t = NEIGHBOURS)]
    k: usize,
}

/// Everything that fits the data: linear classifier and nearest neighbours with labels, retrieval with held-out pairs.
#[derive(Args)]
pub struct All {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    which: Which,
}

impl All {
    fn run(self, group: &Group) -> Result<(), CliError> {
        let Self { target, which } = self;
        let mut run = target.run()?;
        let data = target.open(&mut run)?;
        if run.config.text.is_some() && data.test.as_ref().is_some_and(|test| test.modality() == Modality::Pairs) {
            return RetrievalVerb::of_run(&target.run).run(group);
        }
        if !data.train.is_labelled() {
            let run = target.run.display();
            return Err(CliError::Input(format!(
                "{} has no labels to measure by: name labelled images, `sogclr eval all {run} LABELLED_IMAGES`",
                data.title
            )));
        }
        let voters = labelled_splits(&data)?.0.len();
        let linear =
            Linear { target: target.clone(), which, protocol: Protocol::Fast, epochs: None, batch: None, lr: None };
        linear.run(group)?;
        Knn { target, which, k: NEIGHBOURS.min(voters) }.run(group)
    }
}

impl Eval {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        match self {
            Self::All(verb) => verb.run(group),
            Self::Linear(verb) => verb.run(group),
            Self::Knn(verb) => verb.run(group),
            Self::Retrieval(verb) => verb.run(group),
            Self::Zeroshot(verb) => verb.run(group),
        }
    }
}

impl Linear {
    fn run(self, group: &Group) -> Result<(), CliError> {
        let Self { target, which, protocol, epochs, batch, lr } = self;
        if protocol == Protocol::Fast {
            let flags = [("--epochs", epochs.is_some()), ("--batch", batch.is_some()), ("--lr", lr.is_some())];
            if let Some((flag, _)) = flags.iter().find(|(_, is_given)| *is_given) {
                return Err(CliError::Input(format!("{flag} belongs to --protocol paper")));
            }
            let classify = |train, test, classes| linear_fast(train, test, classes).0;
            let what = What {
                title: "linear, fast protocol",
                evaluation: "linear",
                settings: json!("fast"),
                classify: Some(&classify),
            };
            return evaluate(&target, which, &what, group, |encoder, splits, _| {
                let (train, test) = features(encoder, &splits.train, &splits.test)?;
                Ok(linear_fast(train, test, splits.classes).0)
            });
        }
        let usual = PaperProtocol::default();
        let protocol = PaperProtocol {
            epochs: epochs.unwrap_or(usual.epochs),
            batch: batch.unwrap_or(usual.batch),
            lr: lr.unwrap_or(usual.lr),
            ..usual
        };
        protocol.check().map_err(|problem| CliError::Input(format!("--{problem}")))?;
        let settings = json!({ "paper": protocol });
        let what = What { title: "linear, paper's protocol", evaluation: "linear", settings, classify: None };
        evaluate(&target, which, &what, group, |encoder, splits, state| {
            let Splits { train, test, classes, .. } = splits;
            let bar = Counter::images("computing features of", protocol.views(train.len(), test.len()));
            let found = linear_paper(encoder, train, test, *classes, &protocol, Some(state), |count| bar.inc(count));
            drop(bar);
            Ok(found?.linear_paper)
        })
    }
}

impl Knn {
    fn run(self, group: &Group) -> Result<(), CliError> {
        let k = self.k;
        if k == 0 {
            return Err(CliError::Input("-k is 0: at least one neighbour must vote".into()));
        }
        let title = format!("{k} nearest neighbours");
        let classify = |train, test, classes| knn_accuracy(&train, &test, classes, k);
        let settings = json!({ "k": k });
        let what = What { title: &title, evaluation: "knn", settings, classify: Some(&classify) };
        evaluate(&self.target, self.which, &what, group, |encoder, Splits { train, test, classes, .. }, _| {
            if k > train.len() {
                let problem = format!("-k is {k}, but only {} training images can vote", train.len());
                return Err(CliError::Input(problem));
            }
            let (train, test) = features(encoder, train, test)?;
            Ok(knn_accuracy(&train, &test, *classes, k))
        })
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
    let bar = Counter::images("computing features of", data.train.len() + data.test.as_ref().map_or(0, Split::len));
    Ok(measure(encoder, data, |count| bar.inc(count))?)
}

/// Features of both splits with a progress bar.
fn features(encoder: &FrozenEncoder, train: &Split, test: &Split) -> Result<(Labelled, Labelled), CliError> {
    let bar = Counter::images("computing features of", train.len() + test.len());
    Ok(sogclr::eval::features(encoder, train, test, |count| bar.inc(count))?)
}

/// The images of `data` that can be read, and what is wrong with the others; without `data` the run's training images.
pub fn readable_images(run: &TrainedRun, data: Option<&Path>) -> Result<(Split, Vec<String>), CliError> {
    Ok(run.images(data, |count| {
        let bar = Counter::images("checking", count);
        move || bar.inc(1)
    })?)
}

/// What is measured, and how.
struct What<'a> {
    title: &'a str,
    evaluation: &'static str,
    settings: Value,
    /// The same of any features, where the encoder is not needed.
    classify: Option<&'a dyn Fn(Labelled, Labelled, usize) -> Accuracy>,
}

/// What it is measured on.
struct Splits {
    train: Split,
    test: Split,
    classes: usize,
    title: String,
    /// Tells the images apart.
    digest: String,
}

/// Measures the encoders of a run; `measure` is given a file in which a long measurement may keep its state.
fn evaluate(
    target: &Target,
    which: Which,
    what: &What,
    group: &Group,
    measure: impl Fn(&FrozenEncoder, &Splits, &Path) -> Result<Accuracy, CliError>,
) -> Result<(), CliError> {
    let mut run = target.run()?;
    let data = target.open(&mut run)?;
    let newest = say_if_unfinished(&run);
    let (train, test) = labelled_splits(&data)?;
    if data.test.is_none() {
        note!("no test images: every fifth training image of each class is held out from the classifier");
        if run.config.method.spec().needs_labels() && target.data.is_none() {
            note!("warning: {} was trained with the labels of the held-out images", run.config.method.name());
        }
    }
    let digest = train.digest()? + &test.digest()?;
    let splits = Splits { train, test, classes: data.classes.len(), title: data.title, digest };
    let name = run.config.method.name().to_owned();
    let title = format!(
        "{} on {}: {} training, {} test images, {} classes, {} pixels",
        what.title,
        splits.title,
        splits.train.len(),
        splits.test.len(),
        splits.classes,
        run.config.eval_size()
    );
    if !which.json {
        say!("{title}");
    }
    let compute = device_of(target.device.unwrap_or(run.config.train.device), group)?;
    let of = |step: usize, encoder: &str| EvaluationOf {
        evaluation: what.evaluation.into(),
        settings: what.settings.clone(),
        data: splits.title.clone(),
        image_size: run.config.eval_size(),
        step,
        images: short_hash(&splits.digest),
        encoder: encoder.to_owned(),
    };
    let measured = |name: String, step: usize, encoder: FrozenEncoder| -> Result<Row, CliError> {
        let encoder = encoder.cached_in(run.folder().join("features")).shared_by(group);
        let of = of(step, &short_hash(&encoder.digest()));
        let made_of = short_hash(&format!("{} {} {}", of.settings, of.encoder, of.images));
        let state = run.folder().join(format!(".{}-{made_of}.state", of.evaluation));
        let accuracy: Accuracy = run.measured_once(&of, group, || measure(&encoder, &splits, &state))?;
        Ok((name, accuracy))
    };
    let mut rows = Vec::new();
    if which.all_checkpoints {
        let steps_per_epoch = (run.train_len()? / run.config.train.batch).max(1);
        for checkpoint in Run::read_all(&target.run)? {
            let checkpoint = checkpoint?;
            let epoch = (100.0 * checkpoint.step as f64 / steps_per_epoch as f64).round() / 100.0;
            let encoder = run.encoder_at(&checkpoint, compute.clone())?;
            rows.push(measured(format!("{name}, epoch {epoch}"), checkpoint.step, encoder)?);
        }
    } else {
        rows.push(measured(name, newest.unwrap_or_default(), run.encoder(compute.clone())?)?);
    }
    let trained = rows.len();
    if !which.no_untrained {
        rows.push(measured(UNTRAINED.into(), 0, run.untrained_encoder(compute))?);
        if let Some(classify) = what.classify {
            let accuracy = run.measured_once(&of(0, HISTOGRAM), group, || {
                let (train, test) = histograms(&splits)?;
                Ok::<_, CliError>(classify(train, test, splits.classes))
            })?;
            rows.push((HISTOGRAM.into(), accuracy));
        }
    }
    show(&title, &rows, trained, which.json);
    Ok(())
}

/// Name and accuracy.
type Row = (String, Accuracy);

const UNTRAINED: &str = "untrained";
const HISTOGRAM: &str = "colour histogram";

/// Histograms of colours of both splits, with a progress bar.
fn histograms(splits: &Splits) -> Result<(Labelled, Labelled), CliError> {
    let bar = Counter::images("counting the colours of", splits.train.len() + splits.test.len());
    let of = |split: &Split| colour_histograms(split, |count| bar.inc(count));
    Ok((of(&splits.train)?, of(&splits.test)?))
}

/// The table, or JSON, and what it means for the last of the `trained` encoders.
fn show(title: &str, rows: &[Row], trained: usize, json: bool) {
    let (ours, others) = rows.split_at(trained);
    let remarks: Vec<String> =
        ours.last().map_or(Vec::new(), |(_, ours)| others.iter().filter_map(|other| remark(ours, other)).collect());
    if json {
        let rows: Vec<Value> = rows.iter().map(|(name, found)| json!({ "encoder": name, "accuracy": found })).collect();
        let document = json!({ "title": title, "rows": rows, "remarks": remarks });
        say!("{}", serde_json::to_string_pretty(&document).expect("plain data"));
        return;
    }
    let cells =
        rows.iter().map(|(name, found)| vec![name.clone(), accuracy_cell(found), format!("{:.1}", 100.0 * found.top5)]);
    say!("{}", table(&["encoder", "top-1 % (95 % interval)", "top-5 %"], &cells.collect::<Vec<_>>()));
    remarks.iter().for_each(|remark| say!("{remark}"));
}

/// A sentence where the trained encoder is not better than something cheaper, and what to try.
fn remark(ours: &Accuracy, (name, other): &Row) -> Option<String> {
    let how = match ours.against(other) {
        Comparison::Better => return None,
        Comparison::Alike => "is not better than",
        Comparison::Worse => "is WORSE than",
    };
    let (what, advice) = match name.as_str() {
        HISTOGRAM => ("a histogram of colours", "colour tells these classes: train again with --keep colour"),
        _ => (
            "the untrained one",
            "the augmentation may destroy what the task needs (--keep, `sogclr advise DATA`), or it needs more --epochs",
        ),
    };
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let numbers = format!("{} and {} %", percent(ours.top1), percent(other.top1));
    Some(format!("the trained encoder {how} {what} ({numbers}): {advice}"))
}

/// The device of this process among those of its machine.
pub fn device_of(name: DeviceName, group: &Group) -> Result<Compute, CliError> {
    Ok(open_device_of(name, group.place().local_rank)?)
}

/// As much of a hash as tells a few apart.
pub fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_that_is_not_better_is_told_so() {
        let of = |top1: f64| Accuracy { top1, top5: 1.0, interval: [0.0, 1.0], images: 500 };
        let told = |ours: f64, name: &str, other: f64| remark(&of(ours), &(name.to_owned(), of(other)));
        assert_eq!(told(0.6, UNTRAINED, 0.5), None);
        assert!(
            told(0.17, HISTOGRAM, 0.30).unwrap().contains("is WORSE than a histogram of colours (17.0 and 30.0 %)")
        );
        let alike = told(0.52, UNTRAINED, 0.5).unwrap();
        assert!(alike.contains("is not better than the untrained one") && alike.contains("--keep"), "{alike}");
    }
}
