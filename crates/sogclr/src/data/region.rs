//! One file inside an archive. What an archive claims is never believed: nothing is allocated before it is read, no more is
//! unpacked than [`LARGEST`], and a zip's checksums are compared at each read.

use crate::storage::open_regular;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of one file of an archive, at most; decoders take no larger image either.
const LARGEST: u64 = 512 << 20;
/// Bytes that are set aside on the word of an archive.
const TRUSTED: u64 = 1 << 20;

/// Where one file lies inside an archive.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub name: String,
    /// Index into the list of archives.
    pub archive: usize,
    pub start: u64,
    pub len: u64,
    pub packing: Packing,
}

/// How a file lies in its archive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Packing {
    /// In a tar, as it is.
    Tar,
    /// In a zip, as it is or deflated; its bytes have this CRC-32.
    Zip { is_deflated: bool, size: u64, crc: u32 },
}

/// The bytes of a file, or what is wrong with them.
pub(super) fn read_region(path: &Path, region: &Region) -> std::io::Result<Result<Vec<u8>, String>> {
    let (is_deflated, size) = match region.packing {
        Packing::Tar => (false, region.len),
        Packing::Zip { is_deflated, size, .. } => (is_deflated, size),
    };
    if size > LARGEST {
        return Ok(Err(format!("it has more than {} MiB, the most that a file in an archive may have", LARGEST >> 20)));
    }
    let mut file = open_regular(path)?;
    file.seek(SeekFrom::Start(region.start))?;
    let (stored, mut bytes) = (file.take(region.len), Vec::with_capacity(size.min(TRUSTED) as usize));
    // One byte more than there should be tells that there are more.
    let read = match is_deflated {
        true => DeflateDecoder::new(BufReader::new(stored)).take(size + 1).read_to_end(&mut bytes),
        false => stored.take(size + 1).read_to_end(&mut bytes),
    };
    if let Err(error) = read {
        return Ok(Err(format!("its part of the archive is damaged: {error}")));
    }
    if bytes.len() as u64 != size {
        let found = if bytes.len() as u64 > size { "more".to_owned() } else { bytes.len().to_string() };
        return Ok(Err(format!(
            "the archive says that it has {size} bytes, there are {found}: fetch the archive again"
        )));
    }
    Ok(match region.packing {
        Packing::Zip { crc, .. } if crc_of(&bytes) != crc => {
            Err("it is not what its checksum in the archive says: fetch the archive again".into())
        }
        _ => Ok(bytes),
    })
}

fn crc_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::super::DataError;
    use super::super::archive::{ArchiveImages, list_zip};
    use super::super::form::Form;
    use super::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    fn zip_of(path: &Path, method: zip::CompressionMethod, bytes: &[u8]) {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        zip.start_file("a.png", SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
    }

    fn first(path: &Path) -> Result<Vec<u8>, DataError> {
        ArchiveImages { archives: vec![path.to_owned()], regions: list_zip(path)?, form: Form::Rgb }.read(0)
    }

    #[test]
    fn one_changed_byte_of_a_zip_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let (path, bytes) = (root.path().join("a.zip"), [b"a picture, ".repeat(20), vec![7; 300]].concat());
        for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
            zip_of(&path, method, &bytes);
            assert_eq!(first(&path).unwrap(), bytes);
            let whole = std::fs::read(&path).unwrap();
            let region = list_zip(&path).unwrap().remove(0);
            for at in region.start..region.start + region.len {
                let mut damaged = whole.clone();
                damaged[at as usize] ^= 0x10;
                std::fs::write(&path, damaged).unwrap();
                match first(&path) {
                    // Bits that fill the last byte of a deflated file mean nothing.
                    Ok(found) => assert!(found == bytes && at == region.start + region.len - 1, "{method} {at}"),
                    Err(error) => assert!(error.to_string().contains("a.zip/a.png is not a readable image")),
                }
            }
        }
    }

    #[test]
    fn claimed_sizes_are_not_believed_and_bombs_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.zip");
        zip_of(&path, zip::CompressionMethod::Deflated, &vec![0; 4 << 20]);
        let region = list_zip(&path).unwrap().remove(0);
        let Packing::Zip { is_deflated, size, crc } = region.packing else { panic!("a zip") };
        let read = |size: u64, len: u64| {
            let packing = Packing::Zip { is_deflated, size, crc };
            read_region(&path, &Region { len, packing, ..region.clone() }).unwrap()
        };
        assert!(read(size, region.len).is_ok());
        let problems = [
            (read(1 << 40, region.len), "more than 512 MiB"),
            (read(size, 1 << 40), ""),
            (read(size - 1, region.len), "4194303 bytes, there are more"),
            (read(size + 1, region.len), "4194305 bytes, there are 4194304"),
        ];
        for (found, words) in problems {
            match found {
                // What follows the stored bytes is passed over by a decoder that has found their end.
                Ok(bytes) => assert!(words.is_empty() && bytes.len() as u64 == size),
                Err(problem) => assert!(problem.contains(words), "{problem}"),
            }
        }
        let tar = Region { packing: Packing::Tar, len: 1 << 40, ..region.clone() };
        assert!(read_region(&path, &tar).unwrap().unwrap_err().contains("more than 512 MiB"));
        let tar = Region { packing: Packing::Tar, len: 1 << 28, ..region };
        assert!(read_region(&path, &tar).unwrap().unwrap_err().contains("268435456 bytes, there are"));
    }
}
