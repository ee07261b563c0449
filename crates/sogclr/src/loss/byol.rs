//! BYOL: the prediction from one view shall point where the target network puts the other, with nothing to contrast:
//! mean of ‖p̄₁ − k̄₂‖² + ‖p̄₂ − k̄₁‖² = (2 − 2·cos(p₁, k₂)) + (2 − 2·cos(p₂, k₁)). The target's keys have no gradient.

use super::{Loss, LossError, LossInput, LossOutput, SetName};
use crate::math::{Matrix, UnitRows};
use ndarray::s;

/// BYOL's loss; it has no parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Byol;

impl Loss for Byol {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        // 2 − 2·cos, both directions
        let directions = [(0, 1), (1, 0)].map(|(p, k)| (SetName::Predictor(p), SetName::Key(k)));
        let (cosines, grads) = mean_cosines(input, directions, -2.0)?;
        Ok(LossOutput::stateless(4.0 - 2.0 * cosines, grads, input))
    }
}

/// Σ over the directions of the mean cos(pᵢ, targetᵢ), and `factor` times its gradient with respect to the raw predictions.
pub(super) fn mean_cosines(
    input: &LossInput,
    directions: [(SetName, SetName); 2],
    factor: f64,
) -> Result<(f64, Vec<(SetName, Matrix)>), LossError> {
    let (mut sum, mut grads) = (0.0, Vec::new());
    let mean = 1.0 / input.ids.len() as f64;
    for (predictions, targets) in directions {
        let (p, target): (&UnitRows, &UnitRows) = (input.checked_unit(predictions)?, input.checked_unit(targets)?);
        let cosine = |(p, k): (ndarray::ArrayView1<f32>, ndarray::ArrayView1<f32>)| {
            p.iter().zip(k).map(|(p, k)| f64::from(*p) * f64::from(*k)).sum::<f64>()
        };
        sum += mean * p.matrix().outer_iter().zip(target.matrix().outer_iter()).map(cosine).sum::<f64>();
        // ∂cos/∂p̄ = target
        let dz = target.matrix().slice(s![input.ours.clone(), ..]).mapv(|v| (factor * mean) as f32 * v);
        grads.push((predictions, dz));
    }
    Ok((sum, input.through_norms(grads)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    /// cos is 0 and 1 in one direction, 0.6 and −1 in the other: 4 − 2·(½ − 0.2).
    #[test]
    fn the_value_is_the_squared_distance_of_directions() {
        let sets = EmbeddingSets::new(vec![
            (SetName::Predictor(0), array![[2.0, 0.0], [0.0, 3.0]]),
            (SetName::Predictor(1), array![[3.0, 4.0], [0.0, 1.0]]),
            (SetName::Key(0), array![[5.0, 0.0], [0.0, -2.0]]),
            (SetName::Key(1), array![[0.0, 1.0], [0.0, 7.0]]),
        ]);
        let state = SampleState::new(2, &[]);
        let out = Byol.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap();
        assert!((out.loss - 3.4).abs() < 1e-6, "{}", out.loss);
        assert_eq!(out.objective, None, "nothing is contrasted");
        // A prediction that points at its target does not move.
        assert!(out.grads[0].1.row(1).iter().all(|g| g.abs() < 1e-7));
    }
}
