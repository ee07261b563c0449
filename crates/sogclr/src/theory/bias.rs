//! How far the estimators of a batch are from the gradient of the global objective, at frozen weights.
//!
//! For each estimator m: the bias ‖E(m) − ∇F‖ against both versions of F, the variance E‖m − E(m)‖², and the cosine between
//! E(m) and ∇F, in the space of all parameters; E is over batches and over u. E(m) is estimated several times from independent
//! batches; the products of two different deviations have no bias from the noise that is left in each.

use super::{Draw, Estimator, FiniteProblem, Probe, Version, gradient_given_u, log_image_normalisers, through_norm};
use crate::loss::{Dcl, Gamma, Loss, LossError, NtXent, SogClr, Variant};
use crate::math::UnitRows;
use crate::state::{LOG_U, SampleState};
use ndarray::Array2;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A mini-batch estimator of ∇F.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum EstimatorKind {
    /// SimCLR as the paper analyses it, eq. (6): the positive is left out of the denominator (DCL).
    Eq6,
    /// SimCLR as it is trained.
    Ntxent,
    /// SogCLR; `lagged` is Algorithm 1's u_{t−1}, else the fresh u_t of the released programs.
    Sogclr {
        /// γ of eq. (9).
        gamma: f64,
        /// Whether the gradient is weighed by u_{t−1}.
        lagged: bool,
    },
}

impl EstimatorKind {
    /// The loss, and what its gradient is multiplied by to estimate ∇F.
    pub(super) fn loss(&self, tau: f64) -> (Box<dyn Loss>, f64) {
        match *self {
            Self::Eq6 => (Box::new(Dcl { temperature: tau, sigma: None }), tau),
            Self::Ntxent => (Box::new(NtXent { temperature: tau, alpha: None }), tau),
            Self::Sogclr { gamma, lagged } => {
                let variant = if lagged { Variant::Algorithm1 } else { Variant::Default };
                let gamma = Gamma::Constant { value: gamma };
                (Box::new(SogClr { variant, ..SogClr::new(tau, gamma) }), 1.0)
            }
        }
    }

    /// Whether its u does not depend on the batch.
    fn is_lagged(&self) -> bool {
        matches!(self, Self::Sogclr { lagged: true, .. })
    }

    /// What tables call it.
    pub fn label(&self) -> String {
        match self {
            Self::Eq6 => "eq. (6)".into(),
            Self::Ntxent => "NT-Xent".into(),
            Self::Sogclr { gamma, lagged } => {
                format!("SogCLR γ={gamma} {}", if *lagged { "u_{t−1}" } else { "u_t" })
            }
        }
    }
}

/// One estimator at one batch size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BiasRow {
    /// What was measured.
    #[serde(flatten)]
    pub estimator: EstimatorKind,
    /// B, images of a batch.
    pub batch: usize,
    /// Passes over the data at frozen weights before m is looked at; `None` if the estimator has no memory or it has settled.
    pub after: Option<usize>,
    /// ‖E(m) − ∇F‖/‖∇F‖ against V1.
    pub bias_v1: Bias,
    /// ‖E(m) − ∇F‖/‖∇F‖ against V2.
    pub bias_v2: Bias,
    /// cos(E(m), ∇F) against V1; `None` where E(m) is lost in the noise.
    pub cosine_v1: Option<f64>,
    /// cos(E(m), ∇F) against V2.
    pub cosine_v2: Option<f64>,
    /// What the batches averaged over leave uncertain in E(m), relative to ‖∇F‖ (V1).
    pub noise: f64,
    /// E‖m − E(m)‖²/‖∇F‖² (V1); `None` where it is not measured.
    pub variance: Option<f64>,
}

/// A squared relative bias without the noise's own square, so it can come out below 0, and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bias {
    /// ‖E(m) − ∇F‖²/‖∇F‖².
    pub squared: f64,
    /// Standard error of `squared`.
    pub error: f64,
}

impl Bias {
    /// The bias, 0 where its square came out below, and what stays uncertain about it.
    pub fn value(&self) -> (f64, f64) {
        let bias = self.squared.max(0.0).sqrt();
        (bias, 0.5 * self.error / bias)
    }

    /// [`Bias::value`]; `None` if it cannot be told from 0.
    pub fn resolved(&self) -> Option<(f64, f64)> {
        (self.squared > REACH * self.error).then(|| self.value())
    }

    /// What it is not above.
    pub fn bound(&self) -> f64 {
        (self.squared.max(0.0) + REACH * self.error).sqrt()
    }
}

/// The settings of a study, and the exact gradients.
pub struct BiasStudy<'a> {
    probe: &'a Probe,
    problem: FiniteProblem,
    /// τ of the objectives and of every estimator.
    pub tau: f64,
    /// Passes over the data that each estimate of E(m) is averaged over.
    pub passes: usize,
    /// Seed of batches and augmentations.
    pub seed: u64,
    exact: [Vec<f64>; 2],
    /// Unit-norm embeddings.
    z: Array2<f64>,
    /// What ln u estimates.
    log_u: Vec<f64>,
}

/// Estimates of E(m) from independent batches and memories.
const REPLICATES: usize = 8;
/// Standard errors to either side: Student's t at 97.5 % for one degree of freedom less than there are replicates.
const REACH: f64 = 2.365;
/// How often each of them begins anew where the memory is looked at after a number of passes.
const RESTARTS: usize = 4;
/// Passes of settling, times γ: what is left of the start is e⁻⁵.
const SETTLING: f64 = 5.0;
/// Images of the batches that the variance is taken of, and how many batches that may be.
const VARIANCE_IMAGES: usize = 4096;
const VARIANCE_BATCHES: (usize, usize) = (32, 256);

impl<'a> BiasStudy<'a> {
    /// Computes the exact gradients of V1 and V2 at `tau`.
    pub fn new(probe: &'a Probe, tau: f64, passes: usize, seed: u64) -> Self {
        let exact = [Version::V1, Version::V2].map(|version| probe.exact(tau, version).1);
        let problem = probe.problem();
        let z = UnitRows::new(problem.embeddings.clone()).matrix().mapv(f64::from);
        let log_u = log_image_normalisers(z.view(), problem.augmentations, tau);
        Self { probe, problem, tau, passes, seed, exact, z, log_u }
    }

    /// n, the number of images.
    pub fn images(&self) -> usize {
        self.problem.images()
    }

    /// ‖∇V1 − ∇V2‖/‖∇V1‖: what separates the two objectives here.
    pub fn versions_apart(&self) -> f64 {
        let [first, second] = &self.exact;
        norm(&first.iter().zip(second).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(first)
    }

    /// Measures an estimator whose memory, if any, has settled.
    pub fn settled(&self, estimator: EstimatorKind, batch: usize) -> Result<BiasRow, LossError> {
        let passes = match estimator {
            EstimatorKind::Sogclr { gamma, .. } => (SETTLING / gamma).ceil() as usize,
            _ => 0,
        };
        let means = self.means(estimator, batch, &[passes], self.passes, 1)?;
        let mut row = self.row(estimator, batch, None, &means[0]);
        row.variance = Some(self.variance(estimator, batch, passes)?);
        Ok(row)
    }

    /// Measures an estimator in the pass that follows each of the given numbers of passes, which increase.
    pub fn after(&self, estimator: EstimatorKind, batch: usize, passes: &[usize]) -> Result<Vec<BiasRow>, LossError> {
        let means = self.means(estimator, batch, passes, 1, RESTARTS)?;
        Ok(passes.iter().zip(&means).map(|(&after, means)| self.row(estimator, batch, Some(after), means)).collect())
    }

    /// For each of `looks`: estimates of E(m) over the `window` passes that follow it, one for each replicate.
    fn means(
        &self,
        estimator: EstimatorKind,
        batch: usize,
        looks: &[usize],
        window: usize,
        restarts: usize,
    ) -> Result<Vec<Vec<Vec<f64>>>, LossError> {
        let replicate = |replicate: usize| -> Result<Vec<Array2<f64>>, LossError> {
            let mut sums = vec![Array2::zeros(self.problem.embeddings.raw_dim()); looks.len()];
            for restart in 0..restarts {
                let (loss, scale) = estimator.loss(self.tau);
                let mut running = Estimator::new(self.images(), loss.as_ref(), scale);
                let seed = self.chain(replicate, restart);
                let mut done = 0;
                for (&look, sum) in looks.iter().zip(&mut sums) {
                    running.expectation(&self.problem, batch, seed, done..look)?;
                    done = look + window;
                    let mean = if estimator.is_lagged() {
                        self.mean_given_u(&mut running, batch, seed, look..done)
                    } else {
                        running.expectation(&self.problem, batch, seed, look..done)
                    };
                    *sum += &(mean? / restarts as f64);
                }
            }
            Ok(sums)
        };
        let found: Result<Vec<_>, _> = (0..REPLICATES).into_par_iter().map(replicate).collect();
        let mut found = found?;
        let rows: Vec<usize> = (0..self.problem.embeddings.nrows()).collect();
        let of_look = |(at, &look): (usize, &usize)| {
            let means: Vec<_> = found.iter_mut().map(|of_looks| std::mem::take(&mut of_looks[at])).collect();
            let means = match estimator.is_lagged() {
                true => means,
                false => {
                    let (right, exact) = self.with_right_u(batch, look..look + window, restarts)?;
                    without_common_noise(&means, &right, &exact)
                }
            };
            Ok(means.iter().map(|coefficients| self.probe.pull_back(&rows, coefficients)).collect())
        };
        looks.iter().enumerate().map(of_look).collect()
    }

    /// E(m) with u_{t−1}, which does not depend on the batch: given u the mean over batches is exact and linear in 1/u, so only
    /// 1/u is averaged over passes.
    fn mean_given_u(
        &self,
        running: &mut Estimator,
        batch: usize,
        seed: u64,
        passes: Range<usize>,
    ) -> Result<Array2<f64>, LossError> {
        let inverse = running.inverse_u(&self.problem, batch, seed, passes, &self.log_u)?;
        Ok(self.coefficients_given_u(&inverse.into_iter().map(|inverse| -inverse.ln()).collect::<Vec<_>>()))
    }

    /// What the same batches give where every u is right, for each replicate; and its mean, which is exact.
    fn with_right_u(
        &self,
        batch: usize,
        passes: Range<usize>,
        restarts: usize,
    ) -> Result<(Vec<Array2<f64>>, Array2<f64>), LossError> {
        let log_u: Vec<f32> = self.log_u.iter().map(|u| *u as f32).collect();
        let state = SampleState::from_columns(self.images(), [(LOG_U.to_owned(), log_u)].into());
        let (loss, scale) = EstimatorKind::Sogclr { gamma: 1.0, lagged: true }.loss(self.tau);
        let replicate = |replicate: usize| -> Result<Array2<f64>, LossError> {
            let mut fixed = Estimator::fixed(state.clone(), loss.as_ref(), scale);
            let mut sum = Array2::zeros(self.problem.embeddings.raw_dim());
            for restart in 0..restarts {
                let seed = self.chain(replicate, restart);
                sum += &(fixed.expectation(&self.problem, batch, seed, passes.clone())? / restarts as f64);
            }
            Ok(sum)
        };
        let right: Result<Vec<_>, _> = (0..REPLICATES).into_par_iter().map(replicate).collect();
        Ok((right?, self.coefficients_given_u(&self.log_u)))
    }

    fn coefficients_given_u(&self, log_u: &[f64]) -> Array2<f64> {
        let h = self.problem.embeddings.mapv(f64::from);
        let dz = gradient_given_u(self.z.view(), self.problem.augmentations, self.tau, log_u);
        through_norm(h.view(), dz.view())
    }

    /// The seed of one memory's batches.
    fn chain(&self, replicate: usize, restart: usize) -> u64 {
        (self.seed * (REPLICATES as u64 + 1) + replicate as u64) * RESTARTS as u64 + restart as u64
    }

    fn row(&self, estimator: EstimatorKind, batch: usize, after: Option<usize>, means: &[Vec<f64>]) -> BiasRow {
        let count = means.len() as f64;
        let mut mean = vec![0.0; means[0].len()];
        means.iter().for_each(|of| mean.iter_mut().zip(of).for_each(|(sum, m)| *sum += m / count));
        let spread: f64 = means.iter().map(|of| square_distance(of, &mean)).sum();
        // Without the noise's own square, which would make E(m) look longer.
        let (square_length, error) = pair_mean_and_error(&gram(means, |m, _| m));
        let is_seen = square_length > REACH * error;
        let cosine =
            |exact: &[f64]| is_seen.then(|| (dot(&mean, exact) / (square_length.sqrt() * norm(exact))).min(1.0));
        BiasRow {
            estimator,
            batch,
            after,
            bias_v1: bias(means, &self.exact[0]),
            bias_v2: bias(means, &self.exact[1]),
            cosine_v1: cosine(&self.exact[0]),
            cosine_v2: cosine(&self.exact[1]),
            noise: (spread / (count * (count - 1.0))).sqrt() / norm(&self.exact[0]),
            variance: None,
        }
    }

    /// E‖m − E(m)‖²/‖∇F‖² over single batches, after `settled` passes.
    fn variance(&self, estimator: EstimatorKind, batch: usize, settled: usize) -> Result<f64, LossError> {
        let (loss, scale) = estimator.loss(self.tau);
        let mut running = Estimator::new(self.images(), loss.as_ref(), scale);
        let seed = self.chain(REPLICATES, 0);
        running.expectation(&self.problem, batch, seed, 0..settled)?;
        let count = (VARIANCE_IMAGES / batch).clamp(VARIANCE_BATCHES.0, VARIANCE_BATCHES.1);
        let draws = (settled..)
            .flat_map(|pass| Draw::pass(self.images(), self.problem.augmentations, batch, seed, pass))
            .take(count);
        let (mut sum, mut squares) = (vec![0.0; self.exact[0].len()], 0.0);
        for draw in draws {
            let [first, second] = running.step_on(&self.problem, &draw)?.map(|dh| dh.mapv(f64::from));
            let dh = ndarray::concatenate![ndarray::Axis(0), first, second];
            let m = self.probe.pull_back(&draw.rows.concat(), &dh);
            squares += dot(&m, &m);
            sum.iter_mut().zip(&m).for_each(|(sum, m)| *sum += m);
        }
        let count = count as f64;
        Ok((squares - dot(&sum, &sum) / count) / (count - 1.0) / dot(&self.exact[0], &self.exact[0]))
    }
}

/// Takes out of every replicate's mean the noise that it shares with the estimator whose u is right: λ(right − exact), where λ
/// is the regression on it in the other replicates, so that nothing is added in the mean.
fn without_common_noise(means: &[Array2<f64>], right: &[Array2<f64>], exact: &Array2<f64>) -> Vec<Array2<f64>> {
    let without = |at: usize| {
        let others: Vec<usize> = (0..means.len()).filter(|other| *other != at).collect();
        let mean = |of: &[Array2<f64>]| {
            let mut mean = Array2::<f64>::zeros(exact.raw_dim());
            others.iter().for_each(|&other| mean.scaled_add(1.0 / others.len() as f64, &of[other]));
            mean
        };
        let (centre, right_centre) = (mean(means), mean(right));
        let (mut shared, mut alone) = (0.0, 0.0);
        for &other in &others {
            let noise = &right[other] - &right_centre;
            shared += ((&means[other] - &centre) * &noise).sum();
            alone += (&noise * &noise).sum();
        }
        // Without noise there is nothing to take out.
        let lambda = if alone > 0.0 { shared / alone } else { 0.0 };
        &means[at] - &((&right[at] - exact) * lambda)
    };
    (0..means.len()).map(without).collect()
}

/// The squared bias of independent estimates of E(m): the mean of (m_r − ∇F)·(m_s − ∇F) over r ≠ s, relative to ‖∇F‖².
fn bias(means: &[Vec<f64>], exact: &[f64]) -> Bias {
    let (squared, error) = pair_mean_and_error(&(gram(means, |m, at| m - exact[at]) / dot(exact, exact)));
    Bias { squared, error }
}

/// The mean beside the diagonal and its jackknife error.
fn pair_mean_and_error(gram: &Array2<f64>) -> (f64, f64) {
    let (all, count) = (pair_mean(gram), gram.nrows());
    let without = |left_out: usize| {
        let kept: Vec<usize> = (0..count).filter(|at| *at != left_out).collect();
        pair_mean(&gram.select(ndarray::Axis(0), &kept).select(ndarray::Axis(1), &kept))
    };
    let apart: f64 = (0..count).map(|left_out| (without(left_out) - all).powi(2)).sum();
    (all, (apart * (count - 1) as f64 / count as f64).sqrt())
}

/// All products of the vectors, each value taken through `of`.
fn gram(vectors: &[Vec<f64>], of: impl Fn(f64, usize) -> f64) -> Array2<f64> {
    Array2::from_shape_fn((vectors.len(), vectors.len()), |(r, s)| {
        vectors[r].iter().zip(&vectors[s]).enumerate().map(|(at, (a, b))| of(*a, at) * of(*b, at)).sum()
    })
}

/// The mean beside the diagonal.
fn pair_mean(gram: &Array2<f64>) -> f64 {
    let count = gram.nrows() as f64;
    (gram.sum() - gram.diag().sum()) / (count * (count - 1.0))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

fn square_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The batch whose normaliser is as certain as a settled u at γ and batch B, of n images drawn without replacement:
/// 1/(B′−1) − 1/(n−1) = γ/(2−γ)·(1/(B−1) − 1/(n−1)). For n ≫ B that is B(2−γ)/γ.
pub fn effective_batch(batch: usize, gamma: f64, images: usize) -> f64 {
    let rest = 1.0 / (images as f64 - 1.0);
    1.0 + 1.0 / (gamma / (2.0 - gamma) * (1.0 / (batch as f64 - 1.0) - rest) + rest)
}

/// The slope of ln y against ln x and its standard error, from (x, y, error of y); `None` with fewer than two positive points.
pub fn log_slope(points: &[(f64, f64, f64)]) -> Option<(f64, f64)> {
    // ln x, ln y, and the weight of ln y
    let logs: Vec<(f64, f64, f64)> = points
        .iter()
        .filter(|(x, y, _)| *x > 0.0 && *y > 0.0)
        .map(|(x, y, error)| (x.ln(), y.ln(), (y / error).powi(2)))
        .collect();
    if logs.len() < 2 {
        return None;
    }
    let weight: f64 = logs.iter().map(|p| p.2).sum();
    let mean = |of: fn(&(f64, f64, f64)) -> f64| logs.iter().map(|p| p.2 * of(p)).sum::<f64>() / weight;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = logs.iter().map(|(x, y, w)| w * (x - mean_x) * (y - mean_y)).sum();
    let spread: f64 = logs.iter().map(|(x, _, w)| w * (x - mean_x) * (x - mean_x)).sum();
    (spread > 0.0).then(|| (covariance / spread, 1.0 / spread.sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::SampleRng;

    /// Estimates with a known bias and noise: the square of the noise does not count as bias, and no bias is no bias.
    #[test]
    fn noise_is_not_taken_for_bias() {
        let exact: Vec<f64> = (0..500).map(|at| (at as f64 * 0.7).sin()).collect();
        let mut rng = SampleRng::weights(3, "theory.bias.test");
        let noise: Vec<Vec<f64>> = (0..8).map(|_| exact.iter().map(|_| f64::from(rng.normal())).collect()).collect();
        let estimates = |factor: f64| -> Vec<Vec<f64>> {
            let one = |noise: &Vec<f64>| exact.iter().zip(noise).map(|(f, e)| factor * f + 0.3 * e).collect();
            noise.iter().map(one).collect()
        };
        let found = bias(&estimates(1.5), &exact);
        assert!((found.squared - 0.25).abs() < 3.0 * found.error && found.error < 0.05, "{found:?}");
        let (value, error) = found.resolved().unwrap();
        assert!((value - 0.5).abs() < 3.0 * error, "{value} ± {error}");
        let none = bias(&estimates(1.0), &exact);
        assert!(none.squared.abs() < 3.0 * none.error, "{none:?}");
        assert!(none.bound() < 0.2, "{none:?}");
    }

    #[test]
    fn the_jackknife_error_is_how_far_estimates_spread() {
        let exact = vec![1.0; 50];
        let mut rng = SampleRng::weights(5, "theory.bias.test");
        let found: Vec<Bias> = (0..200)
            .map(|_| {
                let mut one = || exact.iter().map(|f| 1.2 * f + 0.5 * f64::from(rng.normal())).collect();
                bias(&(0..6).map(|_| one()).collect::<Vec<_>>(), &exact)
            })
            .collect();
        let mean = found.iter().map(|b| b.squared).sum::<f64>() / 200.0;
        let spread = (found.iter().map(|b| (b.squared - mean).powi(2)).sum::<f64>() / 199.0).sqrt();
        let error = (found.iter().map(|b| b.error * b.error).sum::<f64>() / 200.0).sqrt();
        assert!((mean - 0.04).abs() < 0.01, "{mean}");
        assert!(error > 0.8 * spread && error < 1.5 * spread, "{error} against {spread}");
    }

    /// Means that are the noise of a known estimator, times a factor, and little else: what is left is that little.
    #[test]
    fn common_noise_is_taken_out_and_nothing_else() {
        let mut rng = SampleRng::weights(7, "theory.bias.test");
        let mut random = |scale: f64| Array2::from_shape_fn((40, 5), |_| scale * f64::from(rng.normal()));
        let (exact, expected) = (random(1.0), random(1.0));
        let noise: Vec<_> = (0..8).map(|_| random(1.0)).collect();
        let right: Vec<_> = noise.iter().map(|noise| &exact + noise).collect();
        let means: Vec<_> = noise.iter().map(|noise| &expected + &(noise * 0.7) + random(0.01)).collect();
        for found in without_common_noise(&means, &right, &exact) {
            let apart = (&found - &expected).mapv(|d| d * d).mean().unwrap().sqrt();
            assert!(apart < 0.03, "{apart}");
        }
        // No noise to learn from, as in batches of everything.
        let still = vec![exact.clone(); 8];
        assert_eq!(without_common_noise(&means, &still, &exact), means);
    }

    #[test]
    fn a_slope_trusts_certain_points() {
        let points = [(1.0, 8.0, 0.08), (2.0, 4.0, 0.04), (4.0, 2.0, 0.02), (8.0, 4.0, 40.0)];
        let (slope, error) = log_slope(&points).unwrap();
        assert!((slope + 1.0).abs() < 1e-3 && error < 0.02, "{slope} ± {error}");
        assert!(log_slope(&points[..1]).is_none());
    }

    #[test]
    fn memory_is_worth_a_larger_batch() {
        assert!((effective_batch(16, 1.0, 1000) - 16.0).abs() < 1e-9, "no memory");
        let large = effective_batch(16, 0.1, 1_000_000);
        assert!((large / (15.0 * 19.0 + 1.0) - 1.0).abs() < 1e-3, "{large}");
        assert!(effective_batch(16, 1e-6, 1000) < 1000.0, "never more than there are images");
    }
}
