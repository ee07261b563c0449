//! A picture of pictures.

use super::picture::rgb;
use crate::data::Image;
use image::imageops::{FilterType, overlay, resize};
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;

const CELL: u32 = 160;
const GAP: u32 = 8;
const COLUMNS: u32 = 5;

/// The pictures from left to right and from top to bottom, as a PNG.
pub fn contact_sheet(pictures: &[Image]) -> Vec<u8> {
    let count = pictures.len() as u32;
    let (columns, rows) = (count.clamp(1, COLUMNS), count.div_ceil(COLUMNS).max(1));
    let side = |cells: u32| cells * (CELL + GAP) + GAP;
    let mut sheet = RgbImage::from_pixel(side(columns), side(rows), Rgb([255; 3]));
    for (index, picture) in pictures.iter().enumerate() {
        let (column, row) = (index as u32 % COLUMNS, index as u32 / COLUMNS);
        let (width, height) = (picture.width as f64, picture.height as f64);
        let scale = f64::from(CELL) / width.max(height);
        let fit = |length: f64| ((length * scale).round() as u32).max(1);
        let thumbnail = resize(&rgb(picture), fit(width), fit(height), FilterType::Triangle);
        let centred = |cell: u32, length: u32| i64::from(GAP + cell * (CELL + GAP) + (CELL - length) / 2);
        overlay(&mut sheet, &thumbnail, centred(column, thumbnail.width()), centred(row, thumbnail.height()));
    }
    let mut bytes = Cursor::new(Vec::new());
    sheet.write_to(&mut bytes, ImageFormat::Png).expect("an RGB image is a PNG");
    bytes.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_in_rows_of_five() {
        let red = Image::new(1, 2, 3, [255_u8, 0, 0].repeat(2));
        let sheet = image::load_from_memory(&contact_sheet(&vec![red; 6])).unwrap().to_rgb8();
        assert_eq!(sheet.dimensions(), (5 * 168 + 8, 2 * 168 + 8));
        let colour = |column: u32, row: u32| sheet.get_pixel(88 + 168 * column, 88 + 168 * row).0;
        assert_eq!((colour(4, 0), colour(0, 1), colour(1, 1)), ([255, 0, 0], [255, 0, 0], [255; 3]));
        assert_eq!(sheet.get_pixel(88, 20).0, [255; 3], "the picture is twice as wide as high");
    }
}
