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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    /// s⁺ and the two s⁻ of each anchor: samples 0 and 1 of view 0, then those of view 1.
    const ANCHORS: [(f64, [f64; 2]); 4] =
        [(0.6, [0.0, 0.28]), (0.96, [0.0, 0.8]), (0.6, [0.8, 0.936]), (0.96, [0.28, 0.936])];
    const TAU: f64 = 0.5;

    fn forward(sigma: Option<f64>) -> LossOutput {
        let (first, second) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let state = SampleState::new(2, &[]);
        Dcl { temperature: TAU, sigma }.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap()
    }

    fn log_negatives(negatives: [f64; 2]) -> f64 {
        negatives.iter().map(|s| (s / TAU).exp()).sum::<f64>().ln()
    }

    #[test]
    fn the_positive_stays_out_of_the_sum() {
        let out = forward(None);
        let want = ANCHORS.map(|(positive, negatives)| -positive / TAU + log_negatives(negatives));
        assert!((out.loss - want.iter().sum::<f64>() / 4.0).abs() < 1e-6, "{}", out.loss);
        // The objective has the mean over the two negatives: τ·ln 2 less.
        assert!((out.objective.unwrap() - TAU * (out.loss - 2_f64.ln())).abs() < 1e-6);
    }

    /// softmax(0.6/σ, 0.96/σ) at σ = ½ gives 1 ∓ tanh 0.36 for 2·softmax.
    #[test]
    fn dclw_weighs_the_closer_pair_less_and_two_pairs_as_two() {
        let (far, close) = (1.0 + 0.36_f64.tanh(), 1.0 - 0.36_f64.tanh());
        let want = ANCHORS.map(|(positive, negatives)| {
            let weight = if positive < 0.9 { far } else { close };
            -weight * positive / TAU + log_negatives(negatives)
        });
        let out = forward(Some(0.5));
        assert!((out.loss - want.iter().sum::<f64>() / 4.0).abs() < 1e-6, "{}", out.loss);
        assert!((out.objective.unwrap() - forward(None).objective.unwrap()).abs() < 1e-9, "weights are the loss's own");
    }

    /// The derivative that `weights` gives against differences of −Σ w·s⁺.
    #[test]
    fn dclw_differentiates_its_weights_too() {
        let (first, second) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), first), (SetName::View(1), second)]);
        let state = SampleState::new(2, &[]);
        let views = Views::new(&LossInput::new(&sets, &[0, 1], &state)).unwrap();
        let loss = Dcl { temperature: TAU, sigma: Some(0.5) };
        let weights = |moved: f64| {
            let positives = [0.6 + moved, 0.96, -0.3, 0.1];
            let anchors = positives.map(|positive| Anchor { positive, log_negatives: 0.0 });
            let weights = loss.weights(&anchors, &views);
            let sum: f64 = weights.iter().zip(positives).map(|((w, _), positive)| -w * positive).sum();
            (weights, sum)
        };
        let numeric = (weights(1e-5).1 - weights(-1e-5).1) / 2e-5;
        let (at, _) = weights(0.0);
        assert!((at[0].1 - numeric).abs() < 1e-8, "{} {numeric}", at[0].1);
        // Each view's weights add up to its number of samples.
        assert!((at[0].0 + at[1].0 - 2.0).abs() < 1e-12 && (at[2].0 + at[3].0 - 2.0).abs() < 1e-12);
    }
}
