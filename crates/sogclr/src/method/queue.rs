//! Features of earlier batches: a ring whose oldest rows make room for the newest.

use super::Setting;
use crate::check::Problem;
use crate::math::{Matrix, SampleRng, UnitRows};
use crate::params::{HostTensor, NamedTensors, ParamError};
use ndarray::ArrayView2;

const ROWS: &str = "queue";
const NEXT: &str = "queue_next";

/// The newest K features at unit length.
pub struct FeatureQueue {
    /// `[K, dim]`, unit norm
    rows: Matrix,
    /// The oldest row, written next.
    next: usize,
}

impl FeatureQueue {
    /// K random directions, as MoCo starts.
    pub fn new(len: usize, dim: usize, seed: u64) -> Self {
        let mut rng = SampleRng::weights(seed, ROWS);
        let random = Matrix::from_shape_fn((len, dim), |_| rng.normal());
        Self { rows: UnitRows::new(random).matrix().clone(), next: 0 }
    }

    /// The features in the order of the ring, not of age. `[K, dim]`
    pub fn rows(&self) -> ArrayView2<'_, f32> {
        self.rows.view()
    }

    /// Overwrites the oldest rows; of a batch larger than the queue only the last rows stay.
    pub fn push(&mut self, batch: &UnitRows) {
        for row in batch.matrix().outer_iter() {
            self.rows.row_mut(self.next).assign(&row);
            self.next = (self.next + 1) % self.rows.nrows();
        }
    }

    /// Adds features and position to `tensors`.
    pub fn export(&self, tensors: &mut NamedTensors) {
        let values = self.rows.iter().copied().collect();
        tensors.insert(ROWS.into(), HostTensor { shape: self.rows.shape().to_vec(), values });
        tensors.insert(NEXT.into(), HostTensor { shape: vec![1], values: vec![self.next as f32] });
    }

    /// Restores what [`FeatureQueue::export`] added.
    pub fn import(&mut self, tensors: &NamedTensors) -> Result<(), ParamError> {
        let get = |name: &str, wanted: &[usize]| match tensors.get(name) {
            Some(tensor) if tensor.shape == wanted => Ok(tensor.values.clone()),
            Some(tensor) => {
                Err(ParamError::Shape { name: name.into(), found: tensor.shape.clone(), wanted: wanted.to_vec() })
            }
            None => Err(ParamError::Missing(name.into())),
        };
        let rows = get(ROWS, self.rows.shape())?;
        self.rows = Matrix::from_shape_vec(self.rows.dim(), rows).expect("as many values as the shape says");
        self.next = get(NEXT, &[1])?[0] as usize % self.rows.nrows();
        Ok(())
    }
}

/// The authors' 65536 keys, and 4096 for CIFAR: the largest power of two up to an eighth of the images.
pub(super) fn default_queue(setting: &Setting) -> usize {
    let most = (setting.samples / 8).clamp(1, 65536);
    1 << most.ilog2()
}

pub(super) fn check_queue(queue: usize, samples: usize) -> Result<(), Problem> {
    // A checkpoint keeps the position as f32.
    let most = samples.min(1 << 24);
    if (1..=most).contains(&queue) {
        return Ok(());
    }
    let problem = format!("is {queue}; the data has {samples} images, so the queue holds from 1 to {most} features");
    Err(Problem::new("method.queue", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit vectors at these angles, and back.
    fn unit(angles: &[f32]) -> UnitRows {
        UnitRows::new(Matrix::from_shape_fn((angles.len(), 2), |(i, k)| [angles[i].cos(), angles[i].sin()][k]))
    }

    #[test]
    fn the_oldest_rows_go_first_and_the_ring_wraps() {
        let mut queue = FeatureQueue::new(3, 2, 0);
        let first = queue.rows().to_owned();
        assert!(first.outer_iter().all(|row| (row.dot(&row) - 1.0).abs() < 1e-6));
        queue.push(&unit(&[0.1, 0.2]));
        assert_eq!(queue.rows().row(2), first.row(2), "one random row is left");
        queue.push(&unit(&[0.3, 0.4]));
        let want = Matrix::from([0.4_f32, 0.2, 0.3].map(|angle| [angle.cos(), angle.sin()]).to_vec());
        assert!((&queue.rows() - &want).iter().all(|d| d.abs() < 1e-6), "{}", queue.rows());
        // More than it holds: the last three, from the place after 0.4.
        queue.push(&unit(&[1.0, 1.1, 1.2, 1.3]));
        let firsts: Vec<f32> = queue.rows().column(0).to_vec();
        for (value, angle) in firsts.iter().zip([1.2_f32, 1.3, 1.1]) {
            assert!((value - angle.cos()).abs() < 1e-6, "{firsts:?}");
        }
    }

    #[test]
    fn a_restored_queue_goes_on_where_it_stood() {
        let mut queue = FeatureQueue::new(3, 2, 0);
        queue.push(&unit(&[0.1, 0.2]));
        let mut tensors = NamedTensors::new();
        queue.export(&mut tensors);
        let mut restored = FeatureQueue::new(3, 2, 9);
        restored.import(&tensors).unwrap();
        for queue in [&mut queue, &mut restored] {
            queue.push(&unit(&[0.7, 0.8]));
        }
        assert_eq!(queue.rows(), restored.rows());
        assert!(FeatureQueue::new(4, 2, 0).import(&tensors).is_err());
    }
}
