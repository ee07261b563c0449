//! SigLIP: every pair of image and text is a question of its own, −1/B Σ_ij ln σ(y_ij·(s_ij/τ + bias)), y = 1 for matched
//! pairs and −1 for all others. Scale 1/τ and bias are learned.

use super::clip::LOG_SCALE;
use super::pairs::{Pairs, Side};
use super::{Loss, LossError, LossInput, LossOutput};
use crate::math::{log_add_exp, log_sum_exp, map_rows};

/// The bias among [`LossOutput::parameter_grads`].
pub const BIAS: &str = "bias";

/// SigLIP's loss; both parameters are learned.
#[derive(Clone, Debug)]
pub struct SigLip {
    /// τ, the inverse of the scale of the logits.
    pub temperature: f64,
    /// What is added to every logit.
    pub bias: f64,
}

impl SigLip {
    /// (−ln σ(y·logit), its derivative by the logit)
    fn question(&self, is_pair: bool, s: f64) -> (f64, f64) {
        let y = if is_pair { 1.0 } else { -1.0 };
        let margin = y * (s / self.temperature + self.bias);
        // −ln σ(x) = ln(1 + e^−x), and its derivative −σ(−x)
        let value = log_add_exp(0.0, -margin);
        (value, -y * (-margin - value).exp())
    }
}

impl Loss for SigLip {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let tau = self.temperature;
        let pairs = Pairs::new(input)?;
        let mean = 1.0 / pairs.len() as f64;
        let (images, texts) = pairs.rows(Side::Image);
        let log_count = ((pairs.len() - 1) as f64).ln();
        let rows = map_rows(input.isa, images.view(), texts.view(), |i, s| {
            let (mut value, mut scale_grad, mut bias_grad) = (0.0, 0.0, 0.0);
            for (j, &s) in s.iter().enumerate() {
                let (each, slope) = self.question(i == j, f64::from(s));
                value += each;
                scale_grad += slope * f64::from(s) / tau;
                bias_grad += slope;
            }
            let others = s.iter().enumerate().filter(|&(j, _)| j != i).map(|(_, &s)| f64::from(s) / tau);
            let objective = -f64::from(s[i]) + tau * (log_sum_exp(others) - log_count);
            [value, objective, scale_grad, bias_grad]
        });
        let sum = |k: usize| rows.iter().map(|row| row[k]).sum::<f64>() * mean;
        let grads = pairs.gradient(|i, j, s| (mean / tau * self.question(i == j, f64::from(s)).1) as f32);
        let mut out = LossOutput::contrasted(sum(0), sum(1), grads, input)?;
        out.parameter_grads = vec![(LOG_SCALE, sum(2)), (BIAS, sum(3))];
        Ok(out)
    }
}
