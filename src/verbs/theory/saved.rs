//! The finished parts of a study that takes long, each a small file below its results: a study that was stopped goes on where
//! it was.

use crate::error::CliError;
use crate::output::note;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sogclr::storage::{StorageError, read, write_atomic};
use sogclr::theory::FiniteProblem;
use std::path::{Path, PathBuf};

pub struct Saved {
    folder: PathBuf,
}

impl Saved {
    /// Keeps what an earlier start with the same settings on the same problem has finished, and nothing else.
    pub fn open(out: &Path, settings: &Value, problem: &FiniteProblem) -> Result<Self, CliError> {
        let folder = out.join("parts");
        let name = folder.join("settings.json");
        let mut hasher = blake3::Hasher::new();
        problem.embeddings.iter().for_each(|value| {
            hasher.update(&value.to_le_bytes());
        });
        let all = json!({
            "version": env!("CARGO_PKG_VERSION"), "settings": settings,
            "embeddings": hasher.finalize().to_hex().as_str(),
        });
        let settings = serde_json::to_vec_pretty(&all).expect("plain data");
        if read(&name).is_ok_and(|earlier| earlier == settings) {
            note!("going on with what an earlier start has finished, in {}", folder.display());
            return Ok(Self { folder });
        }
        let unwritable = |source| StorageError::Write { path: folder.clone(), source };
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(unwritable)?;
        }
        std::fs::create_dir_all(&folder).map_err(unwritable)?;
        write_atomic(&name, &settings)?;
        Ok(Self { folder })
    }

    /// The part of that number, from its file or by `compute`.
    pub fn part<T: Serialize + DeserializeOwned>(
        &self,
        number: usize,
        compute: impl FnOnce() -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let path = self.folder.join(format!("{number}.json"));
        if let Some(part) = read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Ok(part);
        }
        let part = compute()?;
        write_atomic(&path, &serde_json::to_vec(&part).expect("plain data"))?;
        Ok(part)
    }

    /// Removes the parts, once the results are written.
    pub fn finish(self) -> Result<(), CliError> {
        let Self { folder } = self;
        Ok(std::fs::remove_dir_all(&folder).map_err(|source| StorageError::Write { path: folder, source })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sogclr::math::Matrix;

    #[test]
    fn a_finished_part_is_computed_again_only_for_other_settings_or_another_problem() {
        let out = tempfile::tempdir().unwrap();
        let open = |seed: u64, value: f32| {
            let problem = FiniteProblem { embeddings: Matrix::from_elem((4, 2), value), augmentations: 2 };
            Saved::open(out.path(), &json!({ "seed": seed }), &problem).unwrap()
        };
        let stopped = || Err(CliError::Stopped(String::new()));
        for (seed, value) in [(1, 0.5), (2, 0.5), (2, 0.6)] {
            let parts = open(seed, value);
            assert!(parts.part::<Vec<f64>>(7, stopped).is_err(), "nothing is known of {seed} {value}");
            assert_eq!(parts.part(7, || Ok(vec![0.1])).unwrap(), [0.1]);
            assert_eq!(open(seed, value).part::<Vec<f64>>(7, stopped).unwrap(), [0.1]);
            assert!(parts.part::<Vec<f64>>(8, stopped).is_err(), "another part");
        }
        open(2, 0.6).finish().unwrap();
        assert_eq!(out.path().read_dir().unwrap().count(), 0);
    }
}
