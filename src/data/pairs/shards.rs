//! Webdataset-style tar shards: files that share a name up to the first dot of their last part are one sample, an image
//! with `.txt` (one caption on each line) or `.json` (`caption` or `text`).

use super::{DataError, Dataset, Split, checked_caption};
use crate::data::archive::{ArchiveImages, Region};
use crate::data::folder::is_image;
use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The data, the problems met, and how many samples there were.
pub(super) fn open(path: &Path) -> Result<(Dataset, Vec<String>, usize), DataError> {
    let archives = if path.is_dir() { tars_in(path)? } else { vec![path.to_owned()] };
    let (mut problems, mut total) = (Vec::new(), 0);
    let (mut regions, mut captions) = (Vec::new(), Vec::new());
    for (archive, path) in archives.iter().enumerate() {
        let mut sample = Sample::default();
        let mut finish = |sample: &mut Sample| {
            let Sample { key, image, texts } = std::mem::take(sample);
            if key.is_empty() {
                return;
            }
            total += 1;
            let texts: Vec<String> = texts.iter().filter_map(|text| checked_caption(text).ok()).collect();
            match image {
                Some(_) if texts.is_empty() => problems.push(format!("{}: {key} has no caption", path.display())),
                None => problems.push(format!("{}: {key} has no image", path.display())),
                Some(image) => {
                    regions.push(Region { archive, ..image });
                    captions.push(texts);
                }
            }
        };
        let cut = walk(path, &mut sample, &mut finish)?;
        finish(&mut sample);
        problems.extend(cut.map(|cause| format!("{}: {cause}", path.display())));
    }
    let split = Split::new(Arc::new(ArchiveImages { archives, regions }), None).with_captions(captions);
    let title = path.display().to_string();
    let data = Dataset {
        title,
        train: split,
        test: None,
        classes: Vec::new(),
        native_size: None,
        is_grey: false,
        problems: Vec::new(),
    };
    Ok((data, problems, total))
}

#[derive(Default)]
struct Sample {
    key: String,
    image: Option<Region>,
    texts: Vec<String>,
}

/// Goes through one shard; the cause if it ends too early.
fn walk(path: &Path, sample: &mut Sample, finish: &mut impl FnMut(&mut Sample)) -> Result<Option<String>, DataError> {
    let file = File::open(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let length = file.metadata().map_err(|source| DataError::Read { path: path.to_owned(), source })?.len();
    let mut tar = tar::Archive::new(BufReader::new(file));
    let entries = tar.entries().map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    for entry in entries {
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(Some(format!("the shard is damaged or truncated ({error})"))),
        };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let (start, len) = (entry.raw_file_position(), entry.size());
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if start + len > length {
            return Ok(Some(format!("the shard is truncated inside {name}")));
        }
        let (key, extension) = split_key(&name);
        if key != sample.key {
            finish(sample);
            sample.key = key.to_owned();
        }
        if is_image(Path::new(&name)) {
            sample.image = Some(Region { name: name.clone(), archive: 0, start, len, is_deflated: false });
        } else if matches!(extension, "txt" | "json") {
            let mut bytes = Vec::new();
            if let Err(error) = entry.read_to_end(&mut bytes) {
                return Ok(Some(format!("the shard is damaged inside {name} ({error})")));
            }
            sample.texts.extend(texts(extension, &bytes));
        }
    }
    Ok(None)
}

/// `a/b.jpg` → (`a/b`, `jpg`)
fn split_key(name: &str) -> (&str, &str) {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last..].find('.') {
        Some(dot) => (&name[..last + dot], &name[last + dot + 1..]),
        None => (name, ""),
    }
}

fn texts(extension: &str, bytes: &[u8]) -> Vec<String> {
    if extension == "txt" {
        return String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    }
    let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let captions = ["caption", "text"].iter().find_map(|key| object.get(key)).cloned().unwrap_or_default();
    match captions {
        Value::String(caption) => vec![caption],
        Value::Array(all) => all.iter().filter_map(|caption| Some(caption.as_str()?.to_owned())).collect(),
        _ => Vec::new(),
    }
}

/// The `.tar` files of a folder, sorted.
fn tars_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let error = |source| DataError::Read { path: folder.to_owned(), source };
    let mut tars = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "tar") {
            tars.push(path);
        }
    }
    tars.sort();
    if tars.is_empty() {
        return Err(DataError::NoPairs(folder.display().to_string()));
    }
    Ok(tars)
}
