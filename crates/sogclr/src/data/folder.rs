//! Any folder of images, recursive; `tree.rs` says what is a split and what is a class.

use super::form::{self, Files, Form};
use super::image::{Rows, header_dimensions};
use super::names::Names;
use super::tree::{Tree, place};
use super::{DataError, Dimensions, Fingerprint, Image, Layout, Source};
use crate::storage::{open_regular, read_regular};
use std::collections::{HashSet, VecDeque};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

pub(super) struct FolderImages {
    pub root: PathBuf,
    /// Relative to `root`.
    files: Names,
    form: Form,
}

impl FolderImages {
    /// The images `files`, relative to `root`, whose names are valid UTF-8.
    pub fn new(root: PathBuf, files: Vec<PathBuf>) -> Self {
        Self { root, files: files.iter().map(|file| file.to_string_lossy()).collect(), form: Form::Rgb }
    }

    fn path(&self, index: usize) -> PathBuf {
        self.root.join(self.files.get(index))
    }

    fn read(&self, index: usize) -> Result<Vec<u8>, DataError> {
        let path = self.path(index);
        read_regular(&path).map_err(|source| DataError::Read { path, source })
    }

    fn decode(&self, rows: Rows, index: usize) -> Result<Image, DataError> {
        self.form.decode(rows, &self.read(index)?, &self.path(index).display().to_string())
    }

    fn shape(&self, rows: Rows, index: usize) -> Result<Dimensions, DataError> {
        let path = self.path(index);
        let name = path.display().to_string();
        if self.form != Form::Rgb {
            return form::dimensions(rows, &self.read(index)?, &name);
        }
        let file = open_regular(&path).map_err(|source| DataError::Read { path, source })?;
        header_dimensions(rows, BufReader::new(file), &name)
    }
}

impl Source for FolderImages {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        self.decode(Rows::Upright, index)
    }

    fn image_as_stored(&self, index: usize) -> Result<Image, DataError> {
        self.decode(Rows::AsStored, index)
    }

    fn name(&self, index: usize) -> String {
        self.files.get(index)
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        let bytes = self.read(index)?;
        self.form.check(&bytes, &self.path(index).display().to_string())?;
        Ok(Fingerprint::of(&bytes))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::Upright, index)
    }

    fn dimensions_as_stored(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::AsStored, index)
    }

    fn folder(&self) -> Option<&Path> {
        // What is known of images is known of them as colours.
        (self.form == Form::Rgb).then_some(self.root.as_path())
    }

    fn stamp(&self, index: usize) -> Option<(u64, u128)> {
        let meta = std::fs::metadata(self.path(index)).ok()?;
        let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some((meta.len(), modified))
    }
}

/// A folder on disk.
pub(super) struct Folder<'a>(pub &'a Path);

impl Files for FolderImages {
    fn bytes(&self, index: usize) -> Result<Vec<u8>, DataError> {
        self.read(index)
    }

    fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

impl Tree for Folder<'_> {
    type Images = FolderImages;

    fn path(&self) -> &Path {
        self.0
    }

    fn top(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
        let (folders, mut files): (Vec<_>, Vec<_>) = visible(self.0)?.into_iter().partition(|path| path.is_dir());
        files.retain(|path| is_image(path));
        let names = |paths: Vec<PathBuf>| paths.iter().filter_map(|path| path.file_name()).map(PathBuf::from).collect();
        Ok((names(folders), names(files)))
    }

    fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, DataError> {
        list(&place(self.0, folder), &mut Layout::default())
    }

    fn below_counting(&self, folder: &Path, layout: &mut Layout) -> Result<Vec<PathBuf>, DataError> {
        list(&place(self.0, folder), layout)
    }

    fn images(&self, folder: &Path, files: Vec<PathBuf>) -> FolderImages {
        FolderImages::new(place(self.0, folder), files)
    }
}

/// What a folder holds, sorted; hidden files and folders, and what macOS adds to a .zip, are passed over.
fn visible(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let paths = std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = paths.map_err(|source| DataError::Read { path: folder.to_owned(), source })?;
    let is_content = |name: &str| !name.starts_with('.') && name != "__MACOSX";
    paths.retain(|path| path.file_name().is_some_and(|name| is_content(&name.to_string_lossy())));
    paths.sort();
    Ok(paths)
}

/// Every image below `root`, relative and sorted; `layout` counts what else lies there.
fn list(root: &Path, layout: &mut Layout) -> Result<Vec<PathBuf>, DataError> {
    let (mut files, mut folders) = (Vec::new(), VecDeque::from([root.to_owned()]));
    let mut seen = HashSet::new();
    // Links may lead to a folder by several paths: the shallowest counts, then the first by name, on any file system.
    while let Some(folder) = folders.pop_front() {
        let real = folder.canonicalize().map_err(|source| DataError::Read { path: folder.clone(), source })?;
        // Links may lead in circles.
        if !seen.insert(real) {
            continue;
        }
        for path in visible(&folder)? {
            if path.is_dir() {
                folders.push_back(path);
            } else if is_image(&path) || is_array(&path) {
                let relative = path.strip_prefix(root).expect("below the root").to_owned();
                if relative.to_str().is_none() {
                    let cause = "the name is not valid UTF-8: rename the file".to_owned();
                    return Err(DataError::Format { path, cause });
                }
                files.push(relative);
            } else {
                layout.pass_over(&path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Where images lie beside them, arrays are something else.
pub(super) fn is_array(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"))
}

pub(super) fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    EXTENSIONS.contains(&extension.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::choice::Choice;
    use crate::data::{Dataset, Pixels, Split, tree};

    fn open(root: &Path) -> Result<Dataset, DataError> {
        tree::open(&Folder(root), &Choice::default())
    }

    fn open_all(root: &Path) -> Result<Split, DataError> {
        tree::open_all(&Folder(root), Pixels::Auto)
    }

    fn touch(root: &Path, names: &[&str]) {
        for name in names {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
    }

    fn names(split: &Split) -> Vec<String> {
        (0..split.len()).map(|id| split.name(id)).collect()
    }

    #[test]
    fn labels_need_a_folder_for_every_image() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["b/2.JPG", "a/deep/1.png", "a/0.webp", ".hidden/9.png", "notes.txt"]);
        let data = open(root.path()).unwrap();
        assert_eq!(data.classes, ["a", "b"]);
        assert_eq!(names(&data.train), ["a/0.webp", "a/deep/1.png", "b/2.JPG"]);
        assert_eq!([data.train.label(1), data.train.label(2)], [Some(0), Some(1)]);
        // A slip, as labels were meant.
        touch(root.path(), &["loose.png"]);
        let error = open(root.path()).err().unwrap().to_string();
        assert!(error.contains("loose.png: all but 1 of 4 images"), "{error}");
        assert_eq!(open_all(root.path()).unwrap().len(), 4);
        touch(root.path(), &["loose2.png"]);
        assert!(!open(root.path()).unwrap().train.is_labelled());
        let album = tempfile::tempdir().unwrap();
        touch(album.path(), &["cover.png", "photos/1.png", "photos/2.png"]);
        assert!(!open(album.path()).unwrap().train.is_labelled());
    }

    #[test]
    fn a_stray_image_of_the_test_split_is_named_too() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png", "val/x.png"]);
        let error = open(root.path()).err().unwrap().to_string();
        assert!(error.contains("x.png: all but 1 of 3"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_in_circles_end() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/1.png"]);
        std::os::unix::fs::symlink(root.path(), root.path().join("a/again")).unwrap();
        assert_eq!(open(root.path()).unwrap().train.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn of_several_paths_to_a_folder_the_shallowest_and_first_counts() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/0.png", "p/1.png"]);
        for link in ["m", "z", "k", "x", "l", "y", "a/deep", "z2", "n"] {
            std::os::unix::fs::symlink(root.path().join("p"), root.path().join(link)).unwrap();
        }
        let data = open(root.path()).unwrap();
        assert_eq!(
            (names(&data.train), data.classes),
            (vec!["a/0.png".into(), "k/1.png".into()], vec!["a".into(), "k".into()])
        );
    }

    #[test]
    fn train_and_val_are_splits_with_one_numbering_of_classes() {
        for (train, val) in
            [("train", "val"), ("Train", "valid"), ("TRAIN", "Validation"), ("train", "dev"), ("Training", "Testing")]
        {
            let root = tempfile::tempdir().unwrap();
            let files = [("a/1", train), ("b/1", train), ("c/1", train), ("c/7", val)];
            touch(root.path(), &files.map(|(name, part)| format!("{part}/{name}.png")).each_ref().map(String::as_str));
            touch(root.path(), &["notes/read.txt", ".cache/1.png"]);
            let data = open(root.path()).unwrap();
            let test = data.test.unwrap();
            assert_eq!((data.train.len(), test.len(), test.label(0)), (3, 1, Some(2)), "{train} {val}");
            if val == "Testing" {
                continue;
            }
            touch(root.path(), &["test/a/8.png", "test/b/8.png"]);
            assert_eq!(open(root.path()).unwrap().test.unwrap().len(), 1, "{val} comes before test");
            assert_eq!(open_all(root.path()).unwrap().len(), 6);
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(open(empty.path()), Err(DataError::Empty(_))));
    }

    #[test]
    fn a_class_named_train_hides_no_other() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["car/1.png", "train/1.png", "train/2.png", "whale/1.png"]);
        let data = open(root.path()).unwrap();
        assert_eq!(
            (data.train.len(), data.test.is_none(), data.classes),
            (4, true, ["car", "train", "whale"].map(String::from).to_vec())
        );
        // A split by its inside or its neighbour.
        for more in ["train/steam/1.png", "val/car/1.png"] {
            let root = tempfile::tempdir().unwrap();
            touch(root.path(), &["car/1.png", "train/1.png", "Ship/1.png", "bike/1.png", "dog/1.png", more]);
            let error = open(root.path()).err().unwrap().to_string();
            assert!(error.contains("in Ship, bike, car and 1 more: move them away"), "{error}");
        }
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["train/1.png", "cover.png"]);
        let error = open(root.path()).err().unwrap().to_string();
        assert!(error.contains("in cover.png: move"), "{error}");
    }
}
