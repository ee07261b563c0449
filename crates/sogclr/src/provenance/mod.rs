//! Where numbers come from: which program made them, and with which numerics.

use serde::{Deserialize, Serialize};

/// Raised whenever the bytes of a run change on purpose: runs of one version and seed are the same to the last bit on one
/// instruction set, runs of two are not. What was recorded before there were versions is version 0; 1 has transformers and CLIP's
/// encoders on kernels of their own.
pub const NUMERICS: u32 = 1;

/// Who made a run, a checkpoint or a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Name, version and revision of the program.
    pub program: String,
    /// [`NUMERICS`] of the library that it was built with.
    pub numerics: u32,
}

impl Provenance {
    /// This library in the program `program`.
    pub fn of(program: impl Into<String>) -> Self {
        Self { program: program.into(), numerics: NUMERICS }
    }
}

/// A program that does not say what it is.
impl Default for Provenance {
    fn default() -> Self {
        Self::of(concat!("sogclr library ", env!("CARGO_PKG_VERSION")))
    }
}
