//! CLIP's tokenizer: cleaned, lower-cased text → byte-level BPE over 49,408 entries → START … END, zero padded.
//!
//! Ids are those of openai/CLIP's `simple_tokenizer.py`. Own code: `instant-clip-tokenizer` and `tokenizers` leave
//! out the cleaning, half of the work. Id 0 pads and is also `!` before other marks: find the end by END.
//!
//! Deviation: CLIP cleans with `ftfy.fix_text(text)`, this with `ftfy.fix_text(text, fix_encoding=False)`. Everything
//! else of ftfy 6.3 is here: entities (unless the text holds a `<`), C1 controls as Windows-1252, Latin ligatures,
//! character width, straight quotes, terminal escapes, control characters, NFC. What differs is mojibake alone:
//! `schÃ¶n` stays as it is, CLIP repairs it to `schön`. Characters newer than Unicode 14 may split otherwise.
//!
//! Whitespace never enters a piece, so CLIP's stripping and collapsing of it, and ftfy's line breaks, need no code.

use entities::ENTITIES;
use flate2::read::GzDecoder;
use regex::{Captures, Regex};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{BufRead, BufReader};
use std::iter;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;

/// Entries of the vocabulary.
pub const VOCABULARY: usize = 49_408;
/// Tokens of a text, START and END included.
pub const CONTEXT: usize = 77;
/// First token of every text.
pub const START: u32 = 49_406;
/// Last token of every text; CLIP reads its feature there.
pub const END: u32 = 49_407;

/// openai/CLIP, MIT licence.
const MERGES: &[u8] = include_bytes!("../../assets/clip/bpe_simple_vocab_16e6.txt.gz");
/// From the id of a symbol to that of the same symbol at the end of a word.
const WORD_END: u32 = 256;

// U+0345 is no letter, but folds to one: Python's case-insensitive classes match it nowhere.
const PIECES: &str =
    r"(?i:<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}\x{345}]+";

/// Text to ids.
pub struct Tokenizer {
    bytes: [u32; 256],
    /// Pair → merged symbol; the lower the id, the earlier the merge.
    merges: HashMap<(u32, u32), u32>,
    pieces: Regex,
}

impl Tokenizer {
    /// CLIP's vocabulary, decoded on first use.
    pub fn clip() -> &'static Self {
        static CLIP: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::embedded);
        &CLIP
    }

    fn embedded() -> Self {
        let (printable, other): (Vec<u8>, Vec<u8>) =
            (0..=255).partition(|byte| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..));
        // The merge file writes printable bytes as Latin-1, the others as U+0100 onwards.
        let shown = printable.iter().map(|&byte| char::from(byte)).chain('\u{100}'..);
        let (mut bytes, mut symbols) = ([0; 256], HashMap::new());
        for ((id, &byte), shown) in (0..).zip(printable.iter().chain(&other)).zip(shown) {
            bytes[usize::from(byte)] = id;
            symbols.insert(shown.to_string(), id);
            symbols.insert(format!("{shown}</w>"), id + WORD_END);
        }
        let mut merges = HashMap::new();
        let lines = BufReader::new(GzDecoder::new(MERGES)).lines().skip(1);
        for (id, line) in (2 * WORD_END..START).zip(lines) {
            let line = line.expect("the embedded merges are UTF-8");
            let (left, right) = line.split_once(' ').expect("an embedded merge is a pair");
            merges.insert((symbols[left], symbols[right]), id);
            symbols.insert([left, right].concat(), id);
        }
        Self { bytes, merges, pieces: pattern(PIECES) }
    }

    /// The ids of `text`: no START, no END, any length.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        for piece in self.pieces.find_iter(&clean(text)) {
            match piece.as_str() {
                "<|startoftext|>" => ids.push(START),
                "<|endoftext|>" => ids.push(END),
                piece => ids.extend(self.merge(piece)),
            }
        }
        ids
    }

    /// START, the ids of `text`, END, then zeros; exactly `context` ids, of which END replaces the last if cut.
    pub fn tokenize(&self, text: &str, context: usize) -> Vec<u32> {
        let mut ids = vec![START];
        ids.extend(self.encode(text));
        ids.push(END);
        if ids.len() > context {
            ids.truncate(context);
            ids.last_mut().into_iter().for_each(|last| *last = END);
        }
        ids.resize(context, 0);
        ids
    }

    /// Merges the earliest pair, the leftmost of equals, until no pair is left.
    fn merge(&self, piece: &str) -> Vec<u32> {
        const GONE: u32 = u32::MAX;
        let mut word: Vec<u32> = piece.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        word.last_mut().into_iter().for_each(|last| *last += WORD_END);
        let end = word.len();
        let mut next: Vec<usize> = (1..=end).collect();
        let mut previous: Vec<usize> = iter::once(end).chain(0..end).collect();
        let pair = |word: &[u32], left: usize, right: usize| {
            let id = self.merges.get(&(*word.get(left)?, *word.get(right)?))?;
            Some(Reverse((*id, left)))
        };
        let mut queue: BinaryHeap<_> = (1..end).filter_map(|right| pair(&word, right - 1, right)).collect();
        while let Some(top) = queue.pop() {
            let Reverse((id, left)) = top;
            let right = next[left];
            // An earlier merge may have taken either side.
            if pair(&word, left, right) != Some(top) {
                continue;
            }
            (word[left], word[right]) = (id, GONE);
            let (before, after) = (previous[left], next[right]);
            (next[left], previous[after]) = (after, left);
            queue.extend(pair(&word, before, left));
            queue.extend(pair(&word, left, after));
        }
        word.retain(|&id| id != GONE);
        word
    }
}

fn pattern(source: &str) -> Regex {
    Regex::new(source).expect("a valid pattern")
}

fn clean(text: &str) -> String {
    // From the first line with a `<` on, ftfy takes the text for HTML and leaves its entities to `html.unescape`.
    let html = text.find('<').map_or(text.len(), |at| text[..at].rfind('\n').map_or(0, |line| line + 1));
    let fixed = fix(&text[..html], true) + &fix(&text[html..], false);
    unescape(&unescape(&fixed)).to_lowercase()
}

/// ftfy's fixes but for mojibake, until nothing changes.
fn fix(text: &str, entities: bool) -> String {
    static ESCAPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\x1B\[[\d;]*[a-zA-Z]"));
    let mut text = text.to_owned();
    loop {
        let fixed = spell_out(&if entities { unescape_terminated(&text) } else { Cow::from(&text) });
        let fixed = ESCAPE.replace_all(&fixed, "").chars().filter(|&c| !is_control(c)).nfc().collect();
        if fixed == text {
            return fixed;
        }
        text = fixed;
    }
}

/// C1 controls, quotes, Latin ligatures, half and full width.
fn spell_out(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars().map(windows_1252) {
        match c {
            'ʼ' | '‘'..='‛' => plain.push('\''),
            '“'..='‟' => plain.push('"'),
            'ŉ' => plain.push_str("'n"),
            'ﬅ' => plain.push_str("ſt"),
            'Ĳ' | 'ĳ' | 'Ǆ'..='ǌ' | 'Ǳ'..='ǳ' | 'ﬀ'..='ﬆ' | '\u{FF01}'..='\u{FFEF}' => {
                plain.extend(iter::once(c).nfkc());
            }
            c => plain.push(c),
        }
    }
    plain
}

/// A C1 control as the Windows-1252 character of that byte.
fn windows_1252(c: char) -> char {
    const C1: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž', '\u{8F}', //
        '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}', 'ž', 'Ÿ',
    ];
    if matches!(c, '\u{80}'..='\u{9F}') { C1[c as usize - 0x80] } else { c }
}

fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\x08' | '\x0B' | '\x0E'..='\x1F' | '\x7F')
        || matches!(c, '\u{206A}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFC}')
}

/// Name without `&` → characters.
static NAMES: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| ENTITIES.iter().map(|entity| (&entity.entity[1..], entity.characters)).collect());

/// ftfy's `unescape_html`: references that end in a semicolon; a name in capitals alone gives its character's capital.
fn unescape_terminated(text: &str) -> Cow<'_, str> {
    static REFERENCE: LazyLock<Regex> = LazyLock::new(|| pattern("&#?[0-9A-Za-z]{1,24};"));
    REFERENCE.replace_all(text, |found: &Captures| {
        let whole = &found[0];
        let unescaped = unescape(whole);
        if NAMES.contains_key(&whole[1..]) || whole.starts_with("&#") && !unescaped.contains(';') {
            return unescaped.into_owned();
        }
        let lower = whole[1..].to_ascii_lowercase();
        match NAMES.get(lower.as_str()) {
            Some(characters) if unescaped == whole && whole[1..] == lower.to_ascii_uppercase() => {
                characters.to_uppercase()
            }
            _ => whole.into(),
        }
    })
}

/// Python's `html.unescape`.
fn unescape(text: &str) -> Cow<'_, str> {
    static REFERENCE: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"&(?:#([0-9]+);?|#[xX]([0-9a-fA-F]+);?|([^\t\n\f <&#;]{1,32};?))"));
    REFERENCE.replace_all(text, |found: &Captures| match (found.get(1), found.get(2), found.get(3)) {
        (Some(digits), ..) => numbered(digits.as_str(), 10),
        (_, Some(digits), _) => numbered(digits.as_str(), 16),
        (.., name) => {
            let name = name.map_or("", |name| name.as_str());
            (2..=name.len())
                .rev()
                .find_map(|end| Some([NAMES.get(name.get(..end)?)?, &name[end..]].concat()))
                .unwrap_or_else(|| found[0].into())
        }
    })
}

fn numbered(digits: &str, radix: u32) -> String {
    match u32::from_str_radix(digits, radix).unwrap_or(u32::MAX) {
        0 => char::REPLACEMENT_CHARACTER.into(),
        0x01..=0x08 | 0x0B | 0x0E..=0x1F | 0x7F | 0xFDD0..=0xFDEF => String::new(),
        number @ ..=0x10_FFFF if number & 0xFFFE == 0xFFFE => String::new(),
        number => char::from_u32(number).map_or(char::REPLACEMENT_CHARACTER, windows_1252).into(),
    }
}
