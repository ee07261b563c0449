//! What evaluations of a run found: the list `evaluations` of its `summary.json`. Each stands under what it was made of, so
//! none replaces another, and the same is not computed twice.

use super::TrainedRun;
use crate::comm::Group;
use crate::storage::StorageError;
use crate::train::Run;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const KEY: &str = "evaluations";

/// What an evaluation is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationOf {
    /// What is measured, such as `linear` or `knn`.
    pub evaluation: String,
    /// The settings of the protocol.
    pub settings: Value,
    /// Title of the data.
    pub data: String,
    /// Side of the images.
    pub image_size: usize,
    /// Steps that the encoder was trained for; 0 is the untrained one.
    pub step: usize,
    /// Tells the images apart, as [`Split::digest`](crate::data::Split::digest) does.
    pub images: String,
    /// Tells encoders apart, as [`FrozenEncoder::digest`](crate::eval::FrozenEncoder::digest) does.
    pub encoder: String,
}

impl EvaluationOf {
    /// Whether both give the same result, whatever the data is called.
    fn is_same(&self, other: &Self) -> bool {
        let (encoder, images) = (self.encoder == other.encoder, self.images == other.images);
        encoder && images && self.evaluation == other.evaluation && self.settings == other.settings
    }
}

impl TrainedRun {
    /// Every evaluation that was kept, and what it found.
    pub fn evaluations(&self) -> Vec<(EvaluationOf, Value)> {
        let known: Vec<Value> = Run::read_entry(self.folder(), KEY).unwrap_or_default();
        known.into_iter().filter_map(|entry| Some((entry_of(&entry)?, entry["result"].clone()))).collect()
    }

    /// The result of that evaluation: known from before, or measured now with the other ranks of `group`, and kept.
    pub fn measured_once<T: Serialize + DeserializeOwned, E: From<StorageError>>(
        &self,
        of: &EvaluationOf,
        group: &Group,
        measure: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let known: Vec<Value> = Run::entry_of(self.folder(), KEY)?.unwrap_or_default();
        let is_it = |entry: &&Value| entry_of(entry).is_some_and(|known| known.is_same(of));
        let found = known.iter().find(is_it).map(|entry| &entry["result"]);
        // Rank 0 writes the file, so it knows.
        let found = group.from_first(found.map_or_else(Vec::new, |result| result.to_string().into_bytes()));
        if let Ok(result) = serde_json::from_slice(&found) {
            return Ok(result);
        }
        let result = measure()?;
        if !group.is_first() {
            return Ok(result);
        }
        Run::change_entry(self.folder(), KEY, |old: Option<Vec<Value>>| {
            let mut all = old.unwrap_or_default();
            all.retain(|entry| !is_it(&entry));
            let mut entry = serde_json::to_value(of).expect("plain data");
            entry["result"] = json!(result);
            all.push(entry);
            json!(all)
        })?;
        Ok(result)
    }
}

fn entry_of(entry: &Value) -> Option<EvaluationOf> {
    serde_json::from_value(entry.clone()).ok()
}
