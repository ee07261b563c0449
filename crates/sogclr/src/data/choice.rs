//! Which files of a folder count, and what their classes are named by.

use super::DataError;
use super::form::Pixels;
use glob::{MatchOptions, Pattern};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which files of a folder count, and what their classes are.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub labels: LabelsFrom,
    exclude: Vec<Pattern>,
    /// What becomes of samples.
    pub pixels: Pixels,
}

impl Choice {
    /// By `data.labels` and `data.exclude`, which are checked.
    pub fn of(labels: Option<&str>, exclude: &[String]) -> Result<Self, String> {
        let labels = labels.map(str::parse).transpose()?.unwrap_or_default();
        let pattern = |text: &String| {
            let pattern = Pattern::new(text.trim_end_matches('/'));
            pattern.map_err(|error| format!("has {text:?}, which is no pattern: {}", error.msg))
        };
        Ok(Self { labels, exclude: exclude.iter().map(pattern).collect::<Result<_, _>>()?, pixels: Pixels::Auto })
    }

    /// A pattern names a path below the data, or any one file or folder on the way.
    pub fn leaves_out(&self, file: &Path) -> bool {
        !self.exclude.is_empty() && file.ancestors().any(|part| self.names(part))
    }

    fn names(&self, relative: &Path) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        let name = relative.file_name().map(Path::new).unwrap_or(relative);
        let matches = |pattern: &Pattern, path: &Path| pattern.matches_path_with(path, options);
        self.exclude.iter().any(|pattern| matches(pattern, relative) || matches(pattern, name))
    }
}

/// Which part of an image's path is its class, or which file knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum LabelsFrom {
    /// The first folder below the data.
    #[default]
    First,
    /// The folder that the image lies in, told apart by its whole path.
    Leaf,
    /// The n-th folder below the data, from 1.
    Path(usize),
    /// A table of image and class.
    File(PathBuf),
}

impl FromStr for LabelsFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("is {text:?}; use first, leaf, path:N with N from 1, or a .csv file of image and class");
        match text {
            "first" => Ok(Self::First),
            "leaf" => Ok(Self::Leaf),
            _ => match text.strip_prefix("path:") {
                Some(level) => level.parse().ok().filter(|&n| n >= 1).map(Self::Path).ok_or_else(wrong),
                None if Path::new(text).extension().is_some() => Ok(Self::File(text.into())),
                None => Err(wrong()),
            },
        }
    }
}

/// Names the class of an image by its relative path.
pub(super) enum Namer {
    Level(usize),
    Leaf,
    Table(HashMap<String, String>),
}

impl LabelsFrom {
    pub fn namer(&self) -> Result<Namer, DataError> {
        Ok(match self {
            Self::First => Namer::Level(1),
            Self::Path(level) => Namer::Level(*level),
            Self::Leaf => Namer::Leaf,
            Self::File(path) => Namer::Table(read_table(path)?),
        })
    }

    /// In words, for the data line.
    pub fn words(&self) -> String {
        match self {
            Self::First => "by the first folder".into(),
            Self::Leaf => "by the folder of each image".into(),
            Self::Path(level) => format!("by folder {level} of the path"),
            Self::File(path) => format!("from {}", path.display()),
        }
    }
}

impl Namer {
    pub fn class_of(&self, file: &Path) -> Option<String> {
        match self {
            Self::Level(level) => {
                let parts: Vec<_> = file.components().collect();
                let is_folder = *level < parts.len();
                is_folder.then(|| parts[level - 1].as_os_str().to_string_lossy().into_owned())
            }
            Self::Leaf => {
                let folder = file.parent()?.to_string_lossy().into_owned();
                (!folder.is_empty()).then_some(folder)
            }
            Self::Table(classes) => {
                let whole = classes.get(&*file.to_string_lossy());
                whole.or_else(|| classes.get(&*file.file_name()?.to_string_lossy())).cloned()
            }
        }
    }
}

/// Lines of an image's path, or its name alone, and its class. A first line is a header if its image is none.
fn read_table(path: &Path) -> Result<HashMap<String, String>, DataError> {
    let wrong = |cause: String| DataError::Format { path: path.to_owned(), cause };
    let text = std::fs::read_to_string(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let separator = if path.extension().is_some_and(|extension| extension == "tsv") { b'\t' } else { b',' };
    let mut reader = csv::ReaderBuilder::new().has_headers(false).delimiter(separator).from_reader(text.as_bytes());
    let mut classes = HashMap::new();
    for (index, record) in reader.records().enumerate() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let (Some(image), Some(class)) = (record.get(0), record.get(1)) else {
            return Err(wrong(format!("line {} has no class: write image,class", index + 1)));
        };
        let (image, class) = (image.trim().trim_start_matches("./"), class.trim());
        if index == 0 && !super::folder::is_image(Path::new(image)) {
            continue;
        }
        if let Some(other) = classes.insert(image.to_owned(), class.to_owned()).filter(|other| other != class) {
            return Err(wrong(format!("{image} has two classes, {other} and {class}: leave one of them")));
        }
    }
    match classes.is_empty() {
        true => Err(wrong("names no image: write image,class on each line".into())),
        false => Ok(classes),
    }
}
