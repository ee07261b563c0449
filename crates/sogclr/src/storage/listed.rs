//! `checksums.b3` of a folder: BLAKE3 of files that stay as they were written, in the form of `b3sum`, so that
//! `b3sum --check checksums.b3` says the same.

use super::{StorageError, checksum::Seal, read, write_atomic};
use std::path::Path;

/// The list of a folder.
pub(crate) const LIST: &str = "checksums.b3";

/// Writes the list of those of `names` that are there.
pub(crate) fn list(folder: &Path, names: &[&str]) -> Result<(), StorageError> {
    let mut lines = String::new();
    for name in names.iter().filter(|name| folder.join(name).exists()) {
        lines += &format!("{}  {name}\n", blake3::hash(&read(&folder.join(name))?).to_hex());
    }
    write_atomic(&folder.join(LIST), lines.as_bytes())
}

/// What the list says of the file `name` with this content. One that it does not name is not the one that it was.
pub(crate) fn listed(folder: &Path, name: &str, content: &[u8]) -> Result<Seal, StorageError> {
    let path = folder.join(LIST);
    if !path.exists() {
        return Ok(Seal::Absent);
    }
    let line = format!("{}  {name}", blake3::hash(content).to_hex());
    let list = read(&path)?;
    let is_there = list.split(|byte| *byte == b'\n').any(|other| other == line.as_bytes());
    Ok(if is_there { Seal::Whole } else { Seal::Broken })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_and_a_changed_list_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let look = |content: &[u8]| listed(folder.path(), "a.txt", content).unwrap();
        assert_eq!(look(b"text"), Seal::Absent);
        std::fs::write(folder.path().join("a.txt"), b"text").unwrap();
        list(folder.path(), &["a.txt", "not there"]).unwrap();
        assert_eq!([look(b"text"), look(b"texu")], [Seal::Whole, Seal::Broken]);
        let list = std::fs::read(folder.path().join(LIST)).unwrap();
        for bit in 0..8 * (list.len() - 1) {
            let mut flipped = list.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(folder.path().join(LIST), flipped).unwrap();
            assert_eq!(look(b"text"), Seal::Broken, "bit {bit}");
        }
    }
}
