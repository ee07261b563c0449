//! How far the estimators of a batch are from the gradient of the global objective, at frozen weights.
//!
//! For each estimator m: the bias ‖E(m) − ∇F‖ against both versions of F, the variance E‖m − E(m)‖², and the cosine between
//! E(m) and ∇F, in the space of all parameters. E(m) is estimated twice from independent batches; the product of the two
//! deviations has no bias from the noise that is left in each.

use super::{Draw, Estimator, FiniteProblem, Probe, Version};
use crate::loss::{Dcl, Gamma, Loss, LossError, NtXent, SogClr, Variant};
use ndarray::Array2;
use serde::{Deserialize, Serialize};

/// A mini-batch estimator of ∇F.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum EstimatorKind {
    /// SimCLR as the paper analyses it, eq. (6): the positive is left out of the denominator (DCL).
    Eq6,
    /// SimCLR as it is trained.
    Ntxent,
    /// SogCLR; `lagged` is Algorithm 1's u_{t−1}, else the fresh u_t of the released programs.
    Sogclr { gamma: f64, lagged: bool },
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
                let (epsilon, by_label, individual) = (0.0, false, None);
                let loss = SogClr { temperature: tau, gamma, variant, epsilon, by_label, individual };
                (Box::new(loss), 1.0)
            }
        }
    }

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
    #[serde(flatten)]
    pub estimator: EstimatorKind,
    pub batch: usize,
    /// Passes over the data at frozen weights before anything is measured.
    pub settled: usize,
    /// ‖E(m) − ∇F‖/‖∇F‖ against V1 and V2.
    pub bias_v1: f64,
    pub bias_v2: f64,
    /// What the batches averaged over leave uncertain in E(m), relative to ‖∇F‖.
    pub noise: f64,
    /// E‖m − E(m)‖²/‖∇F‖² (V1).
    pub variance: f64,
    /// cos(E(m), ∇F) against V1 and V2.
    pub cosine_v1: f64,
    pub cosine_v2: f64,
}

/// The settings of a study, and the exact gradients.
pub struct BiasStudy<'a> {
    probe: &'a Probe,
    problem: FiniteProblem,
    pub tau: f64,
    /// Passes over the data that E(m) is averaged over, twice.
    pub passes: usize,
    /// Batches for the variance.
    pub variance_batches: usize,
    pub seed: u64,
    exact: [Vec<f64>; 2],
}

impl<'a> BiasStudy<'a> {
    pub fn new(probe: &'a Probe, tau: f64, passes: usize, variance_batches: usize, seed: u64) -> Self {
        let exact = [Version::V1, Version::V2].map(|version| probe.exact(tau, version).1);
        Self { probe, problem: probe.problem(), tau, passes, variance_batches, seed, exact }
    }

    /// Measures one estimator after `settled` passes of its state.
    pub fn measure(&self, estimator: EstimatorKind, batch: usize, settled: usize) -> Result<BiasRow, LossError> {
        let (loss, scale) = estimator.loss(self.tau);
        let rows: Vec<usize> = (0..self.problem.embeddings.nrows()).collect();
        let mut halves = Vec::new();
        let mut variance = 0.0;
        for half in 0..2 {
            let seed = 2 * self.seed + half;
            let mut running = Estimator::new(self.problem.images(), loss.as_ref(), scale);
            // The state settles before anything is counted.
            running.expectation(&self.problem, batch, seed, 0..settled)?;
            let mean = running.expectation(&self.problem, batch, seed, settled..settled + self.passes)?;
            halves.push(self.probe.pull_back(&rows, &mean));
            if half == 1 {
                let mean: Vec<f64> = halves[0].iter().zip(&halves[1]).map(|(a, b)| 0.5 * (a + b)).collect();
                variance = self.variance(&mut running, batch, seed, &mean)?;
            }
        }
        let [first, second] = &halves[..] else { unreachable!("two halves") };
        let mean: Vec<f64> = first.iter().zip(second).map(|(a, b)| 0.5 * (a + b)).collect();
        let size = norm(&self.exact[0]);
        let bias = |exact: &[f64]| {
            let product: f64 = exact.iter().zip(first.iter().zip(second)).map(|(f, (a, b))| (a - f) * (b - f)).sum();
            product.max(0.0).sqrt() / norm(exact)
        };
        let cosine = |exact: &[f64]| dot(&mean, exact) / (norm(&mean) * norm(exact));
        let apart: f64 = first.iter().zip(second).map(|(a, b)| (a - b) * (a - b)).sum();
        Ok(BiasRow {
            estimator,
            batch,
            settled,
            bias_v1: bias(&self.exact[0]),
            bias_v2: bias(&self.exact[1]),
            noise: 0.5 * apart.sqrt() / size,
            variance: variance / (size * size),
            cosine_v1: cosine(&self.exact[0]),
            cosine_v2: cosine(&self.exact[1]),
        })
    }

    /// E‖m − mean‖² over single batches.
    fn variance(&self, running: &mut Estimator, batch: usize, seed: u64, mean: &[f64]) -> Result<f64, LossError> {
        let (mut sum, mut count) = (0.0, 0);
        for pass in 1_000_000.. {
            for draw in Draw::pass(self.problem.images(), self.problem.augmentations, batch, seed, pass) {
                if count == self.variance_batches {
                    return Ok(sum / count as f64);
                }
                let [first, second] = running.step_on(&self.problem, &draw)?;
                let rows = draw.rows.concat();
                let dh: Array2<f64> =
                    ndarray::concatenate![ndarray::Axis(0), first.mapv(f64::from), second.mapv(f64::from)];
                let m = self.probe.pull_back(&rows, &dh);
                sum += m.iter().zip(mean).map(|(m, mean)| (m - mean) * (m - mean)).sum::<f64>();
                count += 1;
            }
        }
        unreachable!("passes do not end")
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// The slope of ln y against ln x by least squares; `None` with fewer than two positive points.
pub fn log_slope(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    if logs.len() < 2 {
        return None;
    }
    let count = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|p| p.0).sum::<f64>() / count, logs.iter().map(|p| p.1).sum::<f64>() / count);
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let spread: f64 = logs.iter().map(|(x, _)| (x - mean_x) * (x - mean_x)).sum();
    (spread > 0.0).then(|| covariance / spread)
}
