//! Decoded images.

use super::DataError;
use crate::augment::{CropBox, Planes};

/// 8-bit pixels, interleaved; one channel (grey) or three (RGB).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub data: Vec<u8>,
}

impl Image {
    /// Decodes a file's bytes as RGB. A truncated JPEG is an error, not a picture with a grey bottom.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, DataError> {
        let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
        if bytes.starts_with(&[0xFF, 0xD8]) && !bytes.windows(2).rev().any(|pair| pair == [0xFF, 0xD9]) {
            return Err(error("the JPEG is truncated".into()));
        }
        let image = image::load_from_memory(bytes).map_err(|e| error(e.to_string()))?.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, channels: 3, data: image.into_raw() })
    }

    pub fn crop(&self, region: CropBox) -> Self {
        let row_len = self.width * self.channels;
        let data = self
            .data
            .chunks_exact(row_len)
            .skip(region.top)
            .take(region.height)
            .flat_map(|row| &row[region.left * self.channels..(region.left + region.width) * self.channels])
            .copied()
            .collect();
        Self { height: region.height, width: region.width, channels: self.channels, data }
    }

    /// Pixels in [0, 1], planar.
    pub fn to_planes(&self, out: &mut Planes) {
        (out.channels, out.height, out.width) = (self.channels, self.height, self.width);
        let len = self.height * self.width;
        out.values.resize(self.channels * len, 0.0);
        for (channel, plane) in out.values.chunks_exact_mut(len).enumerate() {
            let pixels = self.data.iter().skip(channel).step_by(self.channels);
            plane.iter_mut().zip(pixels).for_each(|(out, &v)| *out = f32::from(v) / 255.0);
        }
    }
}
