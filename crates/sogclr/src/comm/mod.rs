//! Collectives of the training step. One process is not a special case: [`Solo`] returns its input.
//!
//! Every rank calls the same collectives in the same order, with values of the same length. All ranks get the same bits. A
//! collective does not fail: an engine that cannot go on ends the job.

mod solo;
mod threads;

pub use solo::Solo;
pub use threads::threads;

use crate::math::Matrix;
use burn::tensor::{Tensor, TensorData};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What an engine of a group of equal processes can do.
pub trait Collective: Send + Sync {
    /// This process among the others, from 0.
    fn rank(&self) -> usize;

    /// Number of processes.
    fn size(&self) -> usize;

    /// Adds `values` over the ranks, in place.
    fn sum(&self, values: &mut [f32]);

    /// The same in f64.
    fn sum_f64(&self, values: &mut [f64]);

    /// The values of every rank, rank after rank.
    fn gather(&self, values: Vec<f32>) -> Vec<f32>;
}

/// A handle to the group of processes that train together, with the time spent in it.
#[derive(Clone)]
pub struct Group {
    engine: Arc<dyn Collective>,
    /// Nanoseconds inside collectives.
    spent: Arc<AtomicU64>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Default for Group {
    fn default() -> Self {
        Self::solo()
    }
}

impl Group {
    /// The ranks that `engine` connects.
    pub fn new(engine: impl Collective + 'static) -> Self {
        Self { engine: Arc::new(engine), spent: Arc::default() }
    }

    /// A group of one.
    pub fn solo() -> Self {
        Self::new(Solo)
    }

    /// This process among the others, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.engine.size()
    }

    /// Whether this is the process that prints and writes.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Time spent in collectives so far, waiting for slower ranks included.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    fn timed<T>(&self, call: impl FnOnce(&dyn Collective) -> T) -> T {
        let began = Instant::now();
        let result = call(self.engine.as_ref());
        self.spent.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Adds `values` over the ranks, in place.
    pub fn sum_f64(&self, values: &mut [f64]) {
        self.timed(|engine| engine.sum_f64(values));
    }

    /// Whether any rank says so.
    pub fn any(&self, here: bool) -> bool {
        let mut count = [f64::from(u8::from(here))];
        self.sum_f64(&mut count);
        count[0] > 0.0
    }

    /// The rows of every rank, rank after rank.
    pub fn gather(&self, rows: Matrix) -> Matrix {
        let dim = rows.ncols();
        let (values, offset) = rows.into_raw_vec_and_offset();
        assert!(offset.unwrap_or(0) == 0, "rows that were sliced");
        let all = self.timed(|engine| engine.gather(values));
        Matrix::from_shape_vec((all.len() / dim.max(1), dim), all).expect("whole rows from every rank")
    }

    /// Adds tensors over the ranks, all in one message.
    pub fn sum_tensors(&self, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
        if self.size() == 1 || tensors.is_empty() {
            return tensors;
        }
        let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
        let device = tensors[0].device();
        let mut values: Vec<f32> = tensors.into_iter().flat_map(crate::params::to_host).collect();
        self.timed(|engine| engine.sum(&mut values));
        let mut rest = values.as_slice();
        let mut take = |len: usize| {
            let (first, others) = rest.split_at(len);
            rest = others;
            Tensor::from_data(TensorData::new(first.to_vec(), [len]), &device)
        };
        lengths.into_iter().map(&mut take).collect()
    }
}

/// A group is an engine itself, for one that changes what another does.
impl Collective for Group {
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn size(&self) -> usize {
        self.engine.size()
    }

    fn sum(&self, values: &mut [f32]) {
        self.timed(|engine| engine.sum(values));
    }

    fn sum_f64(&self, values: &mut [f64]) {
        self.timed(|engine| engine.sum_f64(values));
    }

    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        self.timed(|engine| engine.gather(values))
    }
}
