//! Images in folders, on disk or in an archive: what is a split, and what is a class.
//!
//! Labels come from the first folder level if every image lies in a folder; a few that do not are an error. `train/`
//! (`training`) and `val/` (`valid`, `validation`, `dev`) or `test/` (`testing`) in any case are splits. Beside other folders of
//! images, and without a held-out one, a `train/` without folders of its own is a class; else it is an error.

use super::{DataError, Dataset, Source, Split};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of the training and of the held-out split; of several the first counts.
const TRAIN: [&str; 2] = ["train", "training"];
const HELD_OUT: [&str; 6] = ["val", "valid", "validation", "dev", "test", "testing"];

/// Folders with images in them.
pub(super) trait Tree {
    /// Where it lies.
    fn path(&self) -> &Path;

    /// Names of the folders and of the images at its top, sorted.
    fn top(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError>;

    /// Every image below a folder of the top (or below an empty path: all), relative to it and sorted.
    fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, DataError>;

    /// These images of [`below`](Self::below).
    fn source(&self, folder: &Path, files: Vec<PathBuf>) -> Arc<dyn Source>;
}

/// A folder of a tree; joining an empty path would end in a slash.
pub(super) fn place(root: &Path, folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() { root.to_owned() } else { root.join(folder) }
}

/// Its splits and classes.
pub(super) fn open(tree: &impl Tree) -> Result<Dataset, DataError> {
    let (train, test) = splits(tree)?.unwrap_or_default();
    let files = tree.below(&train)?;
    if files.is_empty() {
        return Err(DataError::Empty(tree.path().to_owned()));
    }
    let classes = classes_of(&place(tree.path(), &train), &files)?;
    let labels = classes.as_ref().map(|classes| labels_of(&files, classes));
    let train = Split::new(tree.source(&train, files), labels);
    let test = match test {
        Some(test) => held_out(tree, &test, classes.as_deref())?,
        None => None,
    };
    let title = tree.path().display().to_string();
    let classes = classes.unwrap_or_default();
    Ok(Dataset { title, train, test, classes, native_size: None, channels: 3, problems: Vec::new() })
}

/// The split of a folder, with the classes of the training split; none where it has no image.
fn held_out(tree: &impl Tree, folder: &Path, classes: Option<&[String]>) -> Result<Option<Split>, DataError> {
    let (path, files) = (tree.path().join(folder), tree.below(folder)?);
    let labels = match (classes, classes_of(&path, &files)?) {
        (Some(known), Some(found)) => {
            if let Some(class) = found.iter().find(|class| !known.contains(class)) {
                let known = known.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                return Err(DataError::UnknownClass { path, class: class.clone(), known });
            }
            Some(labels_of(&files, known))
        }
        _ => None,
    };
    Ok((!files.is_empty()).then(|| Split::new(tree.source(folder, files), labels)))
}

/// Every image, whatever its split and class.
pub(super) fn open_all(tree: &impl Tree) -> Result<Split, DataError> {
    let files = tree.below(Path::new(""))?;
    match files.is_empty() {
        true => Err(DataError::Empty(tree.path().to_owned())),
        false => Ok(Split::new(tree.source(Path::new(""), files), None)),
    }
}

/// Folders of the training and the held-out split; none where all folders are classes.
fn splits(tree: &impl Tree) -> Result<Option<(PathBuf, Option<PathBuf>)>, DataError> {
    let (folders, loose) = tree.top()?;
    let is_named = |path: &Path, name: &str| path.as_os_str().eq_ignore_ascii_case(name);
    let find = |name: &str| folders.iter().find(|path| is_named(path, name));
    let Some(train) = TRAIN.iter().find_map(|name| find(name)) else { return Ok(None) };
    let held_out = HELD_OUT.iter().find_map(|name| find(name));
    let is_split = |path: &PathBuf| path == train || HELD_OUT.iter().any(|name| is_named(path, name));
    // One that cannot be read, such as lost+found, is not part of the data.
    let has_images = |path: &Path| tree.below(path).is_ok_and(|files| !files.is_empty());
    let classes: Vec<_> = folders.iter().filter(|path| !is_split(path) && has_images(path)).collect();
    if !classes.is_empty() && held_out.is_none() && tree.below(train)?.iter().all(|file| class_of(file).is_none()) {
        return Ok(None);
    }
    let beside: Vec<_> = classes.into_iter().chain(&loose).map(|path| path.to_string_lossy()).collect();
    if beside.is_empty() {
        return Ok(Some((train.clone(), held_out.cloned())));
    }
    let mut named = beside[..beside.len().min(3)].join(", ");
    if beside.len() > 3 {
        named += &format!(" and {} more", beside.len() - 3);
    }
    let train = tree.path().join(train);
    let train = train.display();
    let cause = format!(
        "{train} looks like the training split, but there are images beside it, in {named}: move them away, name {train} \
         itself as the data, or rename it if it is a class"
    );
    Err(DataError::Format { path: tree.path().to_owned(), cause })
}

fn class_of(file: &Path) -> Option<String> {
    let mut parts = file.components();
    let first = parts.next()?;
    parts.next().map(|_| first.as_os_str().to_string_lossy().into_owned())
}

/// Names of the first-level folders, sorted, if every image lies in one. One image in a hundred, or a single one, outside
/// them would cost all others their labels and is an error.
fn classes_of(root: &Path, files: &[PathBuf]) -> Result<Option<Vec<String>>, DataError> {
    let mut classes: Vec<String> = files.iter().filter_map(|file| class_of(file)).collect();
    let loose = files.len() - classes.len();
    classes.sort();
    classes.dedup();
    match files.iter().find(|file| class_of(file).is_none()) {
        None => Ok(Some(classes)),
        Some(stray) if classes.len() > 1 && loose <= (files.len() / 100).max(1) => {
            let total = files.len();
            let cause =
                format!("all but {loose} of {total} images are in class folders: move it into one too, or away");
            Err(DataError::Format { path: root.join(stray), cause })
        }
        Some(_) => Ok(None),
    }
}

fn labels_of(files: &[PathBuf], classes: &[String]) -> Vec<u32> {
    let numbers: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
    files.iter().map(|file| numbers[class_of(file).expect("every image has a class").as_str()]).collect()
}
