//! SimSiam: the prediction from one view shall point where the other's embedding does, whose gradient is stopped:
//! −½·[cos(p₁, sg z₂) + cos(p₂, sg z₁)], the mean over the batch.

use super::byol::mean_cosines;
use super::{Loss, LossError, LossInput, LossOutput, SetName};

/// SimSiam's loss; it has no parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimSiam;

impl Loss for SimSiam {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let directions = [(0, 1), (1, 0)].map(|(p, z)| (SetName::Predictor(p), SetName::View(z)));
        let (cosines, grads) = mean_cosines(input, directions, -0.5)?;
        Ok(LossOutput::stateless(-0.5 * cosines, grads, input))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    #[test]
    fn perfect_predictions_reach_minus_one_and_views_have_no_gradient() {
        let z = array![[3.0_f32, 4.0], [0.0, 2.0]];
        let names = [SetName::View(0), SetName::View(1), SetName::Predictor(0), SetName::Predictor(1)];
        let sets = EmbeddingSets::new(names.map(|name| (name, z.clone())).to_vec());
        let state = SampleState::new(2, &[]);
        let out = SimSiam.forward(&LossInput::new(&sets, &[0, 1], &state)).unwrap();
        assert!((out.loss + 1.0).abs() < 1e-6, "{}", out.loss);
        let sets: Vec<SetName> = out.grads.iter().map(|(name, _)| *name).collect();
        assert_eq!(sets, [SetName::Predictor(0), SetName::Predictor(1)]);
    }
}
