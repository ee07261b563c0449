//! TIFF with any number of channels, side by side, as planes or as pages.

use super::npy::interleaved;
use super::{Dimensions, Image, Samples};
use ::tiff::TiffError;
use ::tiff::decoder::{Decoder, DecodingResult};
use ::tiff::tags::Tag;
use std::io::Cursor;

/// Whether these are the first bytes of one.
pub(super) fn is_tiff(bytes: &[u8]) -> bool {
    [b"II*\0".as_slice(), b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| bytes.starts_with(magic))
}

/// A TIFF. Pages of one channel and of the size of the first are channels; of others the first page counts.
pub(super) struct Tiff<'a> {
    decoder: Decoder<Cursor<&'a [u8]>>,
    bits: u32,
    /// Of the first page.
    samples: usize,
    pages: usize,
    /// Height and width.
    side: (usize, usize),
}

/// More pages than any instrument has channels.
const MOST_PAGES: usize = 4096;

impl<'a> Tiff<'a> {
    /// Reads the headers of all pages.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let say = |error: TiffError| error.to_string();
        let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(say)?;
        let mut tag = |tag| {
            let values = decoder.find_tag_unsigned_vec::<u32>(tag).ok().flatten();
            values.and_then(|values| values.first().copied())
        };
        let (bits, samples) = (tag(Tag::BitsPerSample).unwrap_or(1), tag(Tag::SamplesPerPixel).unwrap_or(1) as usize);
        let orientation = tag(Tag::Orientation).unwrap_or(1);
        let first = decoder.dimensions().map_err(say)?;
        let mut pages = 1;
        while samples == 1 && pages < MOST_PAGES && decoder.more_images() {
            decoder.next_image().map_err(say)?;
            if decoder.dimensions().map_err(say)? != first {
                pages = 1;
                break;
            }
            pages += 1;
        }
        decoder.seek_to_image(0).map_err(say)?;
        let tiff = Self { decoder, bits, samples, pages, side: (first.1 as usize, first.0 as usize) };
        match orientation == 1 || tiff.is_colour() {
            true => Ok(tiff),
            false => Err(format!("its orientation is {orientation}: save it upright")),
        }
    }

    /// Whether it has nothing but colours of 8 bits.
    pub(super) fn is_colour(&self) -> bool {
        self.bits <= 8 && self.pages == 1 && matches!(self.samples, 1 | 3 | 4)
    }

    /// With all channels.
    pub(super) fn dimensions(&self) -> Dimensions {
        Dimensions { height: self.side.0, width: self.side.1, channels: self.samples * self.pages }
    }

    /// All samples.
    pub(super) fn decode(mut self) -> Result<Image, String> {
        let Dimensions { height, width, channels } = self.dimensions();
        let pixels = height.checked_mul(width).filter(|&pixels| pixels > 0).ok_or("it has no pixels")?;
        let (mut data, mut is_planar) = (None, self.pages > 1);
        for page in 0..self.pages {
            if page > 0 {
                self.decoder.next_image().map_err(|error| error.to_string())?;
            }
            let mut samples = DecodingResult::U8(Vec::new());
            let layout = self.decoder.read_image_to_buffer(&mut samples).map_err(|error| error.to_string())?;
            is_planar |= layout.planes > 1;
            let samples: Samples = match samples {
                DecodingResult::U8(values) if self.bits == 8 => values.into(),
                DecodingResult::U16(values) if self.bits == 16 => values.into(),
                DecodingResult::F32(values) => values.into(),
                _ => {
                    let bits = self.bits;
                    return Err(format!(
                        "its samples of {bits} bits cannot be used: save them as 8-bit, 16-bit or float"
                    ));
                }
            };
            data = Some(match data {
                None => samples,
                Some(all) => joined(all, samples).ok_or("its pages have samples of several types: save them alike")?,
            });
        }
        let data = data.ok_or("it has no pages")?;
        if pixels.checked_mul(channels) != Some(data.len()) {
            let read = data.len() / pixels;
            return Err(format!(
                "{read} of its {channels} channels can be read: save them without alpha or other extras"
            ));
        }
        let data = match data {
            data if !is_planar => data,
            Samples::U8(values) => interleaved(&values, pixels, channels).into(),
            Samples::U16(values) => interleaved(&values, pixels, channels).into(),
            Samples::F32(values) => interleaved(&values, pixels, channels).into(),
        };
        Ok(Image::new(height, width, channels, data))
    }
}

/// One behind the other; none if they are of several types.
fn joined(all: Samples, more: Samples) -> Option<Samples> {
    Some(match (all, more) {
        (Samples::U8(mut all), Samples::U8(more)) => {
            all.extend(more);
            all.into()
        }
        (Samples::U16(mut all), Samples::U16(more)) => {
            all.extend(more);
            all.into()
        }
        (Samples::F32(mut all), Samples::F32(more)) => {
            all.extend(more);
            all.into()
        }
        _ => return None,
    })
}

#[cfg(test)]
pub(in crate::data) mod tests {
    use super::*;

    /// How the samples of a TIFF are laid out.
    #[derive(Clone, Copy, PartialEq)]
    pub enum Plan {
        Chunky,
        Planar,
        Pages,
    }

    /// An uncompressed little-endian TIFF of 16-bit planes.
    pub fn tiff(height: usize, width: usize, planes: &[Vec<u16>], plan: Plan) -> Vec<u8> {
        let mut bytes = b"II*\0\0\0\0\0".to_vec();
        let put = |bytes: &mut Vec<u8>, values: &[u16]| {
            let at = bytes.len() as u32;
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            at
        };
        let strips: Vec<u32> = match plan {
            Plan::Chunky => {
                let pixels: Vec<u16> =
                    (0..height * width).flat_map(|p| planes.iter().map(move |plane| plane[p])).collect();
                vec![put(&mut bytes, &pixels)]
            }
            _ => planes.iter().map(|plane| put(&mut bytes, plane)).collect(),
        };
        let (pages, samples) = if plan == Plan::Pages { (planes.len(), 1) } else { (1, planes.len()) };
        let bits = put(&mut bytes, &vec![16; samples]);
        let extra = put(&mut bytes, &vec![0; samples]);
        let words = |bytes: &mut Vec<u8>, values: &[u32]| {
            let at = bytes.len() as u32;
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            at
        };
        let mut next = 4;
        for page in 0..pages {
            let here = if plan == Plan::Pages { &strips[page..=page] } else { &strips[..] };
            let lengths = vec![(2 * height * width * samples / here.len()) as u32; here.len()];
            let (offsets, counts) = match here {
                [one] => (*one, lengths[0]),
                many => (words(&mut bytes, many), words(&mut bytes, &lengths)),
            };
            let short_at = |values: u32, count: usize, one: u32| {
                if count > 2 {
                    values
                } else if count == 2 {
                    one | one << 16
                } else {
                    one
                }
            };
            let (count, strips) = (samples as u32, here.len() as u32);
            let mut fields = vec![
                (256, 4, 1, width as u32),
                (257, 4, 1, height as u32),
                (258, 3, count, short_at(bits, samples, 16)),
                (259, 3, 1, 1),
                (262, 3, 1, 1),
                (273, 4, strips, offsets),
                (277, 3, 1, count),
                (278, 4, 1, height as u32),
                (279, 4, strips, counts),
                (284, 3, 1, if plan == Plan::Planar { 2 } else { 1 }),
            ];
            if samples > 1 {
                fields.push((338, 3, count - 1, short_at(extra, samples - 1, 0)));
            }
            let at = bytes.len() as u32;
            bytes[next..next + 4].copy_from_slice(&at.to_le_bytes());
            bytes.extend((fields.len() as u16).to_le_bytes());
            for (tag, kind, count, value) in fields {
                bytes.extend((tag as u16).to_le_bytes());
                bytes.extend((kind as u16).to_le_bytes());
                bytes.extend(count.to_le_bytes());
                bytes.extend(value.to_le_bytes());
            }
            next = bytes.len();
            bytes.extend([0; 4]);
        }
        bytes
    }

    /// Values that tell channel and pixel.
    pub fn planes(count: usize, pixels: usize) -> Vec<Vec<u16>> {
        (0..count).map(|channel| (0..pixels).map(|pixel| (1000 * channel + 7 * pixel) as u16).collect()).collect()
    }

    #[test]
    fn any_number_of_channels_comes_from_pixels_planes_or_pages() {
        for channels in [1, 2, 3, 5, 12] {
            let planes = planes(channels, 6);
            let pixels: Vec<u16> = (0..6).flat_map(|p| planes.iter().map(move |plane| plane[p])).collect();
            let wanted = Image::new(2, 3, channels, pixels);
            for plan in [Plan::Chunky, Plan::Planar, Plan::Pages] {
                let bytes = tiff(2, 3, &planes, plan);
                let tiff = Tiff::open(&bytes).unwrap();
                assert_eq!((tiff.dimensions(), tiff.is_colour()), (wanted.dimensions(), false));
                assert_eq!(tiff.decode().unwrap(), wanted);
            }
        }
    }
}
