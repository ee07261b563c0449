//! One image, decoded once: what is kept of it to compare it with all others, about 350 bytes.

use crate::augment::{CropBox, Resizer};
use crate::data::{Image, Samples, Split};

/// Side of the small grey picture that is hashed.
const SIDE: usize = 32;
/// Side of the one that is kept.
pub(super) const KEPT: usize = 16;

/// What is kept of an image, or why it cannot be read.
pub(super) type Looked = Result<Look, String>;

pub(super) struct Look {
    pub height: usize,
    pub width: usize,
    /// BLAKE3 of the decoded pixels.
    pub content: [u8; 32],
    /// Which of 8 × 8 blocks are brighter than the median of their band (blockhash, Yang, Gu and Niu 2006).
    pub hash: u64,
    /// Grey levels of the image shrunk to `KEPT` × `KEPT`.
    pub thumbnail: Box<[u8; KEPT * KEPT]>,
    /// Whether it is all one colour.
    pub is_blank: bool,
    /// The share of rows at its end that are of the grey that decoders fill up with.
    pub grey_rest: f32,
}

/// The small grey picture, as the hash reads it.
struct Grey<'a>(&'a [u8]);

impl blockhash::Image for Grey<'_> {
    const MAX_BRIGHTNESS: u32 = 255;

    fn dimensions(&self) -> (u32, u32) {
        (SIDE as u32, SIDE as u32)
    }

    fn brightness(&self, x: u32, y: u32) -> u32 {
        u32::from(self.0[y as usize * SIDE + x as usize])
    }
}

pub(super) fn look_at(split: &Split, id: usize, resizer: &mut Resizer) -> Looked {
    let image = split.image(id).map_err(|error| error.to_string())?;
    let small = resizer.crop_resize(&image, CropBox::whole(&image), SIDE, SIDE);
    let grey = greys(&small);
    let (low, high) = grey.iter().fold((u8::MAX, 0), |(low, high), &level| (low.min(level), high.max(level)));
    Ok(Look {
        height: image.height,
        width: image.width,
        content: content(&image),
        hash: blockhash::blockhash64(&Grey(&grey)).into(),
        thumbnail: halved(&grey),
        is_blank: high - low <= 2 && is_one_colour(&image),
        grey_rest: grey_rest(&image),
    })
}

/// The pixels and their arrangement.
fn content(image: &Image) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for side in [image.height, image.width, image.channels] {
        hasher.update(&side.to_le_bytes());
    }
    hasher.update(image.fingerprint().hash.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Luminance (ITU-R BT.601) of three channels, else their mean.
fn greys(image: &Image) -> Vec<u8> {
    let pixels = image.height * image.width;
    let level = |pixel: usize| {
        let value = |channel: usize| image.data.unit(pixel * image.channels + channel);
        match image.channels {
            3 => 0.299 * value(0) + 0.587 * value(1) + 0.114 * value(2),
            channels => (0..channels).map(value).sum::<f32>() / channels as f32,
        }
    };
    (0..pixels).map(|pixel| (255.0 * level(pixel)).round().clamp(0.0, 255.0) as u8).collect()
}

fn halved(grey: &[u8]) -> Box<[u8; KEPT * KEPT]> {
    let sum = |at: usize| {
        let first = 2 * (at / KEPT) * SIDE + 2 * (at % KEPT);
        [first, first + 1, first + SIDE, first + SIDE + 1].iter().map(|&from| u32::from(grey[from])).sum::<u32>()
    };
    Box::new(std::array::from_fn(|at| ((sum(at) + 2) / 4) as u8))
}

/// Whether no channel varies by more than a hundredth.
fn is_one_colour(image: &Image) -> bool {
    (0..image.channels).all(|channel| {
        let values = (channel..image.data.len()).step_by(image.channels).map(|at| image.data.unit(at));
        let (low, high) = values.fold((f32::INFINITY, 0.0_f32), |(low, high), v| (low.min(v), high.max(v)));
        high - low <= 0.01
    })
}

/// A decoder that runs out of data leaves the rest mid-grey: 128 in all channels, give or take rounding.
fn grey_rest(image: &Image) -> f32 {
    let (Samples::U8(values), 3) = (&image.data, image.channels) else { return 0.0 };
    let is_filled = |row: &[u8]| row.iter().all(|level| (127..=129).contains(level));
    let filled = values.rchunks_exact(3 * image.width).take_while(|row| is_filled(row)).count();
    filled as f32 / image.height as f32
}
