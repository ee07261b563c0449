//! Gaussian blur with reflected borders, as torchvision's.

use super::Planes;

/// Separable Gaussian of `kernel` (odd) taps; `scratch` is reused between calls.
pub fn gaussian_blur(image: &mut Planes, kernel: usize, sigma: f32, scratch: &mut Vec<f32>) {
    debug_assert!(kernel % 2 == 1);
    let weights = taps(kernel, sigma);
    let (height, width) = (image.height, image.width);
    scratch.resize(image.plane_len(), 0.0);
    for plane in image.values.chunks_exact_mut(height * width) {
        for (row, out) in plane.chunks_exact(width).zip(scratch.chunks_exact_mut(width)) {
            for (x, out) in out.iter_mut().enumerate() {
                *out = (0..kernel).map(|k| weights[k] * row[reflect(x, k, kernel, width)]).sum();
            }
        }
        for (y, out) in plane.chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            for (k, &weight) in weights.iter().enumerate() {
                let row = &scratch[reflect(y, k, kernel, height) * width..][..width];
                out.iter_mut().zip(row).for_each(|(out, v)| *out += weight * v);
            }
        }
    }
}

fn taps(kernel: usize, sigma: f32) -> Vec<f32> {
    let centre = (kernel / 2) as f32;
    let weights: Vec<f32> = (0..kernel).map(|k| (-0.5 * ((k as f32 - centre) / sigma).powi(2)).exp()).collect();
    let total: f32 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

/// Index of tap k at position x, mirrored at both ends without repeating the border.
fn reflect(x: usize, k: usize, kernel: usize, len: usize) -> usize {
    let last = len as isize - 1;
    let mut index = (x + k) as isize - (kernel / 2) as isize;
    while index < 0 || index > last {
        if last == 0 {
            return 0;
        }
        index = if index < 0 { -index } else { 2 * last - index };
    }
    index as usize
}
