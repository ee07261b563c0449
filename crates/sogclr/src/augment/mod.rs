//! From a decoded image to normalised views. Operators have torchvision's semantics; every random choice is a
//! function of (seed, epoch, sample, view).

mod blur;
mod colour;
mod config;
mod crop;
mod keep;
mod pipeline;
mod rand_augment;
mod stages;

pub use blur::gaussian_blur;
pub use colour::{brightness, contrast, greyscale, hue, saturation};
pub use config::{AugmentConfig, Blur, CropGroup, Jigsaw, Jitter, Preset, parse_views};
pub use crop::{CropBox, Resizer};
pub use keep::Keep;
pub use pipeline::Augmenter;
pub use rand_augment::{
    RandAugment, autocontrast, equalise, invert, posterise, rand_augment, rotate, sharpness, shear_x, shear_y,
    solarise, solarise_add, translate_x, translate_y,
};
pub use stages::{Stage, StageTimes};

use crate::data::{Image, Samples};
use sogclr_kernels::{Isa, planes_of};

/// A float image in [0, 1], planar: `channels` × height × width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planes {
    /// Number of planes, one for each channel.
    pub channels: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Values of a row.
    pub width: usize,
    /// Plane after plane, row by row.
    pub values: Vec<f32>,
}

impl Planes {
    /// Takes over the pixels of `image`, scaled to [0, 1]; `flip` mirrors left and right.
    pub fn read(&mut self, image: &Image, flip: bool) {
        (self.channels, self.height, self.width) = (image.channels, image.height, image.width);
        let len = self.plane_len();
        self.values.resize(image.channels * len, 0.0);
        if let (Samples::U8(data), 3) = (&image.data, image.channels) {
            planes_of(Isa::best(), data, image.width, flip, &mut self.values);
            return;
        }
        for (channel, plane) in self.values.chunks_exact_mut(len).enumerate() {
            let value = |pixel: usize| image.data.unit(pixel * image.channels + channel);
            plane.iter_mut().enumerate().for_each(|(pixel, out)| *out = value(pixel));
        }
        if flip {
            self.flip();
        }
    }

    /// Values of one channel.
    pub fn plane_len(&self) -> usize {
        self.height * self.width
    }

    /// Mirrors left and right.
    pub fn flip(&mut self) {
        self.values.chunks_exact_mut(self.width).for_each(<[f32]>::reverse);
    }
}
