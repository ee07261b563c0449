//! The file that `sogclr pack` makes: decoded images, their labels, names and splits. It is mapped into memory, so a step copies
//! pixels from the page cache, and the index takes no memory of its own. docs/data.md has the layout.

use super::form::Pixels;
use super::{DataError, Dataset, Dimensions, Fingerprint, Image, Layout, Samples, Source, Split};
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 8] = *b"sogclrPK";
/// Of the layout.
pub(crate) const VERSION: u32 = 1;
/// Where the pixels begin.
pub(crate) const HEADER: usize = 128;
/// Bytes of the header that its hash covers.
const HASHED: usize = 88;
/// Bytes of an image in the index.
pub(crate) const ENTRY: usize = 64;
/// Bytes kept of the hash of an image.
const HASH: usize = 24;
/// Stands for no label.
const UNLABELLED: u32 = u32::MAX;

/// Where the parts of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Images of both splits.
    pub images: u64,
    /// Start of the index, of the names, of the description, and the end of the file.
    pub places: [u64; 4],
    /// BLAKE3 of everything from the index on.
    pub hash: [u8; 32],
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(ENTRY as u32).to_le_bytes());
        for (at, value) in [self.images].into_iter().chain(self.places).enumerate() {
            bytes[16 + 8 * at..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes[56..HASHED].copy_from_slice(&self.hash);
        let hash = blake3::hash(&bytes[..HASHED]);
        bytes[HASHED..HASHED + 32].copy_from_slice(hash.as_bytes());
        bytes
    }

    /// Or what is wrong with a file of so many bytes that begins like this.
    fn of(bytes: &[u8], length: u64) -> Result<Self, String> {
        let again = "pack the images again";
        let header = bytes.get(..HEADER).ok_or_else(|| format!("the file ends inside its header: {again}"))?;
        let version = u32::from_le_bytes(array(header, 8));
        if version != VERSION {
            return Err(format!("is of version {version}, and this program reads version {VERSION}: {again} with it"));
        }
        if blake3::hash(&header[..HASHED]).as_bytes() != &header[HASHED..HASHED + 32] {
            return Err(format!("the header is damaged: {again}, or fetch the file again"));
        }
        let word = |at: usize| u64::from_le_bytes(array(header, 16 + 8 * at));
        let (images, places) = (word(0), [word(1), word(2), word(3), word(4)]);
        let [index, names, about, end] = places;
        if end != length {
            return Err(format!("has {length} bytes where its header says {end}: fetch the file again"));
        }
        let has_index = images.checked_mul(ENTRY as u64).and_then(|bytes| bytes.checked_add(index)) == Some(names);
        if !(has_index && HEADER as u64 <= index && names <= about && about <= end) {
            return Err(format!("the header contradicts itself: {again}"));
        }
        Ok(Self { images, places, hash: array(header, 56) })
    }
}

/// An image in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub start: u64,
    pub dimensions: Dimensions,
    /// 0, 1 and 2: 8-bit, 16-bit, float.
    pub kind: u8,
    pub label: Option<u32>,
    pub name: (u64, u32),
    pub hash: [u8; HASH],
}

impl Entry {
    /// Of an image whose pixels are written at `start`, and its bytes.
    pub(crate) fn of(image: &Image, start: u64, label: Option<u32>, name: (u64, u32)) -> (Self, Vec<u8>) {
        let (kind, bytes) = match &image.data {
            Samples::U8(values) => (0, values.clone()),
            Samples::U16(values) => (1, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Samples::F32(values) => (2, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        let hash = short_hash(&bytes);
        (Self { start, dimensions: image.dimensions(), kind, label, name, hash }, bytes)
    }

    pub(crate) fn to_bytes(self) -> [u8; ENTRY] {
        let Self { start, dimensions: Dimensions { height, width, channels }, kind, label, name, hash } = self;
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&start.to_le_bytes());
        let words =
            [height as u32, width as u32, channels as u32, u32::from(kind), label.unwrap_or(UNLABELLED), name.1];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&name.0.to_le_bytes());
        bytes[40..].copy_from_slice(&hash);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(array(bytes, 8 + 4 * at));
        let [height, width, channels] = [0, 1, 2].map(|at| word(at) as usize);
        Self {
            start: u64::from_le_bytes(array(bytes, 0)),
            dimensions: Dimensions { height, width, channels },
            kind: bytes[20],
            label: Some(word(4)).filter(|&label| label != UNLABELLED),
            name: (u64::from_le_bytes(array(bytes, 32)), word(5)),
            hash: array(bytes, 40),
        }
    }

    /// Where its pixels lie, if that is between the header and the index.
    fn pixels(&self, index: u64) -> Option<Range<usize>> {
        let Dimensions { height, width, channels } = self.dimensions;
        let size = [1, 2, 4].get(usize::from(self.kind))?;
        let len = [width, channels, *size].into_iter().try_fold(height, usize::checked_mul).filter(|&len| len > 0)?;
        let start = usize::try_from(self.start).ok().filter(|&start| start >= HEADER)?;
        let end = start.checked_add(len)?;
        (end as u64 <= index).then_some(start..end)
    }
}

/// What is said of all images, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// Training images; those for testing follow them.
    pub train: usize,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Channels of every image.
    pub channels: usize,
    /// Side of the images where they are all square and alike.
    pub native_size: Option<usize>,
    /// What they are of; absent in the first packs, which held colours and greys.
    #[serde(default = "Pixels::of_old_runs")]
    pub pixels: Pixels,
    /// No shortest side is longer.
    pub shortest_side: usize,
}

fn short_hash(bytes: &[u8]) -> [u8; HASH] {
    array(blake3::hash(bytes).as_bytes(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes")
}

struct PackFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    modified: u128,
    /// A bit for each image that was found whole since the file was opened.
    whole: Vec<AtomicU64>,
}

impl PackFile {
    fn open(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::Read { path: path.to_owned(), source };
        let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
        let file = File::open(path).map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        // SAFETY: a file that is changed in place while it is mapped gives other bytes, which the hashes catch, and one that is cut
        // ends the process; `pack` does neither, as it makes a new file and renames it.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let header = Header::of(&map, map.len() as u64).map_err(format)?;
        if blake3::hash(&map[header.places[0] as usize..]).as_bytes() != &header.hash {
            let cause = "the index is damaged: fetch the file again, or pack the images again";
            return Err(format(cause.into()));
        }
        let whole = (0..header.images.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let modified = modified.map_or(0, |time| time.as_nanos());
        Ok(Self { path: path.to_owned(), map, header, modified, whole })
    }

    fn entry(&self, index: usize) -> Entry {
        Entry::from_bytes(&self.map[self.header.places[0] as usize + ENTRY * index..][..ENTRY])
    }

    fn name(&self, index: usize) -> String {
        let (start, len) = self.entry(index).name;
        let names = &self.map[self.header.places[1] as usize..self.header.places[2] as usize];
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let name = start.checked_add(len as usize).and_then(|end| names.get(start..end));
        name.map_or_else(|| format!("#{index}"), |name| String::from_utf8_lossy(name).into_owned())
    }

    /// The pixels of an image, compared with their hash when they are first read.
    fn pixels(&self, index: usize) -> Result<(Entry, &[u8]), DataError> {
        let damaged = |what: &str| DataError::Decode {
            name: format!("{} in {}", self.name(index), self.path.display()),
            cause: format!("{what}: pack the images again, or fetch the file again"),
        };
        let entry = self.entry(index);
        let place = entry.pixels(self.header.places[0]).ok_or_else(|| damaged("it lies outside the file"))?;
        let (bytes, seen) = (&self.map[place], &self.whole[index / 64]);
        if seen.load(Ordering::Relaxed) >> (index % 64) & 1 == 0 {
            if short_hash(bytes) != entry.hash {
                return Err(damaged("its block is damaged"));
            }
            seen.fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
        Ok((entry, bytes))
    }
}

/// Some of the images of a file, one behind the other.
struct PackedImages {
    file: Arc<PackFile>,
    rows: Range<usize>,
}

impl PackedImages {
    fn row(&self, index: usize) -> usize {
        self.rows.start + index
    }
}

impl Source for PackedImages {
    fn count(&self) -> usize {
        self.rows.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        let (Entry { dimensions: Dimensions { height, width, channels }, kind, .. }, bytes) =
            self.file.pixels(self.row(index))?;
        let data: Samples = match kind {
            0 => bytes.to_vec().into(),
            1 => bytes.chunks_exact(2).map(|v| u16::from_le_bytes(array(v, 0))).collect::<Vec<_>>().into(),
            _ => bytes.chunks_exact(4).map(|v| f32::from_le_bytes(array(v, 0))).collect::<Vec<_>>().into(),
        };
        Ok(Image::new(height, width, channels, data))
    }

    fn name(&self, index: usize) -> String {
        self.file.name(self.row(index))
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        Ok(Fingerprint::of(self.file.pixels(self.row(index))?.1))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        Ok(self.file.entry(self.row(index)).dimensions)
    }

    fn stamp(&self, index: usize) -> Option<(u64, u128)> {
        let place = self.file.entry(self.row(index)).pixels(self.file.header.places[0])?;
        Some((place.len() as u64, self.file.modified))
    }
}

/// Opens `path` if it is packed.
pub(super) fn open(path: &Path, _pixels: Pixels) -> Option<Result<Dataset, DataError>> {
    is_packed(path).then(|| read(path))
}

/// The images of both splits.
pub(super) fn open_all(path: &Path) -> Option<Result<Split, DataError>> {
    is_packed(path).then(|| {
        let file = Arc::new(PackFile::open(path)?);
        let rows = 0..file.header.images as usize;
        Ok(Split::new(Arc::new(PackedImages { file, rows }), None))
    })
}

fn is_packed(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == MAGIC
}

fn read(path: &Path) -> Result<Dataset, DataError> {
    let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
    let file = Arc::new(PackFile::open(path)?);
    let [_, _, start, end] = file.header.places.map(|place| place as usize);
    let about: About = serde_json::from_slice(&file.map[start..end])
        .map_err(|error| format(format!("its description cannot be read ({error}): pack the images again")))?;
    let images = file.header.images as usize;
    if about.train > images || about.train == 0 {
        return Err(format(format!("{} of {images} images are for training: pack them again", about.train)));
    }
    let split = |rows: Range<usize>| {
        let labels: Option<Vec<u32>> = rows.clone().map(|row| file.entry(row).label).collect();
        if let Some(label) = labels.iter().flatten().find(|&&label| label as usize >= about.classes.len()) {
            let cause = format!("label {label} of {} classes: pack the images again", about.classes.len());
            return Err(format(cause));
        }
        Ok(Split::new(Arc::new(PackedImages { file: file.clone(), rows }), labels))
    };
    let train = split(0..about.train)?;
    let test = if about.train < images { Some(split(about.train..images)?) } else { None };
    let About { classes, channels, native_size, pixels, .. } = about;
    let title = path.display().to_string();
    Ok(Dataset {
        title,
        train,
        test,
        classes,
        native_size,
        channels,
        pixels,
        problems: Vec::new(),
        layout: Layout::default(),
    })
}
