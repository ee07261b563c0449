//! Any folder of images, recursive. Labels come from the first folder level if every image lies in a folder; a few that do
//! not are an error. `train/` (`training`) and `val/` (`valid`, `validation`, `dev`) or `test/` (`testing`) in any case are
//! splits. Beside other folders of images, and without a held-out one, a `train/` without folders of its own is a class; else it is an error.

use super::image::{Rows, header_dimensions};
use super::{DataError, Dataset, Dimensions, Fingerprint, Image, Source, Split};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

const EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Names of the training and of the held-out split; of several the first counts.
const TRAIN: [&str; 2] = ["train", "training"];
const HELD_OUT: [&str; 6] = ["val", "valid", "validation", "dev", "test", "testing"];

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

    fn decode(&self, rows: Rows, index: usize) -> Result<Image, DataError> {
        Image::decode_to(rows, &self.read(index)?, &self.root.join(&self.files[index]).display().to_string())
    }

    fn shape(&self, rows: Rows, index: usize) -> Result<Dimensions, DataError> {
        let path = self.root.join(&self.files[index]);
        let name = path.display().to_string();
        let file = File::open(&path).map_err(|source| DataError::Read { path, source })?;
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
        self.files[index].to_string_lossy().into_owned()
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        let bytes = self.read(index)?;
        Image::decode(&bytes, &self.root.join(&self.files[index]).display().to_string())?;
        Ok(Fingerprint::of(&bytes))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::Upright, index)
    }

    fn dimensions_as_stored(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::AsStored, index)
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn stamp(&self, index: usize) -> Option<(u64, u128)> {
        let meta = std::fs::metadata(self.root.join(&self.files[index])).ok()?;
        let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some((meta.len(), modified))
    }
}

/// Opens the splits and classes of `folder`.
pub(super) fn open(folder: &Path) -> Result<Dataset, DataError> {
    let (train_root, test_root) = splits(folder)?.unwrap_or_else(|| (folder.to_owned(), None));
    let files = list(&train_root)?;
    if files.is_empty() {
        return Err(DataError::Empty(folder.to_owned()));
    }
    let classes = classes_of(&train_root, &files)?;
    let labels = classes.as_ref().map(|classes| labels_of(&files, classes));
    let train = Split::new(Arc::new(FolderImages { root: train_root, files }), labels);
    let test = match test_root {
        Some(root) => {
            let files = list(&root)?;
            let labels = match (&classes, classes_of(&root, &files)?) {
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
        None => None,
    };
    let title = folder.display().to_string();
    let classes = classes.unwrap_or_default();
    Ok(Dataset { title, train, test, classes, native_size: None, channels: 3, problems: Vec::new() })
}

/// Every image of `folder`, whatever its splits and classes.
pub(super) fn open_all(folder: &Path) -> Result<Split, DataError> {
    let files = list(folder)?;
    match files.is_empty() {
        true => Err(DataError::Empty(folder.to_owned())),
        false => Ok(Split::new(Arc::new(FolderImages { root: folder.to_owned(), files }), None)),
    }
}

/// Folders of the training and the held-out split; none where all folders are classes.
fn splits(folder: &Path) -> Result<Option<(PathBuf, Option<PathBuf>)>, DataError> {
    let (folders, files): (Vec<_>, Vec<_>) = visible(folder)?.into_iter().partition(|path| path.is_dir());
    let is_named = |path: &Path, name: &str| path.file_name().is_some_and(|found| found.eq_ignore_ascii_case(name));
    let find = |name: &str| folders.iter().find(|path| is_named(path, name));
    let Some(train) = TRAIN.iter().find_map(|name| find(name)) else { return Ok(None) };
    let held_out = HELD_OUT.iter().find_map(|name| find(name));
    let is_split = |path: &PathBuf| path == train || HELD_OUT.iter().any(|name| is_named(path, name));
    // One that cannot be read, such as lost+found, is not part of the data.
    let has_images = |path: &Path| list(path).is_ok_and(|files| !files.is_empty());
    let classes: Vec<_> = folders.iter().filter(|path| !is_split(path) && has_images(path)).collect();
    if !classes.is_empty() && held_out.is_none() && list(train)?.iter().all(|file| class_of(file).is_none()) {
        return Ok(None);
    }
    let loose = files.iter().filter(|path| is_image(path));
    let beside: Vec<_> =
        classes.into_iter().chain(loose).filter_map(|path| Some(path.file_name()?.to_string_lossy())).collect();
    if beside.is_empty() {
        return Ok(Some((train.clone(), held_out.cloned())));
    }
    let mut named = beside[..beside.len().min(3)].join(", ");
    if beside.len() > 3 {
        named += &format!(" and {} more", beside.len() - 3);
    }
    let train = train.display();
    let cause = format!(
        "{train} looks like the training split, but there are images beside it, in {named}: move them away, name {train} \
         itself as the data, or rename it if it is a class"
    );
    Err(DataError::Format { path: folder.to_owned(), cause })
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

/// Every image below `root`, relative and sorted.
fn list(root: &Path) -> Result<Vec<PathBuf>, DataError> {
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
