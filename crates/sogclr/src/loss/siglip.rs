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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{EmbeddingSets, SetName};
    use crate::state::SampleState;
    use ndarray::array;

    /// s = [[0.6, 0.28], [0.8, 0.96]], images in rows; s/½ − 1 = [[0.2, −0.44], [0.6, 0.92]].
    #[test]
    fn every_pair_is_a_question_of_its_own() {
        let (images, texts) = (array![[2.0, 0.0], [0.0, 1.0]], array![[3.0, 4.0], [7.0, 24.0]]);
        let sets = EmbeddingSets::new(vec![(SetName::View(0), images), (SetName::Text, texts)]);
        let state = SampleState::new(2, &[]);
        let out = SigLip { temperature: 0.5, bias: -1.0 }.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap();
        // −ln σ(x) = ln(1 + e^−x): x = 0.2 and 0.92 of the pairs, 0.44 and −0.6 of the others
        let want = [0.2_f64, 0.92, 0.44, -0.6].map(|x| (-x).exp().ln_1p()).iter().sum::<f64>() / 2.0;
        assert!((out.loss - want).abs() < 1e-6, "{} {want}", out.loss);

        // ∂/∂logit: −σ(−x) for pairs, σ of the logit for others; ∂logit/∂ln(1/τ) = s/τ
        let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
        let slopes = [(-sigma(-0.2), 1.2), (-sigma(-0.92), 1.92), (sigma(-0.44), 0.56), (sigma(0.6), 1.6)];
        let [(scale_name, scale), (bias_name, bias)] = out.parameter_grads[..] else { panic!("two parameters") };
        assert_eq!((scale_name, bias_name), (LOG_SCALE, BIAS));
        assert!((bias - slopes.iter().map(|(slope, _)| slope).sum::<f64>() / 2.0).abs() < 1e-6, "{bias}");
        assert!((scale - slopes.iter().map(|(slope, s)| slope * s).sum::<f64>() / 2.0).abs() < 1e-6, "{scale}");
    }
}
