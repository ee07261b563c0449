//! A run from its settings to its end: check the data, make the folder, train, write the summary.

use super::{Checkpoint, Metrics, Outcome, Run, StepReport, TrainError, Trainer, free_memory_gb, too_large};
use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::{DataConfig, Dataset, Manifest, Split};
use crate::encoder::EncoderConfig;
use crate::provenance::Provenance;
use crate::storage::write_atomic;
use crate::system::peak_rss_mb;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::Path;
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
    run: Run,
    trainer: Trainer,
    split: Arc<Split>,
    has_test: bool,
    left_out: Vec<String>,
    warning: Option<String>,
}

impl Pretraining {
    /// Checks every image of the data and makes the run folder `out`, which must not hold anything.
    pub fn new(config: RunConfig, data: Dataset, out: &Path) -> Result<Self, TrainError> {
        Self::begin(config, data, out, Provenance::default(), || {})
    }

    /// The same for a program that says what it is; `checked` is called once for each image.
    pub fn begin(
        mut config: RunConfig,
        data: Dataset,
        out: &Path,
        provenance: Provenance,
        checked: impl Fn() + Sync,
    ) -> Result<Self, TrainError> {
        super::refuse_existing(out)?;
        if let Some(init) = config.train.init.as_ref().filter(|path| !path.exists()) {
            return Err(TrainError::NoInit(init.clone()));
        }
        if let Some(problem) = free_memory_gb().and_then(|free| too_large(&config, free)) {
            return Err(TrainError::Memory(problem));
        }
        // Images that no path leads to are the program's own.
        let described = data.describe_at(config.augment.views[0].size);
        let Dataset { title, train: mut split, test, problems, .. } = data;
        let is_embedded = title == crate::data::EMBEDDED;
        let DataConfig { image_size, eval_size, .. } = config.data;
        if config.data == (DataConfig { image_size, eval_size, ..Default::default() }) && !is_embedded {
            config.data.own = Some(title);
        }
        let (manifest, mut bad) = Manifest::build(&mut split, config.data.skip_bad, &checked)?;
        let has_test = test.is_some();
        if let Some(mut test) = test {
            bad.extend(Manifest::build(&mut test, config.data.skip_bad, &checked)?.1);
        }
        if !bad.is_empty() {
            // What fitted all images may not fit those that are left.
            config.validate(&crate::data::Description { samples: split.len(), ..described })?;
        }
        let trainer = Trainer::new(&config, split.len())?.by(provenance.clone());
        let run = Run::create(out, config, &manifest, &provenance)?;
        let left_out = [problems, bad].concat();
        if !left_out.is_empty() {
            write_atomic(&out.join("problems.txt"), (left_out.join("\n") + "\n").as_bytes())?;
        }
        Ok(Self { run, trainer, split: Arc::new(split), has_test, left_out, warning: None })
    }

    /// Goes on with the run in `folder` from its last whole checkpoint.
    pub fn resume(folder: &Path, provenance: Provenance) -> Result<Self, TrainError> {
        let run = Run::open(folder)?;
        let data = run.open_data()?;
        Self::go_on(run, data, provenance)
    }

    /// The same on images that the program brings itself, which are checked against the run's manifest. A method of the
    /// program comes with `config`, the configuration that the run was begun with.
    pub fn resume_with(
        folder: &Path,
        config: RunConfig,
        data: Dataset,
        provenance: Provenance,
    ) -> Result<Self, TrainError> {
        let mut run = Run::open(folder)?;
        let data = run.check_data(data)?;
        run.config.method = config.method;
        Self::go_on(run, data, provenance)
    }

    fn go_on(run: Run, data: Dataset, provenance: Provenance) -> Result<Self, TrainError> {
        let (checkpoint, broken) = run.latest()?;
        let warning = match (broken, checkpoint.provenance.numerics, provenance.numerics) {
            (Some(error), ..) => Some(format!("going back to step {}: {error}", checkpoint.step)),
            (None, before, now) if before != now => Some(format!(
                "the run began with numerics {before} and goes on with {now}: it will not end with the bytes of an \
                 uninterrupted run"
            )),
            _ => None,
        };
        let trainer = Trainer::restore(&run.config, data.train.len(), checkpoint)?.by(provenance);
        let has_test = data.test.is_some();
        Ok(Self { run, trainer, split: Arc::new(data.train), has_test, left_out: Vec::new(), warning })
    }

    /// The run folder.
    pub fn run(&self) -> &Run {
        &self.run
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

    /// What the user of a resumed run should know.
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
            if self.run.entry::<TrainSummary>(TrainSummary::KEY).is_none() {
                self.summarise(None)?;
            }
            return Ok(Outcome::Finished);
        }
        let mut last = None;
        let outcome = self.trainer.train(&self.run, self.split.clone(), &Group::solo(), |report| {
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
        let config = &self.run.config;
        let (seconds, images) = Metrics::time(&self.run.metrics_path(), config.train.batch);
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
        Ok(Run::set_entry(self.run.folder(), TrainSummary::KEY, &summary)?)
    }
}
