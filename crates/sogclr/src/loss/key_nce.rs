//! Queries against keys without gradient, as with a momentum encoder: −ln e⁺/(e⁺ + (α/K)·Σe⁻) with e = exp(q·k/τ) and
//! K negatives. MoCo takes the negatives from a queue, SiMo the keys of the batch's other images with EqCo's α; InfoMin
//! averages two kinds of queries. The mean runs over the queries; keys are those of the second view.

use super::{Loss, LossError, LossInput, LossOutput, SetName};
use crate::math::{Matrix, UnitRows, log_add_exp, map_rows, weighted_keys};
use ndarray::{ArrayView2, s};
use sogclr_kernels::softmax_sum;

/// Where the negatives come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negatives {
    /// The keys of the batch's other images.
    Batch,
    /// Keys of earlier batches.
    Queue,
}

/// InfoNCE of queries against keys, in one direction.
#[derive(Clone, Debug)]
pub struct KeyNce {
    /// τ, what similarities are divided by.
    pub temperature: f64,
    /// Where the negatives come from.
    pub negatives: Negatives,
    /// EqCo's α, the number of negatives to act like; their own number unless given.
    pub alpha: Option<f64>,
    /// The sets of queries and their weights, which add up to 1.
    pub queries: &'static [(SetName, f64)],
}

const KEYS: SetName = SetName::Key(1);

/// What one query's row gives.
struct Query {
    positive: f64,
    /// ln (α/K)·Σe⁻
    log_negatives: f64,
}

impl KeyNce {
    /// Value, objective and the gradient of the rows `ours` of one set of queries.
    fn contrast(
        &self,
        queries: &UnitRows,
        keys: &UnitRows,
        negatives: ArrayView2<f32>,
        input: &LossInput,
    ) -> (f64, f64, Matrix) {
        let tau = self.temperature;
        let count = negatives.nrows() - usize::from(self.negatives == Negatives::Batch);
        let log_margin = self.alpha.map_or(0.0, |alpha| (alpha / count as f64).ln());
        let rows = map_rows(input.isa, queries.matrix().view(), negatives, |i, mut s| {
            let positive = f64::from(queries.matrix().row(i).dot(&keys.matrix().row(i)));
            if self.negatives == Negatives::Batch {
                s[i] = f32::NEG_INFINITY;
            }
            let s = s.as_slice().expect("a row of similarities is contiguous");
            Query { positive, log_negatives: softmax_sum(input.isa, s, (1.0 / tau) as f32).log_sum + log_margin }
        });
        let mean = 1.0 / rows.len() as f64;
        let cross_entropy = |q: &Query| log_add_exp(q.positive / tau, q.log_negatives) - q.positive / tau;
        let loss: f64 = rows.iter().map(cross_entropy).sum();
        // −s⁺ + τ ln ĝ, ĝ the mean over the negatives
        let log_count = (count as f64).ln() + log_margin;
        let objective: f64 = rows.iter().map(|q| -q.positive + tau * (q.log_negatives - log_count)).sum();

        // ∂/∂q = 1/(Bτ)·[Σ p_j k_j − (1 − p⁺)·k⁺]
        let scale = mean / tau;
        let first = input.ours.start;
        let anchors = queries.matrix().slice(s![input.ours.clone(), ..]);
        let mut grad = weighted_keys(input.isa, anchors, negatives, |row, mut s| {
            let i = first + row;
            let log_sum = log_add_exp(rows[i].positive / tau, rows[i].log_negatives);
            let (inverse_tau, offset, scale) = ((1.0 / tau) as f32, (log_margin - log_sum) as f32, scale as f32);
            s.mapv_inplace(|s| scale * (s * inverse_tau + offset).exp());
            if self.negatives == Negatives::Batch {
                s[i] = 0.0;
            }
        });
        for (row, mut grad) in grad.outer_iter_mut().enumerate() {
            let query = &rows[first + row];
            // 1 − p⁺ = Σe⁻/(e⁺ + Σe⁻)
            let missed = (query.log_negatives - log_add_exp(query.positive / tau, query.log_negatives)).exp();
            grad.scaled_add(-(scale * missed) as f32, &keys.matrix().row(first + row));
        }
        (loss * mean, objective * mean, grad)
    }
}

impl Loss for KeyNce {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let keys = input.checked_unit(KEYS)?;
        let negatives = match self.negatives {
            Negatives::Batch => keys.matrix().view(),
            Negatives::Queue => input.checked_queue(keys.dim())?,
        };
        let (mut loss, mut objective, mut grads) = (0.0, 0.0, Vec::new());
        for &(name, weight) in self.queries {
            let queries = input.checked_unit(name)?;
            let (value, estimate, grad) = self.contrast(queries, keys, negatives, input);
            loss += weight * value;
            objective += weight * estimate;
            grads.push((name, grad * weight as f32));
        }
        LossOutput::contrasted(loss, objective, grads, input)
    }
}
