//! Images with captions. A sample is an image with all of its captions, in the order in which the file names it.
//!
//! Adding a format: a new file with a function that gives the captions with their images, and one line in [`open`].

mod emoji;
mod flickr;
mod shards;
mod table;

pub use emoji::open_emoji;

use super::archive::{ArchiveImages, Region, list_zip};
use super::folder::FolderImages;
use super::{DataError, Dataset, Split};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One caption and the image it belongs to.
struct Named {
    image: String,
    caption: String,
    /// Line of the file, from 1.
    line: usize,
}

/// What a format gives: captions, problems by line, and which images are for testing.
#[derive(Default)]
struct Read {
    captions: Vec<Named>,
    problems: Vec<String>,
    /// Images of the training and of the test split, where the format knows them.
    splits: Option<(Vec<String>, Vec<String>)>,
}

/// Name of the embedded pairs, in place of a file.
pub const EMOJI: &str = "emoji";

/// Opens a table (`.tsv`, `.csv`, `.jsonl`), Flickr8k's token file or webdataset shards (`.tar`, or a folder of them);
/// images are looked up in `images`, a folder or a zip file, else beside the table. What cannot be used is an error, or
/// with `skip_bad` is left out and becomes one of the data's problems, with file and line. `emoji` is the embedded set.
pub fn open(pairs: &Path, images: Option<&Path>, skip_bad: bool) -> Result<Dataset, DataError> {
    if pairs == Path::new(EMOJI) {
        return open_emoji();
    }
    if !pairs.exists() {
        return Err(DataError::NotFound(pairs.to_owned()));
    }
    let name = pairs.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if pairs.is_dir() || name.ends_with(".tar") {
        let (data, problems, total) = shards::open(pairs)?;
        return finish(data, problems, total, skip_bad);
    }
    let read = match name.as_str() {
        name if name.ends_with(".tsv") => table::read_delimited(pairs, b'\t')?,
        name if name.ends_with(".csv") => table::read_delimited(pairs, b',')?,
        name if name.ends_with(".jsonl") => table::read_jsonl(pairs)?,
        name if name.contains(".token.txt") => flickr::read(pairs)?,
        _ => {
            let cause = "is no pair file: expected .tsv, .csv, .jsonl, .tar or Flickr8k.token.txt".to_owned();
            return Err(DataError::Format { path: pairs.to_owned(), cause });
        }
    };
    let folder = pairs.parent().unwrap_or(Path::new("."));
    let (mut problems, total) = (read.problems, read.captions.len());
    let store = Store::open(images.unwrap_or(folder))?;
    let (train, test) = match &read.splits {
        None => (store.split(pairs, &read.captions, |_| true, &mut problems), None),
        Some((train, test)) => {
            let member = |names: &[String]| names.iter().cloned().collect::<std::collections::HashSet<_>>();
            let (train, test) = (member(train), member(test));
            (
                store.split(pairs, &read.captions, |image| train.contains(image), &mut problems),
                Some(store.split(pairs, &read.captions, |image| test.contains(image), &mut problems)),
            )
        }
    };
    let title = pairs.display().to_string();
    let data =
        Dataset { title, train, test, classes: Vec::new(), native_size: None, is_grey: false, problems: Vec::new() };
    finish(data, problems, total, skip_bad)
}

fn finish(data: Dataset, problems: Vec<String>, total: usize, skip_bad: bool) -> Result<Dataset, DataError> {
    if data.train.is_empty() && problems.is_empty() {
        return Err(DataError::NoPairs(data.title));
    }
    match problems.first() {
        Some(first) if !skip_bad || data.train.is_empty() => {
            Err(DataError::BadPairs { count: problems.len(), total, first: first.clone() })
        }
        _ => Ok(Dataset { problems, ..data }),
    }
}

/// Where images are looked up by name.
enum Store {
    Folder(PathBuf),
    Zip(PathBuf, HashMap<String, Region>),
}

impl Store {
    fn open(path: &Path) -> Result<Self, DataError> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if !path.exists() {
            return Err(DataError::NotFound(path.to_owned()));
        }
        let regions = list_zip(path)?.into_iter().map(|region| (region.name.clone(), region)).collect();
        Ok(Self::Zip(path.to_owned(), regions))
    }

    fn has(&self, image: &str) -> bool {
        match self {
            Self::Folder(root) => root.join(image).is_file(),
            Self::Zip(_, regions) => regions.contains_key(image),
        }
    }

    /// The wanted images with their captions; an image that is missing is a problem of its first line.
    fn split(
        &self,
        file: &Path,
        captions: &[Named],
        wanted: impl Fn(&str) -> bool,
        problems: &mut Vec<String>,
    ) -> Split {
        // The place of each image, or `None` if it is missing.
        let mut places = HashMap::<&str, Option<usize>>::new();
        let (mut names, mut texts) = (Vec::new(), Vec::<Vec<String>>::new());
        for Named { image, caption, line } in captions.iter().filter(|named| wanted(&named.image)) {
            let place = *places.entry(image).or_insert_with(|| {
                if !self.has(image) {
                    problems.push(format!("{}:{line}: image {image} is missing", file.display()));
                    return None;
                }
                names.push(image.clone());
                texts.push(Vec::new());
                Some(names.len() - 1)
            });
            if let Some(place) = place {
                texts[place].push(caption.clone());
            }
        }
        let split = match self {
            Self::Folder(root) => {
                let files = names.into_iter().map(PathBuf::from).collect();
                Split::new(Arc::new(FolderImages { root: root.clone(), files }), None)
            }
            Self::Zip(path, regions) => {
                let regions = names.iter().map(|name| regions[name].clone()).collect();
                Split::new(Arc::new(ArchiveImages { archives: vec![path.clone()], regions }), None)
            }
        };
        split.with_captions(texts)
    }
}

/// Gives every image of a labelled data set the caption that `template` makes of its class, `[CLASS]` replaced.
pub fn caption_classes(data: &mut Dataset, template: &str) -> Result<(), DataError> {
    if !data.train.is_labelled() {
        return Err(DataError::NoLabels(data.title.clone()));
    }
    let captions: Vec<String> = data.classes.iter().map(|class| fill_template(template, &class_words(class))).collect();
    for split in [Some(&mut data.train), data.test.as_mut()].into_iter().flatten() {
        if let Some(labels) = &split.labels {
            let texts = labels.iter().map(|&label| vec![captions[label as usize].clone()]).collect();
            *split = split.clone().with_captions(texts);
        }
    }
    Ok(())
}

/// `[CLASS]` or `{}` replaced by the name of a class.
pub fn fill_template(template: &str, name: &str) -> String {
    template.replace("[CLASS]", name).replace("{}", name)
}

/// The name of a class as words, from the name of its folder.
pub fn class_words(folder: &str) -> String {
    folder.replace(['_', '-'], " ")
}

/// A caption as it will be used, or why it cannot be.
fn checked_caption(caption: &str) -> Result<String, &'static str> {
    match caption.trim() {
        "" => Err("the caption is empty"),
        caption => Ok(caption.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn picture() -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_pixel(3, 2, image::Rgb([9, 8, 7])).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    /// A folder with pictures and one more file.
    fn folder(pictures: &[&str], name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        for name in pictures {
            std::fs::write(root.path().join(name), picture()).unwrap();
        }
        let file = root.path().join(name);
        std::fs::write(&file, content).unwrap();
        (root, file)
    }

    fn summary(data: &Dataset) -> Vec<(String, Vec<String>)> {
        (0..data.train.len()).map(|id| (data.train.name(id), data.train.captions(id).to_vec())).collect()
    }

    fn sample(name: &str, captions: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), captions.iter().map(|caption| (*caption).to_owned()).collect())
    }

    #[test]
    fn tables_agree_and_group_the_captions_of_an_image() {
        let want = [sample("b.png", &["two, dogs", "a \"dog\""]), sample("a.png", &["a cat"])];
        for (name, text) in [
            ("p.tsv", "b.png\ttwo, dogs\na.png\t a cat \nb.png\ta \"dog\"\n"),
            ("p.tsv", "id\tcaption\timage\n1\ttwo, dogs\tb.png\n2\ta cat\ta.png\n3\ta \"dog\"\tb.png\n"),
            ("p.csv", "image,caption\nb.png,\"two, dogs\"\na.png,a cat\nb.png,\"a \"\"dog\"\"\"\n"),
            (
                "p.jsonl",
                "{\"image\":\"b.png\",\"caption\":[\"two, dogs\",\"a \\\"dog\\\"\"]}\n\n{\"path\":\"a.png\",\"text\":\"a cat\"}\n",
            ),
        ] {
            let (_root, file) = folder(&["a.png", "b.png"], name, text.as_bytes());
            let data = open(&file, None, false).unwrap();
            assert_eq!(summary(&data), want, "{name}: {text}");
            assert_eq!(data.train.image(0).unwrap().width, 3);
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_by_line_and_left_out_when_asked() {
        let cases: [(&str, &[u8], &str, usize); 6] = [
            ("p.tsv", b"a.png\tgood\nno.png\tlost\n", "p.tsv:2: image no.png is missing", 1),
            ("p.tsv", b"a.png\tgood\na.png\t  \n", "p.tsv:2: the caption is empty", 1),
            ("p.tsv", b"a.png\tgood\na.png\t\xFF\xFE\n", "p.tsv:2: not valid UTF-8", 1),
            ("p.csv", b"image,caption\na.png,good\na.png\n", "p.csv:3: 1 columns where 2 are needed", 1),
            ("p.jsonl", b"{\"image\":\"a.png\",\"caption\":\"good\"}\n{oops\n[1]\n", "p.jsonl:2: not JSON", 2),
            ("x.token.txt", b"a.png#0\tgood\na.png no tab\nb.jpg.1#0\tstray\n", "x.token.txt:2: expected image", 2),
        ];
        for (name, content, words, count) in cases {
            let (_root, file) = folder(&["a.png"], name, content);
            let error = open(&file, None, false).err().unwrap().to_string();
            assert!(error.contains(words) && error.contains("skip_bad"), "{name}: {error}");
            let data = open(&file, None, true).unwrap();
            assert_eq!(summary(&data), [sample("a.png", &["good"])], "{name}");
            assert_eq!(data.problems.len(), count, "{:?}", data.problems);
        }
        for (name, content, words) in [
            ("p.csv", "a,b,c\n1,2,3\n", "name them `image` and `caption`"),
            ("p.tsv", "", "holds no pairs"),
            ("p.md", "a.png", "is no pair file"),
            ("p.tsv", "no.png\tlost\n", "1 of 1 captions"),
        ] {
            let (_root, file) = folder(&[], name, content.as_bytes());
            let error = open(&file, None, true).err().unwrap().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert!(open(Path::new("no-such.tsv"), None, false).err().unwrap().to_string().contains("does not exist"));
    }

    #[test]
    fn flickr8k_has_splits_and_its_images_may_stay_in_a_zip() {
        let text = "x.png#0\tfirst .\nx.png#1\tsecond\ny.png#0\tthird\nz.png.1#0\tstray\n";
        let (root, file) = folder(&[], "Flickr8k.token.txt", text.as_bytes());
        std::fs::write(root.path().join("Flickr_8k.trainImages.txt"), "x.png\n").unwrap();
        std::fs::write(root.path().join("Flickr_8k.testImages.txt"), "y.png\n").unwrap();
        let archive = root.path().join("images.zip");
        let mut zip = zip::ZipWriter::new(std::fs::File::create(&archive).unwrap());
        for (name, method) in [("x.png", zip::CompressionMethod::Stored), ("y.png", zip::CompressionMethod::Deflated)] {
            zip.start_file(name, zip::write::SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(&picture()).unwrap();
        }
        zip.finish().unwrap();
        // The stray key is in neither list, so nothing is wrong.
        let data = open(&file, Some(&archive), false).unwrap();
        assert_eq!(summary(&data), [sample("images.zip/x.png", &["first .", "second"])]);
        let test = data.test.unwrap();
        assert_eq!(test.captions(0), ["third"]);
        assert_eq!(test.image(0).unwrap(), data.train.image(0).unwrap(), "stored and deflated alike");
        assert!(test.source.check(0).is_ok());
    }

    #[test]
    fn shards_give_their_samples_and_say_where_they_are_cut() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("0.tar");
        let mut tar = tar::Builder::new(std::fs::File::create(&path).unwrap());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, name, bytes).unwrap();
        };
        add("d/1.png", &picture());
        add("d/1.txt", b"one\nuno\n");
        add("d/2.json", b"{\"caption\": \"two\"}");
        add("d/2.png", &picture());
        add("d/3.png", &picture());
        add("d/4.txt", b"lonely");
        tar.finish().unwrap();
        drop(tar);
        let data = open(root.path(), None, true).unwrap();
        let problems = &data.problems;
        assert_eq!(summary(&data), [sample("0.tar/d/1.png", &["one", "uno"]), sample("0.tar/d/2.png", &["two"])]);
        assert_eq!(data.train.image(1).unwrap().height, 2);
        assert!(
            problems[0].ends_with("d/3 has no caption") && problems[1].ends_with("d/4 has no image"),
            "{problems:?}"
        );
        let bytes = std::fs::read(&path).unwrap();
        // Inside the second sample's image.
        std::fs::write(&path, &bytes[..512 * 7 + 20]).unwrap();
        let data = open(&path, None, true).unwrap();
        let problems = &data.problems;
        assert_eq!(data.train.len(), 1);
        assert!(problems.iter().any(|problem| problem.contains("truncated")), "{problems:?}");
    }

    #[test]
    fn classes_become_captions_and_emoji_are_two_drawings_of_one_list() {
        let mut data = Dataset::open(&Default::default(), 0).unwrap();
        caption_classes(&mut data, "This is a photo of [CLASS]").unwrap();
        let id = (0..100).find(|&id| data.train.label(id) == Some(9)).unwrap();
        assert_eq!(data.train.captions(id), ["This is a photo of ankle boot"]);

        assert_eq!(fill_template("art of a {}", "t-shirt"), "art of a t-shirt");

        let emoji = open_emoji().unwrap();
        let test = emoji.test.unwrap();
        assert_eq!((emoji.train.len(), test.len()), (1860, 1860));
        assert_eq!(emoji.train.captions(0), ["grinning face", "grinning"]);
        assert_eq!(emoji.train.captions(1859), test.captions(1859));
        assert_ne!(emoji.train.image(0).unwrap(), test.image(0).unwrap());
        // A drawing, not white paper.
        assert!(emoji.train.image(1859).unwrap().data.iter().any(|&v| v < 200));
    }

    #[test]
    fn an_epoch_draws_one_caption_of_an_image() {
        let (_root, file) = folder(&["a.png"], "p.tsv", b"a.png\tx\na.png\ty\na.png\tz\n");
        let train = open(&file, None, false).unwrap().train;
        let drawn: Vec<&str> = (0..60).map(|epoch| train.caption(0, 1, epoch).unwrap()).collect();
        let again: Vec<&str> = (0..60).map(|epoch| train.caption(0, 1, epoch).unwrap()).collect();
        assert_eq!(drawn, again);
        for caption in ["x", "y", "z"] {
            let count = drawn.iter().filter(|other| **other == caption).count();
            assert!((8..=35).contains(&count), "{caption}: {count} of 60");
        }
    }
}
