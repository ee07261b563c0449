//! The crops of one size, as the network takes them.

use crate::math::Layout;
use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;

/// `count` crops of each of the rank's samples, view-major, each in the layout that the network wants.
pub struct Crops {
    /// Crops of each sample.
    pub count: usize,
    /// Side of a crop in pixels.
    pub size: usize,
    /// Channels of a crop.
    pub channels: usize,
    /// The order of a crop's values.
    pub layout: Layout,
    /// Crop after crop.
    pub pixels: Vec<f32>,
}

impl Crops {
    /// Black crops of `samples` samples.
    pub fn new(count: usize, size: usize, channels: usize, samples: usize, layout: Layout) -> Self {
        Self { count, size, channels, layout, pixels: vec![0.0; count * samples * channels * size * size] }
    }

    /// Values of one crop.
    pub fn area(&self) -> usize {
        self.channels * self.size * self.size
    }

    /// The crops `views` of the samples `rows`, view after view: views·rows images.
    pub fn tensor(&self, views: Range<usize>, rows: &[usize], device: &Device) -> Tensor<4> {
        let area = self.area();
        let samples = self.pixels.len() / (self.count * area);
        let mut pixels = Vec::with_capacity(views.len() * rows.len() * area);
        for view in views.clone() {
            for row in rows {
                pixels.extend_from_slice(&self.pixels[(view * samples + row) * area..][..area]);
            }
        }
        let shape = self.layout.shape(views.len() * rows.len(), self.channels, self.size);
        Tensor::from_data(TensorData::new(pixels, shape), device)
    }
}
