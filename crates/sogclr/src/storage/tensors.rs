//! Named f32 tensors in safetensors files, with a checksum among the metadata. Files of others need none.

use super::checksum::{self, Seal};
use super::{StorageError, read, write_atomic};
use crate::params::{HostTensor, NamedTensors};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

/// Writes `tensors` with one metadata entry, atomically. The bytes depend on nothing else.
pub fn save_tensors<'a, N: AsRef<str> + Ord + Display>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, &'a HostTensor)>,
    metadata: (&str, &str),
) -> Result<(), StorageError> {
    // Not `serialize_to_file`, whose own temporary file only its owner may read.
    write_atomic(path, &tensors_to_bytes(tensors, metadata))
}

/// The content of a safetensors file.
pub fn tensors_to_bytes<'a, N: AsRef<str> + Ord + Display>(
    tensors: impl IntoIterator<Item = (N, &'a HostTensor)>,
    metadata: (&str, &str),
) -> Vec<u8> {
    let mut bytes = serialize(tensors, None).expect("names are unique, shapes and values agree");
    // By hand, as `serialize` writes several entries in any order.
    let text = header(&bytes);
    let rest = String::from_utf8_lossy(&bytes[text.clone()]).trim_end()[1..].to_owned();
    let entries = BTreeMap::from([metadata, (checksum::SAYS, checksum::HOLDS), (checksum::HOLDS, checksum::UNKNOWN)]);
    let entries = serde_json::to_string(&entries).expect("plain data");
    let comma = if rest == "}" { "" } else { "," };
    let mut head = format!("{{\"__metadata__\":{entries}{comma}{rest}").into_bytes();
    head.resize(head.len().next_multiple_of(8), b' ');
    let end = 8 + head.len();
    bytes.splice(..text.end, [&(head.len() as u64).to_le_bytes()[..], &head].concat());
    checksum::seal(&mut bytes, 8..end);
    bytes
}

/// Where the header stands, as the file says.
fn header(bytes: &[u8]) -> Range<usize> {
    let length = bytes.get(..8).map_or(0, |length| u64::from_le_bytes(length.try_into().expect("eight bytes")));
    8..usize::try_from(length).unwrap_or(usize::MAX).saturating_add(8)
}

impl View for &HostTensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values.as_slice())
    }
}

/// Reads every floating-point tensor of a safetensors file, and its metadata.
pub fn load_tensors(path: &Path) -> Result<(NamedTensors, HashMap<String, String>), StorageError> {
    tensors_from_bytes(&read(path)?, path)
}

/// The same from the content of the file `path`.
pub fn tensors_from_bytes(bytes: &[u8], path: &Path) -> Result<(NamedTensors, HashMap<String, String>), StorageError> {
    let broken = |cause: String| StorageError::Tensors { path: path.to_owned(), cause };
    // A header that the file is too short for is left to the reader.
    let text = header(bytes);
    if text.end <= bytes.len() && checksum::look(bytes, text) == Seal::Broken {
        return Err(StorageError::Damaged { path: path.to_owned(), fix: "restore it from a copy, or make it again" });
    }
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| broken(e.to_string()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| broken(e.to_string()))?;
    let mut tensors = NamedTensors::new();
    for (name, view) in file.tensors() {
        let values = match view.dtype() {
            Dtype::F32 => {
                let word = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
                view.data().chunks_exact(4).map(word).collect()
            }
            Dtype::F64 => {
                let word = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32;
                view.data().chunks_exact(8).map(word).collect()
            }
            Dtype::I64 => continue, // ids; see `load_ids`
            other => return Err(broken(format!("tensor {name} is {other:?}; expected F32, F64 or I64"))),
        };
        tensors.insert(name, HostTensor { shape: view.shape().to_vec(), values });
    }
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}

/// Reads the integers of tensor `name`; `None` if the file has none of that name.
pub fn load_ids(path: &Path, name: &str) -> Result<Option<Vec<usize>>, StorageError> {
    let bytes = read(path)?;
    let broken = |cause: String| StorageError::Tensors { path: path.to_owned(), cause };
    let file = SafeTensors::deserialize(&bytes).map_err(|e| broken(e.to_string()))?;
    let Ok(view) = file.tensor(name) else { return Ok(None) };
    if view.dtype() != Dtype::I64 {
        return Err(broken(format!("tensor {name} is {:?}; expected I64", view.dtype())));
    }
    let word = |b: &[u8]| usize::try_from(i64::from_le_bytes(b.try_into().expect("eight bytes")));
    let ids = view.data().chunks_exact(8).map(word).collect::<Result<_, _>>();
    ids.map(Some).map_err(|_| broken(format!("tensor {name} holds a negative number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> NamedTensors {
        let tensor = |values: Vec<f32>| HostTensor { shape: vec![values.len()], values };
        NamedTensors::from([("a".to_owned(), tensor(vec![1.0, -0.5])), ("b.c".to_owned(), tensor(vec![f32::NAN]))])
    }

    /// What others read is what there was before there were checksums.
    #[test]
    fn a_file_with_a_checksum_is_a_safetensors_file() {
        let bytes = tensors_to_bytes(&tensors(), ("format", "pt"));
        let (length, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let entries = header.metadata().clone().unwrap();
        assert_eq!((entries["format"].as_str(), entries["checksum"].as_str()), ("pt", "sogclr.blake3"));
        assert_eq!((entries.len(), length % 8), (3, 0));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("a").unwrap().data(), [1.0_f32.to_le_bytes(), (-0.5_f32).to_le_bytes()].concat());
        assert_eq!(bytes, tensors_to_bytes(&tensors(), ("format", "pt")), "always the same");
        let empty = tensors_to_bytes(&NamedTensors::new(), ("format", "pt"));
        assert!(tensors_from_bytes(&empty, Path::new("x")).unwrap().0.is_empty());
    }

    #[test]
    fn every_flipped_bit_is_an_error_and_files_of_others_are_read() {
        let bytes = tensors_to_bytes(&tensors(), ("format", "pt"));
        assert_eq!(tensors_from_bytes(&bytes, Path::new("x")).unwrap().0.len(), 2);
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(tensors_from_bytes(&flipped, Path::new("x")).is_err(), "bit {bit}");
        }
        let foreign = serialize(&tensors(), Some(HashMap::from([("format".to_owned(), "pt".to_owned())]))).unwrap();
        assert_eq!(tensors_from_bytes(&foreign, Path::new("x")).unwrap().0.len(), 2);
    }
}
