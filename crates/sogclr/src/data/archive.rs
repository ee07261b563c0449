//! Images inside zip files and tar shards, read in place.

use super::image::{Rows, header_dimensions};
use super::{DataError, Dimensions, Fingerprint, Image, Source};
use flate2::read::DeflateDecoder;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Where one file lies inside an archive.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub name: String,
    /// Index into [`ArchiveImages::archives`].
    pub archive: usize,
    pub start: u64,
    pub len: u64,
    pub is_deflated: bool,
}

pub(super) struct ArchiveImages {
    pub archives: Vec<PathBuf>,
    pub regions: Vec<Region>,
}

impl ArchiveImages {
    fn read(&self, index: usize) -> Result<Vec<u8>, DataError> {
        let region = &self.regions[index];
        let path = &self.archives[region.archive];
        read_region(path, region).map_err(|source| DataError::Read { path: path.clone(), source })
    }
}

fn read_region(path: &Path, region: &Region) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(region.start))?;
    let mut bytes = vec![0; region.len as usize];
    file.read_exact(&mut bytes)?;
    if !region.is_deflated {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    DeflateDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
    Ok(plain)
}

impl Source for ArchiveImages {
    fn count(&self) -> usize {
        self.regions.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        Image::decode(&self.read(index)?, &self.name(index))
    }

    fn image_as_stored(&self, index: usize) -> Result<Image, DataError> {
        Image::decode_as_stored(&self.read(index)?, &self.name(index))
    }

    fn name(&self, index: usize) -> String {
        let region = &self.regions[index];
        let archive = self.archives[region.archive].file_name().unwrap_or_default().to_string_lossy();
        format!("{archive}/{}", region.name)
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        let bytes = self.read(index)?;
        Image::decode(&bytes, &self.name(index))?;
        Ok(Fingerprint::of(&bytes))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        header_dimensions(Rows::Upright, Cursor::new(self.read(index)?), &self.name(index))
    }

    fn dimensions_as_stored(&self, index: usize) -> Result<Dimensions, DataError> {
        header_dimensions(Rows::AsStored, Cursor::new(self.read(index)?), &self.name(index))
    }
}

/// Every file of a zip.
pub(super) fn list_zip(path: &Path) -> Result<Vec<Region>, DataError> {
    let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
    let file = File::open(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let mut zip = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| format(error.to_string()))?;
    let mut regions = Vec::with_capacity(zip.len());
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(|error| format(error.to_string()))?;
        if entry.is_dir() {
            continue;
        }
        let name = entry.name().map_err(|error| format(error.to_string()))?.into_owned();
        let is_deflated = match entry.compression() {
            zip::CompressionMethod::Stored => false,
            zip::CompressionMethod::Deflated => true,
            other => return Err(format(format!("{name} is packed by {other}: pack it again by deflate"))),
        };
        let start = entry.data_start().ok_or_else(|| format(format!("{name} cannot be located")))?;
        let len = entry.compressed_size();
        regions.push(Region { name, archive: 0, start, len, is_deflated });
    }
    Ok(regions)
}
