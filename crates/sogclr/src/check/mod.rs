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

/// The variant of an enum that serde calls `name`.
pub(crate) fn parse_name<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let name: StrDeserializer<Error> = name.into_deserializer();
    T::deserialize(name).map_err(|error| error.to_string())
}
