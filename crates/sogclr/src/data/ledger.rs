//! A file of records of images, written and read from front to end.
//!
//! ```text
//! "SOGCLRL1", then the title: its length as u32, its UTF-8, the first 16 bytes of its BLAKE3
//! blocks: bytes and records as u32, 16 bytes of BLAKE3(what is chained, payload), the payload
//! end:    u32::MAX, records of all blocks as u64, 16 bytes of BLAKE3(what is chained, the records)
//! ```
//!
//! Chained is the checksum before, so that no block can be changed, moved or lost unnoticed. Numbers are little-endian. A record
//! is a byte of flags, its name as what it adds to the name before (bytes in common, bytes added, those), its size, and what the
//! flags name: times in nanoseconds since 1970, content hash, class, hash of the captions. Lengths and sizes are LEB128.

use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"SOGCLRL1";
const END: u32 = u32::MAX;

/// Records of a block.
const BLOCK: u32 = 4096;

/// A name is at most so long: what claims more is damaged.
const LONGEST: u64 = 1 << 20;

type Checksum = [u8; 16];

/// What is known of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub name: String,
    /// Stored bytes; 0 where they were not looked at.
    pub size: u64,
    /// Last change of the file.
    pub modified: Option<u64>,
    /// Last change of anything about the file, its content or its time.
    pub changed: Option<u64>,
    /// BLAKE3 of the stored bytes; `None` where they were not looked at.
    pub hash: Option<[u8; 32]>,
    pub label: Option<u32>,
    /// BLAKE3 of the captions.
    pub captions: Option<[u8; 32]>,
}

/// Why a ledger cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(super) enum LedgerError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a file of this program, or of another version")]
    Foreign,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("it is cut off")]
    Cut,
}

impl LedgerError {
    /// The end of a file is no error of the disk.
    fn at_end(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Io(error) }
    }
}

fn chain(before: &Checksum, payload: &[u8]) -> Checksum {
    let hash = blake3::Hasher::new().update(before).update(payload).finalize();
    hash.as_bytes()[..16].try_into().expect("sixteen bytes")
}

/// Appends records.
pub(super) struct Writer<W: Write> {
    out: W,
    chained: Checksum,
    block: Vec<u8>,
    in_block: u32,
    records: u64,
    last: String,
}

impl<W: Write> Writer<W> {
    pub fn new(mut out: W, title: &str) -> io::Result<Self> {
        let chained = chain(&Checksum::default(), title.as_bytes());
        out.write_all(MAGIC)?;
        out.write_all(&(title.len() as u32).to_le_bytes())?;
        out.write_all(title.as_bytes())?;
        out.write_all(&chained)?;
        Ok(Self { out, chained, block: Vec::new(), in_block: 0, records: 0, last: String::new() })
    }

    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        encode(&mut self.block, &self.last, record);
        self.last.clone_from(&record.name);
        (self.in_block, self.records) = (self.in_block + 1, self.records + 1);
        if self.in_block == BLOCK { self.flush() } else { Ok(()) }
    }

    /// Writes what has been pushed: a reader finds it, also if this program ends now.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.in_block == 0 {
            return Ok(());
        }
        self.chained = chain(&self.chained, &self.block);
        let head = [(self.block.len() as u32).to_le_bytes(), self.in_block.to_le_bytes()].concat();
        self.out.write_all(&[&head, &self.chained[..], &self.block].concat())?;
        self.block.clear();
        self.in_block = 0;
        // Each block can be read alone.
        self.last.clear();
        Ok(())
    }

    /// Marks the end; gives the number of records, too.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.flush()?;
        let records = self.records.to_le_bytes();
        let checksum = chain(&self.chained, &records);
        self.out.write_all(&[&END.to_le_bytes()[..], &records, &checksum].concat())?;
        self.out.flush()?;
        Ok((self.out, self.records))
    }
}

/// Reads records in order, each block once it is known to be whole.
pub(super) struct Reader<R: Read> {
    input: R,
    title: String,
    chained: Checksum,
    block: Vec<u8>,
    at: usize,
    in_block: u32,
    records: u64,
    last: String,
    is_at_end: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(mut input: R) -> Result<Self, LedgerError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(|_| LedgerError::Foreign)?;
        if &magic != MAGIC {
            return Err(LedgerError::Foreign);
        }
        let length = u64::from(word(&mut input)?);
        let title = bytes(&mut input, length)?;
        let checksum: Checksum = array(&mut input)?;
        let chained = chain(&Checksum::default(), &title);
        let title = String::from_utf8(title).ok().filter(|_| checksum == chained);
        let title = title.ok_or(LedgerError::Damaged("its title does not have its checksum"))?;
        let (block, last) = (Vec::new(), String::new());
        Ok(Self { input, title, chained, block, at: 0, in_block: 0, records: 0, last, is_at_end: false })
    }

    /// What the file is about.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The next record; `None` after the last.
    pub fn next(&mut self) -> Result<Option<Record>, LedgerError> {
        while self.in_block == 0 {
            if self.is_at_end || !self.read_block()? {
                return Ok(None);
            }
        }
        let record = decode(&self.block, &mut self.at, &self.last);
        let record = record.ok_or(LedgerError::Damaged("a record makes no sense"))?;
        self.last.clone_from(&record.name);
        (self.in_block, self.records) = (self.in_block - 1, self.records + 1);
        Ok(Some(record))
    }

    fn read_block(&mut self) -> Result<bool, LedgerError> {
        let wrong = LedgerError::Damaged("a block does not have its checksum");
        let length = word(&mut self.input)?;
        if length == END {
            let (records, checksum): ([u8; 8], Checksum) = (array(&mut self.input)?, array(&mut self.input)?);
            if checksum != chain(&self.chained, &records) || u64::from_le_bytes(records) != self.records {
                return Err(wrong);
            }
            self.is_at_end = true;
            return Ok(false);
        }
        self.in_block = word(&mut self.input)?;
        let checksum: Checksum = array(&mut self.input)?;
        self.block = bytes(&mut self.input, u64::from(length))?;
        self.chained = chain(&self.chained, &self.block);
        (self.at, self.last) = (0, String::new());
        if checksum == self.chained { Ok(true) } else { Err(wrong) }
    }
}

fn array<const N: usize>(input: &mut impl Read) -> Result<[u8; N], LedgerError> {
    let mut found = [0; N];
    input.read_exact(&mut found).map_err(LedgerError::at_end)?;
    Ok(found)
}

fn word(input: &mut impl Read) -> Result<u32, LedgerError> {
    array(input).map(u32::from_le_bytes)
}

/// As many bytes as are said to follow; what is said is not believed before.
fn bytes(input: &mut impl Read, length: u64) -> Result<Vec<u8>, LedgerError> {
    let mut found = Vec::new();
    input.take(length).read_to_end(&mut found)?;
    if found.len() as u64 == length { Ok(found) } else { Err(LedgerError::Cut) }
}

fn encode(out: &mut Vec<u8>, last: &str, record: &Record) {
    let Record { name, size, modified, changed, hash, label, captions } = record;
    let has = [modified.is_some(), changed.is_some(), hash.is_some(), label.is_some(), captions.is_some()];
    out.push(has.iter().rev().fold(0, |flags, &has| flags << 1 | u8::from(has)));
    let common = last.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    put_number(out, common as u64);
    put_number(out, (name.len() - common) as u64);
    out.extend(&name.as_bytes()[common..]);
    put_number(out, *size);
    [modified, changed].into_iter().flatten().for_each(|time| out.extend(time.to_le_bytes()));
    hash.iter().for_each(|hash| out.extend(hash));
    label.iter().for_each(|&label| put_number(out, u64::from(label)));
    captions.iter().for_each(|hash| out.extend(hash));
}

fn decode(block: &[u8], at: &mut usize, last: &str) -> Option<Record> {
    let flags = take(block, at, 1)?[0];
    let has = |bit: u8| flags >> bit & 1 == 1;
    let (common, added) = (take_number(block, at)?, take_number(block, at)?);
    if common.max(added) > LONGEST {
        return None;
    }
    let mut name = last.as_bytes().get(..common as usize)?.to_vec();
    name.extend(take(block, at, added as usize)?);
    let (name, size) = (String::from_utf8(name).ok()?, take_number(block, at)?);
    let mut record = Record { name, size, ..Record::default() };
    let time = |at: &mut usize| Some(u64::from_le_bytes(take(block, at, 8)?.try_into().expect("eight bytes")));
    let hash = |at: &mut usize| Some(take(block, at, 32)?.try_into().expect("32 bytes"));
    if has(0) {
        record.modified = Some(time(at)?);
    }
    if has(1) {
        record.changed = Some(time(at)?);
    }
    if has(2) {
        record.hash = Some(hash(at)?);
    }
    if has(3) {
        record.label = Some(u32::try_from(take_number(block, at)?).ok()?);
    }
    if has(4) {
        record.captions = Some(hash(at)?);
    }
    Some(record)
}

fn take<'a>(block: &'a [u8], at: &mut usize, count: usize) -> Option<&'a [u8]> {
    let found = block.get(*at..*at + count)?;
    *at += count;
    Some(found)
}

/// LEB128: seven bits a byte, the lowest first; the highest bit of a byte says that more follow.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn take_number(block: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(block, at, 1)?[0];
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: usize) -> Record {
        Record {
            name: format!("fjörd/ö{:03}.jpg", index * 7),
            size: 1 << (index % 40),
            modified: index.is_multiple_of(2).then_some(1_700_000_000_123_456_789 + index as u64),
            changed: index.is_multiple_of(3).then_some(index as u64),
            hash: (!index.is_multiple_of(5)).then_some([index as u8; 32]),
            label: (!index.is_multiple_of(7)).then_some(300 * index as u32),
            captions: index.is_multiple_of(11).then_some([7; 32]),
        }
    }

    fn written(count: usize) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "about").unwrap();
        (0..count).for_each(|index| writer.push(&record(index)).unwrap());
        let (bytes, records) = writer.finish().unwrap();
        assert_eq!(records, count as u64);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Record>, LedgerError> {
        let mut reader = Reader::new(bytes)?;
        assert_eq!(reader.title(), "about");
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok(records)
    }

    #[test]
    fn records_come_back_over_several_blocks() {
        for count in [0, 1, BLOCK as usize, 2 * BLOCK as usize + 3] {
            assert_eq!(read(&written(count)).unwrap(), (0..count).map(record).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = written(20);
        for place in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << (place % 8);
            assert!(read(&flipped).is_err(), "bit of byte {place}");
            assert!(read(&bytes[..place]).is_err(), "cut at {place}");
        }
    }

    #[test]
    fn blocks_in_another_order_are_noticed() {
        let block = |first: usize| {
            let mut writer = Writer::new(Vec::new(), "about").unwrap();
            let before = writer.out.len();
            (first..first + 3).for_each(|index| writer.push(&record(index)).unwrap());
            writer.flush().unwrap();
            writer.out.split_off(before)
        };
        let mut writer = Writer::new(Vec::new(), "about").unwrap();
        writer.out.extend([block(0), block(3)].concat());
        assert!(matches!(read(&writer.out), Err(LedgerError::Damaged(_))));
    }

    #[test]
    fn a_claimed_size_is_not_believed() {
        let mut bytes = Writer::new(Vec::new(), "about").unwrap().out;
        bytes.extend((END - 1).to_le_bytes());
        bytes.extend([0; 40]);
        assert!(matches!(read(&bytes), Err(LedgerError::Cut)));
    }
}
