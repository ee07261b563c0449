//! NNCLR: the nearest neighbour of one view in a support set against the other view's predictions,
//! −ln exp(nn(z₁)ᵢ·p₂ᵢ/τ)/Σⱼ exp(nn(z₁)ᵢ·p₂ⱼ/τ), averaged over both directions. The gradient flows through p alone.

use super::{Loss, LossError, LossInput, LossOutput, SetName};
use crate::math::Isa;
use crate::math::{Matrix, UnitRows, log_sum_exp, map_rows, weighted_keys};
use ndarray::{ArrayView2, Axis, s};

/// NNCLR's loss in both directions.
#[derive(Clone, Debug)]
pub struct NearestNce {
    /// τ, what similarities are divided by.
    pub temperature: f64,
}

/// The row of `support` most similar to each row of `z`; of equals the first.
fn nearest(isa: Isa, z: &UnitRows, support: ArrayView2<f32>) -> Matrix {
    let found = map_rows(isa, z.matrix().view(), support, |_, s| {
        (1..s.len()).fold(0, |best, row| if s[row] > s[best] { row } else { best })
    });
    support.select(Axis(0), &found)
}

impl Loss for NearestNce {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let (tau, batch) = (self.temperature, input.ids.len());
        let mean = 1.0 / (2 * batch) as f64;
        let (mut loss, mut objective, mut grads) = (0.0, 0.0, Vec::new());
        for (from, to) in [(0, 1), (1, 0)] {
            let z = input.checked_unit(SetName::View(from))?;
            let name = SetName::Predictor(to);
            let p = input.checked_unit(name)?;
            let anchors = nearest(input.isa, z, input.checked_queue(p.dim())?);
            // (s⁺, ln Σⱼ, ln Σ_{j≠i}) for each i
            let rows = map_rows(input.isa, anchors.view(), p.matrix().view(), |i, s| {
                let logits = s.iter().map(|&s| f64::from(s) / tau);
                let others = logits.clone().enumerate().filter(|&(j, _)| j != i).map(|(_, logit)| logit);
                (f64::from(s[i]), log_sum_exp(logits), log_sum_exp(others))
            });
            let log_count = (batch as f64 - 1.0).ln();
            for &(positive, log_sum, log_others) in &rows {
                loss += mean * (log_sum - positive / tau);
                objective += mean * (-positive + tau * (log_others - log_count));
            }
            // ∂/∂p_j = 1/(2Bτ)·Σᵢ (softmax_ij − [i = j])·nnᵢ
            let (scale, first) = (mean / tau, input.ours.start);
            let ours = p.matrix().slice(s![input.ours.clone(), ..]);
            let grad = weighted_keys(input.isa, ours, anchors.view(), |row, mut s| {
                for (i, s) in s.iter_mut().enumerate() {
                    let softmax = (f64::from(*s) / tau - rows[i].1).exp();
                    *s = (scale * (softmax - f64::from(u8::from(i == first + row)))) as f32;
                }
            });
            grads.push((name, grad));
        }
        LossOutput::contrasted(loss, objective, grads, input)
    }
}
