//! Barlow Twins: the correlation between the dimensions of two views over the batch shall be the identity,
//! Σᵢ (1 − Cᵢᵢ)² + λ·Σᵢ≠ⱼ Cᵢⱼ² with C = Y₁ᵀY₂/B and Y the embeddings standardised over the batch.

use super::{Loss, LossError, LossInput, LossOutput, SetName};
use crate::math::Matrix;
use ndarray::{Array1, Array2, Axis, s};

/// What batch norm adds to the variance.
const EPSILON: f64 = 1e-5;

/// Barlow Twins' loss.
#[derive(Clone, Copy, Debug)]
pub struct BarlowTwins {
    /// λ, the weight of correlations between different dimensions.
    pub lambda: f64,
}

/// One view standardised over the batch.
struct Standardised {
    /// (h − mean)/√(var + ε)   [B, d]
    y: Array2<f64>,
    /// √(var + ε), the biased variance   `[d]`
    deviation: Array1<f64>,
}

impl Standardised {
    fn new(h: &Matrix) -> Self {
        let h = h.mapv(f64::from);
        let centred = &h - &h.mean_axis(Axis(0)).expect("a batch is not empty");
        let variance = (&centred * &centred).mean_axis(Axis(0)).expect("a batch is not empty");
        let deviation = variance.mapv(|v| (v + EPSILON).sqrt());
        Self { y: &centred / &deviation, deviation }
    }

    /// ∂L/∂h from ∂L/∂y: (dy − mean dy − y·mean(dy·y))/deviation
    fn backward(&self, dy: &Array2<f64>) -> Array2<f64> {
        let mean = dy.mean_axis(Axis(0)).expect("a batch is not empty");
        let along = (dy * &self.y).mean_axis(Axis(0)).expect("a batch is not empty");
        (dy - &mean - &self.y * &along) / &self.deviation
    }
}

impl Loss for BarlowTwins {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        let names = [SetName::View(0), SetName::View(1)];
        let [a, b] = [input.checked(names[0])?.raw(), input.checked(names[1])?.raw()].map(Standardised::new);
        let mean = 1.0 / input.ids.len() as f64;
        let correlation = a.y.t().dot(&b.y) * mean;
        let mut loss = 0.0;
        // ∂L/∂C: −2(1 − Cᵢᵢ), 2λCᵢⱼ
        let slope = Array2::from_shape_fn(correlation.dim(), |(i, j)| {
            let c = correlation[[i, j]];
            if i == j {
                loss += (1.0 - c).powi(2);
                return -2.0 * (1.0 - c);
            }
            loss += self.lambda * c * c;
            2.0 * self.lambda * c
        });
        // C = AᵀB/B: ∂L/∂A = B·slopeᵀ/B, ∂L/∂B = A·slope/B
        let gradients = [a.backward(&(b.y.dot(&slope.t()) * mean)), b.backward(&(a.y.dot(&slope) * mean))];
        let ours = |dh: Array2<f64>| dh.slice(s![input.ours.clone(), ..]).mapv(|v| v as f32);
        let grads = names.into_iter().zip(gradients.map(ours)).collect();
        Ok(LossOutput::stateless(loss, grads, input))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::array;

    /// Two dimensions that do not correlate, the second view the first one stretched and shifted: C is the identity.
    #[test]
    fn equal_uncorrelated_views_are_perfect() {
        let a = array![[1.0_f32, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]];
        let b = &a * 3.0 + 5.0;
        let state = SampleState::new(4, &[]);
        let loss = |b: Matrix| {
            let sets = EmbeddingSets::new(vec![(SetName::View(0), a.clone()), (SetName::View(1), b)]);
            BarlowTwins { lambda: 0.5 }.forward(&LossInput::new(&sets, &[0, 1, 2, 3], &state)).unwrap().loss
        };
        assert!(loss(b) < 1e-8);
        // The second view's dimensions are both the first one: C = [[1, 1], [0, 0]], (1 − 0)² + λ·1².
        let copied = array![[1.0_f32, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]];
        assert!((loss(copied) - 1.5).abs() < 1e-4);
    }
}
