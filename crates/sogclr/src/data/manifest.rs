//! The manifest of a run: name, size, content hash, label and captions of every training sample. A sample's id is its place.
//! It is read and written from front to end, in memory only where it is small.

use super::checks::{CheckImages, digest, each};
use super::ledger::{LedgerError, Reader, Record, Writer};
use super::{DataError, Split};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Cursor, Read, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Samples that are compared at once.
const CHUNK: usize = 1 << 13;

/// Larger manifests are made in a temporary file.
const IN_MEMORY: usize = 4 << 20;

const TITLE: &str = "manifest 1";

/// One training sample as the run first met it, for reading: what [`Manifest::entries`] gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Name of the image, as [`Source::name`](super::Source::name) gives it.
    pub name: String,
    /// Stored bytes of the image; 0 where only its name is known.
    pub size: u64,
    /// BLAKE3 of the stored bytes; absent where they were not looked at (`data.check`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Time of last change in nanoseconds since 1970, for files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<u64>,
    /// Class, where the data has labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<u32>,
    /// BLAKE3 of the captions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captions: Option<String>,
}

impl From<Record> for ManifestEntry {
    fn from(record: Record) -> Self {
        let Record { name, size, modified, hash, label, captions, .. } = record;
        let hex = |hash: [u8; 32]| blake3::Hash::from_bytes(hash).to_hex().to_string();
        Self { name, size, hash: hash.map(hex), modified, label, captions: captions.map(hex) }
    }
}

impl From<ManifestEntry> for Record {
    fn from(entry: ManifestEntry) -> Self {
        let ManifestEntry { name, size, hash, modified, label, captions } = entry;
        let bytes = |hash: Option<String>| hash.map(|hash| digest(&hash));
        Self { name, size, modified, changed: None, hash: bytes(hash), label, captions: bytes(captions) }
    }
}

trait Content: Read + Seek + Send {}

impl<T: Read + Seek + Send> Content for T {}

/// The training samples of a run.
pub struct Manifest {
    content: Box<dyn Content>,
    /// For messages.
    path: PathBuf,
}

/// What checking images has found.
pub struct Checked {
    /// Of the images that can be used.
    pub(crate) manifest: Manifest,
    /// The others by their id, a sentence each.
    pub(crate) bad: Vec<(usize, String)>,
    /// Images that were read, or are known from before.
    pub(crate) looked_at: usize,
    /// What the user should know of the cache.
    pub notes: Vec<String>,
}

impl Manifest {
    /// Name of its file in a run folder.
    pub const FILE: &str = "manifest.bin";

    /// Reads and decodes every image of `split`, or knows that it did before. Unreadable ones are an error, or with `skip_bad`
    /// are taken out of `split` and returned by name. `progress` is called once for each image.
    pub fn build(
        split: &mut Split,
        skip_bad: bool,
        progress: impl Fn() + Sync,
    ) -> Result<(Self, Vec<String>), DataError> {
        let checked = Self::check(split, 0..split.len(), CheckImages::All, 0, progress)?;
        Self::of(split, vec![checked], skip_bad)
    }

    /// Reads and decodes the samples `ids`, or those of them that `which` says; `seed` draws a sample.
    pub fn check(
        split: &Split,
        ids: Range<usize>,
        which: CheckImages,
        seed: u64,
        progress: impl Fn() + Sync,
    ) -> Result<Checked, DataError> {
        let mut writer = spool()?;
        let (mut bad, mut looked_at) = (Vec::new(), 0);
        let notes = each(split, ids, which, seed, progress, |id, found| {
            match found {
                Ok(record) => {
                    looked_at += usize::from(record.hash.is_some());
                    writer.push(&Record { changed: None, ..record }).map_err(DataError::Scratch)?;
                }
                Err(problem) => {
                    looked_at += 1;
                    bad.push((id, problem));
                }
            }
            Ok(())
        })?;
        Ok(Checked { manifest: Self::finish(writer)?, bad, looked_at, notes })
    }

    /// The manifest of `split`, of which `parts` are all samples in order.
    pub fn of(split: &mut Split, mut parts: Vec<Checked>, skip_bad: bool) -> Result<(Self, Vec<String>), DataError> {
        let looked_at = parts.iter().map(|part| part.looked_at).sum();
        let bad: Vec<(usize, String)> = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.bad)).collect();
        let ids: Vec<usize> = bad.iter().map(|(id, _)| *id).collect();
        let bad: Vec<String> = bad.into_iter().map(|(_, problem)| problem).collect();
        if !bad.is_empty() && (!skip_bad || bad.len() == split.len()) {
            return Err(DataError::BadImages { bad, total: looked_at });
        }
        split.retain(|id| ids.binary_search(&id).is_err());
        if let [_] = &parts[..] {
            return Ok((parts.remove(0).manifest, bad));
        }
        let mut writer = spool()?;
        for mut part in parts {
            part.manifest.for_each(|record| writer.push(&record).map_err(DataError::Scratch))?;
        }
        Ok((Self::finish(writer)?, bad))
    }

    fn finish(writer: Writer<Spool>) -> Result<Self, DataError> {
        let (out, _) = writer.finish().map_err(DataError::Scratch)?;
        let content = out.into_inner().map_err(|error| DataError::Scratch(error.into_error()))?;
        Ok(Self { content: Box::new(content), path: Self::FILE.into() })
    }

    /// That of the run in `folder`, which may be one of before manifests were binary.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(Self::FILE);
        let read = |path: &Path| File::open(path).map_err(|source| DataError::Read { path: path.to_owned(), source });
        let old = folder.join("manifest.jsonl");
        if path.exists() || !old.exists() {
            return Ok(Self { content: Box::new(read(&path)?), path });
        }
        let mut writer = spool()?;
        for line in BufReader::new(read(&old)?).lines() {
            let line = line.map_err(|source| DataError::Read { path: old.clone(), source })?;
            let entry: ManifestEntry = serde_json::from_str(&line).map_err(|error| DataError::Format {
                path: old.clone(),
                cause: format!("broken manifest ({error})"),
            })?;
            writer.push(&entry.into()).map_err(DataError::Scratch)?;
        }
        Ok(Self { path: old, ..Self::finish(writer)? })
    }

    /// The same from the content of its file.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { content: Box::new(Cursor::new(bytes)), path: Self::FILE.into() }
    }

    /// Of these records.
    #[cfg(test)]
    pub(super) fn of_records(records: impl Iterator<Item = Record>) -> Self {
        let mut writer = spool().unwrap();
        records.for_each(|record| writer.push(&record).unwrap());
        Self::finish(writer).unwrap()
    }

    /// The content of its file.
    pub fn content(&mut self) -> Result<impl Read, DataError> {
        self.content.rewind().map_err(DataError::Scratch)?;
        Ok(&mut self.content)
    }

    /// The same in memory.
    pub fn to_bytes(&mut self) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        self.content()?.read_to_end(&mut bytes).map_err(DataError::Scratch)?;
        Ok(bytes)
    }

    /// Every sample, in the order of ids.
    pub fn entries(&mut self) -> Result<Vec<ManifestEntry>, DataError> {
        let mut entries = Vec::new();
        self.each_entry(|entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Shows every sample to `look`, in the order of ids.
    pub fn each_entry(&mut self, mut look: impl FnMut(ManifestEntry)) -> Result<(), DataError> {
        self.for_each(|record| {
            look(record.into());
            Ok(())
        })
    }

    /// Number of samples.
    pub fn count(&mut self) -> Result<usize, DataError> {
        let mut count = 0;
        self.for_each(|_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    pub(super) fn for_each(&mut self, mut look: impl FnMut(Record) -> Result<(), DataError>) -> Result<(), DataError> {
        let mut records = self.records()?;
        while let Some(record) = records.next()? {
            look(record)?;
        }
        Ok(())
    }

    fn records(&mut self) -> Result<Records<'_>, DataError> {
        self.content.rewind().map_err(|source| DataError::Read { path: self.path.clone(), source })?;
        let reader = Reader::new(BufReader::with_capacity(1 << 18, &mut self.content));
        let reader = reader.and_then(|reader| match reader.title() == TITLE {
            true => Ok(reader),
            false => Err(LedgerError::Foreign),
        });
        let reader = reader.map_err(|error| broken(&self.path, error))?;
        Ok(Records { reader, path: &self.path })
    }

    /// Narrows `split` to the samples of this manifest and checks that they are what they were. Files whose size
    /// and time are unchanged are trusted; all others are read again.
    pub fn verify(&mut self, split: &mut Split) -> Result<(), DataError> {
        let (mut rows, mut names) = (Vec::new(), ByName::new(split));
        let mut records = self.records()?;
        loop {
            let mut chunk = Vec::new();
            while chunk.len() < CHUNK
                && let Some(old) = records.next()?
            {
                let id = names.find(&old.name).ok_or_else(|| DataError::Changed(format!("{} is gone", old.name)))?;
                chunk.push((id, old));
            }
            if chunk.is_empty() {
                break;
            }
            if let Some(what) = chunk.par_iter().find_map_first(|(id, old)| difference(split, *id, old)) {
                return Err(DataError::Changed(what));
            }
            rows.extend(chunk.iter().map(|(id, _)| split.rows[*id]));
        }
        split.rows = rows;
        Ok(())
    }
}

/// In what sample `id` is another than it was.
fn difference(split: &Split, id: usize, old: &Record) -> Option<String> {
    let differs = |in_what: &str| Some(format!("{} has other {in_what}", old.name));
    if caption_hash(split, id) != old.captions {
        return differs("captions");
    }
    let stamp = split.source.stamp(split.row(id));
    if let (Some(modified), Some((size, now))) = (old.modified, stamp)
        && (size, now) == (old.size, u128::from(modified))
    {
        return None;
    }
    let Some(hash) = old.hash else {
        // Nothing but its time and size was known of it.
        let is_same = old.modified.is_none() && split.label(id) == old.label;
        return if is_same {
            None
        } else {
            differs("size or time, and its content was not looked at when the run began")
        };
    };
    match split.source.check(split.row(id)) {
        Ok(new) if digest(&new.hash) == hash && split.label(id) == old.label => None,
        Ok(_) => differs("content"),
        Err(error) => Some(error.to_string()),
    }
}

/// Finds samples by name: at once where they are asked for in their order.
pub(super) struct ByName<'a> {
    split: &'a Split,
    next: usize,
    all: Option<HashMap<String, usize>>,
}

impl<'a> ByName<'a> {
    pub fn new(split: &'a Split) -> Self {
        Self { split, next: 0, all: None }
    }

    pub fn find(&mut self, name: &str) -> Option<usize> {
        let split = self.split;
        if self.all.is_none() {
            if let Some(id) = (self.next..split.len()).find(|&id| split.name(id) == name) {
                self.next = id + 1;
                return Some(id);
            }
            self.all = Some((0..split.len()).map(|id| (split.name(id), id)).collect());
        }
        self.all.as_ref()?.get(name).copied()
    }
}

/// A manifest on its way through memory.
struct Records<'a> {
    reader: Reader<BufReader<&'a mut Box<dyn Content>>>,
    path: &'a Path,
}

impl Records<'_> {
    fn next(&mut self) -> Result<Option<Record>, DataError> {
        self.reader.next().map_err(|error| broken(self.path, error))
    }
}

fn broken(path: &Path, error: LedgerError) -> DataError {
    match error {
        LedgerError::Io(source) => DataError::Read { path: path.to_owned(), source },
        error => DataError::Format { path: path.to_owned(), cause: format!("broken manifest ({error})") },
    }
}

type Spool = BufWriter<tempfile::SpooledTempFile>;

fn spool() -> Result<Writer<Spool>, DataError> {
    Writer::new(BufWriter::new(tempfile::spooled_tempfile(IN_MEMORY)), TITLE).map_err(DataError::Scratch)
}

pub(super) fn caption_hash(split: &Split, id: usize) -> Option<[u8; 32]> {
    let captions = split.captions(id);
    (!captions.is_empty()).then(|| *blake3::hash(captions.join("\n").as_bytes()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::{DataConfig, Dataset};
    use super::*;

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
        let error = Manifest::build(&mut open(root.path()), false, || {}).err().unwrap().to_string();
        assert!(error.contains("1 of 3") && error.contains("b.jpg"), "{error}");
        let mut split = open(root.path());
        let (mut manifest, bad) = Manifest::build(&mut split, true, || {}).unwrap();
        assert_eq!((manifest.count().unwrap(), split.len(), bad.len()), (2, 2, 1));
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
        let error = Manifest::build(&mut open(root.path()), false, || {}).err().unwrap().to_string();
        assert!(error.contains("truncated"), "{error}");
    }

    #[test]
    fn verify_names_what_changed_and_ignores_new_files() {
        let root = tempfile::tempdir().unwrap();
        png(&root.path().join("a.png"), 1);
        png(&root.path().join("b.png"), 2);
        let (mut manifest, _) = Manifest::build(&mut open(root.path()), false, || {}).unwrap();
        let mut manifest = Manifest::from_bytes(manifest.to_bytes().unwrap());
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

    /// With `data.check = none` size and time are all that is known.
    #[test]
    fn what_was_not_looked_at_is_told_by_size_and_time() {
        let root = tempfile::tempdir().unwrap();
        png(&root.path().join("a.png"), 1);
        std::fs::write(root.path().join("b.png"), b"broken, and nobody looked").unwrap();
        let mut split = open(root.path());
        let checked = Manifest::check(&split, 0..2, CheckImages::None, 0, || {}).unwrap();
        let (mut manifest, bad) = Manifest::of(&mut split, vec![checked], false).unwrap();
        assert!(bad.is_empty());
        assert!(manifest.entries().unwrap().iter().all(|entry| entry.hash.is_none() && entry.size > 0));
        manifest.verify(&mut open(root.path())).unwrap();
        png(&root.path().join("a.png"), 200);
        let error = manifest.verify(&mut open(root.path())).unwrap_err().to_string();
        assert!(error.contains("a.png has other size or time"), "{error}");
    }

    #[test]
    fn manifests_of_before_are_read() {
        let (root, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        png(&root.path().join("a.png"), 1);
        let (mut manifest, _) = Manifest::build(&mut open(root.path()), false, || {}).unwrap();
        let entry = manifest.entries().unwrap().remove(0);
        let line = format!(
            "{{\"name\":\"a.png\",\"size\":{},\"hash\":\"{}\",\"modified\":{}}}\n",
            entry.size,
            entry.hash.unwrap(),
            entry.modified.unwrap()
        );
        std::fs::write(run.path().join("manifest.jsonl"), line).unwrap();
        let mut old = Manifest::open(run.path()).unwrap();
        assert_eq!(old.entries().unwrap(), manifest.entries().unwrap());
        old.verify(&mut open(root.path())).unwrap();
        std::fs::write(run.path().join("manifest.jsonl"), "{\"name\"").unwrap();
        assert!(Manifest::open(run.path()).err().unwrap().to_string().contains("broken manifest"));
    }
}
