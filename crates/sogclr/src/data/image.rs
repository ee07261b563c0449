//! Decoded images.

use super::DataError;

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
        if is_truncated_jpeg(bytes) {
            return Err(error("the JPEG is truncated".into()));
        }
        let image = image::load_from_memory(bytes).map_err(|e| error(e.to_string()))?.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, channels: 3, data: image.into_raw() })
    }
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
