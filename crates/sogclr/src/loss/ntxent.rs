//! SimCLR's NT-Xent: softmax cross-entropy of each anchor's positive against all other rows of the batch,
//! positive included, both directions averaged. This is the SimCLR that the paper *trains*; the one it
//! *analyses* (eqs. 1–2, 6) leaves the positive out of the denominator: [`super::Dcl`].
//!
//! EqCo's margin (SiMo) weighs the K negatives as if there were α of them: −ln e⁺/(e⁺ + (α/K)·Σe⁻); α = K is NT-Xent.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_add_exp, log_sum_exp};

/// NT-Xent with a fixed temperature.
#[derive(Clone, Debug)]
pub struct NtXent {
    /// τ, what similarities are divided by.
    pub temperature: f64,
    /// EqCo's α, the number of negatives to act like; their own number unless given.
    pub alpha: Option<f64>,
}

struct Anchor {
    positive: f64,
    /// ln (α/K)·Σ_neg e^{s/τ}
    log_negatives: f64,
    /// ln 1/K·Σ_neg e^{s/τ}
    log_g: f64,
    /// ln(e^{s⁺/τ} + Σ_neg e^{s/τ}) − s⁺/τ averaged over the positives
    cross_entropy: f64,
    /// ln mean over positives of (α/K)/(e^{s⁺/τ} + Σ_neg): what multiplies e^{s_ab/τ} for a negative b
    log_inverse: f64,
}

impl Loss for NtXent {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::new(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| {
                let log_count = (views.negatives(a) as f64).ln();
                let log_g = negatives.log_sum - log_count;
                let log_margin = self.alpha.map_or(0.0, |alpha| alpha.ln() - log_count);
                let log_negatives = negatives.log_sum + log_margin;
                let logits = views.positives(a).map(|b| f64::from(s[b]) / tau);
                let all = logits.clone().map(|logit| log_add_exp(logit, log_negatives));
                let count = views.positive_count(a) as f64;
                Anchor {
                    positive: views.positive_similarity(a, s),
                    log_negatives,
                    log_g,
                    cross_entropy: all.clone().zip(logits).map(|(all, logit)| all - logit).sum::<f64>() / count,
                    log_inverse: log_sum_exp(all.map(|all| -all)) - count.ln() + log_margin,
                }
            },
        );
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.cross_entropy).sum();
        // The mini-batch estimate of the global objective: u replaced by ĝ.
        let objective: f64 = anchors.iter().map(|a| -a.positive + tau * a.log_g).sum();

        // c_ab = 1/(2Bτ)·(p_ab − [b positive]), p the softmax over positive and negatives; with several positives
        // each has its own softmax and the anchor takes their mean. The margin α/K multiplies a negative's e^{s/τ}.
        let scale = (mean / tau) as f32;
        let log_inverse: Vec<f32> = anchors.iter().map(|a| a.log_inverse as f32).collect();
        let inverse_tau = vec![(1.0 / tau) as f32; anchors.len()];
        let grads = views.softmax_gradient(&inverse_tau, &log_inverse, scale, |a, b, s| {
            let missed = |row: usize| {
                // p_ab − 1 = −Σ_neg/(e^{s⁺/τ} + Σ_neg)
                let log_negatives = anchors[row].log_negatives;
                -(log_negatives - log_add_exp(f64::from(s) / tau, log_negatives)).exp() as f32
            };
            scale * (views.positive_weight(a, b) * missed(a) + views.positive_weight(b, a) * missed(b))
        });
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    fn forward(alpha: Option<f64>) -> LossOutput {
        let (first, second) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let state = SampleState::new(2, &[]);
        NtXent { temperature: 0.5, alpha }.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap()
    }

    /// The mean of ln(1 + margin·Σe⁻/e⁺) over (s⁺, the two s⁻) of each anchor.
    fn by_hand(margin: f64) -> f64 {
        let anchors = [(0.6, 0.0, 0.28), (0.96, 0.0, 0.8), (0.6, 0.8, 0.936), (0.96, 0.28, 0.936)];
        let e = |s: f64| (s / 0.5).exp();
        anchors.iter().map(|&(s, m, n)| (margin * (e(m) + e(n)) / e(s)).ln_1p()).sum::<f64>() / 4.0
    }

    #[test]
    fn two_samples_cost_the_cross_entropy_of_four_anchors() {
        let out = forward(None);
        assert!((out.loss - by_hand(1.0)).abs() < 1e-6, "{} {}", out.loss, by_hand(1.0));
    }

    #[test]
    fn alpha_is_the_number_of_negatives_to_act_like() {
        let (plain, as_many, more) = (forward(None), forward(Some(2.0)), forward(Some(6.0)));
        assert_eq!((as_many.loss, &as_many.grads), (plain.loss, &plain.grads));
        assert!((more.loss - by_hand(3.0)).abs() < 1e-6, "{} {}", more.loss, by_hand(3.0));
        assert_eq!(more.objective, plain.objective, "the margin is the loss's own");
    }
}
