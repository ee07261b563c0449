//! Decoded images.

use super::{DataError, Fingerprint};
use std::io::{BufRead, Seek};

/// The values of an image, pixel after pixel, the channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// 0 to 255.
    U8(Vec<u8>),
    /// 0 to 65535.
    U16(Vec<u16>),
    /// 0 to 1.
    F32(Vec<f32>),
}

impl Samples {
    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One value, from 0 to 1.
    pub(crate) fn unit(&self, index: usize) -> f32 {
        match self {
            Self::U8(values) => f32::from(values[index]) / 255.0,
            Self::U16(values) => f32::from(values[index]) / 65535.0,
            Self::F32(values) => values[index],
        }
    }

    /// The bytes in memory order, for a fingerprint.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::U8(values) => values.clone(),
            Self::U16(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}

impl From<Vec<u8>> for Samples {
    fn from(values: Vec<u8>) -> Self {
        Self::U8(values)
    }
}

impl From<Vec<u16>> for Samples {
    fn from(values: Vec<u16>) -> Self {
        Self::U16(values)
    }
}

impl From<Vec<f32>> for Samples {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values)
    }
}

/// Height, width and channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
}

/// A decoded image of any number of channels.
///
/// ```
/// use sogclr::data::Image;
/// let grey = Image::new(2, 3, 1, vec![0_u8, 50, 100, 150, 200, 250]);
/// let infrared = Image::new(1, 1, 4, vec![0.1_f32, 0.2, 0.3, 0.9]);
/// assert_eq!((grey.channels, infrared.channels), (1, 4));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel; three are red, green and blue.
    pub channels: usize,
    /// Pixel after pixel.
    pub data: Samples,
}

impl Image {
    /// An image of these samples, 8-bit, 16-bit or floats from 0 to 1.
    ///
    /// # Panics
    /// If there are not height·width·channels of them, or none.
    pub fn new(height: usize, width: usize, channels: usize, data: impl Into<Samples>) -> Self {
        let data = data.into();
        assert!(!data.is_empty(), "an image has at least one pixel of one channel");
        assert_eq!(data.len(), height * width * channels, "an image has height·width·channels samples");
        Self { height, width, channels, data }
    }

    /// Height, width and channels.
    pub fn dimensions(&self) -> Dimensions {
        Dimensions { height: self.height, width: self.width, channels: self.channels }
    }

    /// What tells this image from others.
    pub fn fingerprint(&self) -> Fingerprint {
        let bytes = self.data.bytes();
        Fingerprint::of(&bytes)
    }

    /// Decodes a file's bytes as RGB. A truncated JPEG is an error, not a picture with a grey bottom.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, DataError> {
        let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
        if is_truncated_jpeg(bytes) {
            return Err(error("the JPEG is truncated".into()));
        }
        let image = image::load_from_memory(bytes).map_err(|e| error(e.to_string()))?.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, channels: 3, data: image.into_raw().into() })
    }
}

/// The shape of a stored image, from its header alone.
pub(super) fn header_dimensions(reader: impl BufRead + Seek, name: &str) -> Result<Dimensions, DataError> {
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    let reader = image::ImageReader::new(reader).with_guessed_format().map_err(|e| error(e.to_string()))?;
    let (width, height) = reader.into_dimensions().map_err(|e| error(e.to_string()))?;
    Ok(Dimensions { height: height as usize, width: width as usize, channels: 3 })
}

/// Whether a JPEG lacks its end marker behind the start of the scan. Markers inside earlier segments, such as those
/// of an embedded thumbnail, do not count.
fn is_truncated_jpeg(bytes: &[u8]) -> bool {
    if !bytes.starts_with(&[0xFF, 0xD8]) {
        return false;
    }
    let mut at = 2;
    loop {
        // Any number of fill bytes may stand before a marker (ITU T.81, B.1.1.2).
        while bytes.get(at..at + 2) == Some(&[0xFF, 0xFF]) {
            at += 1;
        }
        let Some(&[0xFF, marker, high, low]) = bytes.get(at..at + 4) else { return true };
        let length = usize::from(u16::from_be_bytes([high, low]));
        at += 2 + length;
        if marker == 0xDA {
            return !bytes.get(at..).is_some_and(|scan| scan.windows(2).any(|pair| pair == [0xFF, 0xD9]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_marker_of_a_thumbnail_does_not_hide_a_cut() {
        let mut bytes = Vec::new();
        let picture = image::RgbImage::from_fn(32, 32, |x, y| image::Rgb([(x * 8) as u8, (y * 8) as u8, 7]));
        picture.write_to(&mut std::io::Cursor::new(&mut bytes), image::ImageFormat::Jpeg).unwrap();
        let thumbnail = [0xFF, 0xE1, 0, 6, 0xFF, 0xD9, 1, 2];
        bytes.splice(2..2, thumbnail);
        assert!(Image::decode(&bytes, "whole").is_ok());
        let mut filled = bytes.clone();
        filled.splice(10..10, [0xFF; 3]);
        assert_eq!(Image::decode(&filled, "filled").unwrap(), Image::decode(&bytes, "whole").unwrap());
        assert!(is_truncated_jpeg(&[0xFF, 0xD8, 0xFF, 0xFF, 0xFF]));
        let error = Image::decode(&bytes[..bytes.len() - 40], "cut").unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
    }
}
