//! Images that are replaced while a run reads them.
//!
//! A file is what it was while its size and time of last change are; where they are not, its content decides. Images without
//! files of their own (archives, packs, tables) are guarded by the checksums of what holds them.

use super::{DataError, Fingerprint, Manifest, Source, Split};
use std::sync::Arc;

/// What the images of a run were when it began, in sixteen bytes each.
pub(super) struct Watch {
    /// Whether content is compared at every read.
    is_strict: bool,
    /// For each row of the source the hash of size and time, and the beginning of the content's; 0 is unknown.
    known: Vec<[u64; 2]>,
}

impl Split {
    /// Refuses images from now on that are not those of `manifest`, whose samples these are.
    pub(crate) fn watch(&mut self, manifest: &mut Manifest, is_strict: bool) -> Result<(), DataError> {
        let mut known = vec![[0; 2]; self.source.count()];
        let mut id = 0;
        manifest.for_each(|record| {
            let stamp = record.modified.map_or(0, |modified| stamp(record.size, u128::from(modified)));
            known[self.row(id)] = [stamp, record.hash.map_or(0, |hash| first_eight(&hash))];
            id += 1;
            Ok(())
        })?;
        self.watch = Some(Arc::new(Watch { is_strict, known }));
        Ok(())
    }
}

impl Watch {
    /// Refuses an image that is another than it was.
    pub fn look(&self, source: &dyn Source, row: usize) -> Result<(), DataError> {
        let ([then, content], now) = (self.known[row], source.stamp(row));
        let is_unchanged = now.is_none_or(|(size, modified)| then == 0 || stamp(size, modified) == then);
        if is_unchanged && (content == 0 || !self.is_strict) {
            return Ok(());
        }
        let is_same = content != 0 && content == content_of(&source.check(row)?);
        if is_same { Ok(()) } else { Err(DataError::Replaced(source.name(row))) }
    }
}

fn stamp(size: u64, modified: u128) -> u64 {
    let bytes = [&size.to_le_bytes()[..], &modified.to_le_bytes()].concat();
    first_eight(blake3::hash(&bytes).as_bytes())
}

/// Never 0.
fn first_eight(hash: &[u8; 32]) -> u64 {
    u64::from_le_bytes(hash[..8].try_into().expect("eight bytes")).max(1)
}

fn content_of(fingerprint: &Fingerprint) -> u64 {
    blake3::Hash::from_hex(&fingerprint.hash).map_or(0, |hash| first_eight(hash.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataConfig, Dataset};
    use std::fs::File;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn write(path: &Path, value: u8, time: SystemTime) {
        image::RgbImage::from_pixel(4, 4, image::Rgb([value; 3])).save(path).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    fn watched(folder: &Path, is_strict: bool) -> Split {
        let config = DataConfig { path: Some(folder.to_owned()), ..Default::default() };
        let mut split = Dataset::open(&config, 0).unwrap().train;
        let (mut manifest, _) = Manifest::build(&mut split, false, || {}).unwrap();
        split.watch(&mut manifest, is_strict).unwrap();
        split
    }

    #[test]
    fn a_replaced_image_is_named_and_one_that_was_touched_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        let paths = ["a.png", "b.png", "c.png"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| write(path, 1, then));
        let split = watched(folder.path(), false);
        let now = SystemTime::now();
        write(&paths[0], 1, now);
        write(&paths[1], 2, now);
        assert!(split.image(0).is_ok(), "other time, same content");
        let error = split.image(1).unwrap_err().to_string();
        assert!(error.contains("b.png"), "{error}");
        assert!(split.image(2).is_ok());
    }

    #[test]
    fn content_of_the_same_size_and_time_is_seen_by_the_strict_alone() {
        let folder = tempfile::tempdir().unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        let path = folder.path().join("a.png");
        write(&path, 1, then);
        write(&folder.path().join("b.png"), 1, then);
        let [trusting, strict] = [false, true].map(|is_strict| watched(folder.path(), is_strict));
        let size = std::fs::metadata(&path).unwrap().len();
        write(&path, 2, then);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "or the test shows nothing");
        assert!(trusting.image(0).is_ok());
        assert!(strict.image(0).is_err());
        assert!(strict.image(1).is_ok());
    }
}
