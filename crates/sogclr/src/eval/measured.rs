//! What an encoder of images reaches, by the two quick protocols at once.

use super::{Accuracy, EvalError, FrozenEncoder, Labelled, knn_accuracy, labelled_splits, linear_fast};
use crate::data::{Dataset, Split};
use serde::{Deserialize, Serialize};

/// Neighbours that vote, unless the user says otherwise.
pub const NEIGHBOURS: usize = 20;

/// Linear and nearest-neighbour accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// By the fast protocol.
    pub linear: Accuracy,
    /// Of the same classifier on the images that it was fitted on.
    pub linear_train: Accuracy,
    /// The vote of the nearest training images.
    pub knn: Accuracy,
}

/// Linear (fast protocol) and nearest-neighbour accuracy; `progress` is told how many more images are done.
pub fn measure(
    encoder: &FrozenEncoder,
    data: &Dataset,
    progress: impl Fn(usize) + Sync,
) -> Result<Measured, EvalError> {
    let (train, test) = labelled_splits(data)?;
    let (train, test) = features(encoder, &train, &test, progress)?;
    let classes = data.classes.len();
    let knn = knn_accuracy(&train, &test, classes, NEIGHBOURS);
    let (linear, linear_train) = linear_fast(train, test, classes);
    Ok(Measured { linear, linear_train, knn })
}

/// Features of both splits.
pub fn features(
    encoder: &FrozenEncoder,
    train: &Split,
    test: &Split,
    progress: impl Fn(usize) + Sync,
) -> Result<(Labelled, Labelled), EvalError> {
    Ok((encoder.extract(train, &progress)?, encoder.extract(test, &progress)?))
}
