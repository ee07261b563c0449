//! The manifest of a run: name, size, content hash, label and captions of every training sample. A sample's id is its row.
//! Making it reads and decodes every image once, so a broken one is met before training.

use super::{DataError, Fingerprint, Split};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One training sample as the run first met it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Name of the image, as [`Source::name`](super::Source::name) gives it.
    pub name: String,
    /// Stored bytes of the image.
    pub size: u64,
    /// BLAKE3 of the stored bytes.
    pub hash: String,
    /// Time of last change in nanoseconds since 1970, for files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<u128>,
    /// Class, where the data has labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<u32>,
    /// BLAKE3 of the captions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captions: Option<String>,
}

/// The training samples of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// In the order of sample ids.
    pub entries: Vec<ManifestEntry>,
}

impl Manifest {
    /// Reads and decodes every image of `split`. Unreadable ones are an error, or with `skip_bad` are taken out of
    /// `split` and returned by name. `progress` is called once for each image.
    pub fn build(
        split: &mut Split,
        skip_bad: bool,
        progress: impl Fn() + Sync,
    ) -> Result<(Self, Vec<String>), DataError> {
        let checked = Self::check(split, 0..split.len(), progress);
        Self::of(split, checked, skip_bad)
    }

    /// Reads and decodes the samples `ids`: what the manifest says of each, or what is wrong with it.
    pub fn check(split: &Split, ids: Range<usize>, progress: impl Fn() + Sync) -> Vec<Result<ManifestEntry, String>> {
        let checked = ids.into_par_iter().map(|id| {
            let entry = entry(split, id);
            progress();
            entry.map_err(|error| error.to_string())
        });
        checked.collect()
    }

    /// The manifest of `split`, of which every sample was checked.
    pub fn of(
        split: &mut Split,
        checked: Vec<Result<ManifestEntry, String>>,
        skip_bad: bool,
    ) -> Result<(Self, Vec<String>), DataError> {
        let total = checked.len();
        let bad: Vec<String> = checked.iter().filter_map(|checked| checked.as_ref().err()).cloned().collect();
        if !bad.is_empty() && (!skip_bad || bad.len() == total) {
            return Err(DataError::BadImages { bad, total });
        }
        split.retain(|id| checked[id].is_ok());
        Ok((Self { entries: checked.into_iter().flatten().collect() }, bad))
    }

    /// Narrows `split` to the samples of this manifest and checks that they are what they were. Files whose size
    /// and time are unchanged are trusted; all others are read again.
    pub fn verify(&self, split: &mut Split) -> Result<(), DataError> {
        let changed = |what: String| Err(DataError::Changed(what));
        let names: std::collections::HashMap<String, usize> = (0..split.len()).map(|id| (split.name(id), id)).collect();
        let mut rows = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            match names.get(&entry.name) {
                Some(&id) => rows.push(split.rows[id]),
                None => return changed(format!("{} is gone", entry.name)),
            }
        }
        split.rows = rows;
        let differing = self.entries.par_iter().enumerate().find_map_first(|(id, old)| {
            if caption_hash(split, id) != old.captions {
                return Some(format!("{} has other captions", old.name));
            }
            let stamp = split.source.stamp(split.rows[id]);
            if let (Some(modified), Some((size, now))) = (old.modified, stamp)
                && (size, now) == (old.size, modified)
            {
                return None;
            }
            match entry(split, id) {
                Ok(new) if new.hash == old.hash && new.label == old.label => None,
                Ok(_) => Some(format!("{} has other content", old.name)),
                Err(error) => Some(error.to_string()),
            }
        });
        differing.map_or(Ok(()), changed)
    }

    /// One line of JSON for each sample.
    pub fn to_jsonl(&self) -> String {
        let line = |entry| serde_json::to_string(entry).expect("plain data") + "\n";
        self.entries.iter().map(line).collect()
    }

    /// Reads what [`Manifest::to_jsonl`] wrote.
    pub fn from_jsonl(text: &str) -> Result<Self, serde_json::Error> {
        Ok(Self { entries: text.lines().map(serde_json::from_str).collect::<Result<_, _>>()? })
    }
}

fn entry(split: &Split, id: usize) -> Result<ManifestEntry, DataError> {
    let row = split.rows[id];
    let modified = split.source.stamp(row).map(|(_, modified)| modified);
    let Fingerprint { hash, size } = split.source.check(row)?;
    Ok(ManifestEntry {
        name: split.name(id),
        size,
        hash,
        modified,
        label: split.label(id),
        captions: caption_hash(split, id),
    })
}

fn caption_hash(split: &Split, id: usize) -> Option<String> {
    let captions = split.captions(id);
    (!captions.is_empty()).then(|| blake3::hash(captions.join("\n").as_bytes()).to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::{DataConfig, Dataset};
    use super::*;
    use std::path::Path;

    fn png(path: &Path, value: u8) {
        image::RgbImage::from_pixel(4, 4, image::Rgb([value; 3])).save(path).unwrap();
    }

    fn open(root: &Path) -> Split {
        let config = DataConfig { path: Some(root.to_owned()), ..Default::default() };
        Dataset::open(&config, 0).unwrap().train
    }

    #[test]
    fn bad_images_are_refused_or_left_out_by_name() {
        let root = tempfile::tempdir().unwrap();
        png(&root.path().join("a.png"), 1);
        png(&root.path().join("c.tif"), 2);
        std::fs::write(root.path().join("b.jpg"), b"not a picture").unwrap();
        let error = Manifest::build(&mut open(root.path()), false, || {}).unwrap_err().to_string();
        assert!(error.contains("1 of 3") && error.contains("b.jpg"), "{error}");
        let mut split = open(root.path());
        let (manifest, bad) = Manifest::build(&mut split, true, || {}).unwrap();
        assert_eq!((manifest.entries.len(), split.len(), bad.len()), (2, 2, 1));
        assert_eq!(split.name(1), "c.tif");
    }

    #[test]
    fn a_truncated_jpeg_is_bad() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.jpg");
        let pixels = image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([(x * 4) as u8, (y * 4) as u8, (x * y) as u8]));
        pixels.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(Manifest::build(&mut open(root.path()), false, || {}).is_ok());
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = Manifest::build(&mut open(root.path()), false, || {}).unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
    }

    #[test]
    fn verify_names_what_changed_and_ignores_new_files() {
        let root = tempfile::tempdir().unwrap();
        png(&root.path().join("a.png"), 1);
        png(&root.path().join("b.png"), 2);
        let (manifest, _) = Manifest::build(&mut open(root.path()), false, || {}).unwrap();
        let manifest = Manifest::from_jsonl(&manifest.to_jsonl()).unwrap();
        png(&root.path().join("0.png"), 9);
        let mut split = open(root.path());
        manifest.verify(&mut split).unwrap();
        assert_eq!((split.len(), split.name(0)), (2, "a.png".to_owned()));

        png(&root.path().join("b.png"), 3);
        let error = manifest.verify(&mut open(root.path())).unwrap_err().to_string();
        assert!(error.contains("b.png has other content"), "{error}");
        std::fs::remove_file(root.path().join("a.png")).unwrap();
        let error = manifest.verify(&mut open(root.path())).unwrap_err().to_string();
        assert!(error.contains("a.png is gone"), "{error}");
    }
}
