//! Contrastive losses: value, gradient of every embedding set, and the new per-sample state, from unit-norm
//! embeddings. A loss knows no ranks, does no I/O and changes nothing: the training step commits its update.
//!
//! Normalisation everywhere: the mean over the anchors, 1/(2B) for two views (eq. 10's scale).
//!
//! Adding one: a new file here, one line below, and a method that names it (`crate::method`).

mod clip;
mod dcl;
mod debiased;
mod flatnce;
mod key_nce;
mod nearest_nce;
mod ntxent;
mod pairs;
mod sets;
mod siglip;
mod sogclr;
mod supcon;
mod two_way;
mod views;

pub use clip::{Clip, LOG_SCALE};
pub use dcl::Dcl;
pub use debiased::Debiased;
pub use flatnce::FlatNce;
pub use key_nce::{KeyNce, Negatives};
pub use nearest_nce::NearestNce;
pub use ntxent::NtXent;
pub use sets::{EmbeddingSets, SetName};
pub use siglip::{BIAS, SigLip};
pub use sogclr::{Gamma, Individual, SogClr, Variant};
pub use supcon::SupCon;
pub use two_way::{GLOBAL_TAU, PairTemperature, TwoWay};

use crate::math::{Matrix, UnitRows};
use crate::state::{SampleState, StateUpdate};
use ndarray::ArrayView2;
use std::ops::Range;

/// Everything a loss may look at for one global batch of B samples.
pub struct LossInput<'a> {
    /// Named embeddings, `[B, dim]` each.
    pub sets: &'a EmbeddingSets,
    /// Sample ids, the index into `state`. `[B]`
    pub ids: &'a [usize],
    /// Class labels where the method needs them. `[B]`
    pub labels: Option<&'a [u32]>,
    /// Unit-norm features of earlier batches, where the method keeps some. `[K, dim]`
    pub queue: Option<ArrayView2<'a, f32>>,
    /// How many of the views are large crops; the others are never anybody's positive.
    pub large_views: usize,
    /// The samples of the batch whose gradient the caller wants; all of them in one process.
    pub ours: Range<usize>,
    pub state: &'a SampleState,
    pub epoch: usize,
}

impl<'a> LossInput<'a> {
    /// The set `name`, if it can be contrasted with the others: enough samples, the same shape, finite.
    fn checked(&self, name: SetName) -> Result<&'a UnitRows, LossError> {
        let samples = self.ids.len();
        if samples < 2 {
            return Err(LossError::TooFewSamples(samples));
        }
        let set = self.sets.get(name)?;
        let want_dim = self.sets.dim();
        let (rows, dim) = set.matrix().dim();
        if rows != samples || dim != want_dim {
            return Err(LossError::Shape { set: name, rows, dim, want_rows: samples, want_dim });
        }
        match set.first_non_finite() {
            Some(row) => Err(LossError::NonFinite { set: name, sample: self.ids[row] }),
            None => Ok(set),
        }
    }

    /// The queue, if it has rows of `dim` values.
    fn checked_queue(&self, dim: usize) -> Result<ArrayView2<'a, f32>, LossError> {
        match self.queue {
            Some(queue) if queue.nrows() > 0 && queue.ncols() == dim => Ok(queue),
            Some(queue) => Err(LossError::Queue { rows: queue.nrows(), dim: queue.ncols(), want_dim: dim }),
            None => Err(LossError::NoQueue),
        }
    }
}

/// What one evaluation of a loss gives.
pub struct LossOutput {
    /// The value whose gradient `grads` is (for SogCLR the surrogate of eq. 10, which may be negative).
    pub loss: f64,
    /// Running estimate of the global objective: mean −s⁺ + τ ln(normaliser).
    pub objective: f64,
    /// ∂loss/∂z for the rows `ours` of each set that has a gradient.
    pub grads: Vec<(SetName, Matrix)>,
    /// ∂loss/∂θ for parameters that belong to the loss itself, such as a learned temperature.
    pub parameter_grads: Vec<(&'static str, f64)>,
    pub update: StateUpdate,
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LossError {
    #[error("a contrastive loss needs at least 2 samples in the batch, this one has {0}: raise the batch size")]
    TooFewSamples(usize),
    #[error("embedding set {set} has shape [{rows}, {dim}], expected [{want_rows}, {want_dim}]")]
    Shape { set: SetName, rows: usize, dim: usize, want_rows: usize, want_dim: usize },
    #[error("embedding set {0} is missing")]
    Missing(SetName),
    #[error("the method needs a queue of earlier features, and there is none")]
    NoQueue,
    #[error("the queue has shape [{rows}, {dim}], expected rows of {want_dim} values")]
    Queue { rows: usize, dim: usize, want_dim: usize },
    #[error("the method needs labels and the data has none: sort the images into one folder for each class")]
    NoLabels,
    #[error(
        "the embedding of sample {sample} in set {set} is not finite: training diverged; \
         lower the learning rate or look for broken input"
    )]
    NonFinite { set: SetName, sample: usize },
    #[error("the loss is not finite: training diverged; lower the learning rate")]
    NonFiniteLoss,
}

impl LossOutput {
    /// A value and its gradients, without state.
    fn stateless(loss: f64, objective: f64, grads: Vec<(SetName, Matrix)>, input: &LossInput) -> Self {
        let update = StateUpdate { ids: input.ids.to_vec(), columns: Vec::new() };
        Self { loss, objective, grads, parameter_grads: Vec::new(), update }
    }
}

/// A contrastive loss.
pub trait Loss: Send + Sync {
    /// Columns of per-sample state that this loss reads and updates.
    fn columns(&self) -> &'static [&'static str];

    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError>;
}
