//! Is it learning? Signals from the embeddings of one batch, without labels, and a verdict on the run so far.
//!
//! a and b are the unit-norm embeddings of the first two views `[B, d]` (b is the momentum key where there is one, and the
//! text of image–text pairs):
//! - accuracy: the share of i for which argmaxⱼ aᵢ·bⱼ = i; chance is 1/B
//! - alignment: mean ‖aᵢ − bᵢ‖², from 0 (views agree) to 4
//! - uniformity: ln mean_{i≠j} exp(−2‖aᵢ − aⱼ‖²), from 0 (one point) down to about −4
//! - spread: √d · mean over dimensions of the standard deviation over i; 0 for one point, 1 for an even sphere
//! - effective rank: exp(−Σ pₖ ln pₖ) with pₖ = σₖ/Σσ, the singular values of a; from 1 to min(B, d)

use crate::loss::{EmbeddingSets, SetName};
use crate::math::Isa;
use crate::math::{Matrix, UnitRows, map_rows};
use nalgebra::DMatrix;
use ndarray::Axis;
use serde::{Deserialize, Serialize};

/// Measured on one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// Share of samples whose first view is nearest to their own second view.
    pub accuracy: f64,
    /// Mean ‖aᵢ − bᵢ‖² of the two views, 0–4.
    pub alignment: f64,
    /// ln mean_{i≠j} exp(−2‖aᵢ − aⱼ‖²) of the first view, at most 0.
    pub uniformity: f64,
    /// √d · mean standard deviation of a dimension, 0–1.
    pub spread: f64,
    /// Directions in use, from 1 to min(B, d).
    pub effective_rank: f64,
}

impl Signals {
    /// `None` without something to compare the first view with.
    pub fn of(sets: &EmbeddingSets, isa: Isa) -> Option<Self> {
        let a = sets.get(SetName::View(0)).ok()?.unit();
        let others = [SetName::View(1), SetName::Key(1), SetName::Text];
        let b = others.into_iter().find_map(|name| sets.get(name).ok())?.unit();
        Some(Self::between(a, b, isa))
    }

    fn between(a: &UnitRows, b: &UnitRows, isa: Isa) -> Self {
        let (batch, dim) = a.matrix().dim();
        let rows = batch as f64;
        let found = map_rows(isa, a.matrix().view(), b.matrix().view(), |i, s| {
            let is_first = s.iter().enumerate().all(|(j, &other)| j == i || other < s[i]);
            (is_first, f64::from(s[i]))
        });
        // ‖x − y‖² = 2 − 2x·y on the sphere
        let alignment = found.iter().map(|(_, s)| 2.0 - 2.0 * s).sum::<f64>() / rows;
        let close = map_rows(isa, a.matrix().view(), a.matrix().view(), |i, s| {
            let others = s.iter().enumerate().filter(|&(j, _)| j != i);
            others.map(|(_, &s)| (-4.0 * (1.0 - f64::from(s))).exp()).sum::<f64>()
        });
        let deviations = a.matrix().mapv(f64::from).std_axis(Axis(0), 0.0);
        Self {
            accuracy: found.iter().filter(|(is_first, _)| *is_first).count() as f64 / rows,
            alignment,
            uniformity: (close.iter().sum::<f64>() / (rows * (rows - 1.0))).ln(),
            spread: deviations.mean().unwrap_or(0.0) * (dim as f64).sqrt(),
            effective_rank: effective_rank(a.matrix()),
        }
    }
}

fn effective_rank(z: &Matrix) -> f64 {
    let z = z.mapv(f64::from);
    let gram = if z.nrows() < z.ncols() { z.dot(&z.t()) } else { z.t().dot(&z) };
    let eigenvalues = DMatrix::from_iterator(gram.nrows(), gram.ncols(), gram.iter().copied()).symmetric_eigenvalues();
    let singular: Vec<f64> = eigenvalues.iter().map(|value| value.max(0.0).sqrt()).collect();
    let total: f64 = singular.iter().sum();
    let entropy = |s: &f64| if *s > 0.0 { -(s / total) * (s / total).ln() } else { 0.0 };
    singular.iter().map(entropy).sum::<f64>().exp()
}

/// What the run looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Too few lines to tell.
    Early,
    /// The objective falls, which says nothing of what the features are good for.
    #[serde(rename = "objective falling", alias = "learning")]
    Falling,
    /// After 50 lines all embeddings are nearly one point or one line: spread below 0.05 or effective rank below 1.1.
    Collapsed,
    /// The objective's mean over the last quarter of the lines is not below that of the quarter before by two standard
    /// errors.
    Plateau,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Early => "too early to tell",
            Self::Falling => "objective falling",
            Self::Collapsed => "COLLAPSED",
            Self::Plateau => "plateau",
        })
    }
}

/// The objective, line by line.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Σx and Σx² of the first k lines
    sums: Vec<(f64, f64)>,
}

impl History {
    /// Lines before a collapse is spoken of, and lines of a quarter before a plateau is.
    const FEWEST: usize = 50;

    pub fn push(&mut self, objective: f64) {
        let (sum, squares) = self.sums.last().copied().unwrap_or_default();
        self.sums.push((sum + objective, squares + objective * objective));
    }

    /// Mean over lines and its variance.
    fn mean(&self, from: usize, to: usize) -> (f64, f64) {
        let before = if from == 0 { (0.0, 0.0) } else { self.sums[from - 1] };
        let (count, last) = ((to - from) as f64, self.sums[to - 1]);
        let mean = (last.0 - before.0) / count;
        let variance = ((last.1 - before.1) / count - mean * mean).max(0.0);
        (mean, variance / count)
    }

    pub fn verdict(&self, signals: &Signals) -> Verdict {
        let lines = self.sums.len();
        // A head without batch norm starts near one point.
        if lines >= Self::FEWEST && (signals.spread < 0.05 || signals.effective_rank < 1.1) {
            return Verdict::Collapsed;
        }
        let quarter = lines / 4;
        if quarter < Self::FEWEST {
            return Verdict::Early;
        }
        let (recent, recent_variance) = self.mean(lines - quarter, lines);
        let (before, before_variance) = self.mean(lines - 2 * quarter, lines - quarter);
        let error = (recent_variance + before_variance).sqrt();
        if before - recent > 2.0 * error { Verdict::Falling } else { Verdict::Plateau }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    fn unit(rows: Matrix) -> UnitRows {
        UnitRows::new(rows)
    }

    #[test]
    fn signals_of_a_hand_made_batch() {
        // Three directions; the third sample's views are swapped with the first's.
        let a = unit(array![[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]);
        let b = unit(array![[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]);
        let signals = Signals::between(&a, &b, Isa::best());
        assert!((signals.accuracy - 1.0 / 3.0).abs() < 1e-12);
        assert!((signals.alignment - 8.0 / 3.0).abs() < 1e-6, "4, 0 and 4");
        // ‖·‖² is 2, 4, 2 for the three pairs.
        let mean = (2.0 * (-4.0_f64).exp() + (-8.0_f64).exp()) / 3.0;
        assert!((signals.uniformity - mean.ln()).abs() < 1e-6);
        // std of (1, 0, −1) is √(2/3), of (0, 1, 0) √(2/9)
        let spread = 2.0_f64.sqrt() * 0.5 * ((2.0_f64 / 3.0).sqrt() + (2.0_f64 / 9.0).sqrt());
        assert!((signals.spread - spread).abs() < 1e-6);
        // σ = √2, 1
        let p = 2.0_f64.sqrt() / (1.0 + 2.0_f64.sqrt());
        let rank = (-p * p.ln() - (1.0 - p) * (1.0 - p).ln()).exp();
        assert!((signals.effective_rank - rank).abs() < 1e-6, "{} {rank}", signals.effective_rank);
    }

    #[test]
    fn one_point_is_a_collapse_and_ties_are_not_found() {
        let a = unit(Matrix::ones((5, 3)));
        let signals = Signals::between(&a, &a, Isa::best());
        assert_eq!(signals.accuracy, 0.0);
        assert!(signals.uniformity.abs() < 1e-6 && signals.spread < 1e-6);
        assert!((signals.effective_rank - 1.0).abs() < 1e-3);
        let mut history = History::default();
        (0..49).for_each(|_| history.push(0.0));
        assert_eq!(history.verdict(&signals), Verdict::Early);
        history.push(0.0);
        assert_eq!(history.verdict(&signals), Verdict::Collapsed);
    }

    #[test]
    fn a_falling_objective_is_learning_and_a_flat_one_a_plateau() {
        let fine = Signals { accuracy: 0.5, alignment: 0.5, uniformity: -2.0, spread: 0.9, effective_rank: 20.0 };
        let noise = |line: usize| ((line * 7919) % 101) as f64 / 101.0 - 0.5;
        let mut falling = History::default();
        (0..400).for_each(|line| falling.push(-0.002 * line as f64 + 0.2 * noise(line)));
        assert_eq!(falling.verdict(&fine), Verdict::Falling);
        let mut flat = History::default();
        (0..199).for_each(|line| flat.push(0.2 * noise(line)));
        assert_eq!(flat.verdict(&fine), Verdict::Early, "too few lines to tell");
        (199..400).for_each(|line| flat.push(0.2 * noise(line)));
        assert_eq!(flat.verdict(&fine), Verdict::Plateau);
    }
}
