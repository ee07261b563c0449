//! From a decoded image to normalised views. Operators have torchvision's semantics; every random choice is a
//! function of (seed, epoch, sample, view).

mod blur;
mod colour;
mod config;
mod crop;
mod pipeline;

pub use blur::gaussian_blur;
pub use colour::{brightness, contrast, greyscale, hue, saturation};
pub use config::{AugmentConfig, Blur, CropGroup, Jitter, Preset};
pub use crop::{CropBox, Resizer};
pub use pipeline::Augmenter;

/// A float image in [0, 1], planar: `channels` × height × width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planes {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub values: Vec<f32>,
}

impl Planes {
    pub fn plane_len(&self) -> usize {
        self.height * self.width
    }

    /// Mirrors left and right.
    pub fn flip(&mut self) {
        self.values.chunks_exact_mut(self.width).for_each(<[f32]>::reverse);
    }
}
