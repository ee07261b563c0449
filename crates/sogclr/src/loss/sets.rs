//! Named embedding sets: what the network gave for one batch.

use super::LossError;
use crate::math::{Matrix, UnitRows};
use std::fmt;
use std::sync::OnceLock;

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

/// One set as the network gave it, and its rows at unit length for losses that contrast directions.
#[derive(Clone, Debug)]
pub struct Embeddings {
    raw: Matrix,
    unit: OnceLock<UnitRows>,
}

impl Embeddings {
    /// Wraps what the network gave. `[B, dim]`
    pub fn new(raw: Matrix) -> Self {
        Self { raw, unit: OnceLock::new() }
    }

    /// h, not normalised. `[B, dim]`
    pub fn raw(&self) -> &Matrix {
        &self.raw
    }

    /// z = h/‖h‖, made when it is first asked for. `[B, dim]`
    pub fn unit(&self) -> &UnitRows {
        self.unit.get_or_init(|| UnitRows::new(self.raw.clone()))
    }
}

/// The sets of one batch, each `[B, dim]` with the same B and the samples in the same order.
#[derive(Clone, Debug, Default)]
pub struct EmbeddingSets(Vec<(SetName, Embeddings)>);

impl EmbeddingSets {
    /// The sets as the network gave them.
    pub fn new(sets: Vec<(SetName, Matrix)>) -> Self {
        Self(sets.into_iter().map(|(name, raw)| (name, Embeddings::new(raw))).collect())
    }

    /// The set `name`.
    pub fn get(&self, name: SetName) -> Result<&Embeddings, LossError> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, set)| set).ok_or(LossError::Missing(name))
    }

    /// Values in a row of the first set.
    pub fn dim(&self) -> usize {
        self.0.first().map_or(0, |(_, set)| set.raw.ncols())
    }

    /// How many of View(0), View(1), … there are.
    pub fn view_count(&self) -> usize {
        (0..).take_while(|&k| self.get(SetName::View(k)).is_ok()).count()
    }
}
