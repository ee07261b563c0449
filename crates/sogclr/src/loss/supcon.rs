//! SupCon: the positives of an anchor are all views of its class; the mean of their cross-entropies against every other
//! row, positives included.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_add_exp, log_sum_exp};

/// The supervised contrastive loss.
#[derive(Clone, Debug)]
pub struct SupCon {
    /// τ, what similarities are divided by.
    pub temperature: f64,
}

struct Anchor {
    positive: f64,
    /// ln Σ over positives and negatives of exp(s/τ)
    log_all: f64,
    /// ln Σ_neg exp(s/τ)
    log_negatives: f64,
}

impl Loss for SupCon {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::by_label(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| {
                let log_negatives = negatives.log_sum;
                let own = views.positives(a).map(|b| f64::from(s[b]) / tau);
                let log_all = log_add_exp(log_negatives, log_sum_exp(own));
                Anchor { positive: views.positive_similarity(a, s), log_all, log_negatives }
            },
        );
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.log_all - a.positive / tau).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        let scale = (mean / tau) as f32;
        let offset: Vec<f32> = anchors.iter().map(|a| -a.log_all as f32).collect();
        let grads = views.softmax_gradient(&vec![(1.0 / tau) as f32; anchors.len()], &offset, scale, |a, b, s| {
            let pull = |anchor: usize, key: usize| match views.positive_weight(anchor, key) {
                0.0 => 0.0,
                weight => (s / tau as f32 + offset[anchor]).exp() - weight,
            };
            scale * (pull(a, b) + pull(b, a))
        });
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}
