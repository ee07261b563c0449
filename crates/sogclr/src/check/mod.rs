//! What is wrong with a setting, said by the part that owns it.

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use std::fmt;

/// A key of the configuration, and what is wrong with its value and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key, such as `train.batch`.
    pub key: String,
    /// The rest of a sentence that begins with the key.
    pub text: String,
}

impl Problem {
    /// A problem with the value at `key`.
    pub fn new(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self { key: key.into(), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.key, self.text)
    }
}

impl std::error::Error for Problem {}

/// The problem, unless `holds`.
pub fn require(holds: bool, key: &str, text: impl FnOnce() -> String) -> Result<(), Problem> {
    match holds {
        true => Ok(()),
        false => Err(Problem::new(key, text())),
    }
}

/// A name for people: what would move their cursor, change their colours or begin a line is written out.
pub fn shown(name: impl fmt::Display) -> String {
    // Beside the control characters those that turn the direction of writing.
    let is_plain = |c: char| !c.is_control() && !matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let name = name.to_string();
    name.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// The variant of an enum that serde calls `name`.
pub(crate) fn parse_name<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let name: StrDeserializer<Error> = name.into_deserializer();
    T::deserialize(name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_write_on_a_terminal() {
        assert_eq!(shown("a\u{1b}[31m\nb\u{9b}\u{202e}.png"), "a\\u{1b}[31m\\nb\\u{9b}\\u{202e}.png");
        assert_eq!(shown("Käfer 2×\\.png"), "Käfer 2×\\.png", "all else stays");
    }
}
