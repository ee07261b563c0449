//! CLIP's token ids: open_clip's tokenizer, and what holds for any text.

use crate::files::json;
use proptest::prelude::*;
use sogclr::text::{CONTEXT, END, START, Tokenizer, VOCABULARY};

fn ids(row: &serde_json::Value, column: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = serde_json::from_value(row[column].clone()).unwrap();
    ids.resize(CONTEXT, 0);
    ids
}

fn rows(kind: &str) -> Vec<serde_json::Value> {
    json("tokenizer.json")[kind].as_array().unwrap().clone()
}

#[track_caller]
fn agrees(kind: &str, at_least: usize) {
    let rows = rows(kind);
    assert!(rows.len() >= at_least, "{} rows", rows.len());
    for row in &rows {
        let text = row[0].as_str().unwrap();
        assert_eq!(Tokenizer::clip().tokenize(text, CONTEXT), ids(row, 1), "{text:?}");
    }
}

#[test]
fn ids_equal_clip_where_ftfy_changes_nothing() {
    agrees("untouched", 1200);
}

#[test]
fn ids_equal_clip_where_ftfy_repairs_other_than_mojibake() {
    agrees("fixed", 500);
}

#[test]
fn mojibake_is_left_alone_where_clip_repairs_it() {
    agrees("mojibake", 10);
    assert!(rows("mojibake").iter().all(|row| ids(row, 1) != ids(row, 2)));
}

#[test]
fn a_cut_text_ends_in_end() {
    let clip = Tokenizer::clip();
    assert_eq!(clip.encode("a photo of a dog"), [320, 1125, 539, 320, 1929]);
    assert_eq!(clip.tokenize("a photo of a dog", 9), [START, 320, 1125, 539, 320, 1929, END, 0, 0]);
    assert_eq!(clip.tokenize("a photo of a dog", 7), [START, 320, 1125, 539, 320, 1929, END]);
    assert_eq!(clip.tokenize("a photo of a dog", 6), [START, 320, 1125, 539, 320, END]);
    assert_eq!(clip.tokenize("a photo of a dog", 1), [END]);
    assert!(clip.tokenize("a photo of a dog", 0).is_empty());
}

/// Any characters, and what the cleaning and the pieces react to.
fn text() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        any::<String>(),
        "[ -~]{0,12}",
        "&#?x?[0-9a-zA-Z]{0,30};?",
        "\\PC{0,6}",
        "(<\\|endoftext\\|>|<|&amp;|'|\n|\x1B\\[|Σ|İ|ﬁ|\u{345}|\u{301}){0,4}",
    ];
    prop::collection::vec(atom, 0..8).prop_map(|atoms| atoms.concat())
}

proptest! {
    #[test]
    fn every_text_becomes_start_ids_end_zeros(text in text(), context in 2usize..100) {
        let clip = Tokenizer::clip();
        let (ids, inner) = (clip.tokenize(&text, context), clip.encode(&text));
        let kept = inner.len().min(context - 2);
        prop_assert_eq!(ids.len(), context);
        prop_assert_eq!(ids[0], START);
        prop_assert_eq!(&ids[1..=kept], &inner[..kept]);
        prop_assert_eq!(ids[kept + 1], END);
        prop_assert!(ids[kept + 2..].iter().all(|&id| id == 0));
        prop_assert!(inner.iter().all(|&id| (id as usize) < VOCABULARY));
    }

    #[test]
    fn surrounding_space_and_case_do_not_matter(text in "[ -%'-~]{0,40}") {
        let clip = Tokenizer::clip();
        let ids = clip.encode(&text);
        prop_assert_eq!(&clip.encode(&format!("\t{text}\r\n ")), &ids);
        prop_assert_eq!(&clip.encode(&text.to_uppercase()), &ids);
        prop_assert_eq!(&clip.encode(&text.replace(' ', " \u{A0} ")), &ids);
    }
}
