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

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn unit_rows_are_made_once_beside_what_the_network_gave() {
        let set = Embeddings::new(array![[3.0, 4.0], [0.0, -2.0]]);
        assert_eq!(set.unit().matrix(), &array![[0.6, 0.8], [0.0, -1.0]]);
        assert_eq!(set.raw(), &array![[3.0, 4.0], [0.0, -2.0]]);
        assert!(std::ptr::eq(set.unit(), set.unit()));
    }

    #[test]
    fn a_missing_set_is_an_error_that_names_it() {
        let sets = EmbeddingSets::new(vec![(SetName::Key(0), Matrix::zeros((2, 3)))]);
        assert!(sets.get(SetName::Key(0)).is_ok());
        assert_eq!(sets.get(SetName::Key(1)).unwrap_err().to_string(), "embedding set key 1 is missing");
        let text = sets.get(SetName::Predictor(0)).unwrap_err().to_string();
        assert_eq!(text, "embedding set predictor 0 is missing");
    }

    #[test]
    fn views_are_counted_up_to_the_first_gap_and_the_first_set_has_the_dimension() {
        let sets = [(SetName::Text, 5), (SetName::View(1), 4), (SetName::View(0), 3), (SetName::View(3), 2)];
        let sets = EmbeddingSets::new(sets.map(|(name, dim)| (name, Matrix::zeros((2, dim)))).to_vec());
        assert_eq!((sets.view_count(), sets.dim()), (2, 5));
        assert_eq!((EmbeddingSets::default().view_count(), EmbeddingSets::default().dim()), (0, 0));
    }
}
