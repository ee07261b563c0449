//! The settings that say which images are used.

use super::checks::CheckImages;
use super::choice::{Choice, LabelsFrom};
use super::form::Pixels;
use super::{imagenet_s, pairs};
use crate::check::{Problem, require};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Which images to use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Folder of images (`train/` with `val/` or `test/` are splits where nothing beside them holds images), a .zip or .tar of
    /// one, tar shards, a .txt list of images, a file made by `sogclr pack`, CIFAR binary batches or IDX files; absent: the embedded Fashion-MNIST
    /// subset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Folder or file with test images, where `path` has none of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// File with one class name on each line, or `imagenet-s` for the paper's 100 classes of ImageNet: use only those classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<PathBuf>,
    /// What the classes of a folder of images are: `first` (the first folders below it), `leaf` (the folder of each image, by its
    /// whole path), `path:N` (the N-th folder on the way) or a .csv or .tsv file of image and class; absent: `first`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Files and folders of a folder of images to leave out: patterns of their path below it, or of their name alone, such as
    /// `*_mask.png` or `thumbs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Image–text pairs in place of `path`: a table (.tsv, .csv, .jsonl), Flickr8k.token.txt, tar shards (.tar, or a
    /// folder of them), or `emoji` for the embedded set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PathBuf>,
    /// Folder or zip file with the images of `pairs`; absent: beside the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<PathBuf>,
    /// Makes pairs of labelled images: a caption in which `[CLASS]` stands for the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// File with the names of the classes for `template`: one on each line, in the order of the classes (sorted folders, or
    /// the lines of `classes`), or lines of folder, tab and name; absent: the names of the folders, or CLIP's of ImageNet-S.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_names: Option<PathBuf>,
    /// Test on every N-th training image of each class, which training then leaves out, in place of the test images: to choose
    /// settings by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_out: Option<usize>,
    /// Use this many training images, the same share of each class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Side of the crops in pixels, unless `augment.views` says otherwise, and of the images at evaluation; absent: follows
    /// the images, 224 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<usize>,
    /// Side of the images at evaluation, in `embed` and in load.py; absent: `image_size`. Multi-crop trains on smaller ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_size: Option<usize>,
    /// Leave out images and captions that cannot be used instead of refusing to start.
    pub skip_bad: bool,
    /// Compare the content of every image with what it was, at each read, also where its size and time of last change are the
    /// same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify_content: bool,
    /// Which images are read and decoded before the run begins: `all`, `sample` (a thousand, drawn by the seed) or `none`. What is
    /// known from an earlier check is not read again. A broken image that nobody looked at stops the run when it is met.
    #[serde(default, skip_serializing_if = "CheckImages::is_all")]
    pub check: CheckImages,
    /// List of images to leave out, as `sogclr check` writes it: a name on each line, perhaps with its split and the reason,
    /// divided by tabs. It is kept in the run folder. Names that no image has are noted; if no image has any of them, it is an
    /// error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<PathBuf>,
    /// Leave images as they are stored, whatever their EXIF data say of how the camera was held. torchvision does so, and so
    /// do runs that were made before there was this key: where it is absent from a run's `config.toml`, it is true.
    #[serde(default = "ignored", skip_serializing_if = "is_ignored")]
    #[schemars(default)]
    pub ignore_orientation: bool,
    /// What becomes of the samples of image files: `rgb` are colours of 8 bits, `stored` leaves depth and channels as they are, `auto`
    /// decides by the first images. Absent from a run's `config.toml`: rgb.
    #[serde(default = "Pixels::of_old_runs", skip_serializing_if = "Pixels::is_rgb")]
    #[schemars(default)]
    pub pixels: Pixels,
    /// What a program calls images that it brought itself; no other program can open them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
}

/// What an absent `ignore_orientation` stands for in the settings of a run.
fn ignored() -> bool {
    true
}

fn is_ignored(ignore: &bool) -> bool {
    *ignore
}

impl DataConfig {
    /// Images alone, pairs, or labelled images with a template: not several of them.
    pub fn check(&self) -> Result<(), Problem> {
        let Self { path, pairs, images, template, classes, class_names, hold_out, .. } = self;
        require(hold_out.is_none_or(|n| n >= 2), "data.hold_out", || {
            "is below 2: 5 tests on every fifth image".into()
        })?;
        let given = |both: bool, key: &str, text: &str| require(!both, key, || text.to_owned());
        let (has_pairs, has_template) = (pairs.is_some(), template.is_some());
        given(has_pairs && path.is_some(), "data.pairs", "is given beside data.path: name one of them")?;
        given(!has_pairs && images.is_some(), "data.images", "is given without data.pairs: name the captions, too")?;
        given(
            !has_template && class_names.is_some(),
            "data.class_names",
            "is given without data.template: say where the name belongs, \"a photo of [CLASS]\"",
        )?;
        given(has_pairs && has_template, "data.pairs", "has captions of its own: leave data.template out")?;
        given(has_pairs && classes.is_some(), "data.pairs", "has no classes: leave data.classes out")?;
        if let Err(problem) = Choice::of(self.labels.as_deref(), &[]) {
            return Err(Problem::new("data.labels", problem));
        }
        if let Err(problem) = Choice::of(None, &self.exclude) {
            return Err(Problem::new("data.exclude", problem));
        }
        let text = template.as_deref().unwrap_or("[CLASS]");
        require(text.contains("[CLASS]"), "data.template", || {
            format!("is {text:?}; write [CLASS] where the class belongs")
        })
    }

    /// The same with absolute paths, which still hold when a run is resumed from elsewhere.
    pub fn absolute(mut self) -> Self {
        let Self { path, test, classes, class_names, pairs, images, quarantine, .. } = &mut self;
        for path in [path, test, classes, class_names, pairs, images, quarantine].into_iter().flatten() {
            if path.as_path() != Path::new(pairs::EMOJI) && !imagenet_s::is_built_in(path) {
                *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
            }
        }
        if let Some(LabelsFrom::File(table)) = self.labels.as_ref().and_then(|text| text.parse().ok()) {
            let table = std::path::absolute(&table).unwrap_or(table);
            self.labels = Some(table.to_string_lossy().into_owned());
        }
        self
    }
}
