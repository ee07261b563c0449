//! `sogclr eval retrieval` and `sogclr eval zeroshot`: what image and text encoder do together.

use super::eval::{Target, device_of, open_run, say_if_unfinished, short_hash};
use crate::error::CliError;
use crate::output::{note, say};
use crate::progress::Counter;
use clap::Args;
use serde_json::{Value, json};
use sogclr::comm::Group;
use sogclr::config::DeviceName;
use sogclr::data::{Dataset, Manifest, Split, pairs};
use sogclr::eval::{
    Accuracy, EvalError, PairEncoders, Recall, Retrieval, TEMPLATES, class_weights, clip_templates, zero_shot,
};
use sogclr::math::UnitRows;
use sogclr::report::{accuracy_cell, table};
use sogclr::train::Run;
use sogclr::trained::{EvaluationOf, held_out_pairs};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Find captions for images and images for captions, among held-out pairs.
///
/// Prints recall at 1, 5 and 10: the share of images that have one of their captions among the first k of all, and the share
/// of captions that have their image among the first k. Warns if the run was trained on some of the images. Results also go
/// to RUN/summary.json.
#[derive(Args)]
pub struct RetrievalVerb {
    /// Folder that `sogclr pretrain --pairs … --out` made
    run: PathBuf,
    /// Held-out pairs, any file that --pairs takes; the test pairs of the run's own data if left out
    pairs: Option<PathBuf>,
    /// Folder or .zip with the images of PAIRS; beside the table unless given
    #[arg(long, value_name = "DIR", requires = "pairs")]
    images: Option<PathBuf>,
    /// Leave out images and captions that cannot be used
    #[arg(long)]
    skip_bad: bool,
    /// Side of the images in pixels; the run's own size of evaluation unless given
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    device: Option<DeviceName>,
}

/// Classify images by the names of their classes, without training on them.
///
/// Every class is the mean of its prompts: each template with the class's name in place of [CLASS]. Without --templates a
/// short list is used. The names of ImageNet-S's classes are built in; `scripts/get-clip-assets` fetches those of ImageNet. Warns if
/// DATA has no test images of its own and the run was trained on it. Results also go to RUN/summary.json.
#[derive(Args)]
pub struct ZeroShotVerb {
    #[command(flatten)]
    target: Target,
    /// File with one template on each line, the class written as [CLASS] or {}; `clip` for CLIP's 80, which the paper uses
    #[arg(long, value_name = "FILE")]
    templates: Option<PathBuf>,
    /// File with the names of the classes: one on each line, or folder, tab and name; the names of the folders unless given
    ///
    /// Names alone are one for each class, in the order of the sorted folders, or of --classes. Lines of folder, tab and
    /// name may be in any order and name more classes than there are.
    #[arg(long, value_name = "FILE")]
    class_names: Option<PathBuf>,
}

/// Unit-norm embeddings of a split's images, with a progress bar.
pub fn image_rows(encoders: &PairEncoders, split: &Split) -> Result<UnitRows, CliError> {
    let bar = Counter::images("embedding", split.len());
    Ok(encoders.images(split, |count| bar.inc(count))?)
}

/// Recall among the pairs of a split, with a progress bar.
pub fn retrieval(encoders: &PairEncoders, split: &Split) -> Result<Retrieval, CliError> {
    let captions: usize = (0..split.len()).map(|id| split.captions(id).len()).sum();
    let bar = Counter::new("embedding images and captions", split.len() + captions);
    Ok(encoders.retrieval(split, |count| bar.inc(count))?)
}

pub const RETRIEVAL_HEADER: [&str; 8] =
    ["", "text R@1 %", "R@5 %", "R@10 %", "image R@1 %", "R@5 %", "R@10 %", "mean %"];

/// One row of a table with [`RETRIEVAL_HEADER`].
pub fn retrieval_cells(name: &str, found: &Retrieval) -> Vec<String> {
    let of = |recall: &Recall| [recall.at1, recall.at5, recall.at10];
    let shares = [&of(&found.image_to_text)[..], &of(&found.text_to_image), &[found.mean_recall]].concat();
    std::iter::once(name.to_owned()).chain(shares.iter().map(|share| format!("{:.1}", 100.0 * share))).collect()
}

/// Checks every image of a split, and warns if the run in `folder` was trained on some of them.
fn check_held_out(folder: &Path, split: &mut Split, skip_bad: bool) -> Result<(), CliError> {
    let bar = Counter::images("checking", split.len());
    let (mut images, bad) = Manifest::build(split, skip_bad, || bar.inc(1))?;
    drop(bar);
    if let Some(first) = bad.first() {
        note!("left out {} unreadable images, first: {first}", bad.len());
    }
    let (mut trained, mut seen) = (HashSet::new(), 0);
    Manifest::open(folder)?.each_entry(|entry| trained.extend(entry.hash))?;
    images.each_entry(|entry| seen += usize::from(entry.hash.is_some_and(|hash| trained.contains(&hash))))?;
    if seen > 0 {
        note!("warning: the run was trained on {seen} of these {} images, so they are not held out", split.len());
    }
    Ok(())
}

impl RetrievalVerb {
    /// On the run's own held-out pairs.
    pub fn of_run(run: &Path) -> Self {
        Self { run: run.to_owned(), pairs: None, images: None, skip_bad: false, image_size: None, device: None }
    }

    pub fn run(self, group: &Group) -> Result<(), CliError> {
        let mut run = open_run(&self.run, self.image_size)?;
        run.config.data.skip_bad |= self.skip_bad;
        let (config, skip_bad) = (&run.config, run.config.data.skip_bad);
        let compute = device_of(self.device.unwrap_or(config.train.device), group)?;
        let encoders = run.pair_encoders(compute.clone())?.shared_by(group);
        let data = match self.pairs {
            None => {
                let data = Run::open_data_of(&self.run, config)?;
                let held_out = config.data.test.as_ref().map(|path| path.display().to_string());
                Dataset { title: held_out.unwrap_or(data.title), ..data }
            }
            Some(pairs) => {
                let data = pairs::open(&pairs, self.images.as_deref(), skip_bad)?;
                Dataset { test: data.test.or(Some(data.train.clone())), ..data }
            }
        };
        if let Some(first) = data.problems.first() {
            note!("left out {} of the pairs, first: {first}", data.problems.len());
        }
        let title = data.title.clone();
        let mut split = held_out_pairs(data)?;
        check_held_out(&self.run, &mut split, skip_bad)?;
        let step = say_if_unfinished(&run);
        let images = short_hash(&split.digest()?);
        let measured = |step: usize, encoders: &PairEncoders| {
            let of = EvaluationOf {
                evaluation: "retrieval".into(),
                settings: Value::Null,
                data: title.clone(),
                image_size: config.eval_size(),
                step,
                images: images.clone(),
                encoder: short_hash(&encoders.digest()),
            };
            run.measured_once(&of, group, || retrieval(encoders, &split))
        };
        let result = measured(step.unwrap_or_default(), &encoders)?;
        let untrained = measured(0, &run.untrained_pair_encoders(compute)?.shared_by(group))?;
        let chance = PairEncoders::chance(&split);
        say!("retrieval on {title}: {} images, {} captions", result.images, result.captions);
        let rows = [
            retrieval_cells(config.method.name(), &result),
            retrieval_cells("untrained", &untrained),
            retrieval_cells("chance", &chance),
        ];
        say!("{}", table(&RETRIEVAL_HEADER, &rows));
        Ok(())
    }
}

impl ZeroShotVerb {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        if self.target.limit.is_some() {
            let problem = "zero-shot classification uses no training images: leave --limit out";
            return Err(CliError::Input(problem.into()));
        }
        let mut run = self.target.run()?;
        run.config.data.skip_bad |= self.target.skip_bad;
        let encoders = run.pair_encoders(device_of(self.target.device.unwrap_or(run.config.train.device), group)?)?;
        let encoders = encoders.shared_by(group);
        let (own_names, skip_bad) = (run.config.data.class_names.clone(), run.config.data.skip_bad);
        let templates = match &self.templates {
            Some(name) if name == Path::new("clip") => clip_templates(),
            Some(file) => lines(file)?,
            None => TEMPLATES.iter().map(|&template| template.to_owned()).collect(),
        };
        let bare = templates.iter().find(|template| !template.contains("[CLASS]") && !template.contains("{}"));
        if let (Some(template), Some(file)) = (bare, &self.templates) {
            let problem = format!("{}: {template:?} has no [CLASS] where the name belongs", file.display());
            return Err(CliError::Input(problem));
        }
        let data = self.target.open(&mut run)?;
        let config = &run.config;
        match data.classes.len() {
            0 => return Err(EvalError::NoLabels(data.title).into()),
            1 => return Err(EvalError::OneClass(data.title).into()),
            _ => {}
        }
        let own_names = own_names.as_deref().filter(|_| self.target.data.is_none());
        let names = pairs::class_names(&data, self.class_names.as_deref().or(own_names))?;
        let own = || CliError::Input("the run's own data has no test images: name labelled ones as DATA".into());
        let split = match (data.test, &self.target.data) {
            (Some(test), _) => test,
            (None, Some(_)) => {
                let mut split = data.train;
                check_held_out(&self.target.run, &mut split, skip_bad)?;
                split
            }
            (None, None) => return Err(own()),
        };
        if !split.is_labelled() {
            return Err(EvalError::NoLabels(data.title).into());
        }
        let of = EvaluationOf {
            evaluation: "zeroshot".into(),
            settings: json!({ "templates": templates.len(), "prompts": short_hash(&format!("{templates:?} {names:?}")) }),
            data: data.title.clone(),
            image_size: config.eval_size(),
            step: run.step().unwrap_or_default(),
            images: short_hash(&split.digest()?),
            encoder: short_hash(&encoders.digest()),
        };
        let accuracy: Accuracy = run.measured_once(&of, group, || -> Result<Accuracy, CliError> {
            let bar = Counter::new("prompts", names.len() * templates.len());
            let classes = class_weights(&encoders.text, &names, &templates, |count| bar.inc(count))?;
            drop(bar);
            let images = image_rows(&encoders, &split)?;
            let labels: Vec<u32> = (0..split.len()).filter_map(|id| split.label(id)).collect();
            Ok(zero_shot(&images, &classes, &labels))
        })?;
        say!(
            "zero-shot on {}: {} images, {} classes, {} templates",
            data.title,
            split.len(),
            names.len(),
            templates.len()
        );
        let row = vec![
            config.method.name().to_owned(),
            accuracy_cell(&accuracy),
            format!("{:.1}", 100.0 * accuracy.top5),
            format!("{:.1}", 100.0 / names.len() as f64),
        ];
        say!("{}", table(&["method", "top-1 % (95 % interval)", "top-5 %", "chance %"], &[row]));
        Ok(())
    }
}

/// The lines of a file that are not empty.
fn lines(file: &Path) -> Result<Vec<String>, CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::Input(format!("cannot read {}: {error}", file.display())))?;
    let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(CliError::Input(format!("{} is empty: write one entry on each line", file.display()))),
        false => Ok(lines),
    }
}
