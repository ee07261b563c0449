//! The crops of one size, as the network takes them.

use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;

/// `count` crops of each of the rank's samples: `[count·samples, 3, size, size]`, view-major.
pub struct Crops {
    pub count: usize,
    pub size: usize,
    pub pixels: Vec<f32>,
}

impl Crops {
    pub(super) fn new(count: usize, size: usize, samples: usize) -> Self {
        Self { count, size, pixels: vec![0.0; count * samples * 3 * size * size] }
    }

    /// The crops `views` of the samples `rows`, view after view: `[views·rows, 3, size, size]`.
    pub fn tensor(&self, views: Range<usize>, rows: &[usize], device: &Device) -> Tensor<4> {
        let area = 3 * self.size * self.size;
        let samples = self.pixels.len() / (self.count * area);
        let mut pixels = Vec::with_capacity(views.len() * rows.len() * area);
        for view in views.clone() {
            for row in rows {
                pixels.extend_from_slice(&self.pixels[(view * samples + row) * area..][..area]);
            }
        }
        let shape = [views.len() * rows.len(), 3, self.size, self.size];
        Tensor::from_data(TensorData::new(pixels, shape), device)
    }
}
