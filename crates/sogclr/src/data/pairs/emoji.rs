//! The embedded pairs: 1,860 emoji with their names, drawn by two vendors (see `assets/emoji/NOTICE`). One vendor's
//! pictures are for training, the other's for testing.

use super::{DataError, Dataset, Layout, Split};
use crate::data::Pixels;
use crate::data::memory::MemoryImages;
use std::path::PathBuf;
use std::sync::Arc;

const NAMES: &str = include_str!("../../../assets/emoji/names.tsv");
const NOTO: (&str, &[u8]) = ("noto.png", include_bytes!("../../../assets/emoji/noto.png"));
const TWEMOJI: (&str, &[u8]) = ("twemoji.png", include_bytes!("../../../assets/emoji/twemoji.png"));
/// Side of a picture, and pictures in a row of a sheet.
const SIDE: usize = 32;
const COLUMNS: usize = 48;

/// Noto's pictures to train on, Twemoji's to test on; emoji k of the one is emoji k of the other.
pub fn open_emoji() -> Result<Dataset, DataError> {
    let captions: Vec<Vec<String>> = NAMES
        .lines()
        .map(|line| line.split('\t').nth(2).unwrap_or_default().split('|').map(str::to_owned).collect())
        .collect();
    let split = |sheet| Ok::<_, DataError>(pictures(sheet, captions.len())?.with_captions(captions.clone()));
    let (train, test) = (split(NOTO)?, Some(split(TWEMOJI)?));
    let title = "embedded emoji".to_owned();
    Ok(Dataset {
        title,
        train,
        test,
        classes: Vec::new(),
        native_size: Some(SIDE),
        channels: 3,
        pixels: Pixels::Rgb,
        problems: Vec::new(),
        layout: Layout::default(),
    })
}

/// The first `count` cells of a sheet.
fn pictures((name, bytes): (&str, &[u8]), count: usize) -> Result<Split, DataError> {
    let format = |cause: String| DataError::Format { path: PathBuf::from(name), cause };
    let sheet = image::load_from_memory(bytes).map_err(|error| format(error.to_string()))?.into_rgb8();
    let width = sheet.width() as usize;
    if width != COLUMNS * SIDE || (sheet.height() as usize) < count.div_ceil(COLUMNS) * SIDE {
        return Err(format("the sheet has another size".into()));
    }
    let data = sheet.into_raw();
    let mut pixels = Vec::with_capacity(count * SIDE * SIDE * 3);
    for cell in 0..count {
        for row in 0..SIDE {
            let start = ((cell / COLUMNS * SIDE + row) * width + cell % COLUMNS * SIDE) * 3;
            pixels.extend_from_slice(&data[start..start + SIDE * 3]);
        }
    }
    let images = MemoryImages { name: name.to_owned(), side: (SIDE, SIDE), channels: 3, pixels };
    Ok(Split::new(Arc::new(images), None))
}
