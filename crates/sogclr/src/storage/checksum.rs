//! A checksum inside the file that it is of, for files whose text is JSON: safetensors headers, summaries, records. Two entries:
//! `"checksum": "sogclr.blake3"` names the second, `"sogclr.blake3": "…"` holds the BLAKE3 of the whole file with zeros for its
//! own digits. So every bit of the file counts, the file stays what it was to everyone else, and one changed bit cannot make a
//! file look like one of before there were checksums.

use std::ops::Range;

/// The entry that says that there is a checksum.
pub(crate) const SAYS: &str = "checksum";
/// The entry that holds it.
pub(crate) const HOLDS: &str = "sogclr.blake3";
/// What stands there before it is known.
pub(crate) const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What a checksum says of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// The file is as it was written.
    Whole,
    /// The file was changed since.
    Broken,
    /// The file never had one.
    Absent,
}

/// Where the digits stand in `text`.
fn digits(text: &[u8]) -> Option<Range<usize>> {
    let key = format!("\"{HOLDS}\":");
    let after = find(text, key.as_bytes())? + key.len();
    let start = after + text[after..].iter().position(|byte| *byte == b'"')? + 1;
    // One space at most: `to_string_pretty` sets it.
    (start <= after + 2 && start + UNKNOWN.len() <= text.len()).then_some(start..start + UNKNOWN.len())
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|part| part == word)
}

fn sum(file: &[u8], digits: &Range<usize>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file[..digits.start]).update(UNKNOWN.as_bytes()).update(&file[digits.end..]);
    hasher.finalize().to_hex().to_string()
}

/// Fills in the checksum of `file`, whose entries stand in its part `text`.
pub(crate) fn seal(file: &mut [u8], text: Range<usize>) {
    let found = digits(&file[text.clone()]).expect("the entries are there");
    let digits = text.start + found.start..text.start + found.end;
    let sum = sum(file, &digits);
    file[digits].copy_from_slice(sum.as_bytes());
}

/// Compares the checksum of `file`, whose entries stand in its part `text`.
pub(crate) fn look(file: &[u8], text: Range<usize>) -> Seal {
    let Some(part) = file.get(text.clone()) else { return Seal::Broken };
    match digits(part) {
        Some(found) => {
            let digits = text.start + found.start..text.start + found.end;
            if sum(file, &digits).as_bytes() == &file[digits] { Seal::Whole } else { Seal::Broken }
        }
        // The other entry speaks of it.
        None if find(part, format!("\"{HOLDS}\"").as_bytes()).is_some() => Seal::Broken,
        None => Seal::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        for separator in [":", ": "] {
            let mut file = format!("{{\"a\":1,\"{SAYS}\"{separator}\"{HOLDS}\",\"{HOLDS}\"{separator}\"{UNKNOWN}\"}}")
                .into_bytes();
            let text = 0..file.len();
            seal(&mut file, text.clone());
            assert_eq!(look(&file, text.clone()), Seal::Whole);
            for bit in 0..8 * file.len() {
                let mut flipped = file.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(look(&flipped, text.clone()), Seal::Broken, "bit {bit}");
            }
        }
        assert_eq!(look(b"{\"a\":1}", 0..7), Seal::Absent);
    }
}
