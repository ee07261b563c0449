//! A run from its settings to its end: check the data, make the folder, train, write the summary.

use super::init::Init;
use super::ranks::{check_images, start_alike};
use super::run::narrowed;
use super::trainer::plan;
use super::{Checkpoint, Metrics, Outcome, Run, StepReport, TrainError, Trainer, free_memory_gb, open_for, too_large};
use crate::batch::Share;
use crate::comm::Group;
use crate::config::{ConfigError, RunConfig};
use crate::data::{DataConfig, Dataset, Description, Manifest, Split};
use crate::encoder::{Compute, EncoderConfig, Precision};
use crate::provenance::Provenance;
use crate::storage::write_atomic;
use crate::system::peak_rss_mb;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What training took; the entry `train` of `summary.json`, there once it has finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainSummary {
    /// The method's name.
    pub method: String,
    /// The network.
    pub encoder: EncoderConfig,
    /// Dimension of its features.
    pub feature_dim: usize,
    /// Training images.
    pub samples: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// Training time of the whole run, also where it was resumed.
    pub seconds: f64,
    /// Images of the batch, not views.
    pub images_per_s: f64,
    /// Of the last step; absent where the end was found without training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Of the last step, where the method has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// Most memory resident at once, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_rss_mb: Option<f64>,
    /// Who trained; absent in runs of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl TrainSummary {
    /// Its entry in `summary.json`.
    pub const KEY: &str = "train";
}

/// A run that can begin or go on.
///
/// ```
/// use sogclr::config::{Overrides, RunConfig};
/// use sogclr::data::DataConfig;
/// use sogclr::encoder::{ResNetConfig, ResNetName};
/// use sogclr::train::{Outcome, Pretraining};
/// use std::ops::ControlFlow;
///
/// let images = DataConfig { limit: Some(16), ..Default::default() }; // of the embedded ones
/// let encoder = ResNetConfig { width: 0.25, ..ResNetConfig::for_size(ResNetName::Resnet8, 8) };
/// let settings = Overrides::default().images(&images).image_size(8).encoder(encoder).batch(8).epochs(1);
/// let (config, data) = RunConfig::open(&settings)?;
///
/// let folder = std::env::temp_dir().join(format!("sogclr-doc-{}", std::process::id()));
/// let mut run = Pretraining::new(config, data, &folder)?;
/// let outcome = run.train(|step| {
///     println!("step {} of {}: loss {:.3}", step.step, step.total_steps, step.loss);
///     ControlFlow::Continue(()) // Break stops after a checkpoint
/// })?;
/// assert_eq!((outcome, run.step()), (Outcome::Finished, 2));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pretraining {
    /// Of rank 0 alone.
    run: Option<Run>,
    folder: PathBuf,
    config: RunConfig,
    trainer: Trainer,
    group: Group,
    split: Arc<Split>,
    has_test: bool,
    left_out: Vec<String>,
    warning: Option<String>,
}

impl Pretraining {
    /// Checks every image of the data and makes the run folder `out`, which must not hold anything.
    pub fn new(config: RunConfig, data: Dataset, out: &Path) -> Result<Self, TrainError> {
        Self::begin(config, data, out, Provenance::default(), &Group::solo(), || {})
    }

    /// The same for a program that says what it is, with the other ranks of `group`; `checked` is called once for each image
    /// that this rank checks.
    pub fn begin(
        config: RunConfig,
        data: Dataset,
        out: &Path,
        provenance: Provenance,
        group: &Group,
        checked: impl Fn() + Sync,
    ) -> Result<Self, TrainError> {
        let is_free = if group.is_first() { super::refuse_existing(out) } else { Ok(()) };
        group.together(is_free)?;
        Self::from_the_start(out, None, config, data, provenance, group, checked)
    }

    /// Trains from the first step, in a new folder or in that of a `run` that died before its first checkpoint.
    fn from_the_start(
        out: &Path,
        run: Option<Run>,
        mut config: RunConfig,
        data: Dataset,
        provenance: Provenance,
        group: &Group,
        checked: impl Fn() + Sync,
    ) -> Result<Self, TrainError> {
        group.together(can_begin(&config, group))?;
        let compute = group.together(open_for(&config.train, group.place().local_rank))?;
        start_alike(group, &provenance, &config, &compute)?;
        Share::of(group, config.train.batch, 1, config.train.micro_batch).map_err(ConfigError::from)?;
        // Images that no path leads to are the program's own.
        let described = data.describe_at(config.augment.views[0].size);
        let Dataset { title, train: mut split, test, problems, .. } = data;
        let is_embedded = title == crate::data::EMBEDDED;
        let DataConfig { image_size, eval_size, pixels, .. } = config.data;
        if config.data == (DataConfig { image_size, eval_size, pixels, ..Default::default() }) && !is_embedded {
            config.data.own = Some(title);
        }
        // Weights that do not fit are told before the images are read.
        let init = group.together(Init::read(&config))?;
        let trainer = Trainer::start(&config, split.len(), &compute, init.as_ref());
        let mut trainer = group.together(trainer)?.by(provenance.clone());
        let (settings, mut notes) = ((&config.data, config.seed), Vec::new());
        let (mut manifest, mut bad) = check_images(group, &mut split, settings, &mut notes, &checked)?;
        let has_test = test.is_some();
        if let Some(mut test) = test {
            bad.extend(check_images(group, &mut test, settings, &mut notes, &checked)?.1);
        }
        if !bad.is_empty() {
            // What fitted all images may not fit those that are left.
            config.validate(&Description { samples: split.len(), ..described.clone() })?;
        }
        if split.len() != described.samples {
            trainer = trainer.on(split.len());
        }
        if let Some(init) = init {
            let (known, said) = group.together(init.carry(&mut manifest, trainer.state()))?;
            known.into_iter().for_each(|known| *trainer.state() = known);
            notes.extend(said);
        }
        trainer.share(group)?;
        group.together(split.watch(&mut manifest, config.data.verify_content))?;
        let left_out = [problems, bad].concat();
        let create = || {
            let run = match run {
                Some(mut run) => {
                    run.keep_precision(config.train.precision)?;
                    run.begin(&mut manifest, &provenance)?;
                    run
                }
                None => Run::create(out, config.clone(), &mut manifest, &provenance)?,
            };
            if !left_out.is_empty() {
                write_atomic(&out.join("problems.txt"), (left_out.join("\n") + "\n").as_bytes())?;
            }
            Ok::<_, TrainError>(run)
        };
        let run = group.together(group.is_first().then(create).transpose())?;
        let (folder, group, split) = (out.to_owned(), group.clone(), Arc::new(split));
        let warning = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Self { run, folder, config, trainer, group, split, has_test, left_out, warning })
    }

    /// Goes on with the run in `folder`, which rank 0 alone needs to reach, from its last whole checkpoint, or from the
    /// beginning where it died before its first. The number of ranks may be another than before.
    pub fn resume(folder: &Path, provenance: Provenance, group: &Group) -> Result<Self, TrainError> {
        Self::resume_as(folder, None, provenance, group)
    }

    /// The same with activations stored as `precision` from there on, if it is given: the run's `config.toml` says so, and
    /// [`Pretraining::warning`] what it costs.
    pub fn resume_as(
        folder: &Path,
        precision: Option<Precision>,
        provenance: Provenance,
        group: &Group,
    ) -> Result<Self, TrainError> {
        let (run, mut config) = open_run(folder, group)?;
        config.train.precision = precision.unwrap_or(config.train.precision);
        if is_unbegun(run.as_ref(), group) {
            let data = group.together(Dataset::open(&config.data, config.seed))?;
            return Self::begin_again(folder, run, config, data, provenance, group);
        }
        let data = group.together(Run::open_all_data_of(folder, &config))?;
        Self::go_on(folder, run, config, data, provenance, group)
    }

    /// The same on images that the program brings itself, which are checked against the run's manifest. A method of the
    /// program comes with `config`, the configuration that the run was begun with.
    pub fn resume_with(
        folder: &Path,
        config: RunConfig,
        data: Dataset,
        provenance: Provenance,
        group: &Group,
    ) -> Result<Self, TrainError> {
        let (run, kept) = open_run(folder, group)?;
        let config = RunConfig { method: config.method, ..kept };
        match is_unbegun(run.as_ref(), group) {
            true => Self::begin_again(folder, run, config, data, provenance, group),
            false => Self::go_on(folder, run, config, data, provenance, group),
        }
    }

    fn begin_again(
        folder: &Path,
        run: Option<Run>,
        config: RunConfig,
        data: Dataset,
        provenance: Provenance,
        group: &Group,
    ) -> Result<Self, TrainError> {
        config.validate(&data.describe_at(config.augment.views[0].size))?;
        let begun = Self::from_the_start(folder, run, config, data, provenance, group, || {})?;
        let again = "it stopped before its first checkpoint: starting from the beginning".to_owned();
        let warning = Some(begun.warning.iter().fold(again, |all, note| format!("{all}; {note}")));
        Ok(Self { warning, ..begun })
    }

    fn go_on(
        folder: &Path,
        run: Option<Run>,
        config: RunConfig,
        data: Dataset,
        provenance: Provenance,
        group: &Group,
    ) -> Result<Self, TrainError> {
        let compute = group.together(open_for(&config.train, group.place().local_rank))?;
        start_alike(group, &provenance, &config, &compute)?;
        let mut manifest = shared_manifest(folder, run.as_ref(), group)?;
        let mut data = group.together(narrowed(&config, &mut manifest, data))?;
        group.together(data.train.watch(&mut manifest, config.data.verify_content))?;
        let checkpoint = newest(folder, run.as_ref(), group)?;
        let (folder, notes, left_out) = (folder.to_owned(), Vec::new(), Vec::new());
        let found = Found { folder, run, config, data, checkpoint, notes, left_out };
        Self::restored(found, &compute, provenance, group)
    }

    /// Goes on from a checkpoint.
    pub(super) fn restored(
        found: Found,
        compute: &Compute,
        provenance: Provenance,
        group: &Group,
    ) -> Result<Self, TrainError> {
        let Found { folder, mut run, config, data, checkpoint: (checkpoint, broken), notes, left_out } = found;
        let unlike = "it will not end with the bytes of an uninterrupted run";
        let (step, before, now) = (checkpoint.step, checkpoint.provenance.numerics, provenance.numerics);
        let (stored, precision) = (checkpoint.precision(), config.train.precision);
        let looked = run.as_ref().map_or(Ok(Vec::new()), |run| notice(run, &checkpoint, &data.train, notes.is_empty()));
        let noticed = group.together(looked)?;
        let trainer = Trainer::restore(&config, data.train.len(), checkpoint, compute);
        let trainer = group.together(trainer)?.by(provenance);
        trainer.share(group)?;
        let goes_on = trainer.step() < trainer.plan().total_steps();
        let warnings = [
            broken.map(|error| format!("going back to step {step}: {error}")),
            (before != now).then(|| format!("the run began with numerics {before} and goes on with {now}: {unlike}")),
            (goes_on && stored != precision).then(|| {
                format!("activations were stored as {stored} until now and are {precision} from here: {unlike}")
            }),
        ];
        let warnings: Vec<String> = warnings.into_iter().flatten().chain(notes).chain(noticed).collect();
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        // The checkpoints that follow say it, and so does what the next resume reads.
        let keep = |run: &mut Run| run.keep_precision(precision);
        group.together(run.as_mut().filter(|_| goes_on).map(keep).transpose())?;
        let (has_test, split, group) = (data.test.is_some(), Arc::new(data.train), group.clone());
        Ok(Self { run, folder, config, trainer, group, split, has_test, left_out, warning })
    }

    /// Where the run lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The settings of the run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The images that are trained on.
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// Whether the data has images for testing.
    pub fn has_test(&self) -> bool {
        self.has_test
    }

    /// Steps done.
    pub fn step(&self) -> usize {
        self.trainer.step()
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> usize {
        self.trainer.plan().total_steps()
    }

    /// What cannot be read and was left out, a sentence each.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// What the user should know.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The state of the run as it is now, also after an error.
    pub fn checkpoint(&self) -> Checkpoint {
        self.trainer.checkpoint()
    }

    /// Trains to the end, or until `observe` breaks; checkpoints are written on the way. At the end the summary is written.
    pub fn train(&mut self, mut observe: impl FnMut(&StepReport) -> ControlFlow<()>) -> Result<Outcome, TrainError> {
        if self.step() == self.total_steps() {
            if Run::read_entry::<TrainSummary>(&self.folder, TrainSummary::KEY).is_none() {
                self.summarise(None)?;
            }
            return Ok(Outcome::Finished);
        }
        let mut last = None;
        let outcome = self.trainer.train(self.run.as_ref(), self.split.clone(), &self.group, |report| {
            last = Some((report.loss, report.objective));
            observe(report)
        })?;
        if outcome == Outcome::Finished {
            self.summarise(last)?;
        }
        Ok(outcome)
    }

    /// Writes the `train` entry of `summary.json`; `last` is what only a run to its end knows.
    fn summarise(&self, last: Option<(f64, Option<f64>)>) -> Result<(), TrainError> {
        let Some(run) = &self.run else { return Ok(()) };
        let config = &self.config;
        let (seconds, images) = Metrics::time(&run.metrics_path(), config.train.batch);
        let summary = TrainSummary {
            method: config.method.name().to_owned(),
            encoder: config.encoder.clone(),
            feature_dim: config.encoder.feature_dim(),
            samples: self.split.len(),
            steps: self.trainer.step(),
            seconds,
            images_per_s: images / seconds.max(1e-9),
            loss: last.map(|(loss, _)| loss),
            objective: last.and_then(|(_, objective)| objective),
            peak_rss_mb: last.and_then(|_| peak_rss_mb()),
            provenance: Some(self.trainer.provenance().clone()),
        };
        Ok(Run::set_entry(run.folder(), TrainSummary::KEY, &summary)?)
    }
}

/// What can be known before the images are read.
fn can_begin(config: &RunConfig, group: &Group) -> Result<(), TrainError> {
    if let Some(init) = config.train.init.as_ref().filter(|path| !path.exists()) {
        return Err(TrainError::NoInit(init.clone()));
    }
    match free_memory_gb().and_then(|free| too_large(config, free * group.size() as f64)) {
        Some(problem) => Err(TrainError::Memory(problem)),
        None => Ok(()),
    }
}

/// What a run goes on with.
pub(super) struct Found {
    pub folder: PathBuf,
    /// Of rank 0 alone.
    pub run: Option<Run>,
    pub config: RunConfig,
    pub data: Dataset,
    /// The newest that is whole, and what is wrong with the one after it.
    pub checkpoint: (Checkpoint, Option<TrainError>),
    pub notes: Vec<String>,
    pub left_out: Vec<String>,
}

/// The newest checkpoint that rank 0 can read.
pub(super) fn newest(
    folder: &Path,
    run: Option<&Run>,
    group: &Group,
) -> Result<(Checkpoint, Option<TrainError>), TrainError> {
    let found = group.together(run.map(Run::latest).transpose())?;
    Ok(match found {
        Some((checkpoint, broken)) if group.size() > 1 => {
            group.from_first(checkpoint.to_bytes());
            (checkpoint, broken)
        }
        Some(found) => found,
        None => (Checkpoint::from_bytes(&group.from_first(Vec::new()), folder)?, None),
    })
}

/// The manifest, which rank 0 alone can read.
pub(super) fn shared_manifest(folder: &Path, run: Option<&Run>, group: &Group) -> Result<Manifest, TrainError> {
    let manifest = group.together(run.map(|_| Manifest::open(folder)).transpose())?;
    let shared = match manifest {
        Some(manifest) if group.size() == 1 => Ok(manifest),
        Some(mut manifest) => {
            let bytes = manifest.to_bytes();
            group.from_first(bytes.as_deref().unwrap_or_default().to_vec());
            bytes.map(|_| manifest)
        }
        None => Ok(Manifest::from_bytes(group.from_first(Vec::new()))),
    };
    Ok(group.together(shared)?)
}

/// Whether the run died before its first checkpoint, on every rank.
fn is_unbegun(run: Option<&Run>, group: &Group) -> bool {
    group.any(run.is_some_and(Run::is_unbegun))
}

/// What is not as the run left it and does not keep it from going on, a sentence each; the encoder is written again.
fn notice(run: &Run, checkpoint: &Checkpoint, split: &Split, is_same_data: bool) -> Result<Vec<String>, TrainError> {
    let mended = run.mend_encoder(checkpoint)?;
    let plan = plan(&run.config, split.len());
    let lost = match is_same_data {
        true => {
            let steps = (run.adopted_at(), checkpoint.step);
            Metrics::lost(&run.metrics_path(), steps, plan.steps_per_epoch(), plan.total_steps())?
        }
        // Other images, another number of steps between lines.
        false => None,
    };
    let mended = mended.then(|| "encoder.safetensors was missing or damaged: written again from the checkpoint".into());
    Ok([Run::edited(run.folder())?, lost, mended].into_iter().flatten().collect())
}

/// The run, on rank 0, and its configuration.
pub(super) fn open_run(folder: &Path, group: &Group) -> Result<(Option<Run>, RunConfig), TrainError> {
    let run = group.together(group.is_first().then(|| Run::open(folder)).transpose())?;
    let config = group.from_first(run.as_ref().map_or(Vec::new(), |run| run.config.to_toml().into_bytes()));
    let config = match &run {
        Some(run) => run.config.clone(),
        None => Run::config_from_toml(folder, &String::from_utf8_lossy(&config))?,
    };
    Ok((run, config))
}
