//! What a run starts from where `train.init` names it: a file of weights, or an earlier run, which also knows u of the images
//! that are the same.

use super::ranks::first_difference;
use super::{Run, TrainError};
use crate::config::RunConfig;
use crate::data::{Manifest, Matching};
use crate::encoder::{Model, from_open_clip, recognise};
use crate::params::{NamedTensors, ParamError, export, import};
use crate::state::SampleState;
use crate::storage::load_tensors;
use std::path::{Path, PathBuf};

/// Weights to start from, and where they are from.
pub(super) struct Init {
    path: PathBuf,
    /// By their names in the model.
    weights: NamedTensors,
    /// Of a run that knows something of its images, those and what it knows.
    known: Option<(Manifest, SampleState)>,
    /// Why nothing is carried over for images.
    note: Option<String>,
}

impl Init {
    /// What `train.init` names.
    pub fn read(config: &RunConfig) -> Result<Option<Self>, TrainError> {
        let Some(path) = &config.train.init else { return Ok(None) };
        if path.is_dir() {
            return Self::of_run(path, config).map(Some);
        }
        let (weights, _) = load_tensors(path)?;
        if let Some((name, _)) = weights.iter().find(|(_, tensor)| tensor.values.iter().any(|v| !v.is_finite())) {
            let cause = format!("its parameter {name} holds a NaN or an infinity: choose other weights");
            return Err(TrainError::Checkpoint { path: path.clone(), cause });
        }
        let weights = match config.text {
            Some(_) => from_open_clip(&weights),
            None => {
                let ours = weights.into_iter().filter(|(name, _)| !config.encoder.spec().is_foreign(name));
                ours.map(|(name, tensor)| (format!("encoder.{name}"), tensor)).collect()
            }
        };
        Ok(Some(Self { path: path.clone(), weights, known: None, note: None }))
    }

    /// The newest weights of a run; its head where this run has the same.
    fn of_run(folder: &Path, config: &RunConfig) -> Result<Self, TrainError> {
        let theirs = Run::read_config(folder)?;
        let [was, is] =
            [&theirs.encoder, &config.encoder].map(|encoder| serde_json::to_value(encoder).expect("plain data"));
        if let Some((key, was, is)) = first_difference(&was, &is) {
            let cause = format!(
                "its encoder is {}, with encoder.{key} {was}, and that of this run {}, with {is}: give this run the same",
                theirs.encoder.describe(),
                config.encoder.describe()
            );
            return Err(TrainError::Checkpoint { path: folder.to_owned(), cause });
        }
        let (checkpoint, _) = Run::read_latest(folder)?;
        let mut weights = checkpoint.model;
        let has_same_head = theirs.head == config.head;
        weights.retain(|name, _| has_same_head || !name.starts_with("head."));
        let [before, now] = [&theirs, config].map(|config| (config.method.name(), config.method.spec().temperature()));
        let other = match () {
            () if !has_same_head => Some("another head"),
            () if before.0 != now.0 => Some("another method"),
            () if before.1 != now.1 => Some("another temperature"),
            () => None,
        };
        let has_state = checkpoint.state.columns().next().is_some();
        let known = match other {
            None if has_state => Some((Manifest::open(folder)?, checkpoint.state)),
            _ => None,
        };
        let folder_name = folder.display();
        let note = other.filter(|_| has_state);
        let note = note.map(|what| format!("{folder_name} has {what}: its weights are used, u begins anew"));
        Ok(Self { path: folder.to_owned(), weights, known, note })
    }

    /// The model with these weights in place of its own; a head that is not among them keeps what it has.
    pub fn fill(&self, model: Model, config: &RunConfig) -> Result<Model, TrainError> {
        let mut all = export(&model);
        all.retain(|name, _| name.starts_with("head."));
        all.extend(self.weights.clone());
        import(model, &all).map_err(|error| self.misfit(&error, config))
    }

    /// An error that says what the weights are.
    pub fn misfit(&self, error: &ParamError, config: &RunConfig) -> TrainError {
        let beside = self.path.parent().and_then(|folder| Run::read_config(folder).ok());
        let of_file = || {
            let encoder = self
                .weights
                .iter()
                .filter_map(|(name, tensor)| Some((name.strip_prefix("encoder.")?.to_owned(), tensor.clone())));
            recognise(&encoder.collect())
        };
        let what = beside.map(|theirs| theirs.encoder.describe()).or_else(of_file);
        let cause = match what {
            Some(what) => {
                format!("it holds {what}, the encoder of this run is {} ({error})", config.encoder.describe())
            }
            None => error.to_string(),
        };
        TrainError::Checkpoint { path: self.path.clone(), cause }
    }

    /// What is known of the images of `manifest`, in columns like those of `fresh`; and what the user should know.
    pub fn carry(
        mut self,
        manifest: &mut Manifest,
        fresh: &SampleState,
    ) -> Result<(Option<SampleState>, Option<String>), TrainError> {
        let Some((mut before, state)) = self.known.take() else { return Ok((None, self.note)) };
        let matching = Matching::between(&mut before, manifest)?;
        let said = format!("u carried over for {}", matching.counts());
        let columns = fresh.columns().map(|(name, _)| name.to_owned());
        Ok((Some(carried(&state, columns, &matching)), Some(said)))
    }
}

/// What `state` says of the images that are still there, NaN of the others.
pub(super) fn carried(state: &SampleState, columns: impl Iterator<Item = String>, matching: &Matching) -> SampleState {
    let of = |name: &str| state.columns().find(|(column, _)| *column == name).map_or(&[][..], |(_, values)| values);
    let columns = columns.map(|name| {
        let values = matching.carry(of(&name), f32::NAN);
        (name, values)
    });
    SampleState::from_columns(matching.count(), columns.collect())
}
