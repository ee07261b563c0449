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
