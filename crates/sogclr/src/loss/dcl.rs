//! DCL, the decoupled contrastive loss: the positive is left out of the denominator. This is the SimCLR that the paper
//! *analyses* (eqs. 1–2, 6), and SogCLR without memory (γ = 1) up to the factor τ.
//!
//! DCLW weighs the positive by w_i = 2 − B·softmax_i(s⁺_i/σ): close pairs less than distant ones.

use super::views::Views;
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::log_sum_exp;

/// DCL, or DCLW with `sigma`.
#[derive(Clone, Debug)]
pub struct Dcl {
    /// τ, what similarities are divided by.
    pub temperature: f64,
    /// σ of DCLW's weights; without it every weight is 1.
    pub sigma: Option<f64>,
}

/// What one anchor's row gives.
struct Anchor {
    positive: f64,
    /// ln Σ_neg exp(s/τ)
    log_negatives: f64,
}

impl Dcl {
    /// w_a and ∂(Σ_a −w_a·s⁺_a)/∂s⁺_a for each anchor; the softmax runs over the samples of one view.
    fn weights(&self, anchors: &[Anchor], views: &Views) -> Vec<(f64, f64)> {
        let Some(sigma) = self.sigma else { return vec![(1.0, -1.0); anchors.len()] };
        let batch = views.samples as f64;
        anchors
            .chunks(views.samples)
            .flat_map(|view| {
                let log_sum = log_sum_exp(view.iter().map(|a| a.positive / sigma));
                let share = move |a: &Anchor| (a.positive / sigma - log_sum).exp();
                let mean: f64 = view.iter().map(|a| share(a) * a.positive).sum();
                view.iter().map(move |a| {
                    let (p, weight) = (share(a), 2.0 - batch * share(a));
                    (weight, -weight + batch / sigma * p * (a.positive - mean))
                })
            })
            .collect()
    }
}

impl Loss for Dcl {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let views = Views::new(input)?;
        let anchors = views.map_anchors(
            |_| tau,
            |a, s, negatives| Anchor { positive: views.positive_similarity(a, s), log_negatives: negatives.log_sum },
        );
        let weights = self.weights(&anchors, &views);
        let mean = 1.0 / views.anchors() as f64;
        // −w_a·s⁺_a/τ + ln Σ_neg exp(s/τ)
        let loss: f64 = anchors.iter().zip(&weights).map(|(a, (w, _))| a.log_negatives - w * a.positive / tau).sum();
        let objective: f64 =
            anchors.iter().enumerate().map(|(a, x)| views.objective(a, x.positive, x.log_negatives, tau)).sum();

        let log_negatives = anchors.iter().map(|a| a.log_negatives);
        let grads = views.decoupled_gradient(log_negatives, tau, |a| weights[a].1 as f32);
        LossOutput::contrasted(loss * mean, objective * mean, grads, input)
    }
}
