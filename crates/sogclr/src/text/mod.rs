//! Texts of image–text pairs: from a caption to token ids.

mod tokenizer;

pub use tokenizer::{CONTEXT, END, START, Tokenizer, VOCABULARY};
