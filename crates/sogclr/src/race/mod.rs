//! One run of a race or a study: trained, then measured, each at most once, and found again after an interruption.

use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::Dataset;
use crate::encoder::Compute;
use crate::eval::{FrozenEncoder, PaperMeasured};
use crate::provenance::Provenance;
use crate::study::{CurvePoint, Measure, Outcome, Record};
use crate::system::processor;
use crate::train::{
    Outcome as TrainOutcome, Pretraining, Run, StepReport, TrainError, TrainSummary, open_device, refuse_existing,
};
use crate::trained::{TrainedError, TrainedRun};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What can go wrong with a run of a race.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// Its folder or its training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Its measurement.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// The folder holds another run.
    #[error("{folder} was run with {what}: remove it, or put the runs into another folder")]
    Other {
        /// The folder.
        folder: PathBuf,
        /// What differs.
        what: String,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trained {
    /// To its end.
    Finished,
    /// Asked to stop; it can be resumed.
    Stopped,
    /// Why it did not.
    Failed(String),
}

/// How a run is to be trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From its settings, in a folder that does not exist.
    New,
    /// From its last checkpoint.
    Resume,
}

/// A run folder and the settings it has, or is to have.
pub struct Cell {
    /// Where the run is.
    pub folder: PathBuf,
    /// Its settings.
    pub config: RunConfig,
    /// By what it is measured.
    pub measure: Measure,
}

/// What a run reached is kept in `summary.json` under these names.
const RESULT: &str = "compare";
const UNTRAINED: &str = "compare_untrained";

impl Cell {
    /// A run that is measured by what suits it.
    pub fn new(folder: PathBuf, config: RunConfig) -> Self {
        Self { folder, measure: Measure::of(&config), config }
    }

    /// Refuses a folder that holds something else, or a run with other settings, or on other than the `images` there are now.
    pub fn check(&self, images: usize) -> Result<(), CellError> {
        if !self.folder.join("config.toml").exists() {
            return Ok(refuse_existing(&self.folder)?);
        }
        let other = |what: String| Err(CellError::Other { folder: self.folder.clone(), what });
        if Run::read_config(&self.folder)? != self.config {
            return other("other settings".into());
        }
        let known = Run::open_data_of(&self.folder, &self.config)?.train.len();
        // Of what was left out as unreadable nothing is known.
        match known == images || self.config.data.skip_bad {
            true => Ok(()),
            false => other(format!("{known} images, and there are {images} now")),
        }
    }

    /// Whether there is something to resume; checkpoints that cannot be read are an error.
    fn has_checkpoint(&self) -> Result<bool, CellError> {
        if !self.folder.join("config.toml").exists() {
            return Ok(false);
        }
        match Run::open(&self.folder)?.latest() {
            Ok(_) => Ok(true),
            Err(TrainError::NoCheckpoint(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What training took; `None` until it has finished.
    pub fn cost(&self) -> Option<TrainSummary> {
        Run::read_entry(&self.folder, TrainSummary::KEY)
    }

    /// Trains to the end by `train`, in this process or another, unless that is done already.
    pub fn train<E: From<CellError>>(
        &self,
        train: impl FnOnce(&Self, Start) -> Result<Trained, E>,
    ) -> Result<Trained, E> {
        if self.cost().is_some() {
            return Ok(Trained::Finished);
        }
        let start = if self.has_checkpoint()? { Start::Resume } else { Start::New };
        if start == Start::New && self.folder.exists() {
            // Begun, and lost before its first checkpoint.
            let failed =
                |source| TrainError::Storage(crate::storage::StorageError::Write { path: self.folder.clone(), source });
            std::fs::remove_dir_all(&self.folder).map_err(failed).map_err(CellError::from)?;
        }
        train(self, start)
    }

    fn compute(&self) -> Result<Compute, CellError> {
        Ok(open_device(self.config.train.device)?)
    }

    /// What the trained encoder reaches.
    pub fn result(&self, progress: impl Fn(usize) + Sync) -> Result<Outcome, CellError> {
        self.remembered(RESULT, true, progress)
    }

    /// What the encoder reaches that this run starts from; `None` if it is not trained.
    pub fn untrained_result(&self, progress: impl Fn(usize) + Sync) -> Result<Option<Outcome>, CellError> {
        self.cost().map(|_| self.remembered(UNTRAINED, false, progress)).transpose()
    }

    /// The result under `key` of the run's summary, measured if it is not there yet.
    fn remembered(&self, key: &str, is_trained: bool, progress: impl Fn(usize) + Sync) -> Result<Outcome, CellError> {
        if let Some(known) = Run::read_entry::<Outcome>(&self.folder, key).filter(|it| it.measure() == self.measure) {
            return Ok(known);
        }
        let run = TrainedRun::open(&self.folder)?;
        let result = run.outcome(self.measure, self.compute()?, is_trained, progress)?;
        Run::set_entry(&self.folder, key, &result).map_err(TrainError::from)?;
        Ok(result)
    }

    /// The finished run as a record of a study; `data` is what its images are called.
    pub fn record(&self, data: &str, progress: impl Fn(usize) + Sync) -> Result<Record, CellError> {
        let result = self.result(&progress)?;
        let cost = self.cost().ok_or_else(|| TrainError::NoCheckpoint(self.folder.clone()))?;
        Ok(Record {
            config: Record::portable(&self.config),
            data: data.to_owned(),
            images: cost.samples,
            curve: match result.test_and_train() {
                Some(end) => self.curve(end, progress)?,
                None => Vec::new(),
            },
            result,
            seconds: cost.seconds,
            peak_rss_mb: cost.peak_rss_mb,
            threads: rayon::current_num_threads(),
            processor: processor(),
            provenance: cost.provenance,
        })
    }

    /// What a checkpoint reaches by the paper's protocol, which takes hours: kept by the encoder that it is of.
    fn kept_paper(
        &self,
        run: &TrainedRun,
        encoder: &FrozenEncoder,
        progress: impl Fn(usize) + Sync,
    ) -> Result<PaperMeasured, CellError> {
        let key = format!("linear_paper_{:.16}", encoder.digest());
        if let Some(known) = Run::read_entry(&self.folder, &key) {
            return Ok(known);
        }
        let found = run.measure_as_paper(encoder, progress)?;
        Run::set_entry(&self.folder, &key, &found).map_err(TrainError::from)?;
        Ok(found)
    }

    /// Linear accuracy of the untrained encoder, of every checkpoint that the run was told to keep, and of its end.
    fn curve(&self, end: (f64, f64), progress: impl Fn(usize) + Sync) -> Result<Vec<CurvePoint>, CellError> {
        let train = &self.config.train;
        let Some(every) = train.keep_every else { return Ok(Vec::new()) };
        let (run, compute) = (TrainedRun::open(&self.folder)?, self.compute()?);
        let steps = run.train_len()? / train.batch;
        let measured = |epoch: usize, encoder: FrozenEncoder| -> Result<CurvePoint, CellError> {
            let found = match self.measure {
                Measure::LinearPaper => Outcome::Paper(self.kept_paper(&run, &encoder, &progress)?),
                _ => Outcome::Images(run.measure(&encoder, &progress)?),
            };
            let (test, train) = found.test_and_train().expect("it is of images");
            Ok(CurvePoint { epoch: epoch as f64, test, train })
        };
        let mut points = vec![measured(0, run.untrained_encoder(compute.clone()))?];
        for checkpoint in Run::read_all(&self.folder)? {
            let checkpoint = checkpoint?;
            let epoch = checkpoint.step / steps;
            if checkpoint.step == epoch * steps && (1..train.epochs).contains(&epoch) && epoch.is_multiple_of(every) {
                points.push(measured(epoch, run.encoder_at(&checkpoint, compute.clone())?)?);
            }
        }
        points.push(CurvePoint { epoch: train.epochs as f64, test: end.0, train: end.1 });
        Ok(points)
    }
}

/// Trains a cell in this process, for [`Cell::train`]; `observe` may break.
pub fn train_here(
    cell: &Cell,
    start: Start,
    provenance: Provenance,
    observe: impl FnMut(&StepReport) -> ControlFlow<()>,
) -> Result<Trained, CellError> {
    let mut run = match start {
        Start::Resume => Pretraining::resume(&cell.folder, provenance, &Group::solo())?,
        Start::New => {
            let data = Dataset::open(&cell.config.data, cell.config.seed).map_err(TrainError::from)?;
            Pretraining::begin(cell.config.clone(), data, &cell.folder, provenance, &Group::solo(), || {})?
        }
    };
    Ok(match run.train(observe)? {
        TrainOutcome::Finished => Trained::Finished,
        TrainOutcome::Stopped => Trained::Stopped,
    })
}

/// Of a path only its end: records belong to no machine.
pub fn portable_title(title: &str) -> String {
    Path::new(title).file_name().map_or(String::new(), |name| name.to_string_lossy().into())
}
