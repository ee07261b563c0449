//! Images as NumPy writes arrays: `[height, width]`, `[height, width, channels]` or `[channels, height, width]` of u8, u16 or
//! f32. Of three axes the channels are the first where that is shorter than the last, and the last otherwise.

use super::{Dimensions, Image, Samples};
use regex::Regex;
use std::sync::LazyLock;

/// The first bytes of a file.
const MAGIC: &[u8] = b"\x93NUMPY";
const AGAIN: &str = "save it again by numpy.save";

static HEADER: LazyLock<Regex> = LazyLock::new(|| {
    let fields = [r"'descr': '([^']*)'", r"'fortran_order': (True|False)", r"'shape': \(([0-9, ]*)\)"];
    Regex::new(&format!(r"^\s*\{{{}, {}, {},? *\}}\s*$", fields[0], fields[1], fields[2])).expect("a valid pattern")
});

/// Whether these are the first bytes of an array.
pub(super) fn is_array(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// What the header says, and the values.
struct Array<'a> {
    dimensions: Dimensions,
    channels_first: bool,
    /// `|u1`, `<u2`, `>u2`, `<f4` or `>f4`.
    kind: &'a str,
    values: &'a [u8],
}

impl<'a> Array<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, String> {
        let cut = || format!("the array ends inside its header: {AGAIN}");
        let (start, len): (usize, usize) = match bytes.get(6).ok_or_else(cut)? {
            1 => (10, usize::from(u16::from_le_bytes(bytes.get(8..10).ok_or_else(cut)?.try_into().expect("two")))),
            _ => (12, u32::from_le_bytes(bytes.get(8..12).ok_or_else(cut)?.try_into().expect("four")) as usize),
        };
        let header = start.checked_add(len).and_then(|end| bytes.get(start..end)).ok_or_else(cut)?;
        let header = std::str::from_utf8(header).map_err(|_| format!("the header of the array is damaged: {AGAIN}"))?;
        let fields = HEADER.captures(header).ok_or_else(|| format!("the header of the array is damaged: {AGAIN}"))?;
        let (kind, order) = (fields.get(1).map_or("", |field| field.as_str()), &fields[2]);
        let size = match kind {
            "|u1" => 1,
            "<u2" | ">u2" => 2,
            "<f4" | ">f4" => 4,
            _ => return Err(format!("its type is {kind:?}: save it as numpy.uint8, uint16 or float32")),
        };
        if order == "True" {
            return Err("its rows stand in Fortran's order: save numpy.ascontiguousarray of it".into());
        }
        let numbers = fields[3].split(',').map(str::trim).filter(|number| !number.is_empty());
        let shape: Option<Vec<usize>> = numbers.map(|number| number.parse().ok()).collect();
        let shape = shape.ok_or_else(|| format!("the shape ({}) is more than any file holds", &fields[3]))?;
        let (channels_first, [height, width, channels]) = match shape[..] {
            [height, width] => (false, [height, width, 1]),
            [channels, height, width] if channels < width => (true, [height, width, channels]),
            [height, width, channels] => (false, [height, width, channels]),
            _ => return Err(format!("its shape is {shape:?}: an image has height and width, and perhaps channels")),
        };
        let wanted = shape.iter().try_fold(size, |bytes: usize, &axis| bytes.checked_mul(axis));
        let (wanted, values) = (wanted.unwrap_or(usize::MAX), &bytes[start + len..]);
        if wanted == 0 || wanted != values.len() {
            return Err(format!("its shape {shape:?} is of {wanted} bytes, and {} follow: {AGAIN}", values.len()));
        }
        Ok(Self { dimensions: Dimensions { height, width, channels }, channels_first, kind, values })
    }

    fn values<T: Copy, const N: usize>(&self, value: impl Fn([u8; N]) -> T) -> Vec<T> {
        let values = self.values.chunks_exact(N).map(|bytes| value(bytes.try_into().expect("as many bytes")));
        let Dimensions { height, width, channels } = self.dimensions;
        if self.channels_first {
            interleaved(&values.collect::<Vec<_>>(), height * width, channels)
        } else {
            values.collect()
        }
    }
}

/// Pixels from planes.
pub(super) fn interleaved<T: Copy>(planes: &[T], pixels: usize, channels: usize) -> Vec<T> {
    (0..pixels).flat_map(|pixel| (0..channels).map(move |channel| planes[channel * pixels + pixel])).collect()
}

/// The shape of an image, from the header alone.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, String> {
    Ok(Array::of(bytes)?.dimensions)
}

/// The image.
pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    let array = Array::of(bytes)?;
    let data: Samples = match array.kind {
        "|u1" => array.values(|[v]: [u8; 1]| v).into(),
        "<u2" => array.values(u16::from_le_bytes).into(),
        ">u2" => array.values(u16::from_be_bytes).into(),
        "<f4" => array.values(f32::from_le_bytes).into(),
        _ => array.values(f32::from_be_bytes).into(),
    };
    let Dimensions { height, width, channels } = array.dimensions;
    Ok(Image::new(height, width, channels, data))
}

#[cfg(test)]
pub(in crate::data) mod tests {
    use super::*;

    pub(in crate::data) fn npy(kind: &str, shape: &str, values: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
        header += &" ".repeat((64 - (11 + header.len()) % 64) % 64);
        header.push('\n');
        let mut bytes = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        bytes.extend(header.as_bytes());
        bytes.extend(values);
        bytes
    }

    #[test]
    fn channels_are_the_first_axis_where_it_is_the_shorter() {
        let bytes: Vec<u8> = (0..24).collect();
        let grey = decode(&npy("|u1", "4, 6", &bytes)).unwrap();
        assert_eq!(grey, Image::new(4, 6, 1, bytes.clone()));
        let last = decode(&npy("|u1", "3, 4, 2", &bytes)).unwrap();
        assert_eq!(last, Image::new(3, 4, 2, bytes.clone()));
        let first = decode(&npy("|u1", "2, 3, 4", &bytes)).unwrap();
        assert_eq!((first.height, first.width, first.channels), (3, 4, 2));
        let Samples::U8(values) = first.data else { panic!("bytes") };
        assert_eq!(values[..4], [0, 12, 1, 13]);
        let words = decode(&npy(">u2", "3, 4", &bytes)).unwrap();
        assert_eq!(words.data, (0..12).map(|k| 512 * k + 2 * k + 1).collect::<Vec<u16>>().into());
        let floats: Vec<u8> = [0.25_f32, 0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(decode(&npy("<f4", "1, 2", &floats)).unwrap(), Image::new(1, 2, 1, vec![0.25_f32, 0.5]));
        assert_eq!(
            dimensions(&npy("|u1", "2, 3, 4", &bytes)).unwrap(),
            Dimensions { height: 3, width: 4, channels: 2 }
        );
    }

    #[test]
    fn what_is_no_image_is_said() {
        let bytes = [0; 24];
        let good = npy("|u1", "4, 6", &bytes);
        let fortran = String::from_utf8_lossy(&good).replace("False", "True ");
        let cases: [(&[u8], &str); 10] = [
            (&good[..7], "ends inside its header"),
            (&good[..40], "ends inside its header"),
            (&good[..good.len() - 1], "is of 24 bytes, and 23 follow"),
            (&npy("<f8", "1, 3", &bytes), "its type is \"<f8\": save it as numpy.uint8"),
            (&npy("|O", "24", &bytes), "its type is"),
            (&npy("|u1", "24,", &bytes), "its shape is [24]"),
            (&npy("|u1", "0, 6", &[]), "is of 0 bytes"),
            (&npy("|u1", "4294967296, 4294967296, 2", &bytes), "and 24 follow"),
            (&npy("|u1", "99999999999999999999999, 2", &bytes), "more than any file holds"),
            (&npy("|u1", "4, 6) or exec(1", &bytes), "damaged"),
        ];
        for (bytes, words) in cases {
            let error = decode(bytes).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(decode(fortran.as_bytes()).is_err());
    }
}
