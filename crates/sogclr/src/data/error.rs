//! What can be wrong with data, always naming the file and the way out.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{0} does not exist: check the path of the data")]
    NotFound(PathBuf),
    #[error("{path}, the data of this run, does not exist: if it was moved, write its new path into {config}")]
    Moved { path: PathBuf, config: PathBuf },
    #[error("{0} is a file: name the folder that holds the images")]
    NotAFolder(PathBuf),
    #[error("{0} holds no images: expected jpg, png, webp, gif, bmp or tif files, IDX files or CIFAR batches")]
    Empty(PathBuf),
    #[error("{0} has no images")]
    NoImages(String),
    #[error("{0:?} are images that another program brought: go on with the run there")]
    Own(String),
    #[error("the program's own images: {0}")]
    Source(Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{name} is not a readable image ({cause})")]
    Decode { name: String, cause: String },
    #[error("{path}: {cause}")]
    Format { path: PathBuf, cause: String },
    #[error(
        "{} of {total} images cannot be read, {}: repair or remove them, or leave them out by data.skip_bad",
        bad.len(),
        listed(bad)
    )]
    BadImages { bad: Vec<String>, total: usize },
    #[error("{0} holds no pairs of image and caption")]
    NoPairs(String),
    #[error(
        "{count} of {total} captions cannot be used, first {first}: repair the file, \
         or leave them out by data.skip_bad"
    )]
    BadPairs { count: usize, total: usize, first: String },
    #[error("{path} names class {class:?}, which the data does not have (it has {known})")]
    UnknownClass { path: PathBuf, class: String, known: String },
    #[error("{0} has no labels: put the images of each class into a folder of its own")]
    NoLabels(String),
    #[error("{0} names no class: write one on each line")]
    NoClasses(PathBuf),
    #[error("data.limit is {limit}, more than the {available} training images")]
    Limit { limit: usize, available: usize },
    #[error("the data changed since the run began: {0}; restore it, or start a new run")]
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
