//! Images and labels from every supported source, behind one type. A sample's id is its index in the training
//! split, which is also its row in the manifest and its index into the per-sample state.
//!
//! Adding a format: a new file with an `open` function, and one line in `FORMATS` (`formats.rs`).

mod archive;
mod check_cache;
mod checks;
mod choice;
mod cifar;
mod config;
mod describe;
mod embedded;
mod error;
mod folder;
mod form;
mod formats;
mod idx;
mod image;
mod imagenet_s;
mod jpeg;
mod layout;
mod ledger;
mod list;
mod manifest;
mod matching;
mod memory;
mod named_labels;
mod names;
mod npy;
pub(crate) mod packed;
pub mod pairs;
mod quarantine;
mod region;
mod shards;
mod subset;
mod tiff;
mod tree;
mod watch;

pub use self::image::{Dimensions, Fingerprint, Image, Samples};
pub use checks::CheckImages;
pub use config::DataConfig;
pub use describe::{ChannelStatistics, Description};
pub(crate) use embedded::EMBEDDED;
pub use error::DataError;
pub use form::Pixels;
pub use formats::open_images;
pub(crate) use formats::open_images_as;
use formats::open_path;
pub use layout::Layout;
pub use manifest::{Checked, Manifest, ManifestEntry};
pub use matching::Matching;
pub(crate) use names::Names;
pub use quarantine::{Part, Quarantine, QuarantineEntry};

use crate::math::{Purpose, SampleRng};
use choice::Choice;
use std::path::Path;
use std::sync::Arc;

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modality {
    /// An image.
    Images,
    /// An image with texts.
    Pairs,
}

/// Where images of one split come from. Two methods are enough for images of one's own: see `examples/own_data.rs`.
pub trait Source: Send + Sync {
    /// Number of images.
    fn count(&self) -> usize;

    /// Decodes one image, upright. The same index gives the same image every time.
    fn image(&self, index: usize) -> Result<Image, DataError>;

    /// The image without regard to what EXIF data say of its orientation.
    fn image_as_stored(&self, index: usize) -> Result<Image, DataError> {
        self.image(index)
    }

    /// A name for messages and the manifest, which no other image of the source has: a relative path, or `file#row`.
    fn name(&self, index: usize) -> String {
        format!("#{index}")
    }

    /// Fingerprint of what is stored, checking that the image decodes.
    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        Ok(self.image(index)?.fingerprint())
    }

    /// The shape of an image, where possible without decoding it.
    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        Ok(self.image(index)?.dimensions())
    }

    /// The shape of what [`image_as_stored`](Self::image_as_stored) gives.
    fn dimensions_as_stored(&self, index: usize) -> Result<Dimensions, DataError> {
        self.dimensions(index)
    }

    /// The folder that names are relative to, where each image is a file of its own.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Size and time of last change without reading, where the image is a file of its own.
    fn stamp(&self, _index: usize) -> Option<(u64, u128)> {
        None
    }
}

/// An ordered choice of images from a source.
#[derive(Clone)]
pub struct Split {
    source: Arc<dyn Source>,
    /// Class of every image of the source.
    labels: Option<Arc<Vec<u32>>>,
    /// Captions of every image of the source.
    captions: Option<Arc<Vec<Vec<String>>>>,
    /// Places in the source, of which there are at most 2³².
    rows: Vec<u32>,
    is_as_stored: bool,
    /// What a run knows of the images.
    watch: Option<Arc<watch::Watch>>,
}

impl Split {
    /// Every image of `source`; `labels` has a class for each of them.
    pub fn new(source: Arc<dyn Source>, labels: Option<Vec<u32>>) -> Self {
        let rows = (0..u32::try_from(source.count()).expect("at most 2^32 images")).collect();
        Self { source, labels: labels.map(Arc::new), captions: None, rows, is_as_stored: false, watch: None }
    }

    /// One or more captions for each image of the source.
    pub fn with_captions(self, captions: Vec<Vec<String>>) -> Self {
        assert_eq!(captions.len(), self.source.count(), "captions for every image");
        Self { captions: Some(Arc::new(captions)), ..self }
    }

    /// The same images as they are stored, if `ignore`, and upright otherwise.
    pub fn ignore_orientation(self, ignore: bool) -> Self {
        Self { is_as_stored: ignore, ..self }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The place of an image in the source.
    fn row(&self, id: usize) -> usize {
        self.rows[id] as usize
    }

    /// Decodes an image.
    pub fn image(&self, id: usize) -> Result<Image, DataError> {
        if let Some(watch) = &self.watch {
            watch.look(self.source.as_ref(), self.row(id))?;
        }
        match self.is_as_stored {
            true => self.source.image_as_stored(self.row(id)),
            false => self.source.image(self.row(id)),
        }
    }

    /// The shape of an image, where possible without decoding it.
    pub fn dimensions(&self, id: usize) -> Result<Dimensions, DataError> {
        match self.is_as_stored {
            true => self.source.dimensions_as_stored(self.row(id)),
            false => self.source.dimensions(self.row(id)),
        }
    }

    /// The name of an image, as [`Source::name`] gives it.
    pub fn name(&self, id: usize) -> String {
        self.source.name(self.row(id))
    }

    /// The class of an image; `None` without labels.
    pub fn label(&self, id: usize) -> Option<u32> {
        self.labels.as_ref().map(|labels| labels[self.row(id)])
    }

    /// The captions of an image; none where the data has no text.
    pub fn captions(&self, id: usize) -> &[String] {
        self.captions.as_ref().map_or(&[], |captions| &captions[self.row(id)])
    }

    /// The caption that `epoch` draws for an image, a function of (seed, epoch, image).
    pub fn caption(&self, id: usize, seed: u64, epoch: usize) -> Option<&str> {
        let all = self.captions(id);
        let mut rng = SampleRng::new(seed, Purpose::Caption, epoch as u64, id as u64, 0);
        all.get(rng.uniform(0.0, all.len() as f64) as usize).map(String::as_str)
    }

    /// Whether every image has captions.
    pub fn modality(&self) -> Modality {
        if self.captions.is_some() { Modality::Pairs } else { Modality::Images }
    }

    /// Whether every image has a class.
    pub fn is_labelled(&self) -> bool {
        self.labels.is_some()
    }

    /// Tells one choice of images from another: their names, classes and captions in order, with size and time of each file
    /// or, where an image has no file of its own, a hash of its content.
    pub fn digest(&self) -> Result<String, DataError> {
        use rayon::prelude::*;
        let line = |id: usize| {
            let content = match self.source.stamp(self.row(id)) {
                Some((size, modified)) => format!("{size} {modified}"),
                None => self.source.check(self.row(id))?.hash,
            };
            Ok(format!("{}\t{content}\t{:?}\t{:?}\n", self.name(id), self.label(id), self.captions(id)))
        };
        let lines: Vec<String> = (0..self.len()).into_par_iter().map(line).collect::<Result<_, DataError>>()?;
        let mut hasher = blake3::Hasher::new();
        lines.iter().for_each(|line| {
            hasher.update(line.as_bytes());
        });
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Splits off every `n`-th image of each class.
    pub fn hold_out(&self, n: usize) -> (Self, Self) {
        let mut seen = std::collections::HashMap::<Option<u32>, usize>::new();
        let held: Vec<bool> = (0..self.len())
            .map(|id| {
                let count = seen.entry(self.label(id)).or_default();
                *count += 1;
                count.is_multiple_of(n)
            })
            .collect();
        let (mut rest, mut out) = (self.clone(), self.clone());
        rest.retain(|id| !held[id]);
        out.retain(|id| held[id]);
        (rest, out)
    }

    /// At most `count` images, spread evenly over all.
    pub fn spread(&self, count: usize) -> Self {
        let (len, count) = (self.len(), count.min(self.len()));
        let mut some = self.clone();
        some.rows = (0..count).map(|place| self.rows[place * len / count]).collect();
        some
    }

    /// The images `ids`, in that order.
    pub fn choose(&self, ids: &[usize]) -> Self {
        Self { rows: ids.iter().map(|&id| self.rows[id]).collect(), ..self.clone() }
    }

    /// The images for which `keep(id)` holds.
    fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let kept = (0..self.len()).filter(|&id| keep(id)).map(|id| self.rows[id]).collect();
        self.rows = kept;
    }
}

/// A training split, perhaps a test split, and the names of the classes.
#[derive(Clone)]
pub struct Dataset {
    /// What to call it in reports.
    pub title: String,
    /// What is trained on.
    pub train: Split,
    /// What is held out for testing.
    pub test: Option<Split>,
    /// Names of the classes in the order of labels; none without labels.
    pub classes: Vec<String>,
    /// Side of the images where they are all square and alike.
    pub native_size: Option<usize>,
    /// Channels of every image.
    pub channels: usize,
    /// What they are of: `Rgb`, also of greys and of a program's own images, or `Stored`.
    pub pixels: Pixels,
    /// What was left out, one sentence for each: captions that cannot be used, and images of the quarantine list.
    pub problems: Vec<String>,
    /// Where a folder of images had them.
    pub layout: Layout,
}

impl Dataset {
    /// Training images of one's own, all with as many channels as the first.
    pub fn new(title: &str, train: Split) -> Result<Self, DataError> {
        if train.is_empty() {
            return Err(DataError::NoImages(title.to_owned()));
        }
        let channels = train.dimensions(0)?.channels;
        let classes = (0..train.len()).filter_map(|id| train.label(id)).max().map_or(0, |last| last + 1);
        let classes = (0..classes).map(|class| class.to_string()).collect();
        Ok(Self {
            title: title.to_owned(),
            train,
            test: None,
            classes,
            native_size: None,
            channels,
            pixels: Pixels::Rgb,
            problems: Vec::new(),
            layout: Layout::default(),
        })
    }

    /// The same with images for testing.
    pub fn with_test(self, test: Split) -> Self {
        Self { test: Some(test), ..self }
    }

    /// Opens what `config` names and narrows it to the wanted classes and number.
    pub fn open(config: &DataConfig, seed: u64) -> Result<Self, DataError> {
        if let Some(name) = &config.own {
            return Err(DataError::Own(name.clone()));
        }
        let images = config.images.as_deref();
        let choice = Choice::of(config.labels.as_deref(), &config.exclude);
        let mut choice = choice.map_err(|cause| DataError::Choice(config.path.clone().unwrap_or_default(), cause))?;
        choice.pixels = config.pixels;
        let mut data = match (&config.path, &config.pairs) {
            (_, Some(pairs)) => {
                let data = pairs::open(pairs, images, config.skip_bad)?;
                if data.train.is_empty() {
                    let cause = "all of its pairs are for testing: put Flickr_8k.trainImages.txt beside it".into();
                    return Err(DataError::Format { path: pairs.clone(), cause });
                }
                data
            }
            (None, None) => embedded::open()?,
            (Some(path), None) => open_path(path, &choice)?,
        };
        match (&config.test, &config.pairs) {
            (Some(test), Some(_)) => {
                let held_out = pairs::open(test, images, config.skip_bad)?;
                data.problems.extend(held_out.problems);
                data.test = Some(held_out.test.unwrap_or(held_out.train));
            }
            (Some(path), None) => {
                choice.pixels = data.pixels;
                let test = open_path(path, &choice)?;
                if data.pixels == Pixels::Stored && test.channels != data.channels {
                    let (given, wanted) = (test.channels, data.channels);
                    let cause = format!("its images have {given} channels, those for training {wanted}");
                    return Err(DataError::Format { path: path.clone(), cause });
                }
                data.test = Some(subset::align_classes(test, &data.classes, path)?);
            }
            (None, _) => {}
        }
        if let Some(file) = &config.classes {
            subset::keep_classes(&mut data, file)?;
        }
        if let Some(template) = &config.template {
            pairs::caption_classes(&mut data, template, config.class_names.as_deref())?;
        }
        data.train = data.train.ignore_orientation(config.ignore_orientation);
        data.test = data.test.map(|test| test.ignore_orientation(config.ignore_orientation));
        if let Some(n) = config.hold_out {
            let (train, test) = data.train.hold_out(n);
            (data.train, data.test) = (train, Some(test));
        }
        // Before the limit, which is a share of what can be used.
        if let Some(list) = &config.quarantine {
            Quarantine::read(list)?.apply(&mut data, list)?;
        }
        if let Some(limit) = config.limit {
            subset::limit(&mut data.train, limit, seed)?;
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::image::codecs::jpeg::JpegEncoder;
    use ::image::{ExtendedColorType, ImageEncoder};

    /// Runs from before there was the key say nothing of it.
    #[test]
    fn new_runs_turn_photographs_and_old_ones_do_not() {
        let old: DataConfig = toml::from_str("skip_bad = false").unwrap();
        let new: DataConfig = toml::from_str(&toml::to_string(&DataConfig::default()).unwrap()).unwrap();
        assert_eq!([old.ignore_orientation, new.ignore_orientation], [true, false]);
        assert!(!toml::to_string(&old).unwrap().contains("ignore"), "as it was read");

        let root = tempfile::tempdir().unwrap();
        let mut encoder = JpegEncoder::new(std::fs::File::create(root.path().join("held-sideways.jpg")).unwrap());
        let on_its_side = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        encoder.set_exif_metadata(on_its_side.to_vec()).unwrap();
        encoder.write_image(&[9; 3 * 24 * 16], 24, 16, ExtendedColorType::Rgb8).unwrap();
        for (config, (height, width)) in [(old, (16, 24)), (new, (24, 16))] {
            let path = Some(root.path().to_owned());
            let data = Dataset::open(&DataConfig { path: path.clone(), test: path, ..config }, 0).unwrap();
            for split in [data.train, data.test.unwrap()] {
                let (image, header) = (split.image(0).unwrap(), split.dimensions(0).unwrap());
                assert_eq!(image.dimensions(), header);
                assert_eq!((image.height, image.width), (height, width));
            }
        }
    }
}
