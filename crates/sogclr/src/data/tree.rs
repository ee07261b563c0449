//! Images in folders, on disk or in an archive: what is a split, and what is a class.
//!
//! Labels come from the first folder level, or what `data.labels` says, if every image has one; a few that do not are an error. `train/`
//! (`training`) and `val/` (`valid`, `validation`, `dev`) or `test/` (`testing`) in any case are splits. Beside other folders of
//! images, and without a held-out one, a `train/` without folders of its own is a class; else it is an error.

use super::choice::{Choice, LabelsFrom, Namer};
use super::folder::is_array;
use super::form::{Files, Form, Pixels};
use super::{DataError, Dataset, Layout, Split};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of the training and of the held-out split; of several the first counts.
const TRAIN: [&str; 2] = ["train", "training"];
const HELD_OUT: [&str; 6] = ["val", "valid", "validation", "dev", "test", "testing"];

/// Folders with images in them.
pub(super) trait Tree {
    /// Where its images come from.
    type Images: Files;

    /// Where it lies.
    fn path(&self) -> &Path;

    /// Names of the folders and of the images at its top, sorted.
    fn top(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError>;

    /// Every image below a folder of the top (or below an empty path: all), relative to it and sorted.
    fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, DataError>;

    /// The same; `layout` counts what else lies there, where the tree tells.
    fn below_counting(&self, folder: &Path, _layout: &mut Layout) -> Result<Vec<PathBuf>, DataError> {
        self.below(folder)
    }

    /// These images of [`below`](Self::below).
    fn images(&self, folder: &Path, files: Vec<PathBuf>) -> Self::Images;
}

/// A folder of a tree; joining an empty path would end in a slash.
pub(super) fn place(root: &Path, folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() { root.to_owned() } else { root.join(folder) }
}

/// Its splits and classes.
pub(super) fn open(tree: &impl Tree, choice: &Choice) -> Result<Dataset, DataError> {
    let mut layout = Layout::default();
    let (train, test) = match splits(tree, choice)? {
        Some(Splits { train, test, aside }) => {
            let place = |folder: &PathBuf| tree.path().join(folder);
            layout.splits = Some((place(&train), test.as_ref().map(place)));
            layout.left_aside = aside.iter().map(place).collect();
            (train, test)
        }
        None => Default::default(),
    };
    let files = wanted(tree.below_counting(&train, &mut layout)?, &train, choice);
    if files.is_empty() {
        let folder = tree.path().to_owned();
        return Err(match layout.passed_over_text() {
            Some(others) => DataError::NoneOfThese { folder, others },
            None => DataError::Empty(folder),
        });
    }
    let namer = choice.labels.namer()?;
    let classes = classes_of(&place(tree.path(), &train), &files, &namer)?;
    let labels = classes.as_ref().map(|classes| labels_of(&files, classes, &namer));
    if let Some(classes) = &classes {
        layout.labels = choice.labels.words();
        let leaves: HashSet<_> = files.iter().filter_map(|file| Namer::Leaf.class_of(file)).collect();
        let is_finer = choice.labels == LabelsFrom::First && leaves.len() > classes.len();
        layout.leaf_classes = is_finer.then_some(leaves.len());
    }
    let (images, form) = tree.images(&train, files).formed(choice.pixels);
    let train = Split::new(images, labels);
    let test = match test {
        Some(test) => {
            let files = wanted(tree.below_counting(&test, &mut layout)?, &test, choice);
            held_out(tree, &test, files, (classes.as_deref(), &namer), form)?
        }
        None => None,
    };
    let title = tree.path().display().to_string();
    let classes = classes.unwrap_or_default();
    let (channels, pixels) = (form.channels(), form.pixels());
    Ok(Dataset { title, train, test, classes, native_size: None, channels, pixels, problems: Vec::new(), layout })
}

/// The files below `folder` that are not left out; arrays only where there is nothing else.
fn wanted(mut files: Vec<PathBuf>, folder: &Path, choice: &Choice) -> Vec<PathBuf> {
    files.retain(|file| !choice.leaves_out(&folder.join(file)));
    if files.iter().any(|file| !is_array(file)) {
        files.retain(|file| !is_array(file));
    }
    files
}

/// The split of a folder, with the classes of the training split; none where it has no image.
fn held_out(
    tree: &impl Tree,
    folder: &Path,
    files: Vec<PathBuf>,
    (classes, namer): (Option<&[String]>, &Namer),
    form: Form,
) -> Result<Option<Split>, DataError> {
    let path = tree.path().join(folder);
    let labels = match (classes, classes_of(&path, &files, namer)?) {
        (Some(known), Some(found)) => {
            if let Some(class) = found.iter().find(|class| !known.contains(class)) {
                let known = known.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                return Err(DataError::UnknownClass { path, class: class.clone(), known });
            }
            Some(labels_of(&files, known, namer))
        }
        _ => None,
    };
    Ok((!files.is_empty()).then(|| Split::new(Arc::new(tree.images(folder, files).with_form(form)), labels)))
}

/// Every image, whatever its split and class.
pub(super) fn open_all(tree: &impl Tree, pixels: Pixels) -> Result<Split, DataError> {
    let files = wanted(tree.below(Path::new(""))?, Path::new(""), &Choice::default());
    match files.is_empty() {
        true => Err(DataError::Empty(tree.path().to_owned())),
        false => Ok(Split::new(tree.images(Path::new(""), files).formed(pixels).0, None)),
    }
}

/// The parts of a divided tree.
struct Splits {
    train: PathBuf,
    test: Option<PathBuf>,
    /// Held-out parts beside `test`.
    aside: Vec<PathBuf>,
}

/// Folders of the training and the held-out split; none where all folders are classes.
fn splits(tree: &impl Tree, choice: &Choice) -> Result<Option<Splits>, DataError> {
    let (folders, loose) = tree.top()?;
    let is_named = |path: &Path, name: &str| path.as_os_str().eq_ignore_ascii_case(name);
    let find = |name: &str| folders.iter().find(|path| is_named(path, name) && !choice.leaves_out(path));
    let Some(train) = TRAIN.iter().find_map(|name| find(name)) else { return Ok(None) };
    let held_out = HELD_OUT.iter().find_map(|name| find(name));
    let is_split = |path: &PathBuf| path == train || HELD_OUT.iter().any(|name| is_named(path, name));
    let images = |path: &Path| tree.below(path).map(|files| wanted(files, path, choice));
    let only_arrays = images(train)?.iter().all(|file| is_array(file));
    // One that cannot be read, such as lost+found, is not part of the data.
    let has_images =
        |path: &Path| images(path).is_ok_and(|files| files.iter().any(|file| only_arrays || !is_array(file)));
    let classes: Vec<_> = folders.iter().filter(|path| !is_split(path) && has_images(path)).collect();
    let is_flat = |files: Vec<PathBuf>| files.iter().all(|file| file.components().count() < 2);
    if !classes.is_empty() && held_out.is_none() && is_flat(images(train)?) {
        return Ok(None);
    }
    let loose = loose.iter().filter(|path| !choice.leaves_out(path));
    let beside: Vec<_> = classes.into_iter().chain(loose).map(|path| path.to_string_lossy()).collect();
    if beside.is_empty() {
        let aside = folders.iter().filter(|path| is_split(path) && *path != train && Some(*path) != held_out);
        let aside = aside.filter(|path| has_images(path)).cloned().collect();
        return Ok(Some(Splits { train: train.clone(), test: held_out.cloned(), aside }));
    }
    let mut named = beside[..beside.len().min(3)].join(", ");
    if beside.len() > 3 {
        named += &format!(" and {} more", beside.len() - 3);
    }
    let place = |folder: &PathBuf| tree.path().join(folder);
    Err(DataError::BesideSplits {
        folder: tree.path().to_owned(),
        train: place(train),
        test: held_out.map(place),
        beside: named,
    })
}

/// The classes, sorted, if every image has one. One image in a hundred, or a single one, without would cost all others their
/// labels and is an error; so is any where a table says the classes.
fn classes_of(root: &Path, files: &[PathBuf], namer: &Namer) -> Result<Option<Vec<String>>, DataError> {
    let mut classes: Vec<String> = files.iter().filter_map(|file| namer.class_of(file)).collect();
    let (loose, total) = (files.len() - classes.len(), files.len());
    classes.sort();
    classes.dedup();
    let Some(stray) = files.iter().find(|file| namer.class_of(file).is_none()) else { return Ok(Some(classes)) };
    let cause = match namer {
        Namer::Table(_) => {
            format!("data.labels has no class for it, nor for {} of {total} images: add them", loose - 1)
        }
        Namer::Level(level) if *level > 1 => format!("lies in fewer than {level} folders: choose other data.labels"),
        _ if classes.len() > 1 && loose <= (total / 100).max(1) => {
            format!("all but {loose} of {total} images are in class folders: move it into one too, or away")
        }
        _ => return Ok(None),
    };
    Err(DataError::Format { path: root.join(stray), cause })
}

fn labels_of(files: &[PathBuf], classes: &[String], namer: &Namer) -> Vec<u32> {
    let numbers: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
    files.iter().map(|file| numbers[namer.class_of(file).expect("every image has a class").as_str()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::folder::Folder;

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
    fn classes_are_the_first_folder_the_own_one_or_what_a_table_says() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["fruit/apple/1.png", "fruit/pear/1.png", "other/apple/1.png", "notes.heic", "LICENSE"]);
        let table = root.path().join("classes.csv");
        std::fs::write(&table, "image,class\nfruit/apple/1.png,red\nother/apple/1.png,red\n1.png,green\n").unwrap();
        let classes = |labels: &str| {
            let data = open(&Folder(root.path()), &Choice::of(Some(labels), &[]).unwrap()).unwrap();
            let of_image = (0..3).map(|id| data.classes[data.train.label(id).unwrap() as usize].clone());
            (of_image.collect::<Vec<_>>().join(" "), data.layout)
        };
        let (first, layout) = classes("first");
        assert_eq!((first.as_str(), layout.leaf_classes), ("fruit fruit other", Some(3)));
        assert_eq!(layout.passed_over_text().unwrap(), ".csv: 1, .heic: 1, no extension: 1");
        assert_eq!(classes("leaf").0, "fruit/apple fruit/pear other/apple");
        assert_eq!(classes("path:2").0, "apple pear apple");
        assert_eq!(classes(table.to_str().unwrap()).0, "red green red");
        for (labels, words) in [("path:3", "fewer than 3 folders"), ("classes.csv", "classes.csv")] {
            let error = open(&Folder(root.path()), &Choice::of(Some(labels), &[]).unwrap()).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::write(&table, "fruit/apple/1.png,red\n").unwrap();
        let error = open(&Folder(root.path()), &Choice::of(table.to_str(), &[]).unwrap()).err().unwrap().to_string();
        assert!(error.contains("pear/1.png: data.labels has no class for it, nor for 1 of 3"), "{error}");
        assert!(["leaves", "path:0", "path:x"].iter().all(|labels| Choice::of(Some(labels), &[]).is_err()));
    }

    #[test]
    fn patterns_leave_out_files_and_folders() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/1.png", "a/1_mask.png", "b/thumbs/2.png", "b/2.png", "old/3.png", "train/4.png"]);
        let left = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            names(&open(&Folder(root.path()), &Choice::of(None, &patterns).unwrap()).unwrap().train)
        };
        assert_eq!(left(&["*_mask.*", "thumbs/", "old", "train"]), ["a/1.png", "b/2.png"]);
        assert_eq!(left(&["b/*.png", "old/**", "train"]), ["a/1.png", "a/1_mask.png", "b/thumbs/2.png"]);
        assert!(Choice::of(None, &["[".into()]).is_err());
    }

    #[test]
    fn what_is_left_aside_is_told() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["train/a/1.png", "val/a/1.png", "test/a/1.png", "dev/notes.txt"]);
        let layout = open(&Folder(root.path()), &Choice::default()).unwrap().layout;
        let (train, test) = layout.splits.unwrap();
        assert_eq!((train, test.unwrap()), (root.path().join("train"), root.path().join("val")));
        assert_eq!(layout.left_aside, [root.path().join("test")]);
    }
}
