//! Any folder of images, recursive. Labels come from the first folder level if every image lies in a folder;
//! `train/` and `val/` or `test/` are taken as splits.

use super::{DataError, Dataset, Image, Source, Split};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

const EXTENSIONS: [&str; 6] = ["jpg", "jpeg", "png", "webp", "gif", "bmp"];

pub(super) struct FolderImages {
    pub root: PathBuf,
    /// Relative to `root`.
    pub files: Vec<PathBuf>,
}

impl FolderImages {
    fn read(&self, index: usize) -> Result<Vec<u8>, DataError> {
        let path = self.root.join(&self.files[index]);
        std::fs::read(&path).map_err(|source| DataError::Read { path, source })
    }
}

impl Source for FolderImages {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        Image::decode(&self.read(index)?, &self.root.join(&self.files[index]).display().to_string())
    }

    fn name(&self, index: usize) -> String {
        self.files[index].to_string_lossy().into_owned()
    }

    fn check(&self, index: usize) -> Result<(blake3::Hash, u64), DataError> {
        let bytes = self.read(index)?;
        Image::decode(&bytes, &self.root.join(&self.files[index]).display().to_string())?;
        Ok((blake3::hash(&bytes), bytes.len() as u64))
    }

    fn stamp(&self, index: usize) -> Option<(u64, u128)> {
        let meta = std::fs::metadata(self.root.join(&self.files[index])).ok()?;
        let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some((meta.len(), modified))
    }
}

/// Opens `folder` if there is an image anywhere below it.
pub(super) fn open(folder: &Path) -> Option<Result<Dataset, DataError>> {
    read_folder(folder).transpose()
}

fn read_folder(folder: &Path) -> Result<Option<Dataset>, DataError> {
    let train_root = if folder.join("train").is_dir() { folder.join("train") } else { folder.to_owned() };
    let files = list(&train_root)?;
    if files.is_empty() {
        return Ok(None);
    }
    let classes = classes_of(&files);
    let labels = classes.as_ref().map(|classes| labels_of(&files, classes));
    let train = Split::new(Arc::new(FolderImages { root: train_root.clone(), files }), labels);
    let test_root = ["val", "test"].map(|name| folder.join(name)).into_iter().find(|path| path.is_dir());
    let test = match test_root {
        Some(root) if train_root != folder => {
            let files = list(&root)?;
            let labels = match (&classes, classes_of(&files)) {
                (Some(known), Some(found)) => {
                    if let Some(class) = found.iter().find(|class| !known.contains(class)) {
                        let known = known.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                        return Err(DataError::UnknownClass { path: root, class: class.clone(), known });
                    }
                    Some(labels_of(&files, known))
                }
                _ => None,
            };
            let source = FolderImages { root, files };
            (source.count() > 0).then(|| Split::new(Arc::new(source), labels))
        }
        _ => None,
    };
    let title = folder.display().to_string();
    let classes = classes.unwrap_or_default();
    Ok(Some(Dataset { title, train, test, classes, native_size: None, is_grey: false, problems: Vec::new() }))
}

/// Every image below `root`, relative and sorted; hidden files and folders are passed over.
fn list(root: &Path) -> Result<Vec<PathBuf>, DataError> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    let mut seen = HashSet::new();
    while let Some(folder) = folders.pop() {
        let error = |source| DataError::Read { path: folder.clone(), source };
        // Links may lead in circles.
        if !seen.insert(folder.canonicalize().map_err(error)?) {
            continue;
        }
        for entry in std::fs::read_dir(&folder).map_err(error)? {
            let path = entry.map_err(error)?.path();
            if path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.')) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if is_image(&path) {
                let relative = path.strip_prefix(root).expect("below the root").to_owned();
                if relative.to_str().is_none() {
                    let cause = "the name is not valid UTF-8: rename the file".to_owned();
                    return Err(DataError::Format { path, cause });
                }
                files.push(relative);
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    EXTENSIONS.contains(&extension.as_str())
}

fn class_of(file: &Path) -> Option<String> {
    let mut parts = file.components();
    let first = parts.next()?;
    parts.next().map(|_| first.as_os_str().to_string_lossy().into_owned())
}

/// Names of the first-level folders, sorted, if every image lies in one.
fn classes_of(files: &[PathBuf]) -> Option<Vec<String>> {
    let mut classes = files.iter().map(|file| class_of(file)).collect::<Option<Vec<_>>>()?;
    classes.sort();
    classes.dedup();
    Some(classes)
}

fn labels_of(files: &[PathBuf], classes: &[String]) -> Vec<u32> {
    let numbers: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
    files.iter().map(|file| numbers[class_of(file).expect("every image has a class").as_str()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, names: &[&str]) {
        for name in names {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
    }

    #[test]
    fn labels_need_a_folder_for_every_image() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["b/2.JPG", "a/deep/1.png", "a/0.webp", ".hidden/9.png", "notes.txt"]);
        let data = open(root.path()).unwrap().unwrap();
        assert_eq!(data.classes, ["a", "b"]);
        let names: Vec<_> = (0..3).map(|id| data.train.name(id)).collect();
        assert_eq!(names, ["a/0.webp", "a/deep/1.png", "b/2.JPG"]);
        assert_eq!([data.train.label(1), data.train.label(2)], [Some(0), Some(1)]);
        touch(root.path(), &["loose.png"]);
        assert!(!open(root.path()).unwrap().unwrap().train.is_labelled());
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_in_circles_end() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/1.png"]);
        std::os::unix::fs::symlink(root.path(), root.path().join("a/again")).unwrap();
        assert_eq!(open(root.path()).unwrap().unwrap().train.len(), 1);
    }

    #[test]
    fn train_and_val_are_splits_with_one_numbering_of_classes() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["train/a/1.png", "train/b/1.png", "train/c/1.png", "val/c/7.png"]);
        let data = open(root.path()).unwrap().unwrap();
        let test = data.test.unwrap();
        assert_eq!((data.train.len(), test.len(), test.label(0)), (3, 1, Some(2)));
        assert!(open(tempfile::tempdir().unwrap().path()).is_none(), "an empty folder is nobody's");
    }
}
