//! Tables as JSON with a checksum among their entries.

use super::checksum::{self, HOLDS, SAYS, Seal, UNKNOWN};
use super::{StorageError, read, write_atomic};
use serde_json::{Map, Value};
use std::path::Path;

/// Writes `table`, atomically.
pub(crate) fn save_table(path: &Path, mut table: Map<String, Value>) -> Result<(), StorageError> {
    table.insert(SAYS.to_owned(), HOLDS.into());
    table.insert(HOLDS.to_owned(), UNKNOWN.into());
    let mut bytes = (serde_json::to_string_pretty(&table).expect("plain data") + "\n").into_bytes();
    let all = 0..bytes.len();
    checksum::seal(&mut bytes, all);
    write_atomic(path, &bytes)
}

/// Reads what [`save_table`] wrote, or a table of before there were checksums; `what` is what it should be, for messages.
pub(crate) fn load_table(path: &Path, what: &str) -> Result<Map<String, Value>, StorageError> {
    let format = |cause: String| StorageError::Format { path: path.to_owned(), cause };
    let bytes = read(path)?;
    let mut table: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|error| format(format!("not {what} ({error})")))?;
    if checksum::look(&bytes, 0..bytes.len()) == Seal::Broken {
        return Err(format("it is damaged: it is not what its checksum says".into()));
    }
    // The order of the others stays.
    [SAYS, HOLDS].iter().for_each(|entry| drop(table.shift_remove(*entry)));
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_an_error_and_older_tables_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let table = serde_json::json!({ "b": { "x": [1, 0.25] }, "a": "text" }).as_object().unwrap().clone();
        save_table(&path, table.clone()).unwrap();
        assert_eq!(load_table(&path, "a table").unwrap(), table);
        let bytes = std::fs::read(&path).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, flipped).unwrap();
            assert!(load_table(&path, "a table").is_err(), "bit {bit}");
        }
        std::fs::write(&path, "{\"a\": 1}").unwrap();
        assert_eq!(load_table(&path, "a table").unwrap().len(), 1);
    }
}
