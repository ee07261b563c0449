//! Images as small JPEGs inside a page.

use crate::data::Image;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{FilterType, overlay, resize};
use image::{Rgb, RgbImage};

/// Of JPEGs: what is lost is not seen at the size of a thumbnail.
const QUALITY: u8 = 70;

/// The first three channels in eight bits.
pub(super) fn rgb(picture: &Image) -> RgbImage {
    RgbImage::from_fn(picture.width as u32, picture.height as u32, |x, y| {
        let first = (y as usize * picture.width + x as usize) * picture.channels;
        let value = |channel: usize| picture.data.unit(first + channel.min(picture.channels - 1));
        Rgb([0, 1, 2].map(|channel| (255.0 * value(channel)).round() as u8))
    })
}

/// The whole picture with `side` pixels on its longer side, or as it is where it is smaller.
pub(super) fn fitted(picture: &RgbImage, side: u32) -> RgbImage {
    let (width, height) = picture.dimensions();
    let scale = f64::from(side) / f64::from(width.max(height));
    if scale >= 1.0 {
        return picture.clone();
    }
    let fit = |length: u32| ((f64::from(length) * scale).round() as u32).max(1);
    resize(picture, fit(width), fit(height), FilterType::Triangle)
}

/// The picture as a `data:` address.
pub(super) fn data_uri(picture: &RgbImage) -> String {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, QUALITY).encode_image(picture).expect("memory takes every RGB image");
    format!("data:image/jpeg;base64,{}", STANDARD.encode(bytes))
}

/// All pictures in squares of `side` pixels, `columns` in a row.
pub(super) fn tiles(pictures: &[RgbImage], side: u32, columns: u32) -> RgbImage {
    let rows = (pictures.len() as u32).div_ceil(columns).max(1);
    let mut sheet = RgbImage::from_pixel(columns * side, rows * side, Rgb([128; 3]));
    for (index, picture) in pictures.iter().enumerate() {
        let small = fitted(picture, side);
        let centred = |cell: u32, length: u32| i64::from(cell * side + (side - length) / 2);
        let (column, row) = (index as u32 % columns, index as u32 / columns);
        overlay(&mut sheet, &small, centred(column, small.width()), centred(row, small.height()));
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_shrink_to_fit_and_never_grow() {
        let wide = RgbImage::new(40, 10);
        assert_eq!(fitted(&wide, 20).dimensions(), (20, 5));
        assert_eq!(fitted(&wide, 64).dimensions(), (40, 10));
        assert_eq!(fitted(&RgbImage::new(1, 1000), 10).dimensions(), (1, 10));
    }

    #[test]
    fn a_picture_in_a_page_is_the_picture() {
        let red = rgb(&Image::new(4, 4, 1, vec![0.5_f32; 16]));
        let uri = data_uri(&red);
        let bytes = STANDARD.decode(uri.strip_prefix("data:image/jpeg;base64,").unwrap()).unwrap();
        let read = image::load_from_memory(&bytes).unwrap().to_rgb8();
        assert!(read.pixels().all(|pixel| pixel.0.iter().all(|v| v.abs_diff(128) < 3)), "{:?}", read.get_pixel(0, 0));
    }

    #[test]
    fn tiles_stand_in_their_squares() {
        let sheet = tiles(&vec![RgbImage::from_pixel(8, 4, Rgb([200, 0, 0])); 3], 4, 2);
        assert_eq!(sheet.dimensions(), (8, 8));
        assert_eq!((sheet.get_pixel(5, 2).0, sheet.get_pixel(1, 0).0), ([200, 0, 0], [128; 3]), "wide: centred");
        assert_eq!(sheet.get_pixel(7, 7).0, [128; 3], "there is no fourth");
    }
}
