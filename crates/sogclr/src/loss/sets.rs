//! Named embedding sets: what the encoder (and its companions) produced for one batch.

use super::LossError;
use crate::math::UnitRows;
use std::fmt;

/// Which embeddings a set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetName {
    /// The k-th augmented view through encoder and head.
    View(usize),
    /// The k-th view through a momentum encoder; no gradient.
    Key(usize),
    /// The k-th view through encoder, head and predictor.
    Predictor(usize),
    /// The tiles of a shuffled jigsaw through encoder and their own head.
    Jigsaw,
    /// Text embeddings of image–text pairs.
    Text,
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SetName::View(k) => write!(f, "view {k}"),
            SetName::Key(k) => write!(f, "key {k}"),
            SetName::Predictor(k) => write!(f, "predictor {k}"),
            SetName::Jigsaw => write!(f, "jigsaw"),
            SetName::Text => write!(f, "text"),
        }
    }
}

/// The sets of one batch, each `[B, dim]` with the same B and the samples in the same order.
#[derive(Clone, Debug, Default)]
pub struct EmbeddingSets(Vec<(SetName, UnitRows)>);

impl EmbeddingSets {
    pub fn new(sets: Vec<(SetName, UnitRows)>) -> Self {
        Self(sets)
    }

    pub fn get(&self, name: SetName) -> Result<&UnitRows, LossError> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, rows)| rows).ok_or(LossError::Missing(name))
    }

    /// Values in a row of the first set.
    pub fn dim(&self) -> usize {
        self.0.first().map_or(0, |(_, rows)| rows.dim())
    }

    /// View(0), View(1), … in order.
    pub fn views(&self) -> Vec<&UnitRows> {
        (0..).map_while(|k| self.get(SetName::View(k)).ok()).collect()
    }
}
