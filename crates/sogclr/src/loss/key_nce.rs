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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    const VIEW: &[(SetName, f64)] = &[(SetName::View(0), 1.0)];
    const MIXED: &[(SetName, f64)] = &[(SetName::View(0), 0.75), (SetName::Jigsaw, 0.25)];

    /// Queries and keys: s = [[0.6, 0.28], [0.8, 0.96]]; the jigsaw's are the views' the other way round. The queue holds one
    /// row `copies` times, at 0.8 and −0.6 of the two queries.
    fn forward(
        negatives: Negatives,
        copies: usize,
        alpha: Option<f64>,
        queries: &'static [(SetName, f64)],
    ) -> LossOutput {
        let sets = EmbeddingSets::new(vec![
            (SetName::View(0), array![[2.0, 0.0], [0.0, 1.0]]),
            (SetName::Jigsaw, array![[0.0, 3.0], [1.0, 0.0]]),
            (SetName::Key(1), array![[3.0, 4.0], [7.0, 24.0]]),
        ]);
        let (state, queue) = (SampleState::new(2, &[]), array![[0.8_f32, -0.6]]);
        let queue = queue.broadcast((copies, 2)).unwrap();
        let input = LossInput { queue: Some(queue), ..LossInput::new(&sets, &[0, 1], &state) };
        KeyNce { temperature: 0.5, negatives, alpha, queries }.forward(&input).unwrap()
    }

    /// ln(1 + times·e^{(s⁻ − s⁺)/τ}), the mean over the queries' (s⁺, s⁻).
    fn by_hand(times: f64, queries: [(f64, f64); 2]) -> f64 {
        let each = queries.map(|(positive, negative)| (times * ((negative - positive) / 0.5).exp()).ln_1p());
        each.iter().sum::<f64>() / 2.0
    }

    #[test]
    fn alpha_weighs_the_queue_as_if_it_had_so_many_rows() {
        let queries = [(0.6, 0.8), (0.96, -0.6)];
        let cases = [(1, None, 1.0), (1, Some(1.0), 1.0), (1, Some(3.0), 3.0), (2, None, 2.0), (2, Some(3.0), 3.0)];
        for (copies, alpha, times) in cases {
            let out = forward(Negatives::Queue, copies, alpha, VIEW);
            assert!((out.loss - by_hand(times, queries)).abs() < 1e-6, "{copies} {alpha:?}: {}", out.loss);
            // The objective has the mean over the rows: s⁻ − s⁺ for any number and any α.
            assert!(
                (out.objective.unwrap() - (0.2 - 1.56) / 2.0).abs() < 1e-6,
                "{copies} {alpha:?}: {:?}",
                out.objective
            );
        }
    }

    #[test]
    fn in_a_batch_the_other_samples_key_is_the_negative_and_keys_have_no_gradient() {
        let out = forward(Negatives::Batch, 1, None, VIEW);
        assert!((out.loss - by_hand(1.0, [(0.6, 0.28), (0.96, 0.8)])).abs() < 1e-6, "{}", out.loss);
        assert_eq!(out.grads.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [SetName::View(0)]);
    }

    /// The jigsaw's first query has s⁺ = 0.8 and s⁻ = 0.96, its second s⁺ = 0.28 and s⁻ = 0.6.
    #[test]
    fn two_kinds_of_queries_are_averaged_by_their_weights() {
        let (views, mixed) = (forward(Negatives::Batch, 1, None, VIEW), forward(Negatives::Batch, 1, None, MIXED));
        let jigsaw = by_hand(1.0, [(0.8, 0.96), (0.28, 0.6)]);
        assert!((mixed.loss - (0.75 * views.loss + 0.25 * jigsaw)).abs() < 1e-6, "{}", mixed.loss);
        assert!((&mixed.grads[0].1 - &views.grads[0].1 * 0.75).iter().all(|d| d.abs() < 1e-7));
    }
}
