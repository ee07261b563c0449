//! Named f32 tensors in safetensors files.

use super::{StorageError, read, write_atomic};
use crate::params::{HostTensor, NamedTensors};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
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
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
    serialize(tensors, Some(metadata)).expect("names are unique, shapes and values agree")
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
