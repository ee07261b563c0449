//! What can be wrong with data, always naming the file and the way out.

use crate::check::shown;
use std::path::PathBuf;

/// What is wrong with data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Nothing lies at the path.
    #[error("{} does not exist: check the path of the data", shown(.0.display()))]
    NotFound(PathBuf),
    /// The data of a run is no longer where it was.
    #[error("{path}, the data of this run, does not exist: if it was moved, write its new path into {config}")]
    Moved {
        /// Where it was.
        path: PathBuf,
        /// The `config.toml` that names it.
        config: PathBuf,
    },
    /// A file that is no data.
    #[error(
        "{} is a file that holds no images: name a folder of images, a .zip or .tar of one, or a .txt list of images",
        shown(.0.display())
    )]
    UnknownFile(PathBuf),
    /// There is no image at the path.
    #[error("{0} holds no images: expected jpg, png, webp, gif, bmp or tif files, IDX files or CIFAR batches")]
    Empty(PathBuf),
    /// There are files at the path, but no image among them.
    #[error(
        "{folder} holds no images, only {others}: expected jpg, png, webp, gif, bmp or tif files, IDX files or CIFAR batches"
    )]
    NoneOfThese {
        /// The path.
        folder: PathBuf,
        /// What lies there, counted by extension.
        others: String,
    },
    /// Images lie beside what looks like splits.
    #[error(
        "{train} looks like the training split, but there are images beside it, in {beside}: move them away, name {train} \
         itself as the data, or rename it if it is a class"
    )]
    BesideSplits {
        /// What was named.
        folder: PathBuf,
        /// What looks like the training split.
        train: PathBuf,
        /// What looks like the held-out one.
        test: Option<PathBuf>,
        /// Some of what lies beside them.
        beside: String,
    },
    /// `data.labels` or `data.exclude` makes no sense for the data at the path.
    #[error("{0}: {1}")]
    Choice(PathBuf, String),
    /// A program brought a data set without images, by this title.
    #[error("{0} has no images")]
    NoImages(String),
    /// The run was begun on a program's own images, by this title.
    #[error("{0:?} are images that another program brought: go on with the run there")]
    Own(String),
    /// A program's own [`Source`](super::Source) failed.
    #[error("the program's own images: {0}")]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// The system does not let a file or folder be read.
    #[error("cannot read {}: {source}", shown(path.display()))]
    Read {
        /// File or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// An image is another than when its run began.
    #[error(
        "{} was replaced while the run used it: put the old one back and go on with sogclr resume, or go on with the new one by \
         sogclr resume --data", shown(.0)
    )]
    Replaced(String),
    /// An image cannot be decoded, or has other channels than the rest.
    #[error("{} is not a readable image ({cause})", shown(name))]
    Decode {
        /// The image, as [`Source::name`](super::Source::name) gives it.
        name: String,
        /// What the decoder says.
        cause: String,
    },
    /// A file or folder is not laid out as its format demands.
    #[error("{}: {cause}", shown(path.display()))]
    Format {
        /// File or folder.
        path: PathBuf,
        /// What is wrong, and where.
        cause: String,
    },
    /// Images cannot be used, and `data.skip_bad` is off or no image is left.
    #[error(
        "{} of {total} images cannot be read, {}: repair or remove them, or leave them out by data.skip_bad",
        bad.len(),
        listed(bad)
    )]
    BadImages {
        /// What is wrong, one sentence for each of them.
        bad: Vec<String>,
        /// Images that were looked at.
        total: usize,
    },
    /// The named data has no image with a caption.
    #[error("{0} holds no pairs of image and caption")]
    NoPairs(String),
    /// Captions cannot be used, and `data.skip_bad` is off or none is left.
    #[error(
        "{count} of {total} captions cannot be used, first {first}: repair the file, \
         or leave them out by data.skip_bad"
    )]
    BadPairs {
        /// How many.
        count: usize,
        /// Captions in all.
        total: usize,
        /// What is wrong with the first of them.
        first: String,
    },
    /// A class is asked for, or is among the test images, that the training images lack.
    #[error("{path} names class {class:?}, which the data does not have (it has {known})")]
    UnknownClass {
        /// The list of classes, or the test images.
        path: PathBuf,
        /// The unknown class.
        class: String,
        /// Some of the classes that there are, as text.
        known: String,
    },
    /// Classes are needed, and the named data has none.
    #[error("{0} has no labels: put the images of each class into a folder of its own")]
    NoLabels(String),
    /// A list of classes is empty.
    #[error("{0} names no class: write one on each line")]
    NoClasses(PathBuf),
    /// More training images are wanted than there are.
    #[error("data.limit is {limit}, more than the {available} training images")]
    Limit {
        /// Images wanted by `data.limit`.
        limit: usize,
        /// Images that there are.
        available: usize,
    },
    /// What is known of many images goes through a temporary file.
    #[error("cannot use a temporary file: {0}; free some space there, or name another folder in TMPDIR")]
    Scratch(std::io::Error),
    /// The data differs from the run's manifest; the first difference.
    #[error("the data changed since the run began: {0}; restore it, resume on what there is now, or start a new run")]
    Changed(String),
}

/// The first of them, and how many more there are.
fn listed(problems: &[String]) -> String {
    const SHOWN: usize = 10;
    let first = problems[..problems.len().min(SHOWN)].join("; ");
    match problems.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first}; and {more} more"),
    }
}
