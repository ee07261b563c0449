//! What a loss estimates: the expectation of its gradient over batches of a finite problem, at frozen weights.
//!
//! Every estimator is a sum of c_{iA}·∂h_{iA}/∂w with coefficients c = ∂L/∂h that do not depend on w's dimension, so
//! expectations are taken of c, `[n·M, d]`, and one backward pass through the network turns their mean into E(m).

use crate::loss::{EmbeddingSets, Loss, LossError, LossInput, SetName};
use crate::math::{Matrix, Purpose, SampleRng};
use crate::state::{LOG_U, SampleState};
use ndarray::{Array2, Axis};
use std::ops::Range;

/// Embeddings of all augmentations, not normalised: `[n·M, d]`, image after image.
pub struct FiniteProblem {
    /// h `[n·M, d]`.
    pub embeddings: Matrix,
    /// M, rows of each image.
    pub augmentations: usize,
}

impl FiniteProblem {
    /// n, the number of images.
    pub fn images(&self) -> usize {
        self.embeddings.nrows() / self.augmentations
    }
}

/// One batch: images without repetition, two augmentations of each, drawn independently.
pub struct Draw {
    /// The images of the batch. `[B]`
    pub images: Vec<usize>,
    /// Rows of the first and second view.
    pub rows: [Vec<usize>; 2],
}

impl Draw {
    /// The batches of one pass over all images; what is left over sits out.
    pub fn pass(images: usize, augmentations: usize, batch: usize, seed: u64, pass: usize) -> Vec<Self> {
        let row = |image: usize, view: u32| {
            let mut rng = SampleRng::new(seed, Purpose::Theory, pass as u64, 1 + image as u64, view);
            image * augmentations + rng.uniform(0.0, augmentations as f64) as usize
        };
        let order = SampleRng::new(seed, Purpose::Theory, pass as u64, 0, 0).permutation(images);
        let draw = |images: &[usize]| {
            let rows = [0, 1].map(|view| images.iter().map(|&image| row(image, view)).collect());
            Self { images: images.to_vec(), rows }
        };
        order.chunks_exact(batch).map(draw).collect()
    }
}

/// A loss with its per-image state.
pub struct Estimator<'a> {
    loss: &'a dyn Loss,
    /// The loss's gradient times this estimates ∇F: τ for losses of similarities divided by τ.
    scale: f64,
    state: SampleState,
    /// Whether the state stays as it is.
    is_fixed: bool,
}

impl<'a> Estimator<'a> {
    /// A state in which no image has been seen; `scale`·∂L/∂w estimates ∇F.
    pub fn new(images: usize, loss: &'a dyn Loss, scale: f64) -> Self {
        Self { loss, scale, state: SampleState::new(images, loss.columns()), is_fixed: false }
    }

    /// With a state that never changes.
    pub fn fixed(state: SampleState, loss: &'a dyn Loss, scale: f64) -> Self {
        Self { loss, scale, state, is_fixed: true }
    }

    /// ∂L/∂h for the raw embeddings of both views of one batch; the state moves on.
    pub fn step(&mut self, images: &[usize], views: [Matrix; 2]) -> Result<[Matrix; 2], LossError> {
        let [first, second] = views;
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let out = self.loss.forward(&LossInput::new(&sets, images, &self.state))?;
        let mut dh: Vec<Matrix> = out.grads.into_iter().map(|(_, dh)| dh * self.scale as f32).collect();
        if !self.is_fixed {
            self.state.commit(out.update);
        }
        let second = dh.pop().expect("two views have gradients");
        Ok([dh.pop().expect("two views have gradients"), second])
    }

    /// One batch of a problem at frozen weights.
    pub fn step_on(&mut self, problem: &FiniteProblem, draw: &Draw) -> Result<[Matrix; 2], LossError> {
        let views = draw.rows.each_ref().map(|rows| problem.embeddings.select(Axis(0), rows));
        self.step(&draw.images, views)
    }

    /// The mean of ∂L/∂h over all batches of `passes`. `[n·M, d]`
    pub fn expectation(
        &mut self,
        problem: &FiniteProblem,
        batch: usize,
        seed: u64,
        passes: Range<usize>,
    ) -> Result<Array2<f64>, LossError> {
        let mut sum = Array2::zeros(problem.embeddings.raw_dim());
        let mut batches = 0;
        for pass in passes {
            for draw in Draw::pass(problem.images(), problem.augmentations, batch, seed, pass) {
                for (rows, values) in draw.rows.iter().zip(&self.step_on(problem, &draw)?) {
                    for (&row, values) in rows.iter().zip(values.outer_iter()) {
                        sum.row_mut(row).zip_mut_with(&values, |sum, &value| *sum += f64::from(value));
                    }
                }
                batches += 1;
            }
        }
        Ok(sum / batches.max(1) as f64)
    }

    /// E(1/u) from the values before each of `passes`, all images having been visited; `log_g` is ln of what u estimates. As
    /// E(u) = g from the first visit on, 1/u + (u − g)/g² has the same mean, and no noise of first order.
    pub fn inverse_u(
        &mut self,
        problem: &FiniteProblem,
        batch: usize,
        seed: u64,
        passes: Range<usize>,
        log_g: &[f64],
    ) -> Result<Vec<f64>, LossError> {
        let count = passes.len() as f64;
        let mut inverse = vec![0.0; problem.images()];
        for pass in passes {
            for ((mean, log_u), log_g) in inverse.iter_mut().zip(self.state.column(LOG_U)).zip(log_g) {
                assert!(!log_u.is_nan(), "every image has been visited");
                let ratio = (f64::from(*log_u) - log_g).exp();
                *mean += (1.0 / ratio + ratio - 1.0) * (-log_g).exp() / count;
            }
            self.expectation(problem, batch, seed, pass..pass + 1)?;
        }
        Ok(inverse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::UnitRows;
    use crate::theory::{
        EstimatorKind, Version, global_objective, gradient_given_u, log_image_normalisers, through_norm,
    };

    /// 8 images with 3 augmentations, their embeddings h and z = h/‖h‖.
    fn problem() -> (FiniteProblem, Array2<f64>, Array2<f64>) {
        let embeddings = Matrix::from_shape_fn((8 * 3, 4), |(r, c)| ((r * 11 + c * 5) as f32 * 0.61).sin() + 0.2);
        let (h, z) = (embeddings.mapv(f64::from), UnitRows::new(embeddings.clone()).matrix().mapv(f64::from));
        (FiniteProblem { embeddings, augmentations: 3 }, h, z)
    }

    /// Algorithm 1's loss and its scale.
    fn memory(gamma: f64, tau: f64) -> (Box<dyn Loss>, f64) {
        EstimatorKind::Sogclr { gamma, lagged: true }.loss(tau)
    }

    fn distance(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
        (a - b).mapv(|d| d * d).sum().sqrt() / b.mapv(|d| d * d).sum().sqrt()
    }

    /// With every u at what it estimates, a batch's gradient is right in the mean, whatever the batch.
    #[test]
    fn exact_normalisers_make_the_estimator_unbiased() {
        let ((problem, h, z), tau) = (problem(), 0.5);
        let exact = through_norm(h.view(), global_objective(z.view(), 3, tau, Version::V2).1.view());
        let (loss, scale) = memory(0.5, tau);
        let log_u: Vec<f32> = log_image_normalisers(z.view(), 3, tau).into_iter().map(|u| u as f32).collect();
        let state = SampleState::from_columns(8, [(LOG_U.to_owned(), log_u)].into());
        let distance_after = |passes: usize| {
            let mut fixed = Estimator::fixed(state.clone(), loss.as_ref(), scale);
            distance(&fixed.expectation(&problem, 2, 1, 0..passes).unwrap(), &exact)
        };
        let (few, many) = (distance_after(500), distance_after(32_000));
        // Noise falls as 1/√passes, by 8 here; a bias would stay.
        assert!(many < 0.01 && many < 0.3 * few, "{few} {many}");
    }

    /// Of u_{t−1} only 1/u has to be averaged: the mean over batches follows from it, and is what batches give.
    #[test]
    fn the_mean_over_batches_follows_from_the_mean_of_inverse_u() {
        let ((problem, h, z), tau) = (problem(), 0.3);
        let (loss, scale) = memory(0.5, tau);
        let passes = 20..10_020;
        let mut running = Estimator::new(8, loss.as_ref(), scale);
        running.expectation(&problem, 2, 1, 0..passes.start).unwrap();
        let log_g = log_image_normalisers(z.view(), 3, tau);
        let inverse = running.inverse_u(&problem, 2, 1, passes.clone(), &log_g).unwrap();
        let log_u: Vec<f64> = inverse.iter().map(|inverse| -inverse.ln()).collect();
        let found = through_norm(h.view(), gradient_given_u(z.view(), 3, tau, &log_u).view());
        let by_batches = Estimator::new(8, loss.as_ref(), scale).expectation(&problem, 2, 1, passes).unwrap();
        let exact = through_norm(h.view(), global_objective(z.view(), 3, tau, Version::V2).1.view());
        let (apart, bias) = (distance(&found, &by_batches), distance(&found, &exact));
        assert!(apart < 0.04 && bias > 0.1, "{apart} apart, and a bias of {bias}");
    }

    /// With all images in the batch eq. (6) still differs from V1 by the augmentations it draws; SogCLR's memory averages over
    /// them as well, and comes to V2's gradient.
    #[test]
    fn memory_takes_the_expectation_to_the_gradient_of_v2() {
        let ((problem, h, z), tau) = (problem(), 0.5);
        let exact = |version| {
            let (_, dz) = global_objective(z.view(), 3, tau, version);
            through_norm(h.view(), dz.view())
        };
        let mean_of = |(loss, scale): (Box<dyn Loss>, f64), batch: usize| {
            Estimator::new(8, loss.as_ref(), scale).expectation(&problem, batch, 1, 200..6200).unwrap()
        };
        let eq6 = || EstimatorKind::Eq6.loss(tau);
        let small = distance(&mean_of(eq6(), 2), &exact(Version::V1));
        let large = distance(&mean_of(eq6(), 8), &exact(Version::V1));
        let sogclr = distance(&mean_of(memory(0.02, tau), 2), &exact(Version::V2));
        assert!(small > 0.03 && large < 0.5 * small, "eq. (6) needs a large batch: {small}, {large}");
        assert!(sogclr < 0.25 * small, "SogCLR does not: {sogclr} against {small}");
    }
}
