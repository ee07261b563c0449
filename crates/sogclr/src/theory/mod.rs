//! The paper's theory on problems small enough to be exact: a finite set of images, each with a finite set of augmentations.
//! The global objective and its gradient are computed over all of them, and what mini-batches estimate is compared with it.

mod bias;
mod convergence;
mod epsilon;
mod estimator;
mod objective;
mod probe;

pub use bias::{Bias, BiasRow, BiasStudy, EstimatorKind, effective_batch, log_slope};
pub use convergence::{Descent, LinearProblem, Point, first_below};
pub use epsilon::{epsilon_squares, similarity_variance};
pub use estimator::{Draw, Estimator, FiniteProblem};
pub use objective::{Version, global_objective, gradient_given_u, log_image_normalisers, through_norm};
pub use probe::{Probe, ProbeError};
