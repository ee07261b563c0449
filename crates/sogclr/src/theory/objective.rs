//! The global objective on a finite problem, exactly and in f64: its value, its gradient, and what the estimators of a batch
//! are compared with.
//!
//! n images with M augmentations each, all of them known: z `[n·M, d]` are the unit-norm embeddings, image after image.
//! S_i are all augmentations of the other images, |S_i| = (n−1)M.
//!
//! V1 (eqs. 3–5): F = 1/n Σ_i E_{A,A′}[−z_A·z_A′] + τ/n Σ_i E_A ln g_iA,  g_iA = mean over S_i of exp(z_A·z/τ)
//! V2 (eq. 13):   the second term is τ/n Σ_i ln E_A g_iA
//!
//! A and A′ are drawn independently from the M augmentations.

use crate::math::log_sum_exp;
use ndarray::{Array2, ArrayView2};
use serde::{Deserialize, Serialize};

/// Where the logarithm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// A normaliser for each augmented anchor.
    V1,
    /// One normaliser for each image, averaged over its augmentations; what u estimates.
    V2,
}

/// The value of F and ∂F/∂z `[n·M, d]`, taking z as free.
pub fn global_objective(z: ArrayView2<f64>, augmentations: usize, tau: f64, version: Version) -> (f64, Array2<f64>) {
    let (rows, views) = (z.nrows(), augmentations);
    let images = rows / views;
    let logits = z.dot(&z.t()) / tau;
    // ln of what the anchor's normaliser is divided by: its own g, or the mean of its image's
    let log_g = log_normalisers(&logits, views);
    let log_u: Vec<f64> = match version {
        Version::V1 => log_g,
        Version::V2 => of_anchors(&log_means(&log_g, views), views),
    };
    let normalisers: f64 = tau / rows as f64 * log_u.iter().sum::<f64>();
    // E_{A,A′} z_A·z_A′ = ‖mean‖²
    let means = image_means(z, views);
    let positives = -means.iter().map(|m| m * m).sum::<f64>() / images as f64;
    (positives + normalisers, gradient(z, &logits, views, &log_u))
}

/// What SogCLR's gradient is in the mean over batches, where every image's u is given: ∂F/∂z of V2 with u in the place of the
/// normalisers. `[n·M, d]`
pub fn gradient_given_u(z: ArrayView2<f64>, augmentations: usize, tau: f64, log_u: &[f64]) -> Array2<f64> {
    gradient(z, &(z.dot(&z.t()) / tau), augmentations, &of_anchors(log_u, augmentations))
}

/// One value for each image, repeated for its augmentations.
fn of_anchors(of_images: &[f64], views: usize) -> Vec<f64> {
    of_images.iter().flat_map(|value| std::iter::repeat_n(*value, views)).collect()
}

/// The mean of each image's augmentations.
fn image_means(z: ArrayView2<f64>, views: usize) -> Array2<f64> {
    let mut means = Array2::zeros((z.nrows() / views, z.ncols()));
    for (row, z) in z.outer_iter().enumerate() {
        means.row_mut(row / views).scaled_add(1.0 / views as f64, &z);
    }
    means
}

/// ∂F/∂z with each anchor's normaliser divided by its own u.
fn gradient(z: ArrayView2<f64>, logits: &Array2<f64>, views: usize, log_u: &[f64]) -> Array2<f64> {
    let rows = z.nrows();
    let images = rows / views;
    assert!(images >= 2 && images * views == rows && log_u.len() == rows, "whole images, at least two");
    let log_size = ((rows - views) as f64).ln();
    // c_ab = 1/(nM|S|)·(exp(s_ab/τ)/u_a + exp(s_ab/τ)/u_b) for different images
    let c = Array2::from_shape_fn((rows, rows), |(a, b)| {
        if a / views == b / views {
            return 0.0;
        }
        let weight = |of: usize| (logits[[a, b]] - log_u[of] - log_size).exp();
        (weight(a) + weight(b)) / rows as f64
    });
    let mut grad = c.dot(&z);
    let means = image_means(z, views);
    for (row, mut grad) in grad.outer_iter_mut().enumerate() {
        grad.scaled_add(-2.0 / rows as f64, &means.row(row / views));
    }
    grad
}

/// ln g of every anchor.
fn log_normalisers(logits: &Array2<f64>, views: usize) -> Vec<f64> {
    let rows = logits.nrows();
    let log_size = ((rows - views) as f64).ln();
    let others = |a: usize| (0..rows).filter(move |b| b / views != a / views);
    (0..rows).map(|a| log_sum_exp(others(a).map(|b| logits[[a, b]])) - log_size).collect()
}

/// ln of every image's normaliser, the mean of g over its augmentations: what u estimates.
pub fn log_image_normalisers(z: ArrayView2<f64>, augmentations: usize, tau: f64) -> Vec<f64> {
    log_means(&log_normalisers(&(z.dot(&z.t()) / tau), augmentations), augmentations)
}

/// ln of the mean of g over each image's augmentations.
fn log_means(log_g: &[f64], views: usize) -> Vec<f64> {
    log_g.chunks(views).map(|of| log_sum_exp(of.iter().copied()) - (views as f64).ln()).collect()
}

/// ∂/∂h of a function of z = h/‖h‖, from its gradient ∂/∂z: (I − zzᵀ)·dz/‖h‖ by rows.
pub fn through_norm(h: ArrayView2<f64>, dz: ArrayView2<f64>) -> Array2<f64> {
    let mut dh = dz.to_owned();
    for (mut row, h) in dh.outer_iter_mut().zip(h.outer_iter()) {
        let norm = h.dot(&h).sqrt();
        let z = &h / norm;
        let along = z.dot(&row);
        row.zip_mut_with(&z, |d, z| *d = (*d - along * z) / norm);
    }
    dh
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device, Tensor, TensorData};

    fn random(rows: usize, dim: usize) -> Array2<f64> {
        Array2::from_shape_fn((rows, dim), |(r, c)| ((r * 7 + c * 13) as f64 * 0.7).sin() + 0.1 * (r as f64).cos())
    }

    /// The definition, term by term.
    fn by_definition(z: &Array2<f64>, m: usize, tau: f64, version: Version) -> f64 {
        let (rows, n) = (z.nrows(), z.nrows() / m);
        let s = |a: usize, b: usize| z.row(a).dot(&z.row(b));
        let mut total = 0.0;
        for i in 0..n {
            let own: Vec<usize> = (i * m..(i + 1) * m).collect();
            for &a in &own {
                for &b in &own {
                    total -= s(a, b) / (n * m * m) as f64;
                }
            }
            let g = |a: usize| {
                let others: Vec<usize> = (0..rows).filter(|b| b / m != i).collect();
                others.iter().map(|&b| (s(a, b) / tau).exp()).sum::<f64>() / others.len() as f64
            };
            let gs: Vec<f64> = own.iter().map(|&a| g(a)).collect();
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            total += tau / n as f64
                * match version {
                    Version::V1 => mean(&gs.iter().map(|g| g.ln()).collect::<Vec<_>>()),
                    Version::V2 => mean(&gs).ln(),
                };
        }
        total
    }

    #[test]
    fn value_and_gradient_are_those_of_the_definition() {
        let (m, tau) = (3, 0.3);
        let z = random(4 * m, 5);
        for version in [Version::V1, Version::V2] {
            let (value, grad) = global_objective(z.view(), m, tau, version);
            assert!((value - by_definition(&z, m, tau, version)).abs() < 1e-12);
            for (r, c) in [(0, 0), (2, 4), (5, 1), (11, 3)] {
                let moved = |by: f64| {
                    let mut z = z.clone();
                    z[[r, c]] += by;
                    by_definition(&z, m, tau, version)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((slope - grad[[r, c]]).abs() < 1e-7, "{version:?} [{r}, {c}]: {slope} vs {}", grad[[r, c]]);
            }
        }
    }

    #[test]
    fn normalisation_has_its_gradient() {
        let (h, probe) = (random(3, 4), random(3, 4) * 2.0);
        let unit = |h: &Array2<f64>| {
            let mut z = h.clone();
            z.outer_iter_mut().for_each(|mut row| {
                let norm = row.dot(&row).sqrt();
                row /= norm;
            });
            z
        };
        let value = |h: &Array2<f64>| (&unit(h) * &probe).sum();
        let grad = through_norm(h.view(), probe.view());
        for (r, c) in [(0, 1), (2, 3)] {
            let moved = |by: f64| {
                let mut h = h.clone();
                h[[r, c]] += by;
                value(&h)
            };
            let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((slope - grad[[r, c]]).abs() < 1e-7);
        }
    }

    /// A linear network, f64 all the way: the gradient of its weights by our formulas and by burn's autodiff of the definition.
    #[test]
    fn the_gradient_of_the_weights_is_autodiffs() {
        // Powers of two: burn's scalars are f32.
        let (n, m, tau) = (4, 2, 0.25);
        let (x, w) = (random(n * m, 6), random(6, 5));
        let device = Device::flex().autodiff();
        let tensor = |values: &Array2<f64>| {
            let data = TensorData::new(values.iter().copied().collect::<Vec<f64>>(), [values.nrows(), values.ncols()]);
            Tensor::<2>::from_data(data, (&device, DType::F64))
        };
        // 1 where two rows are of one image.
        let same = Array2::from_shape_fn((n * m, n * m), |(a, b)| f64::from(a / m == b / m));
        let image = Array2::from_shape_fn((n, n * m), |(i, a)| f64::from(a / m == i) / m as f64);
        for version in [Version::V1, Version::V2] {
            let weights = tensor(&w).require_grad();
            let h = tensor(&x).matmul(weights.clone());
            let z = h.clone() / h.square().sum_dim(1).sqrt();
            let s = z.clone().matmul(z.transpose());
            let positives = (s.clone() * tensor(&same)).sum() * (-1.0 / (n * m * m) as f64);
            let others = tensor(&same.mapv(|v| (1.0 - v) / ((n - 1) * m) as f64));
            let g = ((s / tau).exp() * others).sum_dim(1);
            let normalisers = match version {
                Version::V1 => g.log().mean(),
                Version::V2 => tensor(&image).matmul(g).log().mean(),
            };
            let f = positives + normalisers * tau;
            let expected_value = f.clone().into_data().try_to_vec::<f64>().unwrap()[0];
            let gradients = f.backward();
            let expected = weights.grad(&gradients).unwrap().into_data().try_to_vec::<f64>().unwrap();

            let h = x.dot(&w);
            let mut z = h.clone();
            z.outer_iter_mut().for_each(|mut row| row /= row.dot(&row).sqrt());
            let (value, dz) = global_objective(z.view(), m, tau, version);
            let found = x.t().dot(&through_norm(h.view(), dz.view()));
            assert!((value - expected_value).abs() < 1e-12, "{version:?}: {value} vs {expected_value}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-12, "{version:?}: {found} vs {expected}");
            }
        }
    }
}
