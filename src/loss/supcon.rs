//! SupCon: the positives of an anchor are all views of its class; the mean of their cross-entropies against every other
//! row, positives included.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_sum_exp, map_rows};

#[derive(Clone, Debug)]
pub struct SupCon {
    pub temperature: f64,
}

struct Anchor {
    positive: f64,
    /// ln Σ_{b≠a} exp(s/τ)
    log_all: f64,
    /// ln Σ_neg exp(s/τ)
    log_negatives: f64,
}

impl Loss for SupCon {
    fn columns(&self) -> &'static [&'static str] {
        &[]
    }

    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::by_label(input)?;
        let anchors = map_rows(views.z.view(), views.z.view(), |a, s| {
            let logit = |b: usize| f64::from(s[b]) / tau;
            Anchor {
                positive: views.positive_similarity(a, &s),
                log_all: log_sum_exp((0..views.anchors()).filter(|&b| b != a).map(logit)),
                log_negatives: log_sum_exp(views.negatives_of(a).map(logit)),
            }
        });
        let mean = 1.0 / views.anchors() as f64;
        let loss: f64 = anchors.iter().map(|a| a.log_all - a.positive / tau).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        let (tau32, scale) = (tau as f32, (mean / tau) as f32);
        let log_all: Vec<f32> = anchors.iter().map(|a| a.log_all as f32).collect();
        let grads = views.gradient(|a, b, s| {
            let softmax = if a == b { 0.0 } else { (s / tau32 - log_all[a]).exp() };
            scale * (softmax - views.positive_weight(a, b))
        });
        Ok(LossOutput::stateless(loss * mean, objective * mean, grads, input))
    }
}
