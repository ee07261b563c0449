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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    #[test]
    fn the_neighbour_is_the_most_similar_row_and_of_equals_the_first() {
        let z = UnitRows::new(array![[5.0, 0.0], [0.0, 2.0]]);
        let support = array![[0.0, -1.0], [0.6, 0.8], [0.6, -0.8]];
        // (1, 0): 0, 0.6, 0.6; (0, 1): −1, 0.8, −0.8
        assert_eq!(nearest(Isa::best(), &z, support.view()), array![[0.6, 0.8], [0.6, 0.8]]);
        // (1, 0): 0.28 and 0.6; (0, 1): 0.96 and −0.8
        let support = array![[0.28, 0.96], [0.6, -0.8]];
        assert_eq!(nearest(Isa::best(), &z, support.view()), array![[0.6, -0.8], [0.28, 0.96]]);
    }

    /// View 0's neighbours are (0.8, 0.6) and (−0.6, 0.8), at 0.8 and 0.6, −0.6 and 0.8 of the predictions from view 1; both of
    /// view 1's are (0.8, 0.6), at 0.96 and −0.6 of the predictions from view 0.
    #[test]
    fn neighbours_of_one_view_are_contrasted_with_the_others_predictions() {
        let sets = EmbeddingSets::new(vec![
            (SetName::View(0), array![[2.0, 0.0], [0.0, 3.0]]),
            (SetName::View(1), array![[2.0, 0.1], [3.0, 0.1]]),
            (SetName::Predictor(0), array![[3.0, 4.0], [0.0, -2.0]]),
            (SetName::Predictor(1), array![[5.0, 0.0], [0.0, 1.0]]),
        ]);
        let (state, queue) = (SampleState::new(2, &[]), array![[0.8_f32, 0.6], [-0.6, 0.8]]);
        let input = LossInput { queue: Some(queue.view()), ..LossInput::new(&sets, &[0, 1], &state) };
        let out = NearestNce { temperature: 0.5 }.forward(&input).unwrap();
        let apart = [0.6 - 0.8, -0.6 - 0.8, -0.6 - 0.96, 0.96 + 0.6];
        let want = apart.iter().map(|d| (d / 0.5_f64).exp().ln_1p()).sum::<f64>() / 4.0;
        assert!((out.loss - want).abs() < 1e-6, "{} {want}", out.loss);
        let names: Vec<SetName> = out.grads.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [SetName::Predictor(1), SetName::Predictor(0)], "views have no gradient");
        let without = LossInput::new(&sets, &[0, 1], &state);
        assert_eq!(NearestNce { temperature: 0.5 }.forward(&without).err(), Some(LossError::NoQueue));
    }
}
