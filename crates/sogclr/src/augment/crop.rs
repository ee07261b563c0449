//! Random resized crop: torchvision's choice of box, Pillow's bicubic resize (crop first, then an antialiased
//! filter that sees nothing outside the box).

use crate::data::Image;
use crate::math::SampleRng;
use fast_image_resize as fir;

/// A rectangle of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

impl CropBox {
    pub fn whole(image: &Image) -> Self {
        Self { top: 0, left: 0, height: image.height, width: image.width }
    }

    /// The part of `image` inside the box.
    pub fn cut(self, image: &Image) -> Image {
        let (row_len, channels) = (image.width * image.channels, image.channels);
        let data = image
            .data
            .chunks_exact(row_len)
            .skip(self.top)
            .take(self.height)
            .flat_map(|row| &row[self.left * channels..(self.left + self.width) * channels])
            .copied()
            .collect();
        Image { height: self.height, width: self.width, channels, data }
    }

    /// A box of area U(scale)·H·W and log-uniform aspect ¾–4/3; after ten misses the largest central box of an
    /// allowed aspect.
    pub fn random(image: &Image, scale: [f64; 2], rng: &mut SampleRng) -> Self {
        const ASPECT: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
        let (height, width) = (image.height as f64, image.width as f64);
        for _ in 0..10 {
            let area = height * width * rng.uniform(scale[0], scale[1]);
            let aspect = rng.uniform(ASPECT.0.ln(), ASPECT.1.ln()).exp();
            let w = (area * aspect).sqrt().round();
            let h = (area / aspect).sqrt().round();
            if (1.0..=width).contains(&w) && (1.0..=height).contains(&h) {
                let top = rng.uniform(0.0, height - h + 1.0) as usize;
                let left = rng.uniform(0.0, width - w + 1.0) as usize;
                return Self { top, left, height: h as usize, width: w as usize };
            }
        }
        let aspect = width / height;
        let (w, h) = if aspect < ASPECT.0 {
            (width, (width / ASPECT.0).round())
        } else if aspect > ASPECT.1 {
            ((height * ASPECT.1).round(), height)
        } else {
            (width, height)
        };
        let (w, h) = (w.clamp(1.0, width), h.clamp(1.0, height));
        Self {
            top: ((height - h) / 2.0) as usize,
            left: ((width - w) / 2.0) as usize,
            height: h as usize,
            width: w as usize,
        }
    }
}

/// A bicubic resizer with its buffers.
pub struct Resizer {
    resizer: fir::Resizer,
    options: fir::ResizeOptions,
}

impl Default for Resizer {
    fn default() -> Self {
        let options = fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::CatmullRom));
        Self { resizer: fir::Resizer::new(), options }
    }
}

impl Resizer {
    /// `image` cropped to `region` and resized to `height` × `width`.
    pub fn crop_resize(&mut self, image: &Image, region: CropBox, height: usize, width: usize) -> Image {
        // Two calls fix the order of the passes, between which 8-bit overshoot is clipped: rows first, unless the
        // height shrinks more than the width, which is what Pillow does for nearly all sizes.
        let columns_first = height < region.height && height * region.width < region.height * width;
        let between = if columns_first { (height, region.width) } else { (region.height, width) };
        let half = self.resize(region.cut(image), between.0, between.1);
        self.resize(half, height, width)
    }

    fn resize(&mut self, image: Image, height: usize, width: usize) -> Image {
        if (image.height, image.width) == (height, width) {
            return image;
        }
        let kind = if image.channels == 1 { fir::PixelType::U8 } else { fir::PixelType::U8x3 };
        let source = fir::images::ImageRef::new(image.width as u32, image.height as u32, &image.data, kind)
            .expect("the buffer has the size of the image");
        let mut out = fir::images::Image::new(width as u32, height as u32, kind);
        self.resizer.resize(&source, &mut out, &self.options).expect("pixel types are equal");
        Image { height, width, channels: image.channels, data: out.into_vec() }
    }

    /// Shortest side to `shortest`, the other side in proportion.
    pub fn shortest_side(&mut self, image: &Image, shortest: usize) -> Image {
        let scaled = |long: usize, short: usize| shortest * long / short;
        let (height, width) = if image.height <= image.width {
            (shortest, scaled(image.width, image.height))
        } else {
            (scaled(image.height, image.width), shortest)
        };
        self.crop_resize(image, CropBox::whole(image), height, width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank(height: usize, width: usize) -> Image {
        Image { height, width, channels: 1, data: vec![0; height * width] }
    }

    #[test]
    fn boxes_stay_inside_and_follow_the_area() {
        for (height, width) in [(1, 1), (28, 28), (5, 200), (300, 40)] {
            let image = blank(height, width);
            for sample in 0..200 {
                let b = CropBox::random(&image, [0.2, 1.0], &mut SampleRng::augment(0, 0, sample, 0));
                assert!(b.height >= 1 && b.width >= 1);
                assert!(b.top + b.height <= height && b.left + b.width <= width, "{b:?} in {height}×{width}");
            }
        }
        let image = blank(100, 100);
        let shares: Vec<f64> = (0..500)
            .map(|sample| CropBox::random(&image, [0.2, 0.4], &mut SampleRng::augment(1, 0, sample, 0)))
            .map(|b| (b.height * b.width) as f64 / 1e4)
            .collect();
        assert!(shares.iter().all(|s| (0.19..0.42).contains(s)));
        let mean = shares.iter().sum::<f64>() / 500.0;
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
    }
}
