//! Losses: value, gradient of every embedding set, and the new per-sample state, from the embeddings as the network
//! gave them; most contrast their directions. A loss knows no ranks, does no I/O and changes nothing: the training step commits its update.
//!
//! Normalisation everywhere: the mean over the anchors, 1/(2B) for two views (eq. 10's scale).
//!
//! Adding one: a new file here, one line below, and a method that names it (`crate::method`).

mod barlow_twins;
mod byol;
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
mod simsiam;
mod sogclr;
mod supcon;
mod two_way;
mod vicreg;
mod views;

pub use barlow_twins::BarlowTwins;
pub use byol::Byol;
pub use clip::{Clip, LOG_SCALE};
pub use dcl::Dcl;
pub use debiased::Debiased;
pub use flatnce::FlatNce;
pub use key_nce::{KeyNce, Negatives};
pub use nearest_nce::NearestNce;
pub use ntxent::NtXent;
pub use sets::{EmbeddingSets, Embeddings, SetName};
pub use siglip::{BIAS, SigLip};
pub use simsiam::SimSiam;
pub use sogclr::{Gamma, Individual, SogClr, Variant};
pub use supcon::SupCon;
pub use two_way::{GLOBAL_TAU, PairTemperature, TwoWay};
pub use vicreg::VicReg;

use crate::math::Isa;
use crate::math::{Matrix, UnitRows};
use crate::state::{SampleState, StateUpdate};
use ndarray::ArrayView2;
use std::ops::Range;

/// Where a run stands, for schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done before this one.
    pub step: usize,
    /// Steps of the whole run.
    pub total_steps: usize,
    /// Passes over the data done before this one.
    pub epoch: usize,
}

/// Everything a loss may look at for one global batch of B samples.
#[derive(Clone)]
pub struct LossInput<'a> {
    /// Named embeddings as the network gave them, `[B, dim]` each.
    pub sets: &'a EmbeddingSets,
    /// Sample ids, the index into `state`. `[B]`
    pub ids: &'a [usize],
    /// Class labels where the data has them. `[B]`
    pub labels: Option<&'a [u32]>,
    /// Unit-norm features of earlier batches, where the method keeps some. `[K, dim]`
    pub queue: Option<ArrayView2<'a, f32>>,
    /// How many of the views are large crops; the others are never anybody's positive.
    pub large_views: usize,
    /// The samples of the batch whose gradient the caller wants; all of them in one process.
    pub ours: Range<usize>,
    /// What is kept for each sample of the data.
    pub state: &'a SampleState,
    /// How far the run is.
    pub at: Progress,
    /// The instructions that similarities are computed with.
    pub isa: Isa,
}

impl<'a> LossInput<'a> {
    /// A batch without labels or queue, all views large, at the start of a run.
    pub fn new(sets: &'a EmbeddingSets, ids: &'a [usize], state: &'a SampleState) -> Self {
        let (large_views, ours, at) = (sets.view_count(), 0..ids.len(), Progress::default());
        Self { sets, ids, labels: None, queue: None, large_views, ours, state, at, isa: Isa::best() }
    }

    /// The set `name`, if it can be contrasted with the others: enough samples, the same shape, finite.
    pub fn checked(&self, name: SetName) -> Result<&'a Embeddings, LossError> {
        let samples = self.ids.len();
        if samples < 2 {
            return Err(LossError::TooFewSamples(samples));
        }
        let set = self.sets.get(name)?;
        let want_dim = self.sets.dim();
        let (rows, dim) = set.raw().dim();
        if rows != samples || dim != want_dim {
            return Err(LossError::Shape { set: name, rows, dim, want_rows: samples, want_dim });
        }
        match set.raw().outer_iter().position(|row| row.iter().any(|v| !v.is_finite())) {
            Some(row) => Err(LossError::NonFinite { set: name, sample: self.ids[row] }),
            None => Ok(set),
        }
    }

    /// As [`LossInput::checked`], the rows at unit length.
    pub fn checked_unit(&self, name: SetName) -> Result<&'a UnitRows, LossError> {
        Ok(self.checked(name)?.unit())
    }

    /// The queue, if it has rows of `dim` values.
    pub fn checked_queue(&self, dim: usize) -> Result<ArrayView2<'a, f32>, LossError> {
        match self.queue {
            Some(queue) if queue.nrows() > 0 && queue.ncols() == dim => Ok(queue),
            Some(queue) => Err(LossError::Queue { rows: queue.nrows(), dim: queue.ncols(), want_dim: dim }),
            None => Err(LossError::NoQueue),
        }
    }

    /// ∂L/∂h from ∂L/∂z for the rows `ours` of sets that were contrasted at unit length.
    pub fn through_norms(&self, grads: Vec<(SetName, Matrix)>) -> Result<Vec<(SetName, Matrix)>, LossError> {
        let raw = |(name, dz): (SetName, Matrix)| Ok((name, self.sets.get(name)?.unit().backward(self.ours.start, dz)));
        grads.into_iter().map(raw).collect()
    }
}

/// What one evaluation of a loss gives.
pub struct LossOutput {
    /// The value whose gradient `grads` is (for SogCLR the surrogate of eq. 10, which may be negative).
    pub loss: f64,
    /// Running estimate of the global objective, mean −s⁺ + τ ln(normaliser); `None` where a loss contrasts nothing.
    pub objective: Option<f64>,
    /// ∂loss/∂h, h as the network gave it, for the rows `ours` of each set that has a gradient.
    pub grads: Vec<(SetName, Matrix)>,
    /// ∂loss/∂θ for parameters that belong to the loss itself, such as a learned temperature.
    pub parameter_grads: Vec<(&'static str, f64)>,
    /// The new per-sample state, for the training step to commit.
    pub update: StateUpdate,
}

/// Why a loss has no value for a batch.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LossError {
    /// So few samples leave nothing to contrast.
    #[error("a contrastive loss needs at least 2 samples in the batch, this one has {0}: raise the batch size")]
    TooFewSamples(usize),
    /// A set differs in shape from the batch or from the first set.
    #[error("embedding set {set} has shape [{rows}, {dim}], expected [{want_rows}, {want_dim}]")]
    Shape {
        /// The set.
        set: SetName,
        /// Its rows.
        rows: usize,
        /// Values of its rows.
        dim: usize,
        /// Samples of the batch, B.
        want_rows: usize,
        /// Values of a row of the first set.
        want_dim: usize,
    },
    /// The loss contrasts a set that the method does not make.
    #[error("embedding set {0} is missing")]
    Missing(SetName),
    /// The loss looks at earlier features, and the method keeps none.
    #[error("the method needs a queue of earlier features, and there is none")]
    NoQueue,
    /// The queue is empty, or its rows are not as long as the embeddings.
    #[error("the queue has shape [{rows}, {dim}], expected rows of {want_dim} values")]
    Queue {
        /// Rows of the queue.
        rows: usize,
        /// Values of its rows.
        dim: usize,
        /// Values of an embedding.
        want_dim: usize,
    },
    /// The loss takes positives from classes, and the data has none.
    #[error("the method needs labels and the data has none: sort the images into one folder for each class")]
    NoLabels,
    /// An embedding holds a NaN or an infinity.
    #[error(
        "the embedding of sample {sample} in set {set} is not finite: training diverged; \
         lower the learning rate or look for broken input"
    )]
    NonFinite {
        /// The set it is in.
        set: SetName,
        /// The id of its sample.
        sample: usize,
    },
    /// The method is one of another program, which this one does not have.
    #[error("the method belongs to another program: train and resume the run there")]
    Elsewhere,
    /// No set of the model has a gradient.
    #[error("the loss gave no gradient for any set of the model")]
    NoGradient,
    /// The loss itself is NaN or infinite.
    #[error("the loss is not finite: training diverged; lower the learning rate")]
    NonFiniteLoss,
}

impl LossOutput {
    /// A value and its gradients with respect to the raw embeddings, without state.
    pub fn stateless(loss: f64, grads: Vec<(SetName, Matrix)>, input: &LossInput) -> Self {
        let update = StateUpdate { ids: input.ids.to_vec(), columns: Vec::new() };
        Self { loss, objective: None, grads, parameter_grads: Vec::new(), update }
    }

    /// The same from gradients with respect to unit rows, with the batch's estimate of the global objective.
    pub fn contrasted(
        loss: f64,
        objective: f64,
        grads: Vec<(SetName, Matrix)>,
        input: &LossInput,
    ) -> Result<Self, LossError> {
        Ok(Self { objective: Some(objective), ..Self::stateless(loss, input.through_norms(grads)?, input) })
    }
}

/// A loss: a pure function of embeddings, ids and state.
///
/// ```
/// use sogclr::loss::{EmbeddingSets, Gamma, Loss, LossInput, SetName, SogClr};
/// use sogclr::ndarray::array;
/// use sogclr::state::{LOG_U, SampleState};
///
/// let loss = SogClr::new(0.1, Gamma::Constant { value: 0.8 });
/// // Two views of the samples 7 and 2 of ten, as a network gave them.
/// let sets = EmbeddingSets::new(vec![
///     (SetName::View(0), array![[1.0, 0.2], [-0.3, 2.0]]),
///     (SetName::View(1), array![[0.9, 0.1], [0.1, 1.5]]),
/// ]);
/// let mut state = SampleState::new(10, loss.columns());
/// let out = loss.forward(&LossInput::new(&sets, &[7, 2], &state))?;
/// assert_eq!(out.grads[0].1.dim(), (2, 2)); // ∂L/∂h of the first view
/// state.commit(out.update);
/// assert!(state.seen(LOG_U, 7).is_some() && state.seen(LOG_U, 0).is_none());
/// # Ok::<(), sogclr::loss::LossError>(())
/// ```
pub trait Loss: Send + Sync {
    /// Columns of per-sample state that this loss reads and updates.
    fn columns(&self) -> &'static [&'static str] {
        &[]
    }

    /// Value, gradients and new state for one batch.
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    fn sets() -> EmbeddingSets {
        EmbeddingSets::new(vec![
            (SetName::View(0), array![[3.0, 4.0], [0.0, 2.0]]),
            (SetName::View(1), array![[1.0, 0.0], [0.0, f32::NAN]]),
            (SetName::Text, array![[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
            (SetName::Jigsaw, array![[1.0, 0.0]]),
        ])
    }

    #[test]
    fn a_set_that_cannot_be_contrasted_is_named_with_the_sample() {
        let (sets, state) = (sets(), SampleState::new(9, &[]));
        let input = LossInput::new(&sets, &[7, 5], &state);
        let error = |name| input.checked(name).unwrap_err().to_string();
        assert_eq!(input.checked(SetName::View(0)).unwrap().raw(), &array![[3.0, 4.0], [0.0, 2.0]]);
        assert_eq!(error(SetName::Text), "embedding set text has shape [2, 3], expected [2, 2]");
        assert_eq!(error(SetName::Jigsaw), "embedding set jigsaw has shape [1, 2], expected [2, 2]");
        assert_eq!(error(SetName::Key(1)), "embedding set key 1 is missing");
        // The second row is sample 5.
        assert!(error(SetName::View(1)).starts_with("the embedding of sample 5 in set view 1 is not finite"));
        let alone = LossInput::new(&sets, &[7], &state);
        assert_eq!(alone.checked(SetName::Jigsaw).err(), Some(LossError::TooFewSamples(1)));
    }

    #[test]
    fn a_queue_has_rows_as_long_as_the_embeddings() {
        let (sets, state, queue) = (sets(), SampleState::new(9, &[]), Matrix::zeros((4, 2)));
        let without = LossInput::new(&sets, &[7, 5], &state);
        assert_eq!(without.checked_queue(2).err(), Some(LossError::NoQueue));
        let input = LossInput { queue: Some(queue.view()), ..without.clone() };
        assert_eq!(input.checked_queue(2).unwrap().dim(), (4, 2));
        assert_eq!(input.checked_queue(3).err(), Some(LossError::Queue { rows: 4, dim: 2, want_dim: 3 }));
        let empty = Matrix::zeros((0, 2));
        let input = LossInput { queue: Some(empty.view()), ..without };
        assert_eq!(input.checked_queue(2).err(), Some(LossError::Queue { rows: 0, dim: 2, want_dim: 2 }));
    }

    /// dh = (dz − z(z·dz))/‖h‖: (3, 4) has z = (0.6, 0.8), dz = (1, 0) gives (0.64, −0.48)/5; (0, 2) gives (1, 0)/2.
    #[test]
    fn gradients_go_back_through_the_norms_of_our_rows() {
        let (sets, state) = (sets(), SampleState::new(9, &[]));
        let whole = LossInput::new(&sets, &[7, 5], &state);
        let share = LossInput { ours: 1..2, ..whole.clone() };
        let dz = array![[1.0, 0.0]];
        let raw = |input: &LossInput| input.through_norms(vec![(SetName::View(0), dz.clone())]).unwrap().remove(0).1;
        assert!((raw(&whole) - array![[0.128, -0.096]]).iter().all(|d| d.abs() < 1e-6));
        assert!((raw(&share) - array![[0.5, 0.0]]).iter().all(|d| d.abs() < 1e-6));
    }

    #[test]
    fn only_what_contrasts_has_an_objective() {
        let (sets, state) = (sets(), SampleState::new(9, &[]));
        let input = LossInput::new(&sets, &[7, 5], &state);
        let grads = || vec![(SetName::View(0), array![[1.0, 0.0], [0.0, 0.0]])];
        let plain = LossOutput::stateless(1.5, grads(), &input);
        assert_eq!((plain.loss, plain.objective, plain.grads), (1.5, None, grads()));
        assert_eq!(plain.update, StateUpdate { ids: vec![7, 5], columns: Vec::new() });
        let contrasted = LossOutput::contrasted(1.5, -0.25, grads(), &input).unwrap();
        assert_eq!((contrasted.loss, contrasted.objective), (1.5, Some(-0.25)));
        assert_ne!(contrasted.grads, grads(), "its gradients are of unit rows");
    }
}
