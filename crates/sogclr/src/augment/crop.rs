//! Random resized crop: torchvision's choice of box, Pillow's bicubic resize (crop first, then an antialiased
//! filter that sees nothing outside the box).

use crate::data::{Image, Samples};
use crate::math::SampleRng;
use fast_image_resize as fir;
use fir::PixelTrait;
use fir::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fir::pixels::{F32, U8, U8x3};

/// A rectangle of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// First row, in pixels.
    pub top: usize,
    /// First column, in pixels.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl CropBox {
    /// The box that cuts nothing off.
    pub fn whole(image: &Image) -> Self {
        Self { top: 0, left: 0, height: image.height, width: image.width }
    }

    /// The part of `image` inside the box.
    pub fn cut(self, image: &Image) -> Image {
        let data = match &image.data {
            Samples::U8(data) => self.cut_samples(image, data).into(),
            Samples::U16(data) => self.cut_samples(image, data).into(),
            Samples::F32(data) => self.cut_samples(image, data).into(),
        };
        Image { height: self.height, width: self.width, channels: image.channels, data }
    }

    fn cut_samples<T: Copy>(self, image: &Image, data: &[T]) -> Vec<T> {
        let (row_len, channels) = (image.width * image.channels, image.channels);
        data.chunks_exact(row_len)
            .skip(self.top)
            .take(self.height)
            .flat_map(|row| &row[self.left * channels..(self.left + self.width) * channels])
            .copied()
            .collect()
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
    /// What the first of two passes makes of bytes.
    half: Vec<u8>,
}

impl Default for Resizer {
    fn default() -> Self {
        let options = fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::CatmullRom));
        Self { resizer: fir::Resizer::new(), options, half: Vec::new() }
    }
}

impl Resizer {
    /// `image` cropped to `region` and resized to `height` × `width`.
    pub fn crop_resize(&mut self, image: &Image, region: CropBox, height: usize, width: usize) -> Image {
        let mut out = Image::new(1, 1, 1, vec![0_u8]);
        self.crop_resize_into(image, region, height, width, &mut out);
        out
    }

    /// The same in place of `out`, whose memory is used again.
    pub(super) fn crop_resize_into(
        &mut self,
        image: &Image,
        region: CropBox,
        height: usize,
        width: usize,
        out: &mut Image,
    ) {
        // Two calls fix the order of the passes, between which 8-bit overshoot is clipped: rows first, unless the
        // height shrinks more than the width, which is what Pillow does for nearly all sizes.
        let columns_first = height < region.height && height * region.width < region.height * width;
        let between = if columns_first { (height, region.width) } else { (region.height, width) };
        match &image.data {
            Samples::U8(data) if image.channels == 1 || image.channels == 3 => {
                let mut bytes = match std::mem::replace(&mut out.data, Samples::U8(Vec::new())) {
                    Samples::U8(bytes) => bytes,
                    _ => Vec::new(),
                };
                bytes.resize(height * width * image.channels, 0);
                let from = (data.as_slice(), image.height, image.width);
                match image.channels {
                    1 => self.crop_resize_pixels::<U8>(from, region, between, (&mut bytes, height, width)),
                    _ => self.crop_resize_pixels::<U8x3>(from, region, between, (&mut bytes, height, width)),
                }
                *out = Image { height, width, channels: image.channels, data: bytes.into() };
            }
            _ => {
                let half = self.resize(region.cut(image), between.0, between.1);
                *out = self.resize(half, height, width);
            }
        }
    }

    /// Reads the region where it lies. Buffers come with their height and width; a pass that changes nothing is left out.
    fn crop_resize_pixels<P: PixelTrait>(
        &mut self,
        (data, rows, columns): (&[u8], usize, usize),
        region: CropBox,
        between: (usize, usize),
        (out, height, width): (&mut [u8], usize, usize),
    ) {
        let sized = "the buffer has the size of the image";
        let whole = TypedImageRef::<P>::from_buffer(columns as u32, rows as u32, data).expect(sized);
        let [left, top, w, h] = [region.left, region.top, region.width, region.height].map(|v| v as u32);
        let cut = TypedCroppedImage::from_ref(&whole, left, top, w, h).expect("the region is inside the image");
        let mut out = TypedImage::<P>::from_buffer(width as u32, height as u32, out).expect(sized);
        let Self { resizer, options, half } = self;
        let options = &*options;
        if between == (region.height, region.width) || between == (height, width) {
            resizer.resize_typed(&cut, &mut out, options).expect("sizes are positive");
            return;
        }
        half.resize(between.0 * between.1 * size_of::<P>(), 0);
        let mut half = TypedImage::<P>::from_buffer(between.1 as u32, between.0 as u32, half).expect(sized);
        resizer.resize_typed(&cut, &mut half, options).expect("sizes are positive");
        resizer.resize_typed(&half, &mut out, options).expect("sizes are positive");
    }

    /// In one direction. Bytes are resized as bytes, as Pillow does, everything else as floats.
    fn resize(&mut self, image: Image, height: usize, width: usize) -> Image {
        if (image.height, image.width) == (height, width) {
            return image;
        }
        let channels = image.channels;
        let data = match &image.data {
            Samples::U8(data) => {
                let mut out = vec![0; height * width * channels];
                for channel in 0..channels {
                    let plane: Vec<u8> = data.iter().skip(channel).step_by(channels).copied().collect();
                    let plane = self.resize_bytes(&plane, &image, height, width);
                    out.iter_mut().skip(channel).step_by(channels).zip(plane).for_each(|(out, v)| *out = v);
                }
                out.into()
            }
            data => {
                let mut out = vec![0.0; height * width * channels];
                for channel in 0..channels {
                    let pixels = image.height * image.width;
                    let plane = (0..pixels).map(|pixel| data.unit(pixel * channels + channel));
                    let plane = self.resize_floats(plane.collect(), &image, height, width);
                    out.iter_mut().skip(channel).step_by(channels).zip(plane).for_each(|(out, v)| *out = v);
                }
                out.into()
            }
        };
        Image { height, width, channels, data }
    }

    fn resize_bytes(&mut self, plane: &[u8], image: &Image, height: usize, width: usize) -> Vec<u8> {
        let mut out = vec![0; height * width];
        let from = (plane, image.height, image.width);
        self.crop_resize_pixels::<U8>(from, CropBox::whole(image), (height, width), (&mut out, height, width));
        out
    }

    fn resize_floats(&mut self, plane: Vec<f32>, image: &Image, height: usize, width: usize) -> Vec<f32> {
        let pixels: Vec<F32> = plane.into_iter().map(F32::new).collect();
        let source = TypedImageRef::new(image.width as u32, image.height as u32, &pixels)
            .expect("the buffer has the size of the image");
        let mut out = TypedImage::new(width as u32, height as u32);
        self.resizer.resize_typed(&source, &mut out, &self.options).expect("pixel types are equal");
        // Overshoot is clipped, as it is in bytes.
        out.pixels().iter().map(|pixel| pixel.0.clamp(0.0, 1.0)).collect()
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
        Image::new(height, width, 1, vec![0_u8; height * width])
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

    /// A ramp of any kind of samples and any number of channels keeps its values where it is resized.
    #[test]
    fn every_kind_of_samples_is_cut_and_resized_alike() {
        let (side, to) = (8, 5);
        for channels in [1, 2, 3, 5] {
            let ramp = |k: usize| (k / channels % side) * 30 + k % channels;
            let count = side * side * channels;
            let bytes: Vec<u8> = (0..count).map(|k| ramp(k) as u8).collect();
            let words: Vec<u16> = bytes.iter().map(|&v| u16::from(v) * 257).collect();
            let floats: Vec<f32> = bytes.iter().map(|&v| f32::from(v) / 255.0).collect();
            let images = [
                Image::new(side, side, channels, bytes),
                Image::new(side, side, channels, words),
                Image::new(side, side, channels, floats),
            ];
            let region = CropBox { top: 1, left: 0, height: 6, width: 8 };
            let [bytes, words, floats] = images.map(|image| Resizer::default().crop_resize(&image, region, to, to));
            for k in 0..to * to * channels {
                let [a, b, c] = [&bytes, &words, &floats].map(|image| image.data.unit(k));
                assert!((a - c).abs() < 1.01 / 255.0 && (b - c).abs() < 1e-6, "{channels} channels: {a} {b} {c}");
            }
        }
    }
}
