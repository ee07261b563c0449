//! Whether pixels are colours of 8 bits, or what an instrument measured: 16-bit or float samples, any number of channels.

use super::image::Rows;
use super::npy;
use super::tiff::{self, Tiff};
use super::{DataError, Dimensions, Image, Samples, Source};
use image::DynamicImage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

/// Images whose headers tell the form of all.
const LOOKED_AT: usize = 16;

/// What becomes of the samples of an image file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pixels {
    /// `stored` where each of the first images that are looked at has 16 bits, floats or other channels than colours.
    #[default]
    Auto,
    /// Red, green and blue of 8 bits, whatever the file has.
    Rgb,
    /// At their own depth and with their own channels, of which all images have as many; alpha is left out of PNGs.
    Stored,
}

impl Pixels {
    /// Of runs that were made before there was a choice.
    pub(super) fn of_old_runs() -> Self {
        Self::Rgb
    }

    pub(super) fn is_rgb(&self) -> bool {
        *self == Self::Rgb
    }
}

/// What images are decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Rgb,
    Stored { channels: usize },
}

/// Image files, whose form is to be found.
/// Their names end in what they are, where that is known.
pub(super) trait Files: Source + Sized + 'static {
    /// What is stored.
    fn bytes(&self, index: usize) -> Result<Vec<u8>, DataError>;
    /// The same images in this form.
    fn with_form(self, form: Form) -> Self;

    /// The same images in the form that the first of them have, unless `pixels` says which.
    fn formed(self, pixels: Pixels) -> (Arc<dyn Source>, Form) {
        let form = Form::of(&self, pixels);
        (Arc::new(self.with_form(form)), form)
    }
}

impl Form {
    /// The form of all files. What cannot be read says nothing; it is met when every image is checked.
    pub(super) fn of(files: &impl Files, pixels: Pixels) -> Self {
        let count = files.count().min(LOOKED_AT);
        let mut looked_at = (0..count).map(|place| place * files.count() / count);
        let shape = |index: usize| {
            may_be_stored(&files.name(index))
                .then(|| files.bytes(index).ok())
                .flatten()
                .and_then(|bytes| stored_shape(&bytes))
        };
        let is_stored = match pixels {
            Pixels::Rgb => false,
            Pixels::Stored => true,
            Pixels::Auto => {
                let mut shapes =
                    looked_at.clone().map(shape).filter_map(|shape| shape.map(|(_, is_deep)| is_deep)).peekable();
                let all_may = looked_at.clone().all(|index| may_be_stored(&files.name(index)));
                all_may && shapes.peek().is_some() && shapes.all(|is_deep| is_deep)
            }
        };
        if !is_stored {
            return Self::Rgb;
        }
        let any = |index: usize| files.bytes(index).ok().and_then(|bytes| stored_shape(&bytes));
        Self::Stored { channels: looked_at.find_map(any).map_or(3, |(shape, _)| shape.channels) }
    }

    /// An image from its file.
    pub(super) fn decode(self, rows: Rows, bytes: &[u8], name: &str) -> Result<Image, DataError> {
        match self {
            Self::Rgb => Image::decode_to(rows, bytes, name),
            Self::Stored { channels } => decode(rows, channels, bytes, name),
        }
    }

    /// Whether an image is whole.
    pub(super) fn check(self, bytes: &[u8], name: &str) -> Result<(), DataError> {
        match self {
            Self::Rgb => Image::check(bytes, name).map(|_| ()),
            Self::Stored { .. } => self.decode(Rows::Upright, bytes, name).map(|_| ()),
        }
    }

    pub(super) fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Stored { channels } => channels,
        }
    }

    pub(super) fn pixels(self) -> Pixels {
        if self == Self::Rgb { Pixels::Rgb } else { Pixels::Stored }
    }
}

/// Formats that have more than 8 bits or other channels than colours.
fn may_be_stored(name: &str) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default().to_string_lossy().to_lowercase();
    matches!(extension.as_str(), "png" | "tif" | "tiff" | "npy")
}

/// The shape of an image as it is stored, from its header, and whether that is more than colours of 8 bits.
fn stored_shape(bytes: &[u8]) -> Option<(Dimensions, bool)> {
    if npy::is_array(bytes) {
        return Some((npy::dimensions(bytes).ok()?, true));
    }
    if tiff::is_tiff(bytes) {
        let tiff = Tiff::open(bytes).ok()?;
        return Some((tiff.dimensions(), !tiff.is_colour()));
    }
    let reader = image::ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
    let decoder = reader.into_decoder().ok()?;
    let ((width, height), colour) =
        (image::ImageDecoder::dimensions(&decoder), image::ImageDecoder::color_type(&decoder));
    let channels = if colour.has_color() { 3 } else { 1 };
    let is_deep = colour.bytes_per_pixel() / colour.channel_count() > 1;
    Some((Dimensions { height: height as usize, width: width as usize, channels }, is_deep))
}

/// The shape of an image as [`decode`] gives it.
pub(super) fn dimensions(rows: Rows, bytes: &[u8], name: &str) -> Result<Dimensions, DataError> {
    if !npy::is_array(bytes) && !tiff::is_tiff(bytes) {
        let shape = super::image::header_dimensions(rows, Cursor::new(bytes), name)?;
        let channels = stored_shape(bytes).map_or(3, |(shape, _)| shape.channels);
        return Ok(Dimensions { channels, ..shape });
    }
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    if npy::is_array(bytes) {
        return npy::dimensions(bytes).map_err(error);
    }
    Tiff::open(bytes).map(|tiff| tiff.dimensions()).map_err(error)
}

/// An image with the samples and channels of its file.
fn decode(rows: Rows, channels: usize, bytes: &[u8], name: &str) -> Result<Image, DataError> {
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    let image = if npy::is_array(bytes) {
        npy::decode(bytes).map_err(error)?
    } else if tiff::is_tiff(bytes) {
        Tiff::open(bytes).and_then(Tiff::decode).map_err(error)?
    } else {
        of_file(super::image::decode_file(rows, bytes, name)?)
    };
    if image.channels != channels {
        let cause = format!("it has {} channels, the first image {channels}: sort them into folders", image.channels);
        return Err(error(cause));
    }
    if let Samples::F32(values) = &image.data
        && let Some(value) = values.iter().find(|value| !(0.0..=1.0).contains(*value))
    {
        return Err(error(format!(
            "it has the value {value}: floats lie between 0 and 1, so divide them by what the instrument can give at most"
        )));
    }
    Ok(image)
}

/// An array of one channel or three as colours of 8 bits.
pub(super) fn array_as_rgb(bytes: &[u8], name: &str) -> Result<Image, DataError> {
    let error = |cause: String| DataError::Decode { name: name.to_owned(), cause };
    let Image { height, width, channels, data } = npy::decode(bytes).map_err(error)?;
    if !matches!(channels, 1 | 3) {
        return Err(error(format!("it has {channels} channels, and colours are 1 or 3: leave out data.pixels = rgb")));
    }
    let byte = |at: usize| (data.unit(at) * 255.0).round().clamp(0.0, 255.0) as u8;
    let pixels = (0..height * width).flat_map(|pixel| [0, 1, 2].map(|c| byte(pixel * channels + c.min(channels - 1))));
    Ok(Image::new(height, width, 3, pixels.collect::<Vec<u8>>()))
}

/// Without alpha.
fn of_file(image: DynamicImage) -> Image {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let new = |channels: usize, data: Samples| Image::new(height, width, channels, data);
    match image {
        DynamicImage::ImageLuma8(_) | DynamicImage::ImageLumaA8(_) => new(1, image.into_luma8().into_raw().into()),
        DynamicImage::ImageLuma16(_) | DynamicImage::ImageLumaA16(_) => new(1, image.into_luma16().into_raw().into()),
        DynamicImage::ImageRgb16(_) | DynamicImage::ImageRgba16(_) => new(3, image.into_rgb16().into_raw().into()),
        DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => new(3, image.into_rgb32f().into_raw().into()),
        image => new(3, image.into_rgb8().into_raw().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, RunConfig};
    use crate::data::npy::tests::npy;
    use crate::data::tiff::tests::{Plan, planes, tiff};
    use crate::data::{DataConfig, Dataset, Manifest, open_images};

    fn open(root: &Path) -> Result<Dataset, DataError> {
        Dataset::open(&DataConfig { path: Some(root.to_owned()), ..Default::default() }, 0)
    }

    #[test]
    fn sixteen_bits_of_a_png_stay_and_alpha_goes() {
        let bytes = |image: DynamicImage| {
            let mut bytes = Cursor::new(Vec::new());
            image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
            bytes.into_inner()
        };
        let grey = bytes(image::ImageBuffer::from_fn(3, 2, |x, y| image::LumaA([(1000 * x + y) as u16, 9])).into());
        let stored = Form::Stored { channels: 1 }.decode(Rows::Upright, &grey, "").unwrap();
        assert_eq!(stored, Image::new(2, 3, 1, vec![0_u16, 1000, 2000, 1, 1001, 2001]));
        assert_eq!(Form::Rgb.decode(Rows::Upright, &grey, "").unwrap().channels, 3);
        let colour = bytes(image::ImageBuffer::from_fn(1, 1, |_, _| image::Rgb([1_u16, 300, 65535])).into());
        let stored = Form::Stored { channels: 3 }.decode(Rows::Upright, &colour, "").unwrap();
        assert_eq!(stored, Image::new(1, 1, 3, vec![1_u16, 300, 65535]));
    }

    #[test]
    fn the_form_is_that_of_the_first_images_and_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("deep/a")).unwrap();
        for (name, channels) in [("deep/a/1.tif", 5), ("deep/a/2.tif", 5)] {
            std::fs::write(at(name), tiff(9, 10, &planes(channels, 90), Plan::Planar)).unwrap();
        }
        let data = open(&at("deep")).unwrap();
        assert_eq!((data.channels, data.pixels, data.classes.len()), (5, Pixels::Stored, 1));
        assert_eq!(data.train.dimensions(0).unwrap().channels, 5);
        std::fs::write(at("deep/a/3.tif"), tiff(9, 10, &planes(4, 90), Plan::Chunky)).unwrap();
        let mut train = open(&at("deep")).unwrap().train;
        let error = Manifest::build(&mut train, false, || {}).err().unwrap().to_string();
        assert!(error.contains("3.tif") && error.contains("it has 4 channels, the first image 5"), "{error}");
        // Arrays count where nothing else is.
        std::fs::create_dir_all(at("photos")).unwrap();
        std::fs::write(at("photos/features.npy"), npy("|u1", "4, 6", &[7; 24])).unwrap();
        assert_eq!(open(&at("photos")).unwrap().channels, 1);
        image::RgbImage::from_pixel(4, 4, image::Rgb([9; 3])).save(at("photos/1.png")).unwrap();
        let photos = open(&at("photos")).unwrap();
        assert_eq!((photos.train.len(), photos.channels, photos.pixels), (1, 3, Pixels::Rgb));
        // One of 16 bits among colours becomes colours, as before.
        image::ImageBuffer::from_pixel(4, 4, image::Luma([900_u16])).save(at("photos/2.png")).unwrap();
        assert_eq!(open(&at("photos")).unwrap().pixels, Pixels::Rgb);
        let config = DataConfig { path: Some(at("photos")), pixels: Pixels::Stored, ..Default::default() };
        let mut train = Dataset::open(&config, 0).unwrap().train;
        assert!(
            Manifest::build(&mut train, false, || {})
                .err()
                .unwrap()
                .to_string()
                .contains("1 channels, the first image 3")
        );
        assert_eq!(open_images(&at("deep")).unwrap().image(0).unwrap().channels, 5);
        let config = DataConfig { path: Some(at("photos")), test: Some(at("deep")), ..Default::default() };
        assert!(Dataset::open(&config, 0).is_ok(), "as colours");
    }

    #[test]
    fn what_cannot_be_decoded_is_said() {
        let good = tiff(2, 3, &planes(5, 6), Plan::Chunky);
        let mut absurd = good.clone();
        let width = good.windows(4).position(|field| field == [0, 1, 4, 0]).unwrap() + 8;
        absurd[width..width + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let floats: Vec<u8> = [0.5_f32, 1.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        let nan: Vec<u8> = [0.5_f32, f32::NAN].iter().flat_map(|v| v.to_le_bytes()).collect();
        for (bytes, words) in [
            (&good[..good.len() / 2], "x.tif is not a readable image"),
            (&good[..9], "x.tif is not a readable image"),
            (&absurd, "x.tif is not a readable image"),
            (b"II*\0".as_slice(), "x.tif is not a readable image"),
            (&npy("<f4", "1, 2", &floats), "it has the value 1.5: floats lie between 0 and 1"),
            (&npy("<f4", "1, 2", &nan), "it has the value NaN"),
        ] {
            let error = Form::Stored { channels: 1 }.decode(Rows::Upright, bytes, "x.tif").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    /// Against plain sums, and what follows for a run.
    #[test]
    fn a_run_is_normalised_by_its_channels_and_leaves_colours_out() {
        let root = tempfile::tempdir().unwrap();
        let mut values = vec![Vec::new(); 2];
        for id in 0..4_usize {
            let image: Vec<Vec<u16>> =
                (0..2).map(|c| (0..90).map(|p| (p * 31 + id * 500 + c * 9000) as u16).collect()).collect();
            std::fs::write(root.path().join(format!("{id}.tif")), tiff(9, 10, &image, Plan::Chunky)).unwrap();
            values
                .iter_mut()
                .zip(&image)
                .for_each(|(all, plane)| all.extend(plane.iter().map(|&v| f64::from(v) / 65535.0)));
        }
        let settings = |given: &str| {
            let images = DataConfig { path: Some(root.path().to_owned()), ..Default::default() };
            let mut settings = Overrides::default().images(&images).batch(2);
            if !given.is_empty() {
                settings.set(given).unwrap();
            }
            RunConfig::open(&settings).unwrap().0
        };
        let config = settings("");
        for (channel, values) in values.iter().enumerate() {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
            let (found, spread) = (f64::from(config.augment.mean[channel]), f64::from(config.augment.std[channel]));
            assert!((found - mean).abs() < 1e-6 && (spread - std).abs() < 1e-6, "{found} {mean} {spread} {std}");
        }
        let (jitter, grey) = (&config.augment.jitter, config.augment.grey);
        assert_eq!((jitter.saturation, jitter.hue, grey, config.model().channels), (0.0, 0.0, 0.0, 2));
        assert!(jitter.brightness > 0.0);
        assert!(config.to_toml().contains("pixels = \"stored\""));
        assert_eq!(settings("augment.mean=[0.1, 0.2]").augment.mean, [0.1, 0.2], "the user's word counts");
        // Runs from before there was the key.
        let old: DataConfig = toml::from_str("skip_bad = false").unwrap();
        assert_eq!(old.pixels, Pixels::Rgb);
        assert!(!toml::to_string(&old).unwrap().contains("pixels"), "as it was read");
        for pixels in [Pixels::Auto, Pixels::Rgb, Pixels::Stored] {
            let data = DataConfig { pixels, ..Default::default() };
            assert_eq!(Overrides::default().images(&data).data().unwrap().0, data);
        }
    }
}
