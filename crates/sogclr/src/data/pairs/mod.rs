//! Images with captions. A sample is an image with all of its captions, in the order in which the file names it.
//!
//! Adding a format: a new file with a function that gives the captions with their images, and one line in [`open`].

mod classes;
mod emoji;
mod flickr;
pub(super) mod shards;
mod table;

pub use classes::{caption_classes, class_names, fill_template};
pub use emoji::open_emoji;

use super::archive::{ArchiveImages, list_zip};
use super::folder::FolderImages;
use super::form::{Form, Pixels};
use super::region::Region;
use super::{DataError, Dataset, Layout, Split};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One caption and the image it belongs to.
struct Named {
    image: String,
    caption: String,
    /// Line of the file, from 1.
    line: usize,
}

/// What a format gives: captions, those that cannot be used, and which images are for testing.
struct Read {
    file: PathBuf,
    captions: Vec<Named>,
    /// One for each caption that cannot be used, by line.
    problems: Vec<String>,
    /// What is left out on purpose.
    notes: Vec<String>,
    /// Images of the training and of the test split, where the format knows them.
    splits: Option<(Vec<String>, Option<Vec<String>>)>,
    /// Hashes of the keys so far, as a table may have millions of rows, and their lines.
    lines: HashMap<blake3::Hash, usize>,
}

impl Read {
    fn new(file: &Path) -> Self {
        let (captions, problems, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { file: file.to_owned(), captions, problems, notes, splits: None, lines: HashMap::new() }
    }

    fn problem(&mut self, line: usize, cause: impl Display) {
        self.problems.push(format!("{}:{line}: {cause}", self.file.display()));
    }

    /// One more caption, or why it cannot be used; no two have the same `key`.
    fn add(&mut self, line: usize, key: &str, image: &str, caption: &str) {
        let earlier = self.lines.insert(blake3::hash(key.as_bytes()), line);
        match (caption.trim(), earlier) {
            ("", _) => self.problem(line, "the caption is empty"),
            (_, Some(earlier)) => self.problem(line, format!("{key:?} is already in line {earlier}")),
            (caption, None) => {
                self.captions.push(Named { image: image.trim().to_owned(), caption: caption.to_owned(), line });
            }
        }
    }
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
        let (split, problems) = shards::open(pairs)?;
        return finish(pairs, (split, None), problems, Vec::new(), skip_bad);
    }
    let Read { captions, mut problems, notes, splits, .. } = match name.as_str() {
        name if name.ends_with(".tsv") => table::read_delimited(pairs, b'\t')?,
        name if name.ends_with(".csv") => table::read_delimited(pairs, b',')?,
        name if name.ends_with(".jsonl") => table::read_jsonl(pairs)?,
        name if name.contains(".token.txt") => flickr::read(pairs)?,
        _ => {
            let cause = "is no pair file: expected .tsv, .csv, .jsonl, .tar or Flickr8k.token.txt".to_owned();
            return Err(DataError::Format { path: pairs.to_owned(), cause });
        }
    };
    let store = Store::open(images.unwrap_or(folder_of(pairs)))?;
    let splits = match splits {
        None => (store.split(pairs, &captions, |_| true, &mut problems), None),
        Some((train, test)) => {
            let mut members = |names: Vec<String>| {
                let names: HashSet<String> = names.into_iter().collect();
                store.split(pairs, &captions, |image| names.contains(image), &mut problems)
            };
            (members(train), test.map(members))
        }
    };
    finish(pairs, splits, problems, notes, skip_bad)
}

/// Where a file lies; a bare name has an empty parent, which is no path.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses the problems, or keeps them with the notes as what was left out.
fn finish(
    pairs: &Path,
    (train, test): (Split, Option<Split>),
    problems: Vec<String>,
    notes: Vec<String>,
    skip_bad: bool,
) -> Result<Dataset, DataError> {
    let title = pairs.display().to_string();
    let captions = |split: &Split| (0..split.len()).map(|id| split.captions(id).len()).sum::<usize>();
    let usable = captions(&train) + test.as_ref().map_or(0, captions);
    match problems.first() {
        Some(first) if !skip_bad || usable == 0 => {
            let count = problems.len();
            Err(DataError::BadPairs { count, total: count + usable, first: first.clone() })
        }
        None if usable == 0 => Err(DataError::NoPairs(title)),
        _ => {
            let problems = [problems, notes].concat();
            Ok(Dataset {
                title,
                train,
                test,
                classes: Vec::new(),
                native_size: None,
                channels: 3,
                pixels: Pixels::Rgb,
                problems,
                layout: Layout::default(),
            })
        }
    }
}

/// The files of a zip that are not macOS's copies of their attributes.
fn files_in_zip(path: &Path) -> Result<Vec<Region>, DataError> {
    let mut regions = list_zip(path)?;
    regions.retain(|region| !region.name.starts_with("__MACOSX/"));
    Ok(regions)
}

/// Where images are looked up by name.
enum Store {
    Folder(PathBuf),
    /// By path, and by the end of the path where no other file has it: archives often have a folder around everything.
    Zip(PathBuf, HashMap<String, Option<Region>>),
}

impl Store {
    fn open(path: &Path) -> Result<Self, DataError> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if !path.exists() {
            return Err(DataError::NotFound(path.to_owned()));
        }
        let files = files_in_zip(path)?;
        let mut regions = HashMap::new();
        for region in &files {
            for (slash, _) in region.name.match_indices('/') {
                let end = region.name[slash + 1..].to_owned();
                regions.entry(end).and_modify(|other| *other = None).or_insert_with(|| Some(region.clone()));
            }
        }
        regions.extend(files.into_iter().map(|region| (region.name.clone(), Some(region))));
        Ok(Self::Zip(path.to_owned(), regions))
    }

    /// The stored name of an image, one for all the ways to name it in a zip, or what is wrong with it.
    fn resolve<'a>(&'a self, image: &'a str) -> Result<&'a str, &'static str> {
        match self {
            Self::Folder(root) if root.join(image).is_file() => Ok(image),
            Self::Folder(_) => Err("is missing"),
            Self::Zip(_, regions) => match regions.get(image) {
                Some(Some(region)) => Ok(&region.name),
                Some(None) => Err("is in several folders of the zip: name the folder too"),
                None => Err("is missing"),
            },
        }
    }

    /// The wanted images with their captions; every caption whose image is missing is a problem.
    fn split(
        &self,
        file: &Path,
        captions: &[Named],
        wanted: impl Fn(&str) -> bool,
        problems: &mut Vec<String>,
    ) -> Split {
        let mut places = HashMap::<&str, Result<usize, &str>>::new();
        // Two samples of one name could not be told apart when the run is resumed.
        let mut samples = HashMap::<&str, usize>::new();
        let (mut names, mut texts) = (Vec::new(), Vec::<Vec<String>>::new());
        for Named { image, caption, line } in captions.iter().filter(|named| wanted(&named.image)) {
            let place = places.entry(image).or_insert_with(|| {
                let name = self.resolve(image)?;
                Ok(*samples.entry(name).or_insert_with(|| {
                    names.push(name);
                    texts.push(Vec::new());
                    names.len() - 1
                }))
            });
            match *place {
                Ok(place) => texts[place].push(caption.clone()),
                Err(problem) => problems.push(format!("{}:{line}: image {image} {problem}", file.display())),
            }
        }
        let split = match self {
            Self::Folder(root) => {
                let files = names.into_iter().map(PathBuf::from).collect();
                Split::new(Arc::new(FolderImages::new(root.clone(), files)), None)
            }
            Self::Zip(path, regions) => {
                let regions = names.into_iter().filter_map(|name| regions[name].clone()).collect();
                Split::new(Arc::new(ArchiveImages { archives: vec![path.clone()], regions, form: Form::Rgb }), None)
            }
        };
        split.with_captions(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    pub(super) fn picture() -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_pixel(3, 2, image::Rgb([9, 8, 7])).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    /// A folder with pictures and one more file.
    pub(super) fn folder(pictures: &[&str], name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        for name in pictures {
            std::fs::write(root.path().join(name), picture()).unwrap();
        }
        let file = root.path().join(name);
        std::fs::write(&file, content).unwrap();
        (root, file)
    }

    pub(super) fn summary(split: &Split) -> Vec<(String, Vec<String>)> {
        (0..split.len()).map(|id| (split.name(id), split.captions(id).to_vec())).collect()
    }

    pub(super) fn sample(name: &str, captions: &[&str]) -> (String, Vec<String>) {
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
            assert_eq!(summary(&data.train), want, "{name}: {text}");
            assert_eq!(data.train.image(0).unwrap().width, 3);
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_by_line_and_left_out_when_asked() {
        let cases: [(&str, &[u8], &str, usize); 15] = [
            ("p.tsv", b"a.png\tgood\nno.png\tlost\nno.png\ttwice\n", "p.tsv:2: image no.png is missing", 2),
            ("p.tsv", b"a.png\tgood\na.png\t  \n", "p.tsv:2: the caption is empty", 1),
            ("p.tsv", b"a.png\tgood\na.png\t\xFF\xFE\n", "p.tsv:2: not valid UTF-8", 1),
            ("p.tsv", b"a.png\tgood\n\n a.png\tgood \n", "p.tsv:3: \"a.png\\tgood\" is already in line 1", 1),
            ("p.csv", b"image,caption\na.png,good\na.png\n", "p.csv:3: 1 columns where 2 are needed", 1),
            (
                "p.csv",
                b"image,caption\na.png,good\na.png,red, blue, green\na.png,two, dogs\n",
                "p.csv:3: 4 columns where 2 are expected: quote captions that contain commas",
                2,
            ),
            ("p.csv", b"a.png,good\na.png,two, dogs\n", "p.csv:2: 3 columns where 2 are expected", 1),
            ("p.tsv", b"caption\timage\ngood\ta.png\ntwo\tdogs\ta.png\n", "p.tsv:3: 3 columns where 2 are exp", 1),
            ("p.csv", b"\r\nimage,caption\r\n\r\n\r\na.png,good\r\na.png,\r\n", "p.csv:6: the caption", 1),
            ("p.csv", b"image,caption\na.png,\"\ngood\"\n\na.png,\n", "p.csv:5: the caption is empty", 1),
            ("p.jsonl", b"{\"image\":\"a.png\",\"caption\":\"good\"}\n{oops\n[1]\n", "p.jsonl:2: not JSON", 2),
            (
                "p.jsonl",
                b"{\"image\":\"a.png\",\"caption\":\"good\"}\n{\"image\":\"a.png\",\"caption\":[]}\n",
                "p.jsonl:2: the caption is empty",
                1,
            ),
            (
                "p.jsonl",
                b"{\"image\":\"a.png\",\"caption\":[\"good\",\"good\"]}\n",
                "p.jsonl:1: \"a.png\\tgood\" is already in line 1",
                1,
            ),
            (
                "p.jsonl",
                b"{\"image\":\"a.png\",\"caption\":\"good\"}\n{\"image\":\"a.png\",\"caption\":\"\xFF\"}\n",
                "p.jsonl:2: not valid UTF-8",
                1,
            ),
            ("x.token.txt", b"a.png#0\tgood\na.png no tab\nb.jpg.1#0\tstray\n", "x.token.txt:2: expected image", 2),
        ];
        // Each has one good caption.
        for (name, content, words, bad) in cases {
            let (_root, file) = folder(&["a.png"], name, content);
            let error = open(&file, None, false).err().unwrap().to_string();
            assert!(error.contains(words) && error.contains("data.skip_bad"), "{name}: {error}");
            assert!(error.starts_with(&format!("{bad} of {} captions", bad + 1)), "{name}: {error}");
            let data = open(&file, None, true).unwrap();
            assert_eq!(summary(&data.train), [sample("a.png", &["good"])], "{name}");
            assert_eq!(data.problems.len(), bad, "{:?}", data.problems);
        }
        for (name, content, words) in [
            ("p.csv", "\r\na,b,c\r\n1,2,3\r\n", "p.csv:2: the columns are [\"a\", \"b\", \"c\"]: name them `image`"),
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

    fn zip_pictures(path: &Path, files: &[(&str, zip::CompressionMethod)]) {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        for (name, method) in files {
            zip.start_file(*name, zip::write::SimpleFileOptions::default().compression_method(*method)).unwrap();
            zip.write_all(&picture()).unwrap();
        }
        zip.finish().unwrap();
    }

    #[test]
    fn a_folder_around_the_files_of_a_zip_need_not_be_named() {
        let text = b"x.png\tone\nb/y.png\ttwo\ny.png\twhich\nall/x.png\tagain\n";
        let (root, file) = folder(&[], "p.tsv", text);
        let archive = root.path().join("images.zip");
        let files = ["all/x.png", "__MACOSX/all/x.png", "all/a/y.png", "all/b/y.png", "all/notes.txt"];
        zip_pictures(&archive, &files.map(|name| (name, zip::CompressionMethod::Stored)));
        let data = open(&file, Some(&archive), true).unwrap();
        let want = [sample("images.zip/all/x.png", &["one", "again"]), sample("images.zip/all/b/y.png", &["two"])];
        assert_eq!(summary(&data.train), want);
        let problem = "p.tsv:3: image y.png is in several folders of the zip: name the folder too";
        assert!(data.problems.len() == 1 && data.problems[0].ends_with(problem), "{:?}", data.problems);

        let names: Vec<_> =
            summary(&crate::data::open_images(&archive).unwrap()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["all/a/y.png", "all/b/y.png", "all/x.png"].map(|name| format!("images.zip/{name}")));
    }

    #[test]
    fn a_bare_file_name_lies_in_the_working_folder() {
        for (file, folder) in [("held.tsv", "."), ("a/held.tsv", "a"), ("/held.tsv", "/")] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder));
        }
    }

    #[test]
    fn flickr8k_has_splits_and_its_images_may_stay_in_a_zip() {
        let text = "x.png#0\tfirst .\nx.png#1\tsecond\ny.png#0\tthird\nz.png.1#0\tstray\n";
        let (root, file) = folder(&[], "Flickr8k.token.txt", text.as_bytes());
        std::fs::write(root.path().join("Flickr_8k.trainImages.txt"), "x.png\n").unwrap();
        std::fs::write(root.path().join("Flickr_8k.testImages.txt"), "y.png\n").unwrap();
        let archive = root.path().join("images.zip");
        let (stored, deflated) = (zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated);
        zip_pictures(&archive, &[("x.png", stored), ("y.png", deflated)]);
        // The stray key is in neither list, so nothing is wrong but is left out.
        let data = open(&file, Some(&archive), false).unwrap();
        assert_eq!(summary(&data.train), [sample("images.zip/x.png", &["first .", "second"])]);
        let test = data.test.unwrap();
        assert_eq!(test.captions(0), ["third"]);
        assert_eq!(test.image(0).unwrap(), data.train.image(0).unwrap(), "stored and deflated alike");
        assert!(test.source.check(0).is_ok());
    }

    #[test]
    fn emoji_are_two_drawings_of_one_list() {
        let emoji = open_emoji().unwrap();
        let test = emoji.test.unwrap();
        assert_eq!((emoji.train.len(), test.len()), (1860, 1860));
        assert_eq!(emoji.train.captions(0), ["grinning face", "grinning"]);
        assert_eq!(emoji.train.captions(1859), test.captions(1859));
        assert_ne!(emoji.train.image(0).unwrap(), test.image(0).unwrap());
        // A drawing, not white paper.
        let drawing = emoji.train.image(1859).unwrap().data;
        assert!((0..drawing.len()).any(|k| drawing.unit(k) < 0.78));
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
