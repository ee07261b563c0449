//! CLIP's InfoNCE: ½ of the cross-entropy of every image among the texts and ½ of that of every text among the images,
//! the matched pair in the denominator. The scale 1/τ may be learned.

use super::pairs::{PairAnchor, Pairs, Side};
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::log_add_exp;

/// The gradient that [`LossOutput::parameter_grads`] holds: that of ln(1/τ).
pub const LOG_SCALE: &str = "log_scale";

/// CLIP's InfoNCE in both directions.
#[derive(Clone, Debug)]
pub struct Clip {
    /// τ, learned or fixed.
    pub temperature: f64,
}

impl Loss for Clip {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let pairs = Pairs::new(input)?;
        let mean = 0.5 / pairs.len() as f64;
        let log_count = ((pairs.len() - 1) as f64).ln();
        let log_all = |a: &PairAnchor| log_add_exp(a.positive / tau, a.negatives.log_sum);
        let (mut loss, mut objective, mut log_scale_grad) = (0.0, 0.0, 0.0);
        let (mut offsets, mut missed) = (Vec::new(), vec![0.0; pairs.len()]);
        for side in Side::BOTH {
            let anchors = pairs.anchors(side, |_| tau);
            for (i, a) in anchors.iter().enumerate() {
                let all = log_all(a);
                loss += mean * (all - a.positive / tau);
                objective += mean * (-a.positive + tau * (a.negatives.log_sum - log_count));
                // ∂/∂ln(1/τ) = 1/τ·(Σ_j p_j s_j − s⁺), the softmax over negatives and positive
                let share = (a.negatives.log_sum - all).exp();
                log_scale_grad += mean / tau * share * (a.negatives.mean - a.positive);
                // 1 − p⁺, of both sides
                missed[i] += share;
            }
            offsets.push(anchors.iter().map(|a| -log_all(a) as f32).collect::<Vec<_>>());
        }
        let scale = (mean / tau) as f32;
        let inverse_tau = vec![(1.0 / tau) as f32; pairs.len()];
        let grads = pairs.softmax_gradient([&inverse_tau, &inverse_tau], [&offsets[0], &offsets[1]], scale, |i, _| {
            -scale * missed[i] as f32
        });
        let mut out = LossOutput::contrasted(loss, objective, grads, input)?;
        out.parameter_grads = vec![(LOG_SCALE, log_scale_grad)];
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    /// s = [[0.6, 0.28], [0.8, 0.96]], images in rows; without `matched` the two texts change places.
    fn forward(temperature: f64, matched: bool) -> LossOutput {
        let texts = if matched { array![[3.0, 4.0], [7.0, 24.0]] } else { array![[7.0, 24.0], [3.0, 4.0]] };
        let sets = EmbeddingSets::new(vec![(SetName::View(0), array![[2.0, 0.0], [0.0, 1.0]]), (SetName::Text, texts)]);
        let state = SampleState::new(2, &[]);
        Clip { temperature }.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap()
    }

    /// (s⁻ − s⁺)/τ at τ = ½: 0.28 and 0.8 against 0.6 and 0.96 for the images, 0.8 and 0.28 for the texts.
    #[test]
    fn two_pairs_cost_the_mean_cross_entropy_of_both_sides() {
        let apart = [-0.64_f64, -0.32, 0.4, -1.36];
        let want = apart.iter().map(|d| d.exp().ln_1p()).sum::<f64>() / 4.0;
        let out = forward(0.5, true);
        assert!((out.loss - want).abs() < 1e-6, "{} {want}", out.loss);
        // One negative each: −s⁺ + τ·ln e^{s⁻/τ} = s⁻ − s⁺, in the mean −0.24.
        assert!((out.objective.unwrap() + 0.24).abs() < 1e-6);
    }

    #[test]
    fn the_scale_rises_for_matched_pairs_and_falls_for_swapped_ones() {
        let slope = |matched| {
            let h = 1e-4_f64;
            (forward(0.5 * (-h).exp(), matched).loss - forward(0.5 * h.exp(), matched).loss) / (2.0 * h)
        };
        for matched in [true, false] {
            let [(name, grad)] = forward(0.5, matched).parameter_grads[..] else { panic!("one parameter") };
            assert_eq!((name, grad < 0.0), (LOG_SCALE, matched));
            assert!((grad - slope(matched)).abs() < 1e-3, "{grad} {}", slope(matched));
        }
    }
}
