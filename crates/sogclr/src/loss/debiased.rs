//! Debiased contrastive loss: −ln e⁺/(e⁺ + N_g), where N_g = max((Σe⁻ − τ₊N·e⁺)/(1 − τ₊), N·e^(−1/τ)) takes the share τ₊
//! of false negatives out of the sum. e^(1/τ) is far from f64's limit for every τ that is allowed.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use sogclr_kernels::SoftmaxSum;

/// The debiased contrastive loss.
#[derive(Clone, Debug)]
pub struct Debiased {
    /// τ, what similarities are divided by.
    pub temperature: f64,
    /// τ₊, the share of negatives that are of the anchor's own class.
    pub prior: f64,
}

/// What one anchor's row gives.
struct Anchor {
    loss: f64,
    objective: f64,
    /// Σe⁻
    sum: f64,
    /// N
    count: f64,
    /// Mean over the positives of 1/((e⁺ + N_g)(1 − τ₊)), 0 where N_g is clamped: what multiplies e⁻/τ.
    push: f64,
}

impl Debiased {
    /// (N_g, whether it is clamped) for the sum of negatives and one positive's e⁺
    fn negatives(&self, sum: f64, count: f64, positive: f64) -> (f64, bool) {
        let estimate = (sum - self.prior * count * positive) / (1.0 - self.prior);
        let least = count * (-1.0 / self.temperature).exp();
        if estimate > least { (estimate, false) } else { (least, true) }
    }
}

impl Loss for Debiased {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let (tau, prior) = (self.temperature, self.prior);
        let views = Views::new(input)?;
        let anchor = |a: usize, s: &[f32], negatives: SoftmaxSum| {
            let e = |b: usize| (f64::from(s[b]) / tau).exp();
            let (sum, count) = (negatives.log_sum.exp(), views.negatives(a) as f64);
            let positives = views.positive_count(a) as f64;
            let (mut loss, mut push) = (0.0, 0.0);
            for b in views.positives(a) {
                let (negatives, is_clamped) = self.negatives(sum, count, e(b));
                let all = e(b) + negatives;
                loss += (all / e(b)).ln() / positives;
                push += if is_clamped { 0.0 } else { 1.0 / (all * (1.0 - prior)) / positives };
            }
            let objective = -views.positive_similarity(a, s) + tau * (sum / count).ln();
            Anchor { loss, objective, sum, count, push }
        };
        let anchors = views.map_anchors(|_| tau, anchor);
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.loss).sum();
        let objective: f64 = anchors.iter().map(|a| a.objective).sum();
        let scale = mean / tau;
        // ∂L/∂s_ab for a positive b: −1 + e⁺/D·(1 − τ₊N/(1 − τ₊)), the last part only where N_g follows e⁺
        let pull = |a: usize, e: f64| {
            let anchor = &anchors[a];
            let (negatives, is_clamped) = self.negatives(anchor.sum, anchor.count, e);
            let follows = if is_clamped { 0.0 } else { prior * anchor.count / (1.0 - prior) };
            (scale * (e / (e + negatives) * (1.0 - follows) - 1.0)) as f32
        };
        let offset: Vec<f32> = anchors.iter().map(|a| a.push.ln().max(-1e30) as f32).collect();
        let inverse_tau = vec![(1.0 / tau) as f32; anchors.len()];
        let grads = views.softmax_gradient(&inverse_tau, &offset, scale as f32, |a, b, s| {
            let e = (f64::from(s) / tau).exp();
            views.positive_weight(a, b) * pull(a, e) + views.positive_weight(b, a) * pull(b, e)
        });
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, NtXent, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    /// s⁺ = 0.6 for the first sample; the second is the same in both views.
    fn forward(loss: &dyn Loss, second: [f32; 2]) -> LossOutput {
        let [x, y] = second;
        let (a, b) = (array![[2.0, 0.0], [x, y]], array![[3.0, 4.0], [x, y]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), a), (SetName::View(1), b)]);
        let state = SampleState::new(2, &[]);
        loss.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap()
    }

    /// Two negatives at s = 0 and e⁺ = e^(0.6/τ), τ = ½. (2 − τ₊·2·e^1.2)/(1 − τ₊) is 1.48 for τ₊ = 0.1; for 0.28 it is 0.20, less
    /// than 2e^−2, and for 0.5 below 0.
    #[test]
    fn false_negatives_are_taken_out_down_to_the_least_sum() {
        let positive = 1.2_f64.exp();
        let negatives = |prior| Debiased { temperature: 0.5, prior }.negatives(2.0, 2.0, positive);
        let (open, is_clamped) = negatives(0.1);
        assert!(!is_clamped && (open - (2.0 - 0.2 * positive) / 0.9).abs() < 1e-12, "{open}");
        for prior in [0.28, 0.5] {
            let (least, is_clamped) = negatives(prior);
            assert!(is_clamped && (least - 2.0 * (-2_f64).exp()).abs() < 1e-12, "{least}");
        }
    }

    /// −ln e⁺/(e⁺ + 2e^−2) with e⁺ = e^1.2 twice and e^2 twice, wherever the other sample is.
    #[test]
    fn clamped_negatives_push_nothing() {
        let loss = Debiased { temperature: 0.5, prior: 0.6 };
        let want = [1.2_f64, 2.0].map(|s| (2.0 * (-2.0 - s).exp()).ln_1p()).iter().sum::<f64>() / 2.0;
        for second in [[0.0, -1.0], [-5.0, 1.0]] {
            let out = forward(&loss, second);
            assert!((out.loss - want).abs() < 1e-6, "{} {want}", out.loss);
            // The second sample's positive is at 1 already.
            assert!(out.grads.iter().all(|(_, grad)| grad.row(1).iter().all(|g| g.abs() < 1e-6)));
        }
        let open = forward(&Debiased { temperature: 0.5, prior: 0.01 }, [0.0, -1.0]);
        assert!(open.grads[0].1.row(1).iter().any(|g| g.abs() > 1e-3), "{:?}", open.grads);
    }

    #[test]
    fn without_false_negatives_it_is_ntxent() {
        let (ours, plain) = (Debiased { temperature: 0.5, prior: 0.0 }, NtXent { temperature: 0.5, alpha: None });
        let (ours, plain) = (forward(&ours, [1.0, -2.0]), forward(&plain, [1.0, -2.0]));
        assert!((ours.loss - plain.loss).abs() < 1e-6, "{} {}", ours.loss, plain.loss);
        for ((_, ours), (_, plain)) in ours.grads.iter().zip(&plain.grads) {
            assert!((ours - plain).iter().all(|d| d.abs() < 1e-6));
        }
    }
}
