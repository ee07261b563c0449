//! The fast linear protocol: features of the centre view once, standardised, then a convex solve. Deterministic.

use super::{Accuracy, Labelled, fit_logistic};
use ndarray::Axis;

/// Ridge penalty on standardised features.
const LAMBDA: f64 = 1e-3;
/// Far below what changes a prediction.
const TOLERANCE: f64 = 1e-5;
const ITERATIONS: usize = 500;

/// Accuracy of the classifier fitted on `train`: on `test`, and on `train` itself.
pub fn linear_fast(mut train: Labelled, mut test: Labelled, classes: usize) -> (Accuracy, Accuracy) {
    let mean = train.features.mean_axis(Axis(0)).expect("there are training images");
    let deviation = train.features.std_axis(Axis(0), 0.0).mapv(|s| s.max(1e-6));
    for features in [&mut train.features, &mut test.features] {
        *features -= &mean;
        *features /= &deviation;
    }
    let (classifier, _) = fit_logistic(&train, classes, LAMBDA, TOLERANCE, ITERATIONS);
    (classifier.accuracy(&test), classifier.accuracy(&train))
}
