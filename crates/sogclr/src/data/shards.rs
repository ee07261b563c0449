//! Tar shards of webdataset: a folder of `.tar` files, or one that has `.cls` beside its images. Files that share a name up to the
//! first dot of their last part are one sample: an image, and its class as text in a `.cls` or as `label` or `cls` of a
//! `.json`. Captions (`.txt`) are for `pairs/shards.rs`.

use super::archive::{ArchiveImages, walk_tar};
use super::folder::{Folder, is_array, is_image};
use super::form::{Files, Form, Pixels};
use super::named_labels::numbered;
use super::pairs::shards::split_key;
use super::region::Region;
use super::tree::Tree;
use super::{DataError, Dataset, Layout, Split};
use serde_json::Value;
use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// More than any description of one image has.
const MOST: u64 = 1 << 20;

/// Opens `path` if it is a shard or a folder of them.
pub(super) fn open(path: &Path, pixels: Pixels) -> Option<Result<Dataset, DataError>> {
    if !path.is_dir() {
        return is_tar(path).then(|| read(path, vec![path.to_owned()], pixels).transpose()).flatten();
    }
    let entries = std::fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut archives: Vec<PathBuf> = entries.filter(|path| is_tar(path) && path.is_file()).collect();
    archives.sort();
    // An archive of them may lie beside images.
    let is_shards = !archives.is_empty()
        && Folder(path).below(Path::new("")).is_ok_and(|files| files.iter().all(|file| is_array(file)));
    is_shards.then(|| read(path, archives, pixels).transpose()).flatten()
}

fn is_tar(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tar"))
}

#[derive(Default)]
struct Shards {
    regions: Vec<Region>,
    labels: Vec<Option<String>>,
    /// Whether a file tells a class.
    has_classes: bool,
}

/// A sample whose files are being read.
#[derive(Default)]
struct Sample {
    key: String,
    image: Option<Region>,
    label: Option<String>,
}

/// None for a single archive in which nothing tells a class: its folders may.
fn read(path: &Path, archives: Vec<PathBuf>, pixels: Pixels) -> Result<Option<Dataset>, DataError> {
    let mut all = Shards::default();
    for (index, archive) in archives.iter().enumerate() {
        all.add(index, archive)?;
    }
    if path.is_file() && !all.has_classes {
        return Ok(None);
    }
    if all.regions.is_empty() {
        return Err(DataError::Empty(path.to_owned()));
    }
    let numbered = numbered(&all.labels).map_err(|index| {
        let Region { name, archive, .. } = &all.regions[index];
        let cause = format!("{name} has no class, as others have: add a .cls for it, or take the others away");
        DataError::Format { path: archives[*archive].clone(), cause }
    })?;
    let (classes, labels) = numbered.map_or((Vec::new(), None), |(classes, labels)| (classes, Some(labels)));
    let (images, form) = ArchiveImages { archives, regions: all.regions, form: Form::Rgb }.formed(pixels);
    let train = Split::new(images, labels);
    let title = path.display().to_string();
    Ok(Some(Dataset {
        title,
        train,
        test: None,
        classes,
        native_size: None,
        channels: form.channels(),
        pixels: form.pixels(),
        problems: Vec::new(),
        layout: Layout::default(),
    }))
}

impl Shards {
    /// The samples of one archive.
    fn add(&mut self, archive: usize, path: &Path) -> Result<(), DataError> {
        let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
        let (mut keys, mut sample) = (HashSet::new(), Sample::default());
        let mut problem = None;
        let cut = walk_tar(path, |region, content| {
            let (key, extension) = split_key(&region.name);
            if sample.key != key {
                let new = keys.insert(key.to_owned());
                problem = problem.take().or_else(|| (!new).then(|| format!("{key} comes again after other samples")));
                self.finish(std::mem::replace(&mut sample, Sample { key: key.to_owned(), ..Default::default() }));
            }
            match extension {
                _ if is_image(Path::new(&region.name)) => match &sample.image {
                    Some(first) => {
                        let two = format!("{key} has two images, {} and {}", first.name, region.name);
                        problem.get_or_insert(two);
                    }
                    None => sample.image = Some(Region { archive, ..region }),
                },
                "cls" | "json" => match label(extension, content)? {
                    Ok(label) => sample.label = label.or(sample.label.take()),
                    Err(cause) => {
                        problem.get_or_insert(format!("{} {cause}", region.name));
                    }
                },
                _ => {}
            }
            Ok(())
        })?;
        self.finish(sample);
        match cut.map(|cause| format!("the shard is {cause}")).or(problem) {
            Some(cause) => Err(format(cause)),
            None => Ok(()),
        }
    }

    fn finish(&mut self, Sample { image, label, .. }: Sample) {
        self.has_classes |= label.is_some();
        if let Some(image) = image {
            self.regions.push(image);
            self.labels.push(label);
        }
    }
}

/// The class that a `.cls` or `.json` tells, or what is wrong with it.
fn label(extension: &str, content: &mut dyn Read) -> io::Result<Result<Option<String>, String>> {
    let mut bytes = Vec::new();
    content.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Ok(Err("is larger than any description of an image: remove it".into()));
    }
    let Ok(text) = std::str::from_utf8(&bytes) else { return Ok(Err("is not valid UTF-8: write it again".into())) };
    if extension == "cls" {
        let text = text.trim();
        return Ok(if text.is_empty() { Err("is empty: write a class into it".into()) } else { Ok(Some(text.into())) });
    }
    let object: Value = match serde_json::from_str(text) {
        Ok(object) => object,
        Err(error) => return Ok(Err(format!("is not JSON ({error}): write it again"))),
    };
    Ok(Ok(["label", "cls"].iter().find_map(|key| match object.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })))
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, open_images, open_path};
    use super::*;

    type Content<'a> = &'a [(&'a str, &'a [u8])];

    fn write_tar(path: &Path, files: Content) {
        let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        tar.finish().unwrap();
    }

    #[test]
    fn classes_come_from_cls_or_json() {
        let root = tempfile::tempdir().unwrap();
        write_tar(
            &root.path().join("1.tar"),
            &[("c.json", b"{\"label\": 10, \"width\": 3}"), ("c.png", b"x"), ("notes.md", b"x")],
        );
        let first = root.path().join("0.tar");
        write_tar(
            &first,
            &[("d/a.png", b"x"), ("d/a.cls", b"2\n"), ("d/a.txt", b"a cat"), ("b.cls", b"10"), ("b.jpg", b"x")],
        );
        let data = open_path(root.path(), &Choice::default()).unwrap();
        assert_eq!(data.classes, ["2", "10"]);
        let rows: Vec<_> = (0..3).map(|id| (data.train.name(id), data.train.label(id))).collect();
        let want = [("0.tar/d/a.png", Some(0)), ("0.tar/b.jpg", Some(1)), ("1.tar/c.png", Some(1))];
        assert_eq!(rows, want.map(|(name, label)| (name.to_owned(), label)));
        // One shard is one, too; without classes it is an archive of folders.
        assert_eq!(open_path(&first, &Choice::default()).unwrap().classes, ["2", "10"]);
        assert_eq!(open_images(root.path()).unwrap().len(), 3);
        write_tar(&first, &[("x/a.png", b"x"), ("y/b.png", b"x")]);
        assert_eq!(open_path(&first, &Choice::default()).unwrap().classes, ["x", "y"]);
        // Images beside an archive are what is meant.
        std::fs::write(root.path().join("z.png"), b"x").unwrap();
        assert_eq!(open_path(root.path(), &Choice::default()).unwrap().train.len(), 1);
    }

    #[test]
    fn what_is_wrong_with_a_shard_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("0.tar");
        let large = vec![b' '; MOST as usize + 1];
        let cases: [(Content, &str); 7] = [
            (&[("a.png", b"x"), ("a.cls", b"1"), ("b.png", b"x")], "0.tar: b.png has no class"),
            (&[("a.png", b"x"), ("a.cls", b"1"), ("a.jpg", b"x")], "0.tar: a has two images, a.png and a.jpg"),
            (&[("a.png", b"x"), ("b.png", b"x"), ("a.cls", b"1")], "0.tar: a comes again after other samples"),
            (&[("a.png", b"x"), ("a.cls", b"\xFF")], "0.tar: a.cls is not valid UTF-8"),
            (&[("a.png", b"x"), ("a.cls", b" ")], "0.tar: a.cls is empty"),
            (&[("a.png", b"x"), ("a.json", b"{")], "0.tar: a.json is not JSON"),
            (&[("a.png", b"x"), ("a.json", &large)], "0.tar: a.json is larger than"),
        ];
        for (files, words) in cases {
            write_tar(&path, files);
            let error = open_path(root.path(), &Choice::default()).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..2000]).unwrap();
        let error = open_path(root.path(), &Choice::default()).err().unwrap().to_string();
        assert!(error.contains("the shard is truncated inside a.json"), "{error}");
        write_tar(&path, &[("a.cls", b"1")]);
        let error = open_path(root.path(), &Choice::default()).err().unwrap().to_string();
        assert!(error.contains("holds no images"), "{error}");
    }
}
