//! SimCLR's NT-Xent: softmax cross-entropy of each anchor's positive against all other rows of the batch,
//! positive included, both directions averaged. This is the SimCLR that the paper *trains*; the one it
//! *analyses* (eqs. 1–2, 6) leaves the positive out of the denominator: [`super::Dcl`].
//!
//! EqCo's margin (SiMo) weighs the K negatives as if there were α of them: −ln e⁺/(e⁺ + (α/K)·Σe⁻); α = K is NT-Xent.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_add_exp, log_sum_exp, map_rows};

/// NT-Xent with a fixed temperature.
#[derive(Clone, Debug)]
pub struct NtXent {
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
    /// ln(e^{s⁺/τ} + Σ_neg e^{s/τ}) averaged over the positives
    cross_entropy: f64,
}

impl Loss for NtXent {
    fn columns(&self) -> &'static [&'static str] {
        &[]
    }

    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::new(input)?;
        let anchors = map_rows(views.z.view(), views.z.view(), |a, s| {
            let log_count = (views.negatives(a) as f64).ln();
            let log_g = log_sum_exp(views.negatives_of(a).map(|b| f64::from(s[b]) / tau)) - log_count;
            let log_negatives = log_g + self.alpha.map_or(log_count, f64::ln);
            let terms = views.positives(a).map(|b| f64::from(s[b]) / tau);
            let cross_entropy: f64 = terms.clone().map(|logit| log_add_exp(logit, log_negatives) - logit).sum();
            let positive = views.positive_similarity(a, &s);
            Anchor { positive, log_negatives, log_g, cross_entropy: cross_entropy / terms.count() as f64 }
        });
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.cross_entropy).sum();
        // The mini-batch estimate of the global objective: u replaced by ĝ.
        let objective: f64 = anchors.iter().map(|a| -a.positive + tau * a.log_g).sum();

        // c_ab = 1/(2Bτ)·(p_ab − [b positive]), p the softmax over positive and negatives; with several positives
        // each has its own softmax and the anchor takes their mean. The margin α/K multiplies a negative's e^{s/τ}.
        let log_negatives: Vec<f64> = anchors.iter().map(|a| a.log_negatives).collect();
        let (tau32, scale) = (tau as f32, (mean / tau) as f32);
        // ln mean over positives of 1/(e^{s⁺/τ} + Σ_neg): what multiplies e^{s_ab/τ} for a negative b
        let log_inverse = map_rows(views.z.view(), views.z.view(), |a, s| {
            let each = views.positives(a).map(|b| -log_add_exp(f64::from(s[b]) / tau, log_negatives[a]));
            let margin = self.alpha.map_or(0.0, |alpha| (alpha / views.negatives(a) as f64).ln());
            (log_sum_exp(each.clone()) - (each.count() as f64).ln() + margin) as f32
        });
        let grads = views.backward(|a, mut s| {
            for b in views.negatives_of(a) {
                let logit = s[b] / tau32;
                s[b] = scale * ((logit + log_inverse[a]).exp() + (logit + log_inverse[b]).exp());
            }
            for b in views.class_of(a) {
                let logit = f64::from(s[b]) / tau;
                let missed = |row: usize| {
                    // p_ab − 1 = −Σ_neg/(e^{s⁺/τ} + Σ_neg)
                    -(log_negatives[row] - log_add_exp(logit, log_negatives[row])).exp() as f32
                };
                s[b] = scale * (views.positive_weight(a, b) * missed(a) + views.positive_weight(b, a) * missed(b));
            }
        });
        Ok(LossOutput::stateless(loss * mean, objective * mean, grads, input))
    }
}
