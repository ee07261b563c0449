//! Gaussian blur with reflected borders, as torchvision's.

use super::Planes;
use sogclr_kernels::{Isa, separable};

/// Separable Gaussian of `kernel` (odd) taps; `scratch` is reused between calls.
pub fn gaussian_blur(image: &mut Planes, kernel: usize, sigma: f32, scratch: &mut Vec<f32>) {
    debug_assert!(kernel % 2 == 1);
    let taps = taps(kernel, sigma);
    // A narrow σ leaves outer taps of exactly 0.
    let zeros = taps.iter().take_while(|&&w| w == 0.0).count();
    let (len, width) = (image.plane_len(), image.width);
    for plane in image.values.chunks_exact_mut(len) {
        separable(Isa::best(), plane, width, &taps[zeros..kernel - zeros], scratch);
    }
}

fn taps(kernel: usize, sigma: f32) -> Vec<f32> {
    let centre = (kernel / 2) as f32;
    let weights: Vec<f32> = (0..kernel).map(|k| (-0.5 * ((k as f32 - centre) / sigma).powi(2)).exp()).collect();
    let total: f32 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}
