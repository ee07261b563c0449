//! Images that look alike, found without comparing all pairs.
//!
//! Two stages. Hashes of 64 bits that differ in at most `RADIUS` places make a candidate: cut into four words of 16 bits, one
//! of them differs in at most a quarter of the places (pigeonhole), so that each image looks up the neighbours of its four words in
//! four tables (multi-index hashing, Norouzi et al. 2012). Of the candidates those are alike whose small grey pictures
//! correlate by `ALIKE`, which neither brightness nor contrast changes.

use super::look::{KEPT, Look};

/// Bits that may differ.
const RADIUS: u32 = 11;
/// The same in one of the four words: a quarter, rounded down.
const WORD_RADIUS: u32 = RADIUS / 4;
/// Correlation of the grey pictures from where they are one picture.
const ALIKE: f32 = 0.985;
/// Grey levels that a picture must vary by to be told from others.
const LEAST_CONTRAST: f32 = 3.0;

/// Pictures to find again.
pub(super) struct NearIndex<'a> {
    entries: Vec<&'a Look>,
    tables: [Vec<Vec<u32>>; 4],
    /// What changes at most `WORD_RADIUS` bits of a word.
    changes: Vec<u16>,
}

impl<'a> NearIndex<'a> {
    pub fn new() -> Self {
        let changes = (0..=u16::MAX).filter(|change| change.count_ones() <= WORD_RADIUS);
        Self {
            entries: Vec::new(),
            tables: std::array::from_fn(|_| vec![Vec::new(); 1 << 16]),
            changes: changes.collect(),
        }
    }

    /// Adds a picture; gives its number. One without contrast is counted, and never found.
    pub fn insert(&mut self, look: &'a Look) -> usize {
        let number = self.entries.len();
        self.entries.push(look);
        if contrast(look) >= LEAST_CONTRAST {
            for (table, word) in self.tables.iter_mut().zip(words(look.hash)) {
                table[usize::from(word)].push(number as u32);
            }
        }
        number
    }

    /// The picture that looks most like this one, and their correlation; of equal ones the first.
    pub fn find(&self, look: &Look) -> Option<(usize, f32)> {
        let mut best: Option<(usize, f32)> = None;
        if contrast(look) < LEAST_CONTRAST {
            return None;
        }
        for (table, word) in self.tables.iter().zip(words(look.hash)) {
            for &candidate in self.changes.iter().flat_map(|change| &table[usize::from(word ^ change)]) {
                let (number, other) = (candidate as usize, self.entries[candidate as usize]);
                if (other.hash ^ look.hash).count_ones() > RADIUS {
                    continue;
                }
                let alike = correlation(&look.thumbnail, &other.thumbnail);
                let is_better = best.is_none_or(|(known, most)| alike > most || (alike == most && number < known));
                if alike >= ALIKE && is_better {
                    best = Some((number, alike));
                }
            }
        }
        best
    }
}

fn words(hash: u64) -> [u16; 4] {
    std::array::from_fn(|word| (hash >> (16 * word)) as u16)
}

/// Standard deviation of the grey levels.
fn contrast(look: &Look) -> f32 {
    let count = (KEPT * KEPT) as f32;
    let mean = look.thumbnail.iter().map(|&level| f32::from(level)).sum::<f32>() / count;
    let squares = look.thumbnail.iter().map(|&level| (f32::from(level) - mean).powi(2)).sum::<f32>();
    (squares / count).sqrt()
}

/// Σ(a−ā)(b−b̄) / √(Σ(a−ā)²·Σ(b−b̄)²), from integer sums.
fn correlation(a: &[u8; KEPT * KEPT], b: &[u8; KEPT * KEPT]) -> f32 {
    let n = (KEPT * KEPT) as i64;
    let (mut sa, mut sb, mut aa, mut bb, mut ab) = (0_i64, 0_i64, 0_i64, 0_i64, 0_i64);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (i64::from(a), i64::from(b));
        (sa, sb) = (sa + a, sb + b);
        (aa, bb, ab) = (aa + a * a, bb + b * b, ab + a * b);
    }
    let spread = ((n * aa - sa * sa) as f64 * (n * bb - sb * sb) as f64).sqrt();
    if spread > 0.0 { ((n * ab - sa * sb) as f64 / spread) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::{Purpose, SampleRng};

    fn random(id: u64) -> Look {
        let mut rng = SampleRng::new(0, Purpose::Augment, 0, id, 0);
        let thumbnail = Box::new(std::array::from_fn(|_| rng.uniform(0.0, 256.0) as u8));
        let hash = (0..4).fold(0, |hash, _| hash << 16 | rng.uniform(0.0, 65536.0) as u64);
        Look { height: 9, width: 9, content: [0; 32], hash, thumbnail, is_blank: false, grey_rest: 0.0 }
    }

    #[test]
    fn the_four_tables_find_what_a_look_at_all_pairs_finds() {
        let pictures: Vec<Look> = (0..300).map(random).collect();
        let mut index = NearIndex::new();
        for look in &pictures {
            index.insert(look);
        }
        let mut rng = SampleRng::new(1, Purpose::Augment, 0, 0, 0);
        for (number, look) in pictures.iter().enumerate() {
            for changed in 0..=RADIUS + 1 {
                let mut other = random(number as u64);
                let mut places: Vec<usize> = (0..64).collect();
                rng.shuffle(&mut places);
                places[..changed as usize].iter().for_each(|place| other.hash ^= 1 << place);
                let found = index.find(&other).map(|(number, _)| number);
                assert_eq!(found, (changed <= RADIUS).then_some(number), "{changed} bits");
            }
            assert!(correlation(&look.thumbnail, &pictures[(number + 1) % 300].thumbnail) < 0.5);
        }
    }

    #[test]
    fn brightness_and_contrast_change_no_correlation_and_no_contrast_is_like_nothing() {
        let a = random(7);
        let darker: [u8; KEPT * KEPT] = a.thumbnail.map(|level| level / 2 + 9);
        assert!(correlation(&a.thumbnail, &darker) > 0.999);
        let flat = Look { thumbnail: Box::new([7; KEPT * KEPT]), ..random(7) };
        let mut index = NearIndex::new();
        index.insert(&flat);
        index.insert(&a);
        assert_eq!((index.find(&flat), index.find(&a).map(|found| found.0)), (None, Some(1)));
    }
}
