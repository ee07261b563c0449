//! Colour operators on planar [0, 1] images, torchvision's definitions, clipped after each.
//!
//! Saturation, hue and greyscale are for red, green and blue: on any other number of channels they do nothing, and contrast is
//! about the mean of all values.

use super::Planes;
use sogclr_kernels::{Colour, Isa, colour, mean_luma};

/// Applies `steps` in order, in one pass over the pixels.
pub(super) fn apply(image: &mut Planes, steps: &[Colour]) {
    if image.channels == 3 {
        colour(Isa::best(), &mut image.values, steps);
        return;
    }
    for step in steps {
        let (factor, shift) = match *step {
            Colour::Brightness(factor) => (factor, 0.0),
            Colour::Contrast(factor, shift) => (factor, shift),
            Colour::Saturation(_) | Colour::Hue(_) | Colour::Grey => continue,
        };
        image.values.iter_mut().for_each(|v| *v = (factor * *v + shift).clamp(0.0, 1.0));
    }
}

/// [`contrast`] of what the image is now.
pub(super) fn contrast_step(image: &Planes, factor: f32) -> Colour {
    let mean = match image.channels {
        3 => mean_luma(Isa::best(), &image.values),
        _ => image.values.iter().map(|&v| f64::from(v)).sum::<f64>() / image.values.len() as f64,
    };
    Colour::Contrast(factor, (1.0 - factor) * mean as f32)
}

/// clip(f·x)
pub fn brightness(image: &mut Planes, factor: f32) {
    apply(image, &[Colour::Brightness(factor)]);
}

/// clip(f·x + (1−f)·mean luma)
pub fn contrast(image: &mut Planes, factor: f32) {
    let step = contrast_step(image, factor);
    apply(image, &[step]);
}

/// clip(f·x + (1−f)·luma)
pub fn saturation(image: &mut Planes, factor: f32) {
    apply(image, &[Colour::Saturation(factor)]);
}

/// Every channel becomes the luma.
pub fn greyscale(image: &mut Planes) {
    apply(image, &[Colour::Grey]);
}

/// Turns the hue by `shift` of the colour circle, through HSV.
pub fn hue(image: &mut Planes, shift: f32) {
    apply(image, &[Colour::Hue(shift)]);
}
