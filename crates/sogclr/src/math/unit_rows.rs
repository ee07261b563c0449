//! Rows of unit length, and the way back through the normalisation.

use super::Matrix;
use ndarray::Axis;

/// Smallest norm that is divided by, as in PyTorch's `normalize`.
const MIN_NORM: f32 = 1e-12;

/// Embeddings z = h/‖h‖ with the norms kept for the backward pass. A loss that takes this type can rely on
/// |z| = 1.
#[derive(Clone, Debug)]
pub struct UnitRows {
    rows: Matrix,
    norms: Vec<f32>,
}

impl UnitRows {
    /// Normalises each row of `raw` `[rows, dim]`.
    pub fn new(raw: Matrix) -> Self {
        let mut rows = raw;
        let norms = rows
            .axis_iter_mut(Axis(0))
            .map(|mut row| {
                let squared: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
                let norm = (squared.sqrt() as f32).max(MIN_NORM);
                row.mapv_inplace(|v| v / norm);
                norm
            })
            .collect();
        Self { rows, norms }
    }

    /// z `[rows, dim]`.
    pub fn matrix(&self) -> &Matrix {
        &self.rows
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.norms.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.norms.is_empty()
    }

    /// Values of a row.
    pub fn dim(&self) -> usize {
        self.rows.ncols()
    }

    /// ∂L/∂h from ∂L/∂z for the rows `first..first + dz.nrows()`: dh = (dz − z(z·dz))/‖h‖.
    pub fn backward(&self, first: usize, mut dz: Matrix) -> Matrix {
        for (offset, mut grad) in dz.axis_iter_mut(Axis(0)).enumerate() {
            let z = self.rows.row(first + offset);
            let along = z.dot(&grad);
            let inverse = 1.0 / self.norms[first + offset];
            grad.zip_mut_with(&z, |g, &z| *g = (*g - along * z) * inverse);
        }
        dz
    }

    /// The first row that holds a NaN or an infinity.
    pub fn first_non_finite(&self) -> Option<usize> {
        self.rows.axis_iter(Axis(0)).position(|row| row.iter().any(|v| !v.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn rows_have_unit_length_and_zero_rows_stay_finite() {
        let unit = UnitRows::new(array![[3.0, 4.0], [0.0, 0.0]]);
        assert_eq!(unit.matrix(), &array![[0.6, 0.8], [0.0, 0.0]]);
        assert_eq!(unit.first_non_finite(), None);
        assert_eq!(UnitRows::new(array![[1.0, f32::NAN]]).first_non_finite(), Some(0));
    }

    #[test]
    fn backward_is_the_derivative_of_the_normalisation() {
        let raw = array![[1.0_f32, 2.0, -0.5]];
        let probe = array![[0.3_f32, -0.7, 1.1]];
        let analytic = UnitRows::new(raw.clone()).backward(0, probe.clone());
        let value = |m: &Matrix| (UnitRows::new(m.clone()).matrix() * &probe).sum();
        for k in 0..3 {
            let (mut up, mut down) = (raw.clone(), raw.clone());
            up[[0, k]] += 1e-2;
            down[[0, k]] -= 1e-2;
            let numeric = (value(&up) - value(&down)) / 2e-2;
            assert!((numeric - analytic[[0, k]]).abs() < 1e-3, "{numeric} {}", analytic[[0, k]]);
        }
    }
}
