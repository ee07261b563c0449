//! Decoded images.

use super::{DataError, form, jpeg, npy};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader};
use std::io::{BufRead, Cursor, Seek};

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

/// Content hash and size of what is stored of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// BLAKE3, as hexadecimal digits.
    pub hash: String,
    /// Bytes.
    pub size: u64,
}

impl Fingerprint {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { hash: blake3::hash(bytes).to_hex().to_string(), size: bytes.len() as u64 }
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

    /// Decodes a file's bytes as RGB, turned as its EXIF data say. A truncated JPEG is an error, not a picture with a grey
    /// bottom.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, DataError> {
        Self::decode_to(Rows::Upright, bytes, name)
    }

    /// The same without a look at the EXIF data.
    pub fn decode_as_stored(bytes: &[u8], name: &str) -> Result<Self, DataError> {
        Self::decode_to(Rows::AsStored, bytes, name)
    }

    /// Decodes a file's bytes, and for a JPEG looks whether its scans are whole, which takes as long again.
    pub(super) fn check(bytes: &[u8], name: &str) -> Result<Self, DataError> {
        let image = Self::decode(bytes, name)?;
        match bytes.starts_with(&[0xFF, 0xD8]).then(|| jpeg::damage(bytes)).flatten() {
            Some(cause) => {
                Err(DataError::Decode { name: name.to_owned(), cause: format!("the JPEG is damaged: {cause}") })
            }
            None => Ok(image),
        }
    }

    pub(super) fn decode_to(rows: Rows, bytes: &[u8], name: &str) -> Result<Self, DataError> {
        if npy::is_array(bytes) {
            return form::array_as_rgb(bytes, name);
        }
        let image = decode_file(rows, bytes, name)?.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, channels: 3, data: image.into_raw().into() })
    }
}

/// A file's bytes with its own depth and colours, turned as `rows` says.
pub(super) fn decode_file(rows: Rows, bytes: &[u8], name: &str) -> Result<DynamicImage, DataError> {
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    let jpeg = JpegHeaders::of(bytes);
    if jpeg.as_ref().is_some_and(|headers| headers.is_truncated(bytes)) {
        return Err(error("the JPEG is truncated".into()));
    }
    let mut image = image::load_from_memory(bytes).map_err(|e| error(e.to_string()))?;
    // A second look at the headers costs time, and most JPEGs have nothing to say.
    if rows == Rows::Upright && jpeg.is_none_or(|headers| headers.has_exif) {
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok();
        let decoder = reader.and_then(|reader| reader.into_decoder().ok());
        image.apply_orientation(decoder.map_or(Orientation::NoTransforms, orientation));
    }
    Ok(image)
}

/// Which way up an image is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// As the camera was held, if the file says so.
    Upright,
    /// As the file has them.
    AsStored,
}

/// What EXIF data say of an image's rows and columns; nothing where there are none, or none that make sense.
fn orientation(mut decoder: impl ImageDecoder) -> Orientation {
    decoder.orientation().unwrap_or(Orientation::NoTransforms)
}

/// The shape of a stored image, from its header alone.
pub(super) fn header_dimensions(rows: Rows, reader: impl BufRead + Seek, name: &str) -> Result<Dimensions, DataError> {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    let reader = ImageReader::new(reader).with_guessed_format().map_err(|e| error(e.to_string()))?;
    let decoder = reader.into_decoder().map_err(|e| error(e.to_string()))?;
    let (mut width, mut height) = decoder.dimensions();
    let on_its_side = matches!(orientation(decoder), Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
    if rows == Rows::Upright && on_its_side {
        (width, height) = (height, width);
    }
    Ok(Dimensions { height: height as usize, width: width as usize, channels: 3 })
}

/// What stands before the first scan of a JPEG. Markers inside segments, such as those of an embedded thumbnail, do not count.
struct JpegHeaders {
    /// Where the data of the first scan begin; none if the file ends before.
    scan: Option<usize>,
    has_exif: bool,
}

impl JpegHeaders {
    /// None if it is no JPEG.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (mut at, mut has_exif) = (2, false);
        if !bytes.starts_with(&[0xFF, 0xD8]) {
            return None;
        }
        loop {
            // Any number of fill bytes may stand before a marker (ITU T.81, B.1.1.2).
            while bytes.get(at..at + 2) == Some(&[0xFF, 0xFF]) {
                at += 1;
            }
            let Some(&[0xFF, marker, high, low]) = bytes.get(at..at + 4) else {
                return Some(Self { scan: None, has_exif });
            };
            has_exif |= marker == 0xE1 && bytes[at + 4..].starts_with(b"Exif\0\0");
            at += 2 + usize::from(u16::from_be_bytes([high, low]));
            if marker == 0xDA {
                return Some(Self { scan: Some(at), has_exif });
            }
        }
    }

    /// Whether the end marker is missing.
    fn is_truncated(&self, bytes: &[u8]) -> bool {
        let scan = self.scan.and_then(|at| bytes.get(at..)).unwrap_or_default();
        // Backwards: it is at the end of most files.
        !scan.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
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
        let cut = [0xFF, 0xD8, 0xFF, 0xFF, 0xFF];
        assert!(JpegHeaders::of(&cut).unwrap().is_truncated(&cut));
        let error = Image::decode(&bytes[..bytes.len() - 40], "cut").unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
    }

    /// EXIF data that hold nothing but an orientation.
    fn exif(orientation: u8) -> Vec<u8> {
        let one_entry = [1, 0, 0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0];
        [b"II*\0\x08\0\0\0".as_slice(), &one_entry].concat()
    }

    /// 16 × 24 pixels in blocks of one colour, which a JPEG keeps nearly as they are.
    fn stored() -> image::RgbImage {
        image::RgbImage::from_fn(24, 16, |x, y| image::Rgb([x as u8 / 8 * 100, y as u8 / 8 * 200, 50]))
    }

    /// Where the pixel of row y and column x of the upright picture lies in the stored one (EXIF 2.3, 4.6.4 A).
    fn source(orientation: u8, (y, x): (usize, usize), (height, width): (usize, usize)) -> (usize, usize) {
        let (last_row, last_column) = (height - 1, width - 1);
        match orientation {
            1 => (y, x),
            2 => (y, last_column - x),
            3 => (last_row - y, last_column - x),
            4 => (last_row - y, x),
            5 => (x, y),
            6 => (last_row - x, y),
            7 => (last_row - x, last_column - y),
            8 => (x, last_column - y),
            _ => unreachable!(),
        }
    }

    #[test]
    fn all_eight_orientations_of_a_jpeg_and_a_png_are_turned() {
        use image::ImageEncoder;
        let (picture, size) = (stored(), (16, 24));
        for orientation in 1..=8 {
            let (mut jpeg, mut png) = (Vec::new(), Vec::new());
            let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, 100);
            encoder.set_exif_metadata(exif(orientation)).unwrap();
            encoder.write_image(&picture, 24, 16, image::ExtendedColorType::Rgb8).unwrap();
            let mut encoder = image::codecs::png::PngEncoder::new(&mut png);
            encoder.set_exif_metadata(exif(orientation)).unwrap();
            encoder.write_image(&picture, 24, 16, image::ExtendedColorType::Rgb8).unwrap();
            for bytes in [jpeg, png] {
                let (upright, stored) =
                    (Image::decode(&bytes, "").unwrap(), Image::decode_as_stored(&bytes, "").unwrap());
                let sides = if orientation > 4 { (24, 16) } else { size };
                assert_eq!((upright.height, upright.width), sides, "orientation {orientation}");
                assert_eq!((stored.height, stored.width), size);
                for (y, x) in (0..sides.0).flat_map(|y| (0..sides.1).map(move |x| (y, x))) {
                    let (row, column) = source(orientation, (y, x), size);
                    let value =
                        |image: &Image, at: usize| (0..3).map(|c| image.data.unit(3 * at + c)).collect::<Vec<_>>();
                    assert_eq!(value(&upright, y * sides.1 + x), value(&stored, row * 24 + column), "{orientation}");
                }
                for (rows, (height, width)) in [(Rows::Upright, sides), (Rows::AsStored, size)] {
                    let shape = header_dimensions(rows, Cursor::new(&bytes), "").unwrap();
                    assert_eq!((shape.height, shape.width), (height, width), "orientation {orientation}");
                }
            }
        }
    }
}
