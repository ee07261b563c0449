//! Labelled training and test images for an evaluation.

use super::EvalError;
use crate::data::{Dataset, Split};

/// The two splits. Data without a test split gives every fifth image of each class for testing.
pub fn labelled_splits(data: &Dataset) -> Result<(Split, Split), EvalError> {
    if !data.train.is_labelled() {
        return Err(EvalError::NoLabels(data.title.clone()));
    }
    if data.test.as_ref().is_some_and(|test| !test.is_labelled()) {
        return Err(EvalError::NoLabels(format!("the test split of {}", data.title)));
    }
    if data.classes.len() < 2 {
        return Err(EvalError::OneClass(data.title.clone()));
    }
    let (train, test) = match &data.test {
        Some(test) => (data.train.clone(), test.clone()),
        None => data.train.hold_out(5),
    };
    match train.is_empty() || test.is_empty() {
        true => Err(EvalError::NoTest(data.title.clone())),
        false => Ok((train, test)),
    }
}
