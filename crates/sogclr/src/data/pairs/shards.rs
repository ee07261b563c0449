//! Webdataset-style tar shards: files that share a name up to the first dot of their last part are one sample, an image
//! with `.txt` (one caption on each line) or `.json` (`caption` or `text`).

use super::{DataError, Split};
use crate::data::archive::{ArchiveImages, walk_tar};
use crate::data::folder::is_image;
use crate::data::form::Form;
use crate::data::region::Region;
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The samples, and a problem for each caption that cannot be used.
pub(super) fn open(path: &Path) -> Result<(Split, Vec<String>), DataError> {
    let archives = if path.is_dir() { tars_in(path)? } else { vec![path.to_owned()] };
    let (mut regions, mut captions, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (archive, path) in archives.iter().enumerate() {
        let mut keys = HashSet::new();
        let finish = |sample: Sample| {
            let Sample { key, image, texts, problem } = sample;
            let problem = if !keys.insert(key.clone()) {
                Some("comes again after other samples".to_owned())
            } else if problem.is_some() {
                problem
            } else if image.is_none() {
                Some("has no image".to_owned())
            } else {
                texts.is_empty().then(|| "has no caption".to_owned())
            };
            match (problem, image) {
                (None, Some(image)) => {
                    regions.push(Region { archive, ..image });
                    captions.push(texts);
                }
                (problem, _) => {
                    let problem = format!("{}: {key} {}", path.display(), problem.unwrap_or_default());
                    problems.extend(std::iter::repeat_n(problem, texts.len().max(1)));
                }
            }
        };
        let cut = walk(path, finish)?;
        problems.extend(cut.map(|cause| format!("{}: {cause}", path.display())));
    }
    Ok((
        Split::new(Arc::new(ArchiveImages { archives, regions, form: Form::Rgb }), None).with_captions(captions),
        problems,
    ))
}

#[derive(Default)]
struct Sample {
    key: String,
    image: Option<Region>,
    texts: Vec<String>,
    /// What is wrong with it, after its key.
    problem: Option<String>,
}

impl Sample {
    fn add_image(&mut self, image: Region) {
        match &self.image {
            Some(first) => self.problem = Some(format!("has two images, {} and {}", first.name, image.name)),
            None => self.image = Some(image),
        }
    }

    /// Captions from a `.txt` or `.json`. img2dataset writes the same one into both.
    fn add_texts(&mut self, extension: &str, bytes: &[u8]) {
        match texts(extension, bytes) {
            Err(problem) => self.problem = Some(problem),
            Ok(texts) => {
                for text in texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()) {
                    if !self.texts.iter().any(|other| other == text) {
                        self.texts.push(text.to_owned());
                    }
                }
            }
        }
    }
}

/// Goes through one shard; the cause if it ends too early.
fn walk(path: &Path, mut finish: impl FnMut(Sample)) -> Result<Option<String>, DataError> {
    let mut sample: Option<Sample> = None;
    let cut = walk_tar(path, |region, content| {
        let (key, extension) = split_key(&region.name);
        if sample.as_ref().is_none_or(|sample| sample.key != key) {
            let next = Sample { key: key.to_owned(), ..Default::default() };
            if let Some(done) = sample.replace(next) {
                finish(done);
            }
        }
        let Some(sample) = &mut sample else { return Ok(()) };
        if is_image(Path::new(&region.name)) {
            sample.add_image(region);
        } else if matches!(extension, "txt" | "json") {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes)?;
            sample.add_texts(extension, &bytes);
        }
        Ok(())
    })?;
    if let Some(done) = sample {
        finish(done);
    }
    Ok(cut.map(|cause| format!("the shard is {cause}")))
}

/// `a/b.jpg` → (`a/b`, `jpg`)
pub(in crate::data) fn split_key(name: &str) -> (&str, &str) {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last..].find('.') {
        Some(dot) => (&name[..last + dot], &name[last + dot + 1..]),
        None => (name, ""),
    }
}

fn texts(extension: &str, bytes: &[u8]) -> Result<Vec<String>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| format!("has a .{extension} that is not valid UTF-8"))?;
    if extension == "txt" {
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let object: Value =
        serde_json::from_str(text).map_err(|error| format!("has a .json that is not JSON ({error})"))?;
    let captions = match ["caption", "text"].iter().find_map(|key| object.get(key)) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let text = |caption: &Value| caption.as_str().map(str::to_owned);
    captions.iter().map(text).collect::<Option<_>>().ok_or_else(|| "has a caption that is not a text".to_owned())
}

/// The `.tar` files of a folder, sorted.
fn tars_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let error = |source| DataError::Read { path: folder.to_owned(), source };
    let mut tars = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "tar") {
            tars.push(path);
        }
    }
    tars.sort();
    if tars.is_empty() {
        return Err(DataError::NoPairs(folder.display().to_string()));
    }
    Ok(tars)
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::super::tests::{picture, sample, summary};
    use std::path::Path;

    type Files<'a> = &'a [(&'a str, &'a [u8])];

    fn write_tar(path: &Path, files: Files) {
        let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        tar.finish().unwrap();
    }

    #[test]
    fn shards_give_their_samples_and_say_where_they_are_cut() {
        let (root, picture) = (tempfile::tempdir().unwrap(), picture());
        let path = root.path().join("0.tar");
        let files: [(&str, &[u8]); 6] = [
            ("d/1.png", &picture),
            ("d/1.txt", b"one\nuno\n"),
            ("d/2.json", b"{\"caption\": \"two\"}"),
            ("d/2.png", &picture),
            ("d/3.png", &picture),
            ("d/4.txt", b"lonely"),
        ];
        write_tar(&path, &files);
        let data = open(root.path(), None, true).unwrap();
        let problems = &data.problems;
        assert_eq!(summary(&data.train), [sample("0.tar/d/1.png", &["one", "uno"]), sample("0.tar/d/2.png", &["two"])]);
        assert_eq!(data.train.image(1).unwrap().height, 2);
        assert!(
            problems[0].ends_with("d/3 has no caption") && problems[1].ends_with("d/4 has no image"),
            "{problems:?}"
        );
        // Each file is a block of header and one of content: inside the second image, behind it, and behind everything.
        let bytes = std::fs::read(&path).unwrap();
        for (length, samples, words) in [
            (512 * 7 + 20, 1, "0.tar: the shard is truncated inside d/2.png"),
            (512 * 8, 2, "0.tar: the shard is truncated after d/2.png"),
            (512 * 12, 2, "0.tar: the shard is truncated after d/4.txt"),
            (0, 0, "0.tar: the shard is truncated after its beginning"),
        ] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let (split, problems) = super::open(&path).unwrap();
            assert_eq!(split.len(), samples, "{length} bytes");
            assert!(problems.last().unwrap().contains(words), "{problems:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_by_shard_and_key() {
        let (root, picture) = (tempfile::tempdir().unwrap(), picture());
        let path = root.path().join("0.tar");
        let good: [(&str, &[u8]); 3] =
            [("1.png", &picture), ("1.txt", b"a cat\n"), ("1.json", b"{\"caption\": \" a cat\", \"width\": 3}")];
        let cases: [(Files, &str); 6] = [
            (&[("2.png", &picture), ("2.txt", b"caf\xE9")], "0.tar: 2 has a .txt that is not valid UTF-8"),
            (&[("2.png", &picture), ("2.json", b"{\"caption\"")], "0.tar: 2 has a .json that is not JSON"),
            (&[("2.png", &picture), ("2.json", b"{\"text\": 7}")], "0.tar: 2 has a caption that is not a text"),
            (&[("2.png", &picture), ("2.jpg", &picture)], "0.tar: 2 has two images, 2.png and 2.jpg"),
            (&[("2.png", &picture), ("2.json", b"{\"caption\": null}")], "0.tar: 2 has no caption"),
            (&[("2.png", b""), ("1.txt", b"again")], "0.tar: 1 comes again after other samples"),
        ];
        for (files, words) in cases {
            write_tar(&path, &[&good[..], files].concat());
            let error = open(&path, None, false).err().unwrap().to_string();
            let data = open(&path, None, true).unwrap();
            assert_eq!(summary(&data.train), [sample("0.tar/1.png", &["a cat"])], "{words}");
            assert!(data.problems.iter().any(|problem| problem.contains(words)), "{:?}", data.problems);
            assert!(
                error.contains(&format!("{} of {} captions", data.problems.len(), data.problems.len() + 1)),
                "{error}"
            );
        }
    }
}
