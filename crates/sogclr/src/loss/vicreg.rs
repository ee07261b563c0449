//! VICReg: two views shall agree (invariance), every dimension shall vary (variance) and no two together (covariance):
//! λ·mean‖h₁ − h₂‖²/d + μ·½Σ_views mean relu(1 − √(var + ε)) + ν·Σ_views Σᵢ≠ⱼ covᵢⱼ²/d, over the raw embeddings.

use super::{Loss, LossError, LossInput, LossOutput, SetName};
use crate::math::Matrix;
use ndarray::{Array2, Axis, s};

/// Added to the variance, as in its authors' program.
const EPSILON: f64 = 1e-4;

/// VICReg's loss.
#[derive(Clone, Copy, Debug)]
pub struct VicReg {
    /// λ, the weight of the distance between the views.
    pub invariance: f64,
    /// μ, the weight of standard deviations below 1.
    pub variance: f64,
    /// ν, the weight of covariances.
    pub covariance: f64,
}

impl VicReg {
    /// Variance and covariance terms of one view, and their gradient.
    fn regularise(&self, h: &Array2<f64>) -> (f64, Array2<f64>) {
        let (rows, dim) = h.dim();
        let (free, dim_share) = ((rows - 1) as f64, 1.0 / dim as f64);
        let centred = h - &h.mean_axis(Axis(0)).expect("a batch is not empty");
        let mut covariance = centred.t().dot(&centred) / free;
        let deviation = covariance.diag().mapv(|variance| (variance + EPSILON).sqrt());
        covariance.diag_mut().fill(0.0);
        // μ/2·mean relu(1 − σ): ∂σ_k/∂h = centred/(free·σ_k)
        let spread: f64 = deviation.iter().map(|sigma| (1.0 - sigma).max(0.0)).sum::<f64>() * dim_share / 2.0;
        let push =
            deviation.mapv(|sigma| if sigma < 1.0 { -self.variance * dim_share / (2.0 * free * sigma) } else { 0.0 });
        // ν·Σ cov²/d: ∂/∂h = 4ν/(d·free)·centred·cov
        let shared: f64 = covariance.iter().map(|c| c * c).sum::<f64>() * dim_share;
        let gradient = &centred * &push + centred.dot(&covariance) * (4.0 * self.covariance * dim_share / free);
        // The centring takes the mean off, which is 0 already.
        (self.variance * spread + self.covariance * shared, gradient)
    }
}

impl Loss for VicReg {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let names = [SetName::View(0), SetName::View(1)];
        let wide = |h: &Matrix| h.mapv(f64::from);
        let [a, b] = [input.checked(names[0])?.raw(), input.checked(names[1])?.raw()].map(wide);
        let share = 1.0 / a.len() as f64;
        let apart = &a - &b;
        let distance = self.invariance * share * apart.iter().map(|v| v * v).sum::<f64>();
        let ((loss_a, grad_a), (loss_b, grad_b)) = (self.regularise(&a), self.regularise(&b));
        let pull = apart * (2.0 * self.invariance * share);
        let ours = |dh: Array2<f64>| dh.slice(s![input.ours.clone(), ..]).mapv(|v| v as f32);
        let grads = names.into_iter().zip([grad_a + &pull, grad_b - &pull].map(ours)).collect();
        Ok(LossOutput::stateless(distance + loss_a + loss_b, grads, input))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    /// One point: no distance, no covariance, every deviation √ε.
    #[test]
    fn a_collapse_costs_the_whole_variance_term() {
        let point = Matrix::ones((4, 3));
        let sets = EmbeddingSets::new(vec![(SetName::View(0), point.clone()), (SetName::View(1), point)]);
        let state = SampleState::new(4, &[]);
        let loss = VicReg { invariance: 25.0, variance: 8.0, covariance: 1.0 };
        let out = loss.forward(&LossInput::new(&sets, &[0, 1, 2, 3], &state)).unwrap();
        assert!((out.loss - 8.0 * (1.0 - 0.01)).abs() < 1e-9, "{}", out.loss);
    }

    #[test]
    fn wide_uncorrelated_views_pay_only_for_their_distance() {
        let a = array![[2.0_f32, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]];
        let sets = EmbeddingSets::new(vec![(SetName::View(0), a.clone()), (SetName::View(1), &a + 1.0)]);
        let state = SampleState::new(4, &[]);
        let loss = VicReg { invariance: 3.0, variance: 8.0, covariance: 1.0 };
        let out = loss.forward(&LossInput::new(&sets, &[0, 1, 2, 3], &state)).unwrap();
        assert!((out.loss - 3.0).abs() < 1e-9, "{}", out.loss);
    }
}
