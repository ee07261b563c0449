//! Features on disk, by (weights, images, preparation): linear classifier, nearest neighbours and repeats share one pass
//! through the encoder.

use crate::math::Matrix;
use crate::params::{HostTensor, NamedTensors};
use crate::storage::{checksum, load_tensors, save_tensors};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes that a folder of features may take; the oldest go first.
const LIMIT: u64 = 4 << 30;
const NAME: &str = "features";

/// A folder of features. It is a convenience: what cannot be read or written is computed again.
pub(super) struct FeatureCache {
    folder: PathBuf,
    limit: u64,
}

impl FeatureCache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, limit: LIMIT }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.safetensors"))
    }

    /// What was put under `key`, if it is there and whole.
    pub(super) fn get(&self, key: &str) -> Option<Matrix> {
        let (mut tensors, metadata) = load_tensors(&self.path(key)).ok()?;
        let HostTensor { shape, values } = tensors.remove(NAME)?;
        let [rows, columns] = shape[..] else { return None };
        // Those of before files had checksums are made again.
        let is_checked = metadata.contains_key(checksum::HOLDS);
        Matrix::from_shape_vec((rows, columns), values).ok().filter(|_| is_checked)
    }

    pub(super) fn put(&self, key: &str, features: &Matrix) {
        let bytes = size_of_val(features.as_slice().unwrap_or_default()) as u64;
        if bytes == 0 || bytes > self.limit || std::fs::create_dir_all(&self.folder).is_err() {
            return;
        }
        make_room(&self.folder, self.limit - bytes);
        let tensor =
            HostTensor { shape: vec![features.nrows(), features.ncols()], values: features.iter().copied().collect() };
        let _ = save_tensors(&self.path(key), &NamedTensors::from([(NAME.to_owned(), tensor)]), ("format", "pt"));
    }
}

/// Removes the oldest files until the rest takes `limit` bytes or less.
fn make_room(folder: &Path, limit: u64) {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let about = entry.metadata().ok()?;
            Some((about.modified().ok()?, about.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= limit {
            return;
        }
        let _ = std::fs::remove_file(path);
        total -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn what_is_damaged_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, features) = (FeatureCache::new(folder.path().join("features")), array![[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(cache.get("a"), None);
        cache.put("a", &features);
        assert_eq!(cache.get("a"), Some(features));
        let path = cache.path("a");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(cache.get("a"), None, "one bit of the last value");
    }

    #[test]
    fn the_oldest_features_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let features = Matrix::zeros((16, 16));
        let cache = FeatureCache { limit: 3000, ..FeatureCache::new(folder.path().to_owned()) };
        for (age, key) in ["a", "b", "c"].into_iter().enumerate() {
            cache.put(key, &features);
            let file = std::fs::File::options().append(true).open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64)).unwrap();
        }
        let kept = ["a", "b", "c"].map(|key| cache.get(key).is_some());
        assert_eq!(kept, [false, true, true], "each takes a little more than 1024 bytes");
        cache.put("too large", &Matrix::zeros((32, 32)));
        assert!(cache.get("too large").is_none() && cache.get("b").is_some());
    }
}
