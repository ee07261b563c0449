//! Where the images of a data set were found, for whoever names the data: its splits, its levels of folders, and what was
//! passed over.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What was found in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Folders of the training and the test images, where the data is divided.
    pub splits: Option<(PathBuf, Option<PathBuf>)>,
    /// Further held-out folders, which are not used.
    pub left_aside: Vec<PathBuf>,
    /// What the classes are named by, in words; empty without labels.
    pub labels: String,
    /// Classes that each image's own folder would make, where the labels are coarser.
    pub leaf_classes: Option<usize>,
    /// Files that are no images, counted by their extension; "" has none.
    pub passed_over: BTreeMap<String, usize>,
}

impl Layout {
    /// Counts a file that is no image.
    pub(super) fn pass_over(&mut self, path: &std::path::Path) {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        *self.passed_over.entry(extension).or_default() += 1;
    }

    /// `.heic: 12, no extension: 3`, the most first; `None` where nothing was passed over.
    pub fn passed_over_text(&self) -> Option<String> {
        let mut counts: Vec<(&String, &usize)> = self.passed_over.iter().collect();
        counts.sort_by_key(|&(extension, count)| (std::cmp::Reverse(*count), extension.is_empty(), extension));
        let text = |(extension, count): (&String, &usize)| match extension.is_empty() {
            true => format!("no extension: {count}"),
            false => format!(".{extension}: {count}"),
        };
        (!counts.is_empty()).then(|| counts.into_iter().map(text).collect::<Vec<_>>().join(", "))
    }
}
