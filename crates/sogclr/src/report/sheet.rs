//! A picture of pictures.

use super::picture::rgb;
use crate::data::Image;
use font8x8::UnicodeFonts;
use image::imageops::{FilterType, overlay, resize};
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;

const CELL: u32 = 160;
const GAP: u32 = 8;
const COLUMNS: u32 = 5;
/// Pixels of a letter, and of a line of them.
const LETTER: u32 = 8;
const LINE: u32 = 11;
/// Letters that fit under a picture.
const LETTERS: usize = (CELL / LETTER) as usize;

/// A picture with a few words under it.
pub struct Cell {
    /// `None` leaves the place empty, grey.
    pub picture: Option<Image>,
    /// Lines of text; the middle of a long one is left out.
    pub lines: Vec<String>,
}

/// The pictures from left to right and from top to bottom, as a PNG.
pub fn contact_sheet(pictures: &[Image]) -> Vec<u8> {
    let cells: Vec<Cell> =
        pictures.iter().map(|picture| Cell { picture: Some(picture.clone()), lines: Vec::new() }).collect();
    labelled_sheet(&cells, COLUMNS as usize)
}

/// The same with words under the pictures, so many in a row.
pub fn labelled_sheet(cells: &[Cell], columns: usize) -> Vec<u8> {
    let (count, most) = (cells.len() as u32, columns.max(1) as u32);
    let (columns, rows) = (count.clamp(1, most), count.div_ceil(most).max(1));
    let lines = cells.iter().map(|cell| cell.lines.len() as u32).max().unwrap_or(0);
    let text = if lines > 0 { lines * LINE + 3 } else { 0 };
    let side = |cells: u32, extra: u32| cells * (CELL + extra + GAP) + GAP;
    let mut sheet = RgbImage::from_pixel(side(columns, 0), side(rows, text), Rgb([255; 3]));
    for (index, cell) in cells.iter().enumerate() {
        let (column, row) = (index as u32 % most, index as u32 / most);
        let (left, top) = (GAP + column * (CELL + GAP), GAP + row * (CELL + text + GAP));
        let thumbnail = match &cell.picture {
            Some(picture) => fitted(picture),
            None => RgbImage::from_pixel(CELL, CELL, Rgb([224; 3])),
        };
        let centred = |start: u32, length: u32| i64::from(start + (CELL - length) / 2);
        overlay(&mut sheet, &thumbnail, centred(left, thumbnail.width()), centred(top, thumbnail.height()));
        for (at, line) in cell.lines.iter().enumerate() {
            write_line(&mut sheet, &shortened(line), left, top + CELL + 4 + at as u32 * LINE);
        }
    }
    let mut bytes = Cursor::new(Vec::new());
    sheet.write_to(&mut bytes, ImageFormat::Png).expect("an RGB image is a PNG");
    bytes.into_inner()
}

/// As large as a cell allows.
fn fitted(picture: &Image) -> RgbImage {
    let (width, height) = (picture.width as f64, picture.height as f64);
    let scale = f64::from(CELL) / width.max(height);
    let fit = |length: f64| ((length * scale).round() as u32).max(1);
    // Small pictures show their pixels.
    let filter = if scale >= 2.0 { FilterType::Nearest } else { FilterType::Triangle };
    resize(&rgb(picture), fit(width), fit(height), filter)
}

/// A line that fits: names tell most at both ends.
fn shortened(line: &str) -> String {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= LETTERS {
        return line.to_owned();
    }
    let (head, tail) = ((LETTERS - 2) / 2, LETTERS - 2 - (LETTERS - 2) / 2);
    let ends = [&letters[..head], &['.', '.'], &letters[letters.len() - tail..]];
    ends.concat().into_iter().collect()
}

fn write_line(sheet: &mut RgbImage, line: &str, left: u32, top: u32) {
    for (at, letter) in line.chars().enumerate() {
        let glyph = font8x8::BASIC_FONTS.get(letter).or_else(|| font8x8::LATIN_FONTS.get(letter));
        let glyph = glyph.or_else(|| font8x8::BASIC_FONTS.get('?')).unwrap_or_default();
        for (y, row) in (0..).zip(glyph) {
            for x in (0..8).filter(|x| row >> x & 1 == 1) {
                sheet.put_pixel(left + at as u32 * LETTER + x, top + y, Rgb([40; 3]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour_of(sheet: &RgbImage, column: u32, row: u32) -> [u8; 3] {
        sheet.get_pixel(88 + 168 * column, 88 + 168 * row).0
    }

    fn read(png: &[u8]) -> RgbImage {
        image::load_from_memory(png).unwrap().to_rgb8()
    }

    #[test]
    fn pictures_stand_in_rows_of_five() {
        let red = Image::new(1, 2, 3, [255_u8, 0, 0].repeat(2));
        let sheet = read(&contact_sheet(&vec![red; 6]));
        assert_eq!(sheet.dimensions(), (5 * 168 + 8, 2 * 168 + 8));
        let colour = |column, row| colour_of(&sheet, column, row);
        assert_eq!((colour(4, 0), colour(0, 1), colour(1, 1)), ([255, 0, 0], [255, 0, 0], [255; 3]));
        assert_eq!(sheet.get_pixel(88, 20).0, [255; 3], "the picture is twice as wide as high");
    }

    #[test]
    fn words_stand_under_their_picture_and_long_ones_stay_in_their_cell() {
        let red = || Some(Image::new(1, 1, 3, vec![255_u8, 0, 0]));
        let cells = |second: &str| {
            let lines = [vec!["tiny".to_owned()], vec![second.to_owned(), "é 漢".into()]];
            [Cell { picture: red(), lines: lines[0].clone() }, Cell { picture: None, lines: lines[1].clone() }]
        };
        let sheet = read(&labelled_sheet(&cells(&"x".repeat(99)), 2));
        assert_eq!(sheet.dimensions(), (2 * 168 + 8, 8 + 160 + 2 * 11 + 3 + 8));
        assert_eq!((colour_of(&sheet, 0, 0), colour_of(&sheet, 1, 0)), ([255, 0, 0], [224; 3]));
        let ink = |from: u32, to: u32| {
            let dots = (from..to).flat_map(|x| (168..201).map(move |y| (x, y)));
            dots.filter(|&(x, y)| sheet.get_pixel(x, y).0 == [40; 3]).count()
        };
        assert!(ink(8, 40) > 20 && ink(176, 336) > 20);
        assert_eq!((ink(40, 176), ink(336, 344)), (0, 0), "nothing between and beside the lines");
        assert_eq!(shortened("photographs/summer/IMG_0001.jpg"), "photograp.._0001.jpg");
    }
}
