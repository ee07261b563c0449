//! Checkpoints: everything that decides the rest of the run, in one safetensors file.

use super::{TrainError, metrics::Window};
use crate::encoder::Precision;
use crate::params::{HostTensor, NamedTensors};
use crate::provenance::Provenance;
use crate::state::SampleState;
use crate::storage::{read, tensors_from_bytes, tensors_to_bytes, write_atomic};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Raised when the meaning of a checkpoint's content changes.
const VERSION: u32 = 1;
const KEY: &str = "sogclr";

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    step: usize,
    samples: usize,
    method: String,
    /// Absent in checkpoints of before it was kept.
    #[serde(default)]
    config: Value,
    window: Window,
    /// Absent in checkpoints of before there were versions.
    #[serde(default = "unversioned")]
    provenance: Provenance,
}

fn unversioned() -> Provenance {
    Provenance { program: "sogclr".into(), numerics: 0 }
}

/// The state of a run after `step` steps.
pub struct Checkpoint {
    /// Steps done.
    pub step: usize,
    /// Name of the method.
    pub method: String,
    /// The settings that decide what a run becomes.
    pub config: Value,
    /// Parameters and buffers of the model.
    pub model: NamedTensors,
    /// The optimiser's state, named `<slot>.<parameter>`.
    pub optimizer: NamedTensors,
    /// What the method keeps: momentum weights, queue, predictor, learned temperature.
    pub method_tensors: NamedTensors,
    /// What is kept for each sample.
    pub state: SampleState,
    /// Sums since the last line of metrics, so that the next line does not depend on an interruption.
    pub window: Window,
    /// Who wrote it.
    pub provenance: Provenance,
}

impl Checkpoint {
    /// Writes the file in one step, in place of an older one.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        Ok(write_atomic(path, &self.to_bytes())?)
    }

    /// The content of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = Header {
            version: VERSION,
            step: self.step,
            samples: self.state.samples(),
            method: self.method.clone(),
            config: self.config.clone(),
            window: self.window.clone(),
            provenance: self.provenance.clone(),
        };
        let state = self.state_tensors();
        let header = serde_json::to_string(&header).expect("plain data");
        tensors_to_bytes(self.tensors(&state), (KEY, &header))
    }

    fn state_tensors(&self) -> NamedTensors {
        let columns = self
            .state
            .columns()
            .map(|(name, column)| (name.to_owned(), HostTensor { shape: vec![column.len()], values: column.to_vec() }));
        columns.collect()
    }

    fn tensors<'a>(&'a self, state: &'a NamedTensors) -> impl Iterator<Item = (String, &'a HostTensor)> {
        let groups = [
            ("method", &self.method_tensors),
            ("model", &self.model),
            ("optimizer", &self.optimizer),
            ("state", state),
        ];
        groups
            .into_iter()
            .flat_map(|(group, content)| content.iter().map(move |(name, tensor)| (format!("{group}.{name}"), tensor)))
    }

    /// A short hash of every tensor, by name: replicas of one run have the same.
    pub fn digests(&self) -> Vec<(String, u64)> {
        let digest = |tensor: &HostTensor| {
            let mut hasher = blake3::Hasher::new();
            for block in tensor.values.chunks(1 << 14) {
                hasher.update(&block.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
            }
            u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
        };
        let state = self.state_tensors();
        self.tensors(&state).map(|(name, tensor)| (name, digest(tensor))).collect()
    }

    /// The image encoder alone, with torchvision's names.
    pub fn encoder(&self) -> NamedTensors {
        let encoder = self.model.iter();
        let encoder = encoder.filter_map(|(name, tensor)| Some((name.strip_prefix("encoder.")?, tensor)));
        encoder.map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect()
    }

    /// Reads what [`Checkpoint::save`] wrote; refuses other versions.
    pub fn load(path: &Path) -> Result<Self, TrainError> {
        Self::from_bytes(&read(path)?, path)
    }

    /// The same from the content of the file `path`.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, TrainError> {
        let misfit = |cause: String| TrainError::Checkpoint { path: path.to_owned(), cause };
        let (tensors, metadata) = tensors_from_bytes(bytes, path)?;
        let header = metadata.get(KEY).ok_or_else(|| misfit("it is not a checkpoint of sogclr".into()))?;
        let header: Header = serde_json::from_str(header).map_err(|e| misfit(e.to_string()))?;
        if header.version != VERSION {
            let cause = format!("it has version {}, this program reads version {VERSION}", header.version);
            return Err(misfit(cause));
        }
        let mut groups = BTreeMap::<String, NamedTensors>::new();
        for (name, tensor) in tensors {
            let (group, rest) = name.split_once('.').ok_or_else(|| misfit(format!("unexpected tensor {name}")))?;
            groups.entry(group.to_owned()).or_default().insert(rest.to_owned(), tensor);
        }
        let mut group = |name: &str| groups.remove(name).unwrap_or_default();
        let columns: BTreeMap<String, Vec<f32>> =
            group("state").into_iter().map(|(name, tensor)| (name, tensor.values)).collect();
        if let Some((name, column)) = columns.iter().find(|(_, column)| column.len() != header.samples) {
            return Err(misfit(format!("column {name} has {} values for {} samples", column.len(), header.samples)));
        }
        Ok(Self {
            step: header.step,
            method: header.method,
            config: header.config,
            model: group("model"),
            optimizer: group("optimizer"),
            method_tensors: group("method"),
            state: SampleState::from_columns(header.samples, columns),
            window: header.window,
            provenance: header.provenance,
        })
    }

    /// What activations were stored as: a part of its settings, which do not mention f32.
    pub fn precision(&self) -> Precision {
        let stored = self.config.pointer("/train/precision");
        stored.and_then(|stored| Precision::deserialize(stored).ok()).unwrap_or_default()
    }

    /// The first parameter of the model with a NaN or an infinity.
    pub fn first_non_finite(&self) -> Option<String> {
        let is_broken = |tensor: &HostTensor| tensor.values.iter().any(|v| !v.is_finite());
        self.model.iter().find(|(_, tensor)| is_broken(tensor)).map(|(name, _)| name.clone())
    }
}
