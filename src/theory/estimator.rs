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
}

impl<'a> Estimator<'a> {
    pub fn new(images: usize, loss: &'a dyn Loss, scale: f64) -> Self {
        Self { loss, scale, state: SampleState::new(images, loss.columns()) }
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
        self.state.commit(out.update);
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
                let dh = self.step_on(problem, &draw)?;
                for (rows, dh) in draw.rows.iter().zip(&dh) {
                    for (&row, dh) in rows.iter().zip(dh.outer_iter()) {
                        sum.row_mut(row).zip_mut_with(&dh, |sum, &d| *sum += f64::from(d));
                    }
                }
                batches += 1;
            }
        }
        Ok(sum / batches.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Dcl, Gamma, SogClr, Variant};
    use crate::theory::{Version, global_objective, through_norm};

    fn problem() -> FiniteProblem {
        let embeddings = Matrix::from_shape_fn((8 * 3, 4), |(r, c)| ((r * 11 + c * 5) as f32 * 0.61).sin() + 0.2);
        FiniteProblem { embeddings, augmentations: 3 }
    }

    fn distance(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
        (a - b).mapv(|d| d * d).sum().sqrt() / b.mapv(|d| d * d).sum().sqrt()
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
