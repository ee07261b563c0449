//! What a finished run offers: its encoder, its data, and what they reach together.

use crate::config::RunConfig;
use crate::data::{DataError, Dataset, Manifest, Split, open_images};
use crate::encoder::Compute;
use crate::eval::{EvalError, FrozenEncoder, FrozenText, Measured, PairEncoders, Retrieval, measure};
use crate::params::NamedTensors;
use crate::storage::{StorageError, load_tensors};
use crate::study::Outcome;
use crate::train::{Run, TrainError, TrainSummary};
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

    /// The run folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The step of the newest checkpoint, which the encoder is of.
    pub fn step(&self) -> Option<usize> {
        Run::newest_step(&self.folder)
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
        let mut split = open_images(path)?;
        let checked = checking(split.len());
        let (_, bad) = Manifest::build(&mut split, true, checked)?;
        Ok((split, bad))
    }

    fn weights(&self) -> Result<(PathBuf, NamedTensors), TrainedError> {
        let path = self.folder.join("encoder.safetensors");
        if !path.exists() {
            return Err(TrainError::NoCheckpoint(self.folder.clone()).into());
        }
        let (weights, _) = load_tensors(&path)?;
        Ok((path, weights))
    }

    /// The trained image encoder.
    pub fn encoder(&self, compute: Compute) -> Result<FrozenEncoder, TrainedError> {
        let (path, weights) = self.weights()?;
        self.encoder_of(&path, &weights, compute)
    }

    fn encoder_of(&self, path: &Path, weights: &NamedTensors, compute: Compute) -> Result<FrozenEncoder, TrainedError> {
        FrozenEncoder::load(&self.config.model(), weights, &self.config.augment, compute)
            .map_err(|source| TrainedError::Weights { path: path.to_owned(), source })
    }

    /// The encoder that the run started from, for comparison.
    pub fn untrained_encoder(&self, compute: Compute) -> FrozenEncoder {
        FrozenEncoder::untrained(&self.config.model(), self.config.seed, &self.config.augment, compute)
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

    /// What the trained encoder reaches on the run's own data, or the one that it started from.
    pub fn outcome(
        &self,
        compute: Compute,
        is_trained: bool,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Outcome, TrainedError> {
        Ok(match (&self.config.text, is_trained) {
            (None, true) => Outcome::Images(self.measure(&self.encoder(compute)?, progress)?),
            (None, false) => Outcome::Images(self.measure(&self.untrained_encoder(compute), progress)?),
            (Some(_), true) => Outcome::Pairs(self.retrieval(&self.pair_encoders(compute)?, progress)?),
            (Some(_), false) => Outcome::Pairs(self.retrieval(&self.untrained_pair_encoders(compute)?, progress)?),
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
