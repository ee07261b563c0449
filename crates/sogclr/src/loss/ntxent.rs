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
