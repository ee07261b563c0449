//! Images decoded and shrunk once, into the file that `data/packed.rs` reads.

use crate::augment::Resizer;
use crate::data::packed::{About, Entry, HEADER, Header};
use crate::data::{DataError, Dataset, Image, Modality, Samples, Split};
use crate::storage::{StorageError, write_atomic_by};
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Images that are in memory at once.
const CHUNK: usize = 64;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The images.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Something is there already.
    #[error("{0} exists already: choose another file, or remove it")]
    Exists(PathBuf),
    /// There is no folder for the file.
    #[error("{0} is no folder: make it, or choose another file")]
    NoFolder(PathBuf),
    /// Captions have no place in the file.
    #[error("{0} are image–text pairs, which cannot be packed: pack images alone")]
    Pairs(String),
    /// An image without pixels.
    #[error("the shortest side would be 0: choose at least 8 pixels")]
    NoSize,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Images in the file, for training and for testing.
    pub images: [usize; 2],
    /// Bytes of the file.
    pub bytes: u64,
    /// What could not be read and was left out, a sentence each.
    pub left_out: Vec<String>,
}

/// How images are packed.
pub struct Packing<'a> {
    /// What is packed.
    pub data: &'a Dataset,
    /// Images are shrunk until their shortest side is this long; smaller ones stay as they are.
    pub shortest_side: usize,
    /// Leave out what cannot be read instead of refusing all.
    pub skip_bad: bool,
}

impl Packing<'_> {
    /// Fails before the hours are spent.
    pub fn check(&self, out: &Path) -> Result<(), PackError> {
        if self.shortest_side < 8 {
            return Err(PackError::NoSize);
        }
        if out.exists() {
            return Err(PackError::Exists(out.to_owned()));
        }
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(PackError::NoFolder(folder.to_owned()));
        }
        match self.data.train.modality() {
            Modality::Pairs => Err(PackError::Pairs(self.data.title.clone())),
            Modality::Images => Ok(()),
        }
    }

    /// Writes all images to `out`, which does not exist until it is whole; `progress` is called with the number that are done.
    pub fn write(&self, out: &Path, progress: impl Fn(usize)) -> Result<Packed, PackError> {
        self.check(out)?;
        let (mut images, mut bytes, mut left_out) = ([0; 2], 0, Vec::new());
        write_atomic_by(out, |file| {
            let failed = |source| StorageError::Write { path: out.to_owned(), source };
            let mut writer = PackWriter::new(file).map_err(failed)?;
            let mut is_shrunk = false;
            for (count, split) in images.iter_mut().zip([Some(&self.data.train), self.data.test.as_ref()]) {
                let ids: Vec<usize> = (0..split.map_or(0, Split::len)).collect();
                let Some(split) = split else { continue };
                for ids in ids.chunks(CHUNK) {
                    let made: Vec<_> = ids.into_par_iter().map(|&id| self.image(split, id)).collect();
                    for (&id, image) in ids.iter().zip(made) {
                        match image {
                            Ok((image, shrunk)) => {
                                is_shrunk |= shrunk;
                                *count += 1;
                                writer.add(&image, split.label(id), &split.name(id)).map_err(failed)?;
                            }
                            Err(error) => left_out.push(error.to_string()),
                        }
                    }
                    progress(ids.len());
                }
            }
            if !left_out.is_empty() && (!self.skip_bad || images[0] == 0) {
                let total = images.iter().sum::<usize>() + left_out.len();
                return Err(PackError::from(DataError::BadImages { bad: std::mem::take(&mut left_out), total }));
            }
            let Dataset { classes, channels, native_size, pixels, .. } = self.data;
            let about = About {
                train: images[0],
                classes: classes.clone(),
                channels: *channels,
                pixels: *pixels,
                native_size: native_size.filter(|_| !is_shrunk),
                shortest_side: self.shortest_side,
            };
            bytes = writer.finish(&about).map_err(failed)?;
            Ok(())
        })?;
        Ok(Packed { images, bytes, left_out })
    }

    /// An image as it is packed, and whether it was shrunk.
    fn image(&self, split: &Split, id: usize) -> Result<(Image, bool), DataError> {
        let image = split.image(id)?;
        if image.channels != self.data.channels {
            let cause = format!("it has {} channels, the others {}", image.channels, self.data.channels);
            return Err(DataError::Decode { name: split.name(id), cause });
        }
        if image.height.min(image.width) <= self.shortest_side {
            return Ok((image, false));
        }
        let mut small = Resizer::default().shortest_side(&image, self.shortest_side);
        // Words are resized as floats.
        if let (Samples::U16(_), Samples::F32(values)) = (&image.data, &small.data) {
            small.data = values.iter().map(|v| (v * 65535.0).round() as u16).collect::<Vec<_>>().into();
        }
        Ok((small, true))
    }
}

/// Writes pixels as they come, and at the end what is known of them.
struct PackWriter<'a> {
    file: BufWriter<&'a mut File>,
    /// Where the next pixels go.
    at: u64,
    images: u64,
    index: Vec<u8>,
    names: Vec<u8>,
}

impl<'a> PackWriter<'a> {
    fn new(file: &'a mut File) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&[0; HEADER])?;
        Ok(Self { file, at: HEADER as u64, images: 0, index: Vec::new(), names: Vec::new() })
    }

    fn add(&mut self, image: &Image, label: Option<u32>, name: &str) -> io::Result<()> {
        let (entry, bytes) = Entry::of(image, self.at, label, (self.names.len() as u64, name.len() as u32));
        self.file.write_all(&bytes)?;
        self.at += bytes.len() as u64;
        self.images += 1;
        self.index.extend(entry.to_bytes());
        self.names.extend(name.as_bytes());
        Ok(())
    }

    /// The bytes of the whole file.
    fn finish(mut self, about: &About) -> io::Result<u64> {
        let about = serde_json::to_vec(about).expect("plain data");
        let names = self.at + self.index.len() as u64;
        let description = names + self.names.len() as u64;
        let end = description + about.len() as u64;
        let mut hasher = blake3::Hasher::new();
        for part in [&self.index, &self.names, &about] {
            hasher.update(part);
            self.file.write_all(part)?;
        }
        let hash = *hasher.finalize().as_bytes();
        let header = Header { images: self.images, places: [self.at, names, description, end], hash };
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header.to_bytes())?;
        self.file.flush()?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataConfig, Pixels, open_images};
    use std::path::Path;

    fn open(path: &Path) -> Result<Dataset, DataError> {
        Dataset::open(&DataConfig { path: Some(path.to_owned()), ..Default::default() }, 0)
    }

    fn pack(from: &Path, out: &Path, shortest_side: usize, skip_bad: bool) -> Result<Packed, PackError> {
        Packing { data: &open(from)?, shortest_side, skip_bad }.write(out, |_| {})
    }

    /// A folder with two classes, two splits and images of several sizes.
    fn photos(root: &Path) -> PathBuf {
        let folder = root.join("photos");
        let files =
            [("train/a/1.png", 8, 12), ("train/b/2.png", 40, 20), ("train/b/3.png", 16, 16), ("val/b/4.png", 9, 9)];
        for (at, (name, height, width)) in files.into_iter().enumerate() {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let pixel = |x, y| image::Rgb([(x * 9) as u8, (y * 5) as u8, at as u8 * 40]);
            image::RgbImage::from_fn(width, height, pixel).save(path).unwrap();
        }
        folder
    }

    #[test]
    fn a_packed_folder_is_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (photos(root.path()), root.path().join("x.pack"));
        let done = pack(&folder, &out, 20, false).unwrap();
        assert_eq!((done.images, done.bytes), ([3, 1], std::fs::metadata(&out).unwrap().len()));
        let (from, to) = (open(&folder).unwrap(), open(&out).unwrap());
        assert_eq!(from.classes, to.classes);
        assert_eq!(from.describe(), to.describe());
        for (from, to) in [(&from.train, &to.train), (from.test.as_ref().unwrap(), to.test.as_ref().unwrap())] {
            assert_eq!(from.len(), to.len());
            for id in 0..from.len() {
                assert_eq!(from.image(id).unwrap(), to.image(id).unwrap());
                assert_eq!((from.label(id), from.name(id)), (to.label(id), to.name(id)));
                assert_eq!(to.dimensions(id).unwrap(), to.image(id).unwrap().dimensions());
            }
        }
        assert_eq!(open_images(&out).unwrap().len(), 4, "both splits");
        // The shortest side is at most as long as was said, and the other in proportion.
        let smaller = root.path().join("smaller.pack");
        pack(&folder, &smaller, 10, false).unwrap();
        let sizes = |path: &Path| {
            let data = open(path).unwrap();
            [0, 1, 2].map(|id| data.train.dimensions(id).unwrap()).map(|shape| (shape.height, shape.width))
        };
        assert_eq!(sizes(&smaller), [(8, 12), (20, 10), (10, 10)]);
        assert!(matches!(pack(&folder, &out, 20, false), Err(PackError::Exists(_))));
        assert!(matches!(pack(&folder, &root.path().join("no/x"), 20, false), Err(PackError::NoFolder(_))));
    }

    #[test]
    fn every_kind_of_samples_and_the_size_of_the_source_are_kept() {
        struct Kinds;
        impl crate::data::Source for Kinds {
            fn count(&self) -> usize {
                3
            }
            fn image(&self, index: usize) -> Result<Image, DataError> {
                Ok(match index {
                    0 => Image::new(9, 10, 2, (0..180).collect::<Vec<u8>>()),
                    1 => Image::new(9, 10, 2, (0..180).map(|v| v * 300).collect::<Vec<u16>>()),
                    _ => Image::new(9, 10, 2, (0..180).map(|v| v as f32 / 200.0).collect::<Vec<f32>>()),
                })
            }
        }
        let root = tempfile::tempdir().unwrap();
        let data = Dataset::new("kinds", Split::new(std::sync::Arc::new(Kinds), None)).unwrap();
        let data = Dataset { native_size: Some(10), ..data };
        for (name, side) in [("whole", 9), ("shrunk", 8)] {
            let out = root.path().join(name);
            Packing { data: &data, shortest_side: side, skip_bad: false }.write(&out, |_| {}).unwrap();
            let packed = open(&out).unwrap();
            assert_eq!((packed.channels, packed.native_size), (2, Some(10).filter(|_| side == 9)));
            for id in 0..3 {
                let (from, to) = (data.train.image(id).unwrap(), packed.train.image(id).unwrap());
                assert_eq!(std::mem::discriminant(&from.data), std::mem::discriminant(&to.data));
                assert!(side < 9 || from == to);
                assert_eq!(to.height, side);
            }
        }
    }

    #[test]
    fn what_is_broken_is_named_or_left_out() {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (photos(root.path()), root.path().join("x.pack"));
        std::fs::write(folder.join("train/b/9.jpg"), b"no picture").unwrap();
        let error = pack(&folder, &out, 20, false).unwrap_err().to_string();
        assert!(error.starts_with("1 of 5 images") && error.contains("9.jpg") && !out.exists(), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left behind");
        let done = pack(&folder, &out, 20, true).unwrap();
        assert_eq!((done.images, done.left_out.len()), ([3, 1], 1));
        assert_eq!(open(&out).unwrap().train.len(), 3);
    }

    /// Every byte of a file matters, and is said to be wrong where it is: in a sentence, without a panic.
    #[test]
    fn damage_is_named_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let (folder, out) = (photos(root.path()), root.path().join("x.pack"));
        pack(&folder, &out, 20, false).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let pixels = 128..128 + 3 * (8 * 12 + 40 * 20 + 16 * 16 + 9 * 9);
        let places = (0..bytes.len()).filter(|&at| at < 136 || at + 8 >= pixels.end || at % 97 == 0);
        for at in places {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&out, &damaged).unwrap();
            let opened = match open(&out) {
                Err(error) => {
                    assert!(!pixels.contains(&at) && error.to_string().contains("x.pack"), "{at}: {error}");
                    continue;
                }
                // Byte 120 to 127 of the header are not used.
                Ok(opened) => opened,
            };
            assert!(pixels.contains(&at) || (120..128).contains(&at), "{at}");
            let errors = (0..3).filter_map(|id| opened.train.image(id).err()).count();
            let test = opened.test.unwrap().image(0).err();
            assert_eq!(errors + usize::from(test.is_some()), usize::from(pixels.contains(&at)), "{at}");
        }
        let mut damaged = bytes.clone();
        damaged[128 + 3 * 8 * 12 + 100] ^= 1;
        std::fs::write(&out, &damaged).unwrap();
        let error = open(&out).unwrap().train.image(1).unwrap_err().to_string();
        assert!(error.contains("b/2.png in ") && error.contains("block is damaged"), "{error}");
        for length in [8, 100, 128, pixels.end, bytes.len() - 1] {
            std::fs::write(&out, &bytes[..length]).unwrap();
            let error = open(&out).err().unwrap().to_string();
            assert!(error.contains("x.pack: "), "{length}: {error}");
        }
    }

    /// Hashes that fit do not make a place outside the file readable.
    #[test]
    fn absurd_sizes_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("x.pack");
        let image = Image::new(2, 2, 3, vec![7_u8; 12]);
        let about =
            About { train: 1, classes: vec![], channels: 3, native_size: None, pixels: Pixels::Rgb, shortest_side: 8 };
        for change in [
            |entry: &mut Entry| entry.start = u64::MAX - 3,
            |entry: &mut Entry| entry.start = 4,
            |entry: &mut Entry| entry.dimensions.height = u32::MAX as usize,
            |entry: &mut Entry| entry.dimensions.channels = 0,
            |entry: &mut Entry| entry.kind = 3,
            |entry: &mut Entry| entry.label = Some(5),
        ] {
            let mut file = File::create(&out).unwrap();
            let mut writer = PackWriter::new(&mut file).unwrap();
            writer.add(&image, None, "a.png").unwrap();
            let (mut entry, _) = Entry::of(&image, HEADER as u64, None, (u64::MAX, 5));
            change(&mut entry);
            writer.index = entry.to_bytes().to_vec();
            writer.finish(&about).unwrap();
            drop(file);
            let error = open(&out).and_then(|data| data.train.image(0)).unwrap_err().to_string();
            assert!(error.contains("lies outside the file") || error.contains("label 5 of 0 classes"), "{error}");
        }
    }
}
