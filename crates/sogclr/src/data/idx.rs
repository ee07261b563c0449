//! IDX files, the format of MNIST and its family: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, the
//! same with `t10k` or `test`, plain or gzipped.

use super::form::Pixels;
use super::memory::MemoryImages;
use super::{DataError, Dataset, Layout, Split};
use crate::storage::read_regular;
use flate2::read::GzDecoder;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens `folder` if it holds IDX training images.
pub(super) fn open(folder: &Path, _pixels: Pixels) -> Option<Result<Dataset, DataError>> {
    match find(folder, TRAIN, "images", 3) {
        Some(train) => Some(read_folder(folder, &train, TRAIN)),
        // A folder with test files alone, as --test may name.
        None => find(folder, TEST, "images", 3).map(|test| read_folder(folder, &test, TEST)),
    }
}

fn read_folder(folder: &Path, first: &Path, prefixes: &[&str]) -> Result<Dataset, DataError> {
    let split = |images: &Path, prefixes: &[&str]| {
        let labels = find(folder, prefixes, "labels", 1);
        let (images_bytes, labels_bytes) = (read(images)?, labels.as_deref().map(read).transpose()?);
        parse_split(images, &images_bytes, labels.as_deref().zip(labels_bytes.as_deref()))
    };
    let train = split(first, prefixes)?;
    let test = find(folder, TEST, "images", 3).map(|images| split(&images, TEST)).transpose()?;
    Ok(dataset(folder.display().to_string(), train, test, None))
}

const TRAIN: &[&str] = &["train"];
const TEST: &[&str] = &["t10k", "test"];

/// A dataset of square grey images; classes are numbered unless named.
pub(super) fn dataset(
    title: String,
    (train, side): (Split, usize),
    test: Option<(Split, usize)>,
    classes: Option<Vec<String>>,
) -> Dataset {
    let splits = std::iter::once(&train).chain(test.as_ref().map(|(split, _)| split));
    let labels = splits.flat_map(|split| (0..split.len()).filter_map(|id| split.label(id)));
    let count = labels.max().map_or(0, |max| max as usize + 1);
    let classes = classes.unwrap_or_else(|| (0..count).map(|class| class.to_string()).collect());
    Dataset {
        title,
        train,
        test: test.map(|(split, _)| split),
        classes,
        native_size: Some(side),
        channels: 1,
        pixels: Pixels::Rgb,
        problems: Vec::new(),
        layout: Layout::default(),
    }
}

fn find(folder: &Path, prefixes: &[&str], kind: &str, dims: u8) -> Option<PathBuf> {
    prefixes.iter().find_map(|prefix| {
        ["", ".gz"].iter().find_map(|suffix| {
            let path = folder.join(format!("{prefix}-{kind}-idx{dims}-ubyte{suffix}"));
            path.exists().then_some(path)
        })
    })
}

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    read_regular(path).map_err(|source| DataError::Read { path: path.to_owned(), source })
}

/// One split and the side of its images from the bytes of an image file and a label file.
pub(super) fn parse_split(
    images_path: &Path,
    images: &[u8],
    labels: Option<(&Path, &[u8])>,
) -> Result<(Split, usize), DataError> {
    let (dims, pixels) = parse(images_path, images)?;
    let &[count, height, width] = dims.as_slice() else {
        let cause = format!("expected images (3 dimensions), found {} dimensions", dims.len());
        return Err(DataError::Format { path: images_path.to_owned(), cause });
    };
    if dims.contains(&0) {
        return Err(DataError::Empty(images_path.to_owned()));
    }
    let labels = labels
        .map(|(path, bytes)| {
            let (dims, values) = parse(path, bytes)?;
            if dims != [count] {
                let cause = format!("expected {count} labels, one for each image, found {dims:?}");
                return Err(DataError::Format { path: path.to_owned(), cause });
            }
            Ok(values.into_iter().map(u32::from).collect())
        })
        .transpose()?;
    let name = images_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let source = MemoryImages { name, side: (height, width), channels: 1, pixels };
    Ok((Split::new(Arc::new(source), labels), height.max(width)))
}

/// Bytes that a gzipped file may unpack to: a hundred times MNIST.
const UNPACKED: usize = 4 << 30;
/// Bytes that are set aside on the word of a file.
const TRUSTED: usize = 1 << 20;

/// Dimensions and bytes of an unsigned-byte IDX file.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
    let is_packed = bytes.starts_with(&[0x1F, 0x8B]);
    let mut content: Box<dyn Read> = if is_packed { Box::new(GzDecoder::new(bytes)) } else { Box::new(bytes) };
    let mut next = |count: usize| {
        let mut part = Vec::with_capacity(count.min(TRUSTED));
        let read = content.by_ref().take(count as u64).read_to_end(&mut part);
        read.map_err(|error| format(format!("broken gzip file ({error})")))?;
        Ok::<_, DataError>(part)
    };
    let [0, 0, 0x08, rank] = next(4)?[..] else {
        return Err(format("not an IDX file of unsigned bytes".into()));
    };
    let header = next(4 * usize::from(rank))?;
    if header.len() < 4 * usize::from(rank) {
        return Err(format("the file ends inside its header".into()));
    }
    let dims: Vec<usize> =
        header.chunks_exact(4).map(|b| u32::from_be_bytes(b.try_into().expect("four bytes")) as usize).collect();
    let wanted = dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim));
    let wanted = wanted.ok_or_else(|| format(format!("{dims:?} is more than any file holds")))?;
    if is_packed && wanted > UNPACKED {
        let most = UNPACKED >> 30;
        return Err(format(format!(
            "{dims:?} unpacks to more than {most} GiB: unpack it, and train on the plain file"
        )));
    }
    // One byte more than there should be tells that there are more.
    let body = next(wanted.saturating_add(1))?;
    if body.len() != wanted {
        let found = if body.len() > wanted { "more".to_owned() } else { body.len().to_string() };
        return Err(format(format!("expected {wanted} bytes for {dims:?}, found {found}")));
    }
    Ok((dims, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(dims: &[u32], body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, dims.len() as u8];
        dims.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
        bytes.extend(body);
        bytes
    }

    #[test]
    fn images_and_labels_are_read_in_order() {
        let images = file(&[2, 1, 2], &[1, 2, 3, 4]);
        let labels = file(&[2], &[7, 9]);
        let path = Path::new("train-images-idx3-ubyte");
        let (split, side) = parse_split(path, &images, Some((path, &labels))).unwrap();
        assert_eq!((split.len(), side), (2, 2));
        assert_eq!(split.image(1).unwrap().data, vec![3_u8, 4].into());
        assert_eq!(split.label(1), Some(9));
        assert_eq!(split.name(1), "train-images-idx3-ubyte#1");
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn one_changed_bit_of_a_packed_file_is_noticed() {
        let path = Path::new("x-idx3");
        let whole = packed(&file(&[2, 1, 2], &[1, 2, 3, 4]));
        assert!(parse_split(path, &whole, None).is_ok());
        // Time, system and flags of the header say nothing of the content.
        for at in 10..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(parse_split(path, &damaged, None).is_err(), "byte {at}");
        }
    }

    #[test]
    fn broken_files_are_named() {
        let path = Path::new("x-idx3");
        let image = file(&[2, 1, 2], &[1, 2, 3, 4]);
        for (bytes, word) in [
            (&image[..image.len() - 1], "expected 4 bytes"),
            (&image[..9], "header"),
            // 2^64, which wraps to an empty file.
            (&file(&[1 << 22, 1 << 21, 1 << 21], &[]), "more than any file holds"),
            (b"garbage!".as_slice(), "not an IDX"),
            (&[0x1F, 0x8B, 0, 0], "gzip"),
            (&[&image[..], &[9]].concat(), "found more"),
            (&packed(&image)[..30], "gzip"),
            (&packed(&file(&[1 << 14, 1 << 10, 1 << 10], &[0; 99])), "more than 4 GiB"),
            (&packed(&file(&[1, 1 << 10, 1 << 10], &[0; 99])), "expected 1048576 bytes"),
            (&packed(&file(&[1, 2, 2], &[0; 4 << 20])), "found more"),
        ] {
            let error = parse_split(path, bytes, None).err().unwrap().to_string();
            assert!(error.contains("x-idx3") && error.contains(word), "{error}");
        }
        let labels = file(&[3], &[0, 1, 2]);
        let error = parse_split(path, &image, Some((path, &labels))).err().unwrap().to_string();
        assert!(error.contains("expected 2 labels"), "{error}");
    }
}
