//! What a loss estimates: the expectation of its gradient over batches of a finite problem, at frozen weights.
//!
//! Every estimator is a sum of c_{iA}·∂h_{iA}/∂w with coefficients c = ∂L/∂h that do not depend on w's dimension, so
//! expectations are taken of c, `[n·M, d]`, and one backward pass through the network turns their mean into E(m).

use crate::loss::{EmbeddingSets, Loss, LossError, LossInput, SetName};
use crate::math::{Matrix, Purpose, SampleRng, UnitRows};
use crate::state::SampleState;
use ndarray::{Array2, Axis};
use std::ops::Range;

/// Embeddings of all augmentations, not normalised: `[n·M, d]`, image after image.
pub struct FiniteProblem {
    pub embeddings: Matrix,
    pub augmentations: usize,
}

impl FiniteProblem {
    pub fn images(&self) -> usize {
        self.embeddings.nrows() / self.augmentations
    }
}

/// One batch: images without repetition, two augmentations of each, drawn independently.
pub struct Draw {
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
    pub fn new(images: usize, loss: &'a dyn Loss, scale: f64) -> Self {
        Self { loss, scale, state: SampleState::new(images, loss.columns()), is_fixed: false }
    }

    /// With a state that never changes.
    pub fn fixed(state: SampleState, loss: &'a dyn Loss, scale: f64) -> Self {
        Self { loss, scale, state, is_fixed: true }
    }

    /// ∂L/∂h for the raw embeddings of both views of one batch; the state moves on.
    pub fn step(&mut self, images: &[usize], views: [Matrix; 2]) -> Result<[Matrix; 2], LossError> {
        let [first, second] = views.map(UnitRows::new);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let out = self.loss.forward(&LossInput {
            sets: &sets,
            ids: images,
            labels: None,
            queue: None,
            large_views: 2,
            ours: 0..images.len(),
            state: &self.state,
            epoch: 0,
        })?;
        let mut dh = Vec::with_capacity(2);
        for (name, dz) in out.grads {
            dh.push(sets.get(name)?.backward(0, dz) * self.scale as f32);
        }
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
        mean_over_batches(problem, batch, seed, passes, |draw| self.step_on(problem, draw))
    }
}

/// The mean over all batches of `passes` of what `of` says for the rows of both views. `[n·M, d]`
pub fn mean_over_batches(
    problem: &FiniteProblem,
    batch: usize,
    seed: u64,
    passes: Range<usize>,
    mut of: impl FnMut(&Draw) -> Result<[Matrix; 2], LossError>,
) -> Result<Array2<f64>, LossError> {
    let mut sum = Array2::zeros(problem.embeddings.raw_dim());
    let mut batches = 0;
    for pass in passes {
        for draw in Draw::pass(problem.images(), problem.augmentations, batch, seed, pass) {
            for (rows, values) in draw.rows.iter().zip(&of(&draw)?) {
                for (&row, values) in rows.iter().zip(values.outer_iter()) {
                    sum.row_mut(row).zip_mut_with(&values, |sum, &value| *sum += f64::from(value));
                }
            }
            batches += 1;
        }
    }
    Ok(sum / batches.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Dcl, Gamma, SogClr, Variant};
    use crate::state::LOG_U;
    use crate::theory::{Version, global_objective, log_image_normalisers, through_norm};

    fn problem() -> FiniteProblem {
        let embeddings = Matrix::from_shape_fn((8 * 3, 4), |(r, c)| ((r * 11 + c * 5) as f32 * 0.61).sin() + 0.2);
        FiniteProblem { embeddings, augmentations: 3 }
    }

    fn distance(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
        (a - b).mapv(|d| d * d).sum().sqrt() / b.mapv(|d| d * d).sum().sqrt()
    }

    /// With every u at what it estimates, a batch's gradient is right in the mean, whatever the batch.
    #[test]
    fn exact_normalisers_make_the_estimator_unbiased() {
        let (problem, tau) = (problem(), 0.5);
        let (h, z) =
            (problem.embeddings.mapv(f64::from), UnitRows::new(problem.embeddings.clone()).matrix().mapv(f64::from));
        let exact = through_norm(h.view(), global_objective(z.view(), 3, tau, Version::V2).1.view());
        let loss = SogClr {
            temperature: tau,
            gamma: Gamma::Constant { value: 0.5 },
            variant: Variant::Algorithm1,
            epsilon: 0.0,
            by_label: false,
            individual: None,
        };
        let log_u: Vec<f32> = log_image_normalisers(z.view(), 3, tau).into_iter().map(|u| u as f32).collect();
        let state = SampleState::from_columns(8, [(LOG_U.to_owned(), log_u)].into());
        let distance_after = |passes: usize| {
            let mut fixed = Estimator::fixed(state.clone(), &loss, 1.0);
            distance(&fixed.expectation(&problem, 2, 1, 0..passes).unwrap(), &exact)
        };
        let (few, many) = (distance_after(500), distance_after(32_000));
        // Noise falls as 1/√passes, by 8 here; a bias would stay.
        assert!(many < 0.01 && many < 0.3 * few, "{few} {many}");
    }

    /// With all images in the batch eq. (6) still differs from V1 by the augmentations it draws; SogCLR's memory averages over
    /// them as well, and comes to V2's gradient.
    #[test]
    fn memory_takes_the_expectation_to_the_gradient_of_v2() {
        let (problem, tau) = (problem(), 0.5);
        let (h, z) =
            (problem.embeddings.mapv(f64::from), UnitRows::new(problem.embeddings.clone()).matrix().mapv(f64::from));
        let exact = |version| {
            let (_, dz) = global_objective(z.view(), 3, tau, version);
            through_norm(h.view(), dz.view())
        };
        let mean_of = |loss: &dyn Loss, scale: f64, batch: usize| {
            Estimator::new(8, loss, scale).expectation(&problem, batch, 1, 200..6200).unwrap()
        };
        let memory = |gamma: f64| SogClr {
            temperature: tau,
            gamma: Gamma::Constant { value: gamma },
            variant: Variant::Algorithm1,
            epsilon: 0.0,
            by_label: false,
            individual: None,
        };
        let eq6 = Dcl { temperature: tau, sigma: None };
        let small = distance(&mean_of(&eq6, tau, 2), &exact(Version::V1));
        let large = distance(&mean_of(&eq6, tau, 8), &exact(Version::V1));
        let sogclr = distance(&mean_of(&memory(0.02), 1.0, 2), &exact(Version::V2));
        assert!(small > 0.03 && large < 0.5 * small, "eq. (6) needs a large batch: {small}, {large}");
        assert!(sogclr < 0.25 * small, "SogCLR does not: {sogclr} against {small}");
    }
}
