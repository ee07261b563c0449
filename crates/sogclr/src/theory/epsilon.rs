//! Theorem 2's ε: how much the similarity to other images depends on which augmentation of an image is taken,
//! E_{A,A′} E_{z∈S_i} |E(A(x_i))ᵀE(z) − E(A′(x_i))ᵀE(z)|², for each image (Figure 3).

use super::FiniteProblem;
use crate::math::UnitRows;
use ndarray::{Array2, ArrayView2, Axis, s};

/// ε² of every image: over all pairs of two of its augmentations and all augmentations of the other images.
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
            // The diagonal is 0 and no pair: two draws from all augmentations are not the same one.
            sum / (views * (views - 1)) as f64
        })
        .collect()
}

/// The variance of the similarity between two different images.
pub fn similarity_variance(problem: &FiniteProblem) -> f64 {
    let z = UnitRows::new(problem.embeddings.clone()).matrix().mapv(f64::from);
    // Sums over all pairs of rows less those of one image: Σ aᵀb = ‖Σz‖², Σ (aᵀb)² = ‖Σ zzᵀ‖².
    let sums = |rows: ArrayView2<f64>| {
        let (sum, moments) = (rows.sum_axis(Axis(0)), rows.t().dot(&rows));
        (sum.dot(&sum), moments.iter().map(|v| v * v).sum::<f64>())
    };
    let (mut first, mut second) = sums(z.view());
    for own in z.axis_chunks_iter(Axis(0), problem.augmentations) {
        let (own_first, own_second) = sums(own);
        (first, second) = (first - own_first, second - own_second);
    }
    let pairs = (z.nrows() * (z.nrows() - problem.augmentations)) as f64;
    second / pairs - (first / pairs).powi(2)
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
                for b in own.clone().filter(|b| *b != a) {
                    for other in (0..z.nrows()).filter(|row| !own.contains(row)) {
                        sum += (z.row(a).dot(&z.row(other)) - z.row(b).dot(&z.row(other))).powi(2);
                        count += 1.0;
                    }
                }
            }
            assert!((found - sum / count).abs() < 1e-12, "image {image}: {found}");
        }
    }
    #[test]
    fn the_variance_of_similarities_is_its_definition() {
        let views = 2;
        let embeddings = Matrix::from_shape_fn((5 * views, 3), |(r, c)| ((r * 7 + c * 2) as f32 * 0.8).cos());
        let z = UnitRows::new(embeddings.clone()).matrix().mapv(f64::from);
        let mut all = Vec::new();
        for a in 0..z.nrows() {
            all.extend((0..z.nrows()).filter(|b| b / views != a / views).map(|b| z.row(a).dot(&z.row(b))));
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let expected = all.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / all.len() as f64;
        let found = similarity_variance(&FiniteProblem { embeddings, augmentations: views });
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
}
