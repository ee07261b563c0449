//! The captions of a batch as token ids.

use crate::data::Split;
use crate::text::{END, Tokenizer};

/// One caption for each of the rank's samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Texts {
    /// Ids of a text, START and END included.
    pub context: usize,
    /// `[samples, context]`, zeros after END.
    pub ids: Vec<u32>,
    /// Where END stands. `[samples]`
    pub ends: Vec<usize>,
}

/// Texts are cut to a multiple of this, so that a device sees few different shapes.
const LENGTH_STEP: usize = 8;

impl Texts {
    /// The captions that `epoch` draws for the samples `ids`.
    pub(super) fn draw(split: &Split, ids: &[usize], seed: u64, epoch: usize, context: usize) -> Self {
        let caption = |&id: &usize| split.caption(id, seed, epoch).unwrap_or_default();
        Self::tokenize(ids.iter().map(caption), context)
    }

    /// Any texts; long ones are cut.
    pub fn tokenize<'a>(texts: impl Iterator<Item = &'a str>, context: usize) -> Self {
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        for text in texts {
            let text = Tokenizer::clip().tokenize(text, context);
            ends.push(text.iter().position(|&id| id == END).expect("every text ends in END"));
            ids.extend(text);
        }
        Self { context, ids, ends }
    }

    /// Ids and ends of the samples `rows`, without the places that are empty in all of them.
    pub fn rows(&self, rows: &[usize]) -> (Vec<u32>, Vec<usize>) {
        let ends: Vec<usize> = rows.iter().map(|&row| self.ends[row]).collect();
        let longest = ends.iter().max().map_or(0, |end| end + 1);
        let length = longest.next_multiple_of(LENGTH_STEP).min(self.context);
        let ids = rows.iter().flat_map(|row| &self.ids[row * self.context..][..length]).copied().collect();
        (ids, ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_out_what_is_empty_in_all_of_them() {
        let long = "one two three four five six seven eight nine ten eleven twelve";
        let texts = Texts::tokenize(["a dog", long, "cat"].into_iter(), 12);
        assert_eq!((texts.ids.len(), &texts.ends[..]), (36, &[3, 11, 2][..]));
        let (ids, ends) = texts.rows(&[2, 0]);
        assert_eq!((ids.len(), ends), (16, vec![2, 3]));
        assert_eq!((ids[2], ids[8 + 3]), (END, END));
        assert_eq!(ids[8..11], texts.ids[..3]);
        assert_eq!(texts.rows(&[0, 1]).0, texts.ids[..24], "a cut text fills the context");
    }
}
