//! Theorem 2's ε: how much the similarity to other images depends on which augmentation of an image is taken,
//! E_{A,A′} E_{z∈S_i} |E(A(x_i))ᵀE(z) − E(A′(x_i))ᵀE(z)|², for each image (Figure 3).

use super::FiniteProblem;
use crate::math::UnitRows;
use ndarray::{Array2, s};

/// ε² of every image, exactly over all its pairs of augmentations and all augmentations of the other images.
pub fn epsilon_squares(problem: &FiniteProblem) -> Vec<f64> {
    let z = UnitRows::new(problem.embeddings.clone()).matrix().mapv(f64::from);
    let (images, views) = (problem.images(), problem.augmentations);
    let second_moments: Array2<f64> = z.t().dot(&z);
    let others = ((images - 1) * views) as f64;
    (0..images)
        .map(|image| {
            let own = z.slice(s![image * views..(image + 1) * views, ..]);
            // Σ over z ∈ S_i of (dᵀz)² = dᵀ(Σ zzᵀ)d
            let moments = (&second_moments - &own.t().dot(&own)) / others;
            let mut sum = 0.0;
            for a in own.outer_iter() {
                for b in own.outer_iter() {
                    let d = &a - &b;
                    sum += d.dot(&moments.dot(&d));
                }
            }
            sum / (views * views) as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Matrix;

    #[test]
    fn epsilon_is_its_definition() {
        let views = 3;
        let embeddings = Matrix::from_shape_fn((4 * views, 5), |(r, c)| ((r * 5 + c * 3) as f32 * 0.9).sin());
        let z = UnitRows::new(embeddings.clone()).matrix().mapv(f64::from);
        let found = epsilon_squares(&FiniteProblem { embeddings, augmentations: views });
        for (image, found) in found.iter().enumerate() {
            let own = image * views..(image + 1) * views;
            let (mut sum, mut count) = (0.0, 0.0);
            for a in own.clone() {
                for b in own.clone() {
                    for other in (0..z.nrows()).filter(|row| !own.contains(row)) {
                        sum += (z.row(a).dot(&z.row(other)) - z.row(b).dot(&z.row(other))).powi(2);
                        count += 1.0;
                    }
                }
            }
            assert!((found - sum / count).abs() < 1e-12, "image {image}: {found}");
        }
    }
}
