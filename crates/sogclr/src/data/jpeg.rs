//! Whether the scans of a JPEG hold what its headers promise. Decoders are lenient: they paint what is missing grey and go on
//! after damage. Here the entropy-coded data (ITU T.81, annexes F and G) are walked without making pixels: every block has to
//! be there, made of codes that exist, with nothing left over, between restart markers in their order, and a progressive image
//! needs all of its scans. Damage after which all of that still holds cannot be told.

// Long: one format: its headers, its codes and its three kinds of scans make sense together.

/// Bytes between the last block and the next marker that an encoder may have left.
const SLACK: usize = 8;
const SHORT: u32 = 9;

/// What is wrong with the scans of a JPEG; nothing for kinds of JPEG that are not known here.
pub(super) fn damage(bytes: &[u8]) -> Option<&'static str> {
    match Walk::default().run(bytes) {
        Err(Stop::Damaged(cause)) => Some(cause),
        Ok(()) | Err(Stop::Unknown) => None,
    }
}

enum Stop {
    Damaged(&'static str),
    /// Arithmetic coding, no tables of its own, …: left to the decoder.
    Unknown,
}

use Stop::{Damaged, Unknown};

const HEADER: Stop = Damaged("a segment of its headers is cut or makes no sense");
const CUT: Stop = Damaged("data of a scan are missing");
const NO_CODE: Stop = Damaged("a scan holds what is no code");
const TOO_LONG: Stop = Damaged("a block has more than 64 values");
const LEFT_OVER: Stop = Damaged("data are left over after a scan");
const RESTART: Stop = Damaged("a restart marker is missing");
const INCOMPLETE: Stop = Damaged("scans are missing");

/// Codes of one table: those of up to nine bits by their bits, longer ones by their length.
#[derive(Clone)]
struct Huffman {
    /// (length, symbol); length 0 where the code is longer.
    short: Vec<(u8, u8)>,
    /// For each length: one past the last code, and what to add to a code for its place among the symbols.
    long: [(u32, i32); 17],
    symbols: Vec<u8>,
}

impl Huffman {
    fn new(counts: &[u8], symbols: &[u8]) -> Self {
        let (mut short, mut long) = (vec![(0, 0); 1 << SHORT], [(0, 0); 17]);
        let (mut code, mut place) = (0_u32, 0_usize);
        for length in 1..=16_u32 {
            let count = u32::from(counts[length as usize - 1]);
            long[length as usize] = (code + count, place as i32 - code as i32);
            for _ in 0..count {
                if length <= SHORT {
                    let first = (code << (SHORT - length)) as usize;
                    let last = (first + (1 << (SHORT - length))).min(short.len());
                    short[first.min(last)..last].fill((length as u8, symbols[place]));
                }
                (code, place) = (code + 1, place + 1);
            }
            code <<= 1;
        }
        Self { short, long, symbols: symbols.to_vec() }
    }
}

/// The bits of a scan, up to the next marker.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The next bits, from the top.
    buffer: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 56 {
            // Four at once where there is no marker near.
            if let (true, Some(&[a, b, c, d])) = (self.count <= 32, self.bytes.get(self.at..self.at + 4))
                && [a, b, c, d].iter().all(|byte| *byte != 0xFF)
            {
                self.buffer |= u64::from(u32::from_be_bytes([a, b, c, d])) << (32 - self.count);
                (self.count, self.at) = (self.count + 32, self.at + 4);
                continue;
            }
            let byte = match self.bytes.get(self.at..) {
                Some([0xFF, 0x00, ..]) => {
                    self.at += 2;
                    0xFF
                }
                Some([0xFF, 0xFF, ..]) => {
                    self.at += 1;
                    continue;
                }
                // A marker or the end of the file.
                Some([0xFF, ..] | []) | None => return,
                Some(&[byte, ..]) => {
                    self.at += 1;
                    byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline]
    fn take(&mut self, bits: u32) -> Result<u32, Stop> {
        if bits == 0 {
            return Ok(0);
        }
        if self.count < bits {
            self.fill();
            if self.count < bits {
                return Err(CUT);
            }
        }
        let value = (self.buffer >> (64 - bits)) as u32;
        self.buffer <<= bits;
        self.count -= bits;
        Ok(value)
    }

    #[inline]
    fn symbol(&mut self, table: &Huffman) -> Result<u8, Stop> {
        if self.count < 16 {
            self.fill();
        }
        let (length, symbol) = table.short[(self.buffer >> (64 - SHORT)) as usize];
        if length > 0 {
            self.take(length.into())?;
            return Ok(symbol);
        }
        let longer = |length: &u32| ((self.buffer >> (64 - length)) as u32) < table.long[*length as usize].0;
        // Beyond the end stand zeros, which are part of no code but its beginning.
        let length = (SHORT + 1..=16).find(longer).ok_or(if self.count < 16 { CUT } else { NO_CODE })?;
        let code = self.take(length)? as i32;
        let place = code + table.long[length as usize].1;
        usize::try_from(place).ok().and_then(|place| table.symbols.get(place).copied()).ok_or(NO_CODE)
    }

    /// A code with the bits of the value that it announces, which are passed over.
    #[inline]
    fn value(&mut self, table: &Huffman) -> Result<(usize, u32), Stop> {
        if self.count < 32 {
            self.fill();
        }
        let (length, symbol) = table.short[(self.buffer >> (64 - SHORT)) as usize];
        let bits = u32::from(length) + u32::from(symbol & 15);
        if length > 0 && bits <= self.count {
            self.buffer <<= bits;
            self.count -= bits;
            return Ok((usize::from(symbol >> 4), u32::from(symbol & 15)));
        }
        let symbol = self.symbol(table)?;
        self.take(u32::from(symbol & 15))?;
        Ok((usize::from(symbol >> 4), u32::from(symbol & 15)))
    }

    /// Ends an interval: what is left may only fill the last byte.
    fn finish(&mut self) -> Result<(), Stop> {
        let mut left = self.count as usize / 8;
        loop {
            match self.bytes.get(self.at..) {
                Some([0xFF, 0x00, ..]) => (self.at, left) = (self.at + 2, left + 1),
                Some([0xFF, 0xFF, ..]) => self.at += 1,
                Some([0xFF, ..] | []) | None => break,
                Some(_) => (self.at, left) = (self.at + 1, left + 1),
            }
            if left > SLACK {
                return Err(LEFT_OVER);
            }
        }
        (self.buffer, self.count) = (0, 0);
        if left > SLACK { Err(LEFT_OVER) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Component {
    id: u8,
    across: usize,
    down: usize,
    /// Blocks of the image, and of a row with those that fill the last unit.
    blocks: (usize, usize),
    stride: usize,
    /// For each block, which of its values are known not to be 0: what a refining scan corrects.
    nonzero: Vec<u64>,
    /// For each of the 64 values, how many of its low bits are still to come.
    missing: Vec<Option<u8>>,
}

/// One scan: which values of which components, and with which tables.
struct Scan {
    /// (component, table of first values, table of the others)
    parts: Vec<(usize, usize, usize)>,
    values: (usize, usize),
    is_refining: bool,
    run: u32,
}

#[derive(Default)]
struct Walk {
    tables: [[Option<Huffman>; 4]; 2],
    interval: usize,
    is_progressive: bool,
    units: (usize, usize),
    components: Vec<Component>,
}

impl Walk {
    fn run(mut self, bytes: &[u8]) -> Result<(), Stop> {
        let mut at = 2;
        loop {
            while bytes.get(at).is_some_and(|byte| *byte != 0xFF) {
                at += 1;
            }
            while bytes.get(at + 1) == Some(&0xFF) {
                at += 1;
            }
            let Some(&marker) = bytes.get(at + 1) else { break };
            at += 2;
            if matches!(marker, 0x00 | 0x01 | 0xD0..=0xD8) {
                continue;
            }
            if marker == 0xD9 {
                break;
            }
            let &[high, low, ..] = bytes.get(at..).unwrap_or_default() else { break };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let segment = bytes.get(at + 2..at + length).ok_or(HEADER)?;
            at += length;
            match marker {
                0xC0..=0xC2 => self.frame(segment, marker == 0xC2).ok_or(Unknown)?,
                0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => return Err(Unknown),
                0xC4 => self.huffman(segment).ok_or(HEADER)?,
                0xDD => self.interval = u16::from_be_bytes(segment.try_into().map_err(|_| HEADER)?).into(),
                0xDA => {
                    let scan = self.scan_header(segment).ok_or(HEADER)?;
                    at = self.scan(scan, bytes, at)?;
                }
                _ => {}
            }
        }
        let is_whole = |component: &Component| component.missing.iter().all(|left| *left == Some(0));
        if self.components.iter().all(is_whole) { Ok(()) } else { Err(INCOMPLETE) }
    }

    fn frame(&mut self, segment: &[u8], is_progressive: bool) -> Option<()> {
        let &[_, h1, h0, w1, w0, count, ref parts @ ..] = segment else { return None };
        let size = |high, low| usize::from(u16::from_be_bytes([high, low]));
        let (height, width) = (size(h1, h0), size(w1, w0));
        if height == 0 || width == 0 || parts.len() != 3 * usize::from(count) || !self.components.is_empty() {
            return None;
        }
        let sampling: Vec<(u8, usize, usize)> =
            parts.chunks_exact(3).map(|part| (part[0], usize::from(part[1] >> 4), usize::from(part[1] & 15))).collect();
        if sampling.iter().any(|(_, across, down)| !(1..=4).contains(across) || !(1..=4).contains(down)) {
            return None;
        }
        let most = |of: fn(&(u8, usize, usize)) -> usize| sampling.iter().map(of).max();
        let (widest, highest) = (most(|part| part.1)?, most(|part| part.2)?);
        self.units = (width.div_ceil(8 * widest), height.div_ceil(8 * highest));
        self.is_progressive = is_progressive;
        let component = |(id, across, down): (u8, usize, usize)| {
            let blocks = |side: usize, ours: usize, most: usize| (side * ours).div_ceil(most).div_ceil(8);
            let stride = self.units.0 * across;
            let all = if is_progressive { stride * self.units.1 * down } else { 0 };
            let blocks = (blocks(width, across, widest), blocks(height, down, highest));
            Component { id, across, down, blocks, stride, nonzero: vec![0; all], missing: vec![None; 64] }
        };
        self.components = sampling.into_iter().map(component).collect();
        Some(())
    }

    fn huffman(&mut self, mut segment: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = segment {
            let (counts, rest) = rest.split_at_checked(16)?;
            let (symbols, rest) = rest.split_at_checked(counts.iter().map(|&count| usize::from(count)).sum())?;
            *self.tables.get_mut(usize::from(kind >> 4))?.get_mut(usize::from(kind & 15))? =
                Some(Huffman::new(counts, symbols));
            segment = rest;
        }
        Some(())
    }

    fn scan_header(&mut self, segment: &[u8]) -> Option<Scan> {
        let (&count, rest) = segment.split_first()?;
        let (parts, rest) = rest.split_at_checked(2 * usize::from(count))?;
        let &[first, last, bits] = rest else { return None };
        let part = |part: &[u8]| {
            let component = self.components.iter().position(|component| component.id == part[0])?;
            Some((component, usize::from(part[1] >> 4), usize::from(part[1] & 15)))
        };
        let parts = parts.chunks_exact(2).map(part).collect::<Option<Vec<_>>>()?;
        let (values, [high, low]) = match self.is_progressive {
            true => ((usize::from(first), usize::from(last)), [bits >> 4, bits & 15]),
            false => ((0, 63), [0, 0]),
        };
        if parts.is_empty() || values.0 > values.1 || values.1 > 63 {
            return None;
        }
        for &(component, ..) in &parts {
            self.components[component].missing[values.0..=values.1].fill(Some(low));
        }
        Some(Scan { parts, values, is_refining: high > 0, run: 0 })
    }

    /// Walks one scan; where the next marker stands.
    fn scan(&mut self, mut scan: Scan, bytes: &[u8], at: usize) -> Result<usize, Stop> {
        let mut bits = Bits { bytes, at, buffer: 0, count: 0 };
        let alone = (scan.parts.len() == 1).then(|| self.components[scan.parts[0].0].blocks);
        let (wide, high) = alone.unwrap_or(self.units);
        for unit in 0..wide * high {
            if self.interval > 0 && unit > 0 && unit % self.interval == 0 {
                bits.finish()?;
                let expected = 0xD0 + (unit / self.interval - 1) % 8;
                if bytes.get(bits.at + 1).map(|&marker| usize::from(marker)) != Some(expected) {
                    return Err(RESTART);
                }
                bits.at += 2;
                scan.run = 0;
            }
            let (row, column) = (unit / wide, unit % wide);
            for part in 0..scan.parts.len() {
                let component = &self.components[scan.parts[part].0];
                let (across, down, stride) = match alone {
                    Some(_) => (1, 1, component.stride),
                    None => (component.across, component.down, component.stride),
                };
                for inside in 0..across * down {
                    let (y, x) = (row * down + inside / across, column * across + inside % across);
                    self.block(&mut scan, part, y * stride + x, &mut bits)?;
                }
            }
        }
        bits.finish()?;
        Ok(bits.at)
    }

    fn block(&mut self, scan: &mut Scan, part: usize, block: usize, bits: &mut Bits) -> Result<(), Stop> {
        let (component, first_table, table) = scan.parts[part];
        let (mut at, last) = scan.values;
        if at == 0 {
            if self.is_progressive && scan.is_refining {
                bits.take(1)?;
            } else {
                let table = self.tables[0].get(first_table).and_then(Option::as_ref).ok_or(Unknown)?;
                let size = bits.symbol(table)?;
                bits.take(u32::from(size.min(16)))?;
            }
            at = 1;
        }
        if at > last {
            return Ok(());
        }
        let table = self.tables[1].get(table).and_then(Option::as_ref).ok_or(Unknown)?;
        if !self.is_progressive {
            return sequential(at, bits, table);
        }
        let nonzero = self.components[component].nonzero.get_mut(block).ok_or(Unknown)?;
        match scan.is_refining {
            true => refine((at, last), &mut scan.run, nonzero, bits, table),
            false => begin((at, last), &mut scan.run, nonzero, bits, table),
        }
    }
}

/// The values of a block after its first, F.2.2.2.
fn sequential(mut at: usize, bits: &mut Bits, table: &Huffman) -> Result<(), Stop> {
    while at < 64 {
        match bits.value(table)? {
            (15, 0) => at += 16,
            (_, 0) => return Ok(()),
            (zeros, _) => at += zeros + 1,
        }
        if at > 64 {
            return Err(TOO_LONG);
        }
    }
    Ok(())
}

/// A first scan of some values of a block, G.1.2.2.
fn begin(
    (mut at, last): (usize, usize),
    run: &mut u32,
    nonzero: &mut u64,
    bits: &mut Bits,
    table: &Huffman,
) -> Result<(), Stop> {
    if *run > 0 {
        *run -= 1;
        return Ok(());
    }
    while at <= last {
        let symbol = bits.symbol(table)?;
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => at += 16,
            (_, 0) => {
                *run = (1 << zeros) - 1 + bits.take(zeros as u32)?;
                return Ok(());
            }
            _ => {
                at += zeros;
                if at > last {
                    return Err(TOO_LONG);
                }
                *nonzero |= 1 << at;
                bits.take(size)?;
                at += 1;
            }
        }
    }
    Ok(())
}

/// A refining scan of some values of a block, G.1.2.3: one bit for each that is not 0, and new ones between them.
fn refine(
    (mut at, last): (usize, usize),
    run: &mut u32,
    nonzero: &mut u64,
    bits: &mut Bits,
    table: &Huffman,
) -> Result<(), Stop> {
    while *run == 0 && at <= last {
        let symbol = bits.symbol(table)?;
        let (mut zeros, size) = (symbol >> 4, symbol & 15);
        match (zeros, size) {
            (0..15, 0) => {
                *run = (1 << zeros) + bits.take(zeros.into())?;
                break;
            }
            (_, 0) => {}
            (_, 1) => drop(bits.take(1)?),
            _ => return Err(NO_CODE),
        }
        while at <= last {
            if *nonzero >> at & 1 == 1 {
                bits.take(1)?;
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            at += 1;
        }
        if size == 1 {
            if at > last {
                return Err(TOO_LONG);
            }
            *nonzero |= 1 << at;
        }
        at += 1;
    }
    if *run > 0 {
        let rest = (at..=last).filter(|at| *nonzero >> at & 1 == 1).count();
        for _ in 0..rest {
            bits.take(1)?;
        }
        *run -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;

    /// Progressive, 40×32, grey, six scans with a restart marker after each row of blocks; by Pillow 13.
    const PROGRESSIVE: &str = "\
         ffd8ffe000104a46494600010100000100010000ffdb004300140e0f120f0d14121012171514181e32211e1c1c1e3d2c2e243249\
         404c4b47404645505a736250556d5645466488656d777b8182814e608d978c7d96737e817cffc2000b080020002801011100ffc4\
         00160001010100000000000000000000000000010002ffdd00040005ffda0008010100000001d994ffd0d611ffd1aabfffd272d7\
         ffc4001e10000201040301000000000000000000000001310211123210214122ffda00080101000105024b21d48c99da20ffd06e\
         f4a8bb3520ffd1abedecc820ffd2f4f78fffc4002410000201030303050000000000000000000001112131410212221332a14251\
         526171ffda0008010100063f02e58b12fb8dcb4f22695b909d1fd1ffd0fc3a9a8df644a57f722f27ffd1d2960dfe9d2751db0897\
         59f043ace4ffd2e385517c6ec9c3f056d82b7763ffc400201000020202010501000000000000000000000111312141516171b1c1\
         d1e1ffda0008010100013f2189a0418b0a448846f0a2c26595641fffd0e93e42a7b0b448a7da145f731d769b5247ffd1d01b0da7\
         d35724e61961bfc61de2ade91fffd2799898785466df9050ab9d5f962c633b9bfc3fffda0008010100000010e7ffd0b7ffd1c7ff\
         d247ffc4001e100002030003000300000000000000000001110021314151c1618191ffda0008010100013f10190fa100203f5204\
         0c951044160b9421a8801f65ca7fffd044ef98c458f785fccaef105435c7f52c137ed27fffd10c805fce75b09ee86ac07de37a8b\
         00cd237855a87fffd234d56c01c1813dc16562621a41a621061252032510f13fffd9";

    fn progressive() -> Vec<u8> {
        let digits: Vec<u8> = PROGRESSIVE.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn baseline() -> Vec<u8> {
        let mut bytes = Vec::new();
        let picture = RgbImage::from_fn(90, 70, |x, y| image::Rgb([(x * y) as u8, (x * 3) as u8, (y * y) as u8]));
        let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 85);
        encoder.encode_image(&picture).unwrap();
        bytes
    }

    fn with_end(bytes: &[u8]) -> Vec<u8> {
        [bytes, &[0xFF, 0xD9]].concat()
    }

    /// Where the last scan begins.
    fn last_scan(bytes: &[u8]) -> usize {
        bytes.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap()
    }

    #[test]
    fn whole_images_are_whole() {
        for bytes in [baseline(), progressive()] {
            assert_eq!(damage(&bytes), None);
            assert!(image::load_from_memory(&bytes).is_ok());
            // A camera may leave something behind the end.
            assert_eq!(damage(&[&bytes[..], b"more"].concat()), None);
        }
    }

    #[test]
    fn an_image_that_is_cut_and_closed_is_damaged_wherever_it_is_cut() {
        for bytes in [baseline(), progressive()] {
            let first = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 10;
            for length in (first..bytes.len() - 4).step_by(7) {
                let cut = with_end(&bytes[..length]);
                assert!(damage(&cut).is_some(), "{length} of {} bytes", bytes.len());
            }
        }
        let whole_scans = with_end(&progressive()[..last_scan(&progressive())]);
        assert_eq!(damage(&whole_scans), Some("scans are missing"));
    }

    #[test]
    fn holes_of_zeros_and_lost_restart_markers_are_damage() {
        let mut bytes = baseline();
        let middle = (last_scan(&bytes) + bytes.len()) / 2;
        bytes[middle..middle + 200].fill(0);
        assert!(damage(&bytes).is_some());
        assert!(image::load_from_memory(&bytes).is_ok(), "the decoder alone does not mind");

        let mut bytes = progressive();
        let restart = bytes.windows(2).position(|pair| pair == [0xFF, 0xD0]).unwrap();
        bytes[restart + 1] = 0xD3;
        assert_eq!(damage(&bytes), Some("a restart marker is missing"));
    }
}
