//! What a finished run offers: its encoder, its data, and what they reach together.

mod results;

pub use results::EvaluationOf;

use crate::check::Problem;
use crate::config::RunConfig;
use crate::data::pairs::class_names;
use crate::data::{DataError, Dataset, Manifest, Split, open_images_as};
use crate::encoder::Compute;
use crate::eval::{
    EvalError, FrozenEncoder, FrozenText, Measured, PairEncoders, PaperMeasured, PaperProtocol, Retrieval, ZeroShot,
    class_weights, clip_templates, labelled_splits, linear_paper, measure, zero_shot,
};
use crate::params::NamedTensors;
use crate::storage::{StorageError, load_tensors};
use crate::study::{Measure, Outcome};
use crate::train::{Checkpoint, Run, TrainError, TrainSummary};
use std::path::{Path, PathBuf};

/// What can go wrong with a run that is only looked at.
#[derive(Debug, thiserror::Error)]
pub enum TrainedError {
    /// Its folder, its settings or its data.
    #[error(transparent)]
    Run(#[from] TrainError),
    /// The measurement.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A file.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Weights that do not fit the settings.
    #[error("{path}: {source}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: EvalError,
    },
    /// A run of images alone.
    #[error("{}: {}", .0.display(), EvalError::NoText)]
    NoText(PathBuf),
    /// Nothing was held out.
    #[error("{0} has no test pairs: train with held-out pairs as data.test, or name some")]
    NoTestPairs(String),
}

impl From<DataError> for TrainedError {
    fn from(error: DataError) -> Self {
        Self::Run(error.into())
    }
}

/// A run folder that is only looked at; training may go on meanwhile.
///
/// ```no_run
/// use sogclr::data::open_images;
/// use sogclr::encoder::Compute;
/// use sogclr::trained::TrainedRun;
///
/// let run = TrainedRun::open("runs/photos".as_ref())?;
/// let encoder = run.encoder(Compute::cpu())?;
/// let photos = open_images("new-photos".as_ref())?;
/// let features = encoder.extract(&photos, |_| {})?.features; // [images, dimension]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TrainedRun {
    folder: PathBuf,
    /// The settings it was trained with.
    pub config: RunConfig,
}

impl TrainedRun {
    /// Reads the settings of a run folder.
    pub fn open(folder: &Path) -> Result<Self, TrainedError> {
        Ok(Self { folder: folder.to_owned(), config: Run::read_config(folder)? })
    }

    /// Has images evaluated at another size than the run says.
    pub fn set_eval_size(&mut self, size: usize) -> Result<(), Problem> {
        self.config.check_eval_size(size)?;
        self.config.data.eval_size = Some(size);
        Ok(())
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A sentence if its settings are not those that the run began with: edited, or damaged.
    pub fn edited(&self) -> Result<Option<String>, TrainedError> {
        Ok(Run::edited(&self.folder)?)
    }

    /// The step of the newest checkpoint, which the encoder is of.
    pub fn step(&self) -> Option<usize> {
        Run::newest_step(&self.folder)
    }

    /// Training images, by the run's manifest.
    pub fn train_len(&self) -> Result<usize, TrainedError> {
        Ok(Manifest::open(&self.folder)?.count()?)
    }

    /// What training took; `None` until it has finished.
    pub fn summary(&self) -> Option<TrainSummary> {
        Run::read_entry(&self.folder, TrainSummary::KEY)
    }

    /// The run's own data, narrowed to its manifest, and the test images that can be read.
    pub fn data(&self) -> Result<Dataset, TrainedError> {
        let mut data = Run::open_data_of(&self.folder, &self.config)?;
        leave_out_bad_tests(&mut data, &self.config)?;
        Ok(data)
    }

    /// The images of a folder or .zip that can be read, and what is wrong with the others; without one the run's training
    /// images. `checked` is called with the number of images, and gives what to call for each.
    pub fn images<P: Fn() + Sync>(
        &self,
        path: Option<&Path>,
        checking: impl FnOnce(usize) -> P,
    ) -> Result<(Split, Vec<String>), TrainedError> {
        let Some(path) = path else { return Ok((Run::open_data_of(&self.folder, &self.config)?.train, Vec::new())) };
        let mut split =
            open_images_as(path, self.config.data.pixels)?.ignore_orientation(self.config.data.ignore_orientation);
        let checked = checking(split.len());
        let (_, bad) = Manifest::build(&mut split, true, checked)?;
        Ok((split, bad))
    }

    fn weights(&self) -> Result<(PathBuf, NamedTensors), TrainedError> {
        let path = self.folder.join("encoder.safetensors");
        if !path.exists() {
            return Err(TrainError::NoCheckpoint(self.folder.clone()).into());
        }
        let (weights, _) = load_tensors(&path).map_err(|error| match error {
            StorageError::Damaged { path, .. } => {
                StorageError::Damaged { path, fix: "resume the run, which writes it again from its last checkpoint" }
            }
            other => other,
        })?;
        Ok((path, weights))
    }

    /// The newest encoder as it stands in `encoder.safetensors`.
    pub fn exported_weights(&self) -> Result<NamedTensors, TrainedError> {
        Ok(self.weights()?.1)
    }

    /// The trained image encoder.
    pub fn encoder(&self, compute: Compute) -> Result<FrozenEncoder, TrainedError> {
        let (path, weights) = self.weights()?;
        self.encoder_of(&path, &weights, compute)
    }

    fn encoder_of(&self, path: &Path, weights: &NamedTensors, compute: Compute) -> Result<FrozenEncoder, TrainedError> {
        FrozenEncoder::load(&self.config.model(), weights, &self.config.augment, self.config.eval_size(), compute)
            .map_err(|source| TrainedError::Weights { path: path.to_owned(), source })
    }

    /// The image encoder as a checkpoint has it.
    pub fn encoder_at(&self, checkpoint: &Checkpoint, compute: Compute) -> Result<FrozenEncoder, TrainedError> {
        self.encoder_of(&self.folder.join("checkpoints"), &Run::exported(&self.config, checkpoint), compute)
    }

    /// The encoder that the run started from, for comparison.
    pub fn untrained_encoder(&self, compute: Compute) -> FrozenEncoder {
        let RunConfig { seed, augment, .. } = &self.config;
        FrozenEncoder::untrained(&self.config.model(), *seed, augment, self.config.eval_size(), compute)
    }

    /// Both encoders of image–text pairs.
    pub fn pair_encoders(&self, compute: Compute) -> Result<PairEncoders, TrainedError> {
        if self.config.text.is_none() {
            return Err(TrainedError::NoText(self.folder.clone()));
        }
        let (path, weights) = self.weights()?;
        let image = self.encoder_of(&path, &weights, compute.clone())?;
        let text = FrozenText::load(&self.config.model(), &weights, compute)
            .map_err(|source| TrainedError::Weights { path, source })?;
        Ok(PairEncoders { image, text })
    }

    /// The encoders of image–text pairs that the run started from.
    pub fn untrained_pair_encoders(&self, compute: Compute) -> Result<PairEncoders, TrainedError> {
        let image = self.untrained_encoder(compute.clone());
        Ok(PairEncoders { image, text: FrozenText::untrained(&self.config.model(), self.config.seed, compute)? })
    }

    /// Linear and nearest-neighbour accuracy of an image encoder on the run's own data.
    pub fn measure(&self, encoder: &FrozenEncoder, progress: impl Fn(usize) + Sync) -> Result<Measured, TrainedError> {
        Ok(measure(encoder, &self.data()?, progress)?)
    }

    /// Recall of encoders of pairs among the run's own held-out pairs.
    pub fn retrieval(
        &self,
        encoders: &PairEncoders,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Retrieval, TrainedError> {
        Ok(encoders.retrieval(&held_out_pairs(self.data()?)?, progress)?)
    }

    /// Linear accuracy of an image encoder by the paper's protocol on the run's own data; stopped, it goes on.
    pub fn measure_as_paper(
        &self,
        encoder: &FrozenEncoder,
        progress: impl Fn(usize) + Sync,
    ) -> Result<PaperMeasured, TrainedError> {
        let data = self.data()?;
        let (train, test) = labelled_splits(&data)?;
        let state = self.folder.join(format!(".linear-{:.16}.state", encoder.digest()));
        let (classes, protocol) = (data.classes.len(), PaperProtocol::default());
        Ok(linear_paper(encoder, &train, &test, classes, &protocol, Some(&state), progress)?)
    }

    /// Zero-shot accuracy of encoders of pairs on the run's own labelled test images, with CLIP's 80 prompts.
    pub fn zero_shot(
        &self,
        encoders: &PairEncoders,
        progress: impl Fn(usize) + Sync,
    ) -> Result<ZeroShot, TrainedError> {
        let data = self.data()?;
        let names = class_names(&data, self.config.data.class_names.as_deref())?;
        let test = held_out_pairs(data)?;
        if !test.is_labelled() {
            return Err(EvalError::NoLabels("the test split".into()).into());
        }
        let classes = class_weights(&encoders.text, &names, &clip_templates(), &progress)?;
        let labels: Vec<u32> = (0..test.len()).filter_map(|id| test.label(id)).collect();
        Ok(ZeroShot { zero_shot: zero_shot(&encoders.images(&test, progress)?, &classes, &labels) })
    }

    /// What the trained encoder reaches on the run's own data, or the one that it started from.
    pub fn outcome(
        &self,
        measure: Measure,
        compute: Compute,
        is_trained: bool,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Outcome, TrainedError> {
        let image = |compute: Compute| match is_trained {
            true => self.encoder(compute),
            false => Ok(self.untrained_encoder(compute)),
        };
        let both = |compute: Compute| match is_trained {
            true => self.pair_encoders(compute),
            false => self.untrained_pair_encoders(compute),
        };
        Ok(match measure {
            Measure::Linear => Outcome::Images(self.measure(&image(compute)?, progress)?),
            Measure::LinearPaper => Outcome::Paper(self.measure_as_paper(&image(compute)?, progress)?),
            Measure::Retrieval => Outcome::Pairs(self.retrieval(&both(compute)?, progress)?),
            Measure::ZeroShot => Outcome::Captions(self.zero_shot(&both(compute)?, progress)?),
        })
    }
}

/// Takes test images that cannot be read out, where the settings allow it.
pub fn leave_out_bad_tests(data: &mut Dataset, config: &RunConfig) -> Result<(), TrainedError> {
    if let (Some(test), true) = (&mut data.test, config.data.skip_bad) {
        Manifest::build(test, true, || {})?;
    }
    Ok(())
}

/// The pairs that training does not see.
pub fn held_out_pairs(data: Dataset) -> Result<Split, TrainedError> {
    let title = data.title;
    let is_usable = |test: &Split| test.modality() == crate::data::Modality::Pairs && !test.is_empty();
    data.test.filter(is_usable).ok_or(TrainedError::NoTestPairs(title))
}
