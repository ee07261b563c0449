//! ‖∇F(w_t)‖² along training with Algorithm 1's momentum form and the theorems' step sizes, on a problem small enough for
//! many thousand steps: frozen features of every augmentation, whitened to a few directions φ, and a linear layer on top,
//! h = (φ·W·r/‖W‖, r/2), r = ‖W‖ at the start. The last value is constant: without it an embedding can vanish, where F is not
//! smooth, which the theorems exclude. W and the exact gradients are in f64, the batch's gradient is that of training, in f32.
//!
//! With T steps of batch B on n images: β = √(B/T), γ = √(n/T), η = c·min(β, γB/n), as the remarks below Theorems 2 and 3
//! set them with c for 1/L, and the same β and η for SimCLR's estimators (eqs. 11–12). Theorem 1's plain update (7) is β = 1
//! with the same η.

use super::{Draw, Estimator, EstimatorKind, FiniteProblem, Version, global_objective, through_norm};
use crate::loss::LossError;
use crate::math::SampleRng;
use ndarray::{Array2, ArrayView2, Axis, concatenate, s};
use serde::{Deserialize, Serialize};

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Descent {
    /// B, images of a step.
    pub batch: usize,
    /// T, steps of the run.
    pub steps: usize,
    /// c
    pub rate: f64,
    /// τ of objective and estimator.
    pub temperature: f64,
    /// Update (7), without momentum.
    pub is_plain: bool,
    /// Seed of batches and augmentations.
    pub seed: u64,
}

/// The exact objective and gradient at one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Steps done.
    pub step: usize,
    /// F of V1.
    pub objective: f64,
    /// ‖∇F‖² of V1.
    pub gradient_v1: f64,
    /// ‖∇F‖² of V2.
    pub gradient_v2: f64,
    /// The least ‖h‖ of all augmentations of all images, in units of their root mean square: F is not smooth at 0.
    pub least_norm: f64,
}

/// What is trained.
pub struct LinearProblem {
    /// φ `[n·M, p]`, image after image: mean 0, covariance I.
    features: Array2<f64>,
    augmentations: usize,
    /// W `[p, d]`
    weights: Array2<f64>,
    /// r = ‖W‖ at the start, and after every step.
    length: f64,
}

impl LinearProblem {
    /// The `components` directions of largest variance, and weights to `dim` values as `seed` draws them.
    pub fn new(features: &FiniteProblem, components: usize, dim: usize, seed: u64) -> Self {
        let features_of = whitened(&features.embeddings.mapv(f64::from), components);
        let mut rng = SampleRng::weights(seed, "theory.linear");
        let scale = (1.0 / features_of.ncols() as f64).sqrt();
        let weights = Array2::from_shape_fn((features_of.ncols(), dim), |_| scale * f64::from(rng.normal()));
        let length = square(&weights).sqrt();
        Self { features: features_of, augmentations: features.augmentations, weights, length }
    }

    /// n, the number of images.
    pub fn images(&self) -> usize {
        self.features.nrows() / self.augmentations
    }

    /// F and ∂F/∂W.
    fn exact(&self, tau: f64, version: Version) -> (f64, Array2<f64>) {
        let h = self.embed(self.features.view());
        let mut z = h.clone();
        z.outer_iter_mut().for_each(|mut row| row /= row.dot(&row).sqrt());
        let (value, dz) = global_objective(z.view(), self.augmentations, tau, version);
        (value, self.gradient(self.features.view(), through_norm(h.view(), dz.view()).view()))
    }

    /// h `[rows, d + 1]`
    fn embed(&self, features: ArrayView2<f64>) -> Array2<f64> {
        let scale = self.length / square(&self.weights).sqrt();
        let constant = Array2::from_elem((features.nrows(), 1), 0.5 * self.length);
        concatenate![Axis(1), features.dot(&self.weights) * scale, constant]
    }

    /// ∂F/∂W `[p, d]` of rows with ∂F/∂h, where ‖W‖ = r: what moves the direction of W, as h does not depend on its length.
    fn gradient(&self, features: ArrayView2<f64>, dh: ArrayView2<f64>) -> Array2<f64> {
        let full = features.t().dot(&dh.slice(s![.., ..-1]));
        let along = (&full * &self.weights).sum() / square(&self.weights);
        full - &self.weights * along
    }

    fn least_norm(&self) -> f64 {
        let squares = self.embed(self.features.view()).map_axis(Axis(1), |row| row.dot(&row));
        let least = squares.iter().copied().fold(f64::INFINITY, f64::min);
        (least / squares.mean().expect("there are images")).sqrt()
    }

    /// What the estimator gives for one batch: m `[p, d]`.
    fn estimate(&self, draw: &Draw, running: &mut Estimator) -> Result<Array2<f64>, LossError> {
        let of_view = draw.rows.each_ref().map(|rows| self.features.select(Axis(0), rows));
        let dh = running.step(&draw.images, of_view.each_ref().map(|x| self.embed(x.view()).mapv(|v| v as f32)))?;
        let [first, second] = [0, 1].map(|view| self.gradient(of_view[view].view(), dh[view].mapv(f64::from).view()));
        Ok(first + second)
    }
}

impl Descent {
    /// β, γ and η for `images` images.
    pub fn step_sizes(&self, images: usize) -> (f64, f64, f64) {
        let (b, t, n) = (self.batch as f64, self.steps as f64, images as f64);
        let (beta, gamma) = ((b / t).sqrt().min(1.0), (n / t).sqrt().min(1.0));
        let eta = self.rate * beta.min(gamma * b / n);
        (if self.is_plain { 1.0 } else { beta }, gamma, eta)
    }

    /// Trains `problem` by the gradients of `kind` and looks at it `looks` times and at the end.
    pub fn run(&self, problem: &mut LinearProblem, kind: EstimatorKind, looks: usize) -> Result<Vec<Point>, LossError> {
        let images = problem.images();
        let (beta, _, eta) = self.step_sizes(images);
        let (loss, scale) = kind.loss(self.temperature);
        let mut running = Estimator::new(images, loss.as_ref(), scale);
        let mut v = Array2::zeros(problem.weights.raw_dim());
        let (mut points, mut step) = (Vec::new(), 0);
        let every = self.steps.div_ceil(looks).max(1);
        for pass in 0.. {
            for draw in Draw::pass(images, problem.augmentations, self.batch, self.seed, pass) {
                if step % every == 0 || step == self.steps {
                    points.push(self.look(problem, step));
                }
                if step == self.steps {
                    return Ok(points);
                }
                // v = (1−β)v + βm;  w = w − ηv   Algorithm 1, lines 9–10
                let m = problem.estimate(&draw, &mut running)?;
                v.zip_mut_with(&m, |v, m| *v = (1.0 - beta) * *v + beta * m);
                problem.weights.scaled_add(-eta, &v);
                // F does not depend on the length of W; noise would let it grow and the steps shrink.
                problem.weights *= problem.length / square(&problem.weights).sqrt();
                step += 1;
            }
        }
        unreachable!("passes do not end")
    }

    fn look(&self, problem: &LinearProblem, step: usize) -> Point {
        let [(objective, first), (_, second)] =
            [Version::V1, Version::V2].map(|version| problem.exact(self.temperature, version));
        let least_norm = problem.least_norm();
        Point { step, objective, gradient_v1: square(&first), gradient_v2: square(&second), least_norm }
    }
}

/// The directions of largest variance, each with mean 0 and variance 1; fewer where the variance ends.
fn whitened(rows: &Array2<f64>, components: usize) -> Array2<f64> {
    let centred = rows - &rows.mean_axis(Axis(0)).expect("there are images");
    let covariance = centred.t().dot(&centred) / rows.nrows() as f64;
    let dim = covariance.nrows();
    let eigen = nalgebra::DMatrix::from_fn(dim, dim, |r, c| covariance[[r, c]]).symmetric_eigen();
    let mut order: Vec<usize> = (0..dim).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let least = 1e-9 * eigen.eigenvalues[order[0]];
    order.truncate(components);
    order.retain(|&k| eigen.eigenvalues[k] > least);
    let basis = Array2::from_shape_fn((dim, order.len()), |(r, c)| {
        eigen.eigenvectors[(r, order[c])] / eigen.eigenvalues[order[c]].sqrt()
    });
    centred.dot(&basis)
}

fn square(matrix: &Array2<f64>) -> f64 {
    matrix.iter().map(|v| v * v).sum()
}

/// The first look at which ‖∇F‖² (V2) is at most `level`.
pub fn first_below(points: &[Point], level: f64) -> Option<usize> {
    points.iter().find(|point| point.gradient_v2 <= level).map(|point| point.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Matrix;

    #[test]
    fn step_sizes_are_the_remarks() {
        let descent = Descent { batch: 16, steps: 1600, rate: 2.0, temperature: 0.1, is_plain: false, seed: 0 };
        let (beta, gamma, eta) = descent.step_sizes(64);
        assert!((beta - 0.1).abs() < 1e-12 && (gamma - 0.2).abs() < 1e-12);
        assert!((eta - 2.0 * 0.05).abs() < 1e-12, "γB/n is smaller than β");
        assert_eq!(Descent { is_plain: true, ..descent }.step_sizes(64), (1.0, gamma, eta), "update (7)");
    }

    #[test]
    fn a_level_is_reached_where_the_curve_drops() {
        let point = |step, gradient_v2| Point { step, objective: 0.0, gradient_v1: 0.0, gradient_v2, least_norm: 1.0 };
        let points: Vec<Point> = (0..100).map(|look| point(10 * look, if look < 7 { 4.0 } else { 0.3 })).collect();
        assert_eq!(first_below(&points, 0.4), Some(70));
        assert_eq!(first_below(&points, 0.1), None);
    }

    fn problem() -> LinearProblem {
        let embeddings = Matrix::from_shape_fn((16 * 2, 6), |(r, c)| {
            ((r / 2 * 11 + c * 5) as f32 * 0.61).sin() * 2.0 + ((r * 7 + c * 3) as f32 * 0.37).cos() * 0.3
        });
        LinearProblem::new(&FiniteProblem { embeddings, augmentations: 2 }, 4, 3, 0)
    }

    #[test]
    fn features_are_whitened() {
        let features = problem().features;
        assert_eq!(features.dim(), (32, 4));
        let covariance = features.t().dot(&features) / 32.0;
        for ((r, c), value) in covariance.indexed_iter() {
            assert!((value - f64::from(u8::from(r == c))).abs() < 1e-9, "[{r}, {c}]: {value}");
        }
    }

    #[test]
    fn the_gradient_of_the_layer_is_a_finite_difference() {
        let mut problem = problem();
        for version in [Version::V1, Version::V2] {
            let (_, grad) = problem.exact(0.5, version);
            for at in [[0, 0], [3, 2], [2, 1]] {
                let mut moved = |by: f64| {
                    problem.weights[at] += by;
                    let value = problem.exact(0.5, version).0;
                    problem.weights[at] -= by;
                    value
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((slope - grad[at]).abs() < 1e-7, "{version:?} {at:?}: {slope} vs {}", grad[at]);
            }
        }
    }

    #[test]
    fn the_least_norm_is_that_of_the_shortest_embedding() {
        let mut problem = problem();
        (problem.weights, problem.length) = (Array2::eye(4), 2.0);
        let square = |row: usize| problem.features.row(row).iter().map(|v| v * v).sum::<f64>();
        let least = (0..32).map(square).fold(f64::INFINITY, f64::min);
        // Four directions of variance 1, and a constant of half of their length.
        assert!((problem.least_norm() - ((least + 1.0) / 5.0).sqrt()).abs() < 1e-9);
    }

    /// Theorem 1 against Theorem 3: eq. (6) comes to rest away from a stationary point, SogCLR nearer to it.
    #[test]
    fn memory_comes_nearer_to_a_stationary_point() {
        let descent = Descent { batch: 2, steps: 20_000, rate: 4.0, temperature: 0.5, is_plain: false, seed: 1 };
        let end = |kind: EstimatorKind| {
            let points = descent.run(&mut problem(), kind, 40).unwrap();
            let tail = &points[points.len() - 10..];
            tail.iter().map(|point| point.gradient_v2).sum::<f64>() / 10.0
        };
        let (_, gamma, _) = descent.step_sizes(problem().images());
        let (without, with) = (end(EstimatorKind::Eq6), end(EstimatorKind::Sogclr { gamma, lagged: true }));
        assert!(with < 0.5 * without, "{with} against {without}");
    }
}
