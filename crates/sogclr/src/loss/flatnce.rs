//! FlatNCE: exp(v − sg(v)) − 1 with v = ln Σ_neg exp((s − s⁺)/τ). Its value is always 0 and its gradient that of DCL; the
//! value reported is the cross-entropy ln(1 + e^v), which tells how far the positive stands out.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::log_add_exp;

/// FlatNCE.
#[derive(Clone, Debug)]
pub struct FlatNce {
    /// τ, what similarities are divided by.
    pub temperature: f64,
}

struct Anchor {
    positive: f64,
    log_negatives: f64,
    cross_entropy: f64,
}

impl Loss for FlatNce {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::new(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| {
                let log_negatives = negatives.log_sum;
                let each = views.positives(a).map(|b| log_add_exp(0.0, log_negatives - f64::from(s[b]) / tau));
                let cross_entropy = each.sum::<f64>() / views.positive_count(a) as f64;
                Anchor { positive: views.positive_similarity(a, s), log_negatives, cross_entropy }
            },
        );
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.cross_entropy).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        // ∇ exp(v − sg(v)) = ∇v: softmax over the negatives, and −1 in all on the positives.
        let grads = views.decoupled_gradient(anchors.iter().map(|a| a.log_negatives), tau, |_| -1.0);
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}
