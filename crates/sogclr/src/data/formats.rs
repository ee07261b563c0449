//! The formats of data, and which of them a path has.

use super::archive::Archive;
use super::choice::Choice;
use super::folder::Folder;
use super::form::Pixels;
use super::{DataError, Dataset, Split, cifar, idx, list, packed, shards, tree};
use std::path::Path;

/// Tries to open a folder or file; `None` if it does not hold this format.
type Open = fn(&Path, Pixels) -> Option<Result<Dataset, DataError>>;

/// Formats in the order they are tried; what is none of them is a folder of images, or an archive of one.
const FORMATS: &[Open] = &[packed::open, cifar::open, idx::open, list::open, shards::open];

/// Every image of a folder, archive or packed file, also where it is divided into `train/`, `val/` and `test/`; of other formats
/// the training images.
pub fn open_images(path: &Path) -> Result<Split, DataError> {
    open_images_as(path, Pixels::Auto)
}

/// The same with the pixels that a run was trained on.
pub(crate) fn open_images_as(path: &Path, pixels: Pixels) -> Result<Split, DataError> {
    if let Some(split) = packed::open_all(path) {
        return split;
    }
    match open_format(path, pixels)? {
        Some(data) => Ok(data.train),
        None if path.is_dir() => tree::open_all(&Folder(path), pixels),
        None => tree::open_all(&Archive::open(path)?, pixels),
    }
}

pub(super) fn open_path(path: &Path, choice: &Choice) -> Result<Dataset, DataError> {
    match open_format(path, choice.pixels)? {
        Some(data) => Ok(data),
        None if path.is_dir() => tree::open(&Folder(path), choice),
        None => tree::open(&Archive::open(path)?, choice),
    }
}

/// None where there is none of the formats.
fn open_format(path: &Path, pixels: Pixels) -> Result<Option<Dataset>, DataError> {
    if !path.exists() {
        return Err(DataError::NotFound(path.to_owned()));
    }
    if !path.is_dir() && !path.is_file() {
        return Err(DataError::UnknownFile(path.to_owned()));
    }
    FORMATS.iter().find_map(|open| open(path, pixels)).transpose()
}
