//! The list of images to leave out: one name a line, with the split that it belongs to and the reason, as `sogclr check` writes
//! it and people edit it.
//!
//! Fields are divided by tabs: `name`, `name⇥train` or `name⇥test⇥reason`. A name alone is left out of every split that has it.
//! Empty lines and lines that begin with `# ` say nothing. In names `\\`, `\t`, `\n`, `\r` and a `\#` in front stand for what
//! would end a field, a line, or begin a comment.

use super::{DataError, Dataset, Split};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// A list of names is text: what is larger is something else.
const MOST_BYTES: u64 = 1 << 30;

/// One of the splits of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// What is trained on.
    Train,
    /// What is held out for testing.
    Test,
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Test => "test",
        })
    }
}

/// One image to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineEntry {
    /// As [`Source::name`](super::Source::name) gives it.
    pub name: String,
    /// The split; `None` is any.
    pub part: Option<Part>,
    /// Why, for people.
    pub reason: String,
}

/// Images to leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// In the order of the file.
    pub entries: Vec<QuarantineEntry>,
}

impl Quarantine {
    /// Reads a list from a file.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let refused = |cause: String| DataError::Format { path: path.to_owned(), cause };
        let unreadable = |source| DataError::Read { path: path.to_owned(), source };
        let meta = std::fs::metadata(path).map_err(unreadable)?;
        if !meta.is_file() || meta.len() > MOST_BYTES {
            return Err(refused("is not a list of names: name the quarantine.txt of `sogclr check`".into()));
        }
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let text = String::from_utf8(bytes).map_err(|_| refused("the list of names is not UTF-8 text".into()))?;
        Self::parse(&text).map_err(refused)
    }

    /// Reads the text of a list; an error says in which line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
        let says_something = |line: &str| !line.trim().is_empty() && line != "#" && !line.starts_with("# ");
        let entries = lines.filter(|(_, line)| says_something(line)).map(|(at, line)| {
            let entry = entry(line).map_err(|cause| format!("line {}: {cause}", at + 1));
            entry.map_err(|cause| format!("{cause}; a line is a name, a tab, train or test, a tab and the reason"))
        });
        Ok(Self { entries: entries.collect::<Result<_, _>>()? })
    }

    /// The text of the entries, a line each.
    pub fn to_text(&self) -> String {
        self.entries.iter().map(|entry| format!("{entry}\n")).collect()
    }

    /// Takes the images out of `data` and notes each among its problems. Names that no image has are noted too: the images may
    /// be gone for good. If no image has any of them, the list is that of other data, which is an error.
    pub(super) fn apply(&self, data: &mut Dataset, path: &Path) -> Result<(), DataError> {
        let refused = |cause: &str| Err(DataError::Format { path: path.to_owned(), cause: cause.into() });
        let mut found = HashSet::new();
        found.extend(self.leave_out(&mut data.train, Part::Train));
        if let Some(test) = &mut data.test {
            found.extend(self.leave_out(test, Part::Test));
        }
        if !self.entries.is_empty() && found.is_empty() {
            return refused("the list names none of the images: it was made for other data");
        }
        if data.train.is_empty() {
            return refused("the list names every training image");
        }
        if data.test.as_ref().is_some_and(Split::is_empty) {
            data.test = None;
        }
        for (at, QuarantineEntry { name, reason, .. }) in self.entries.iter().enumerate() {
            data.problems.push(match found.contains(&at) {
                true => format!("{} is in the quarantine list ({reason})", escaped(name)),
                false => format!("{}, which the quarantine list names, is not among the images", escaped(name)),
            });
        }
        Ok(())
    }

    /// Narrows one split; gives the entries that it had.
    fn leave_out(&self, split: &mut Split, part: Part) -> Vec<usize> {
        let concerned = self.entries.iter().enumerate().filter(|(_, entry)| entry.part.is_none_or(|own| own == part));
        let by_name: std::collections::HashMap<&str, usize> =
            concerned.map(|(at, entry)| (entry.name.as_str(), at)).collect();
        let hit: Vec<Option<usize>> =
            (0..split.len()).map(|id| by_name.get(split.name(id).as_str()).copied()).collect();
        split.retain(|id| hit[id].is_none());
        hit.into_iter().flatten().collect()
    }
}

/// The line of an entry.
impl Display for QuarantineEntry {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self { name, part, reason } = self;
        let reason = reason.replace(['\t', '\n', '\r'], " ");
        match part {
            Some(part) => write!(f, "{}\t{part}\t{reason}", escaped(name)),
            None => f.write_str(&escaped(name)),
        }
    }
}

fn entry(line: &str) -> Result<QuarantineEntry, String> {
    let mut fields = line.split('\t');
    let name = unescaped(fields.next().unwrap_or_default())?;
    let part = match fields.next() {
        None => None,
        Some("train") => Some(Part::Train),
        Some("test") => Some(Part::Test),
        Some(other) => return Err(format!("the second field is {other:?}, not train or test")),
    };
    Ok(QuarantineEntry { name, part, reason: fields.collect::<Vec<_>>().join(" ") })
}

/// A name without what would end its field or line, or begin a comment.
fn escaped(name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r");
    if name.starts_with('#') { format!("\\{name}") } else { name }
}

fn unescaped(field: &str) -> Result<String, String> {
    let (mut name, mut rest) = (String::with_capacity(field.len()), field.chars());
    while let Some(next) = rest.next() {
        name.push(match next {
            '\\' => match rest.next() {
                Some('\\') => '\\',
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('#') => '#',
                _ => return Err("a backslash in a name is written twice".into()),
            },
            other => other,
        });
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::super::DataConfig;
    use super::*;

    fn entries(names: &[(&str, Option<Part>)]) -> Quarantine {
        let entry =
            |&(name, part): &(&str, Option<Part>)| QuarantineEntry { name: name.into(), part, reason: "r".into() };
        Quarantine { entries: names.iter().map(entry).collect() }
    }

    #[test]
    fn any_name_survives_the_file() {
        let names = ["a b/c.jpg", "tab\there", "line\nbreak\r", "back\\slash\\n", "#5", "# not a comment", "é", " "];
        let all = entries(&names.map(|name| (name, Some(Part::Test))));
        assert_eq!(Quarantine::parse(&all.to_text()).unwrap(), all);
    }

    #[test]
    fn comments_and_names_alone_are_read_and_other_lines_are_named() {
        let list = Quarantine::parse("\u{feff}# head\n#\n\na.jpg\r\nb.jpg\ttrain\tblurred\tsomewhat\n#7\n").unwrap();
        let found: Vec<_> = list.entries.iter().map(|entry| (entry.name.as_str(), entry.part)).collect();
        assert_eq!(found, [("a.jpg", None), ("b.jpg", Some(Part::Train)), ("#7", None)]);
        assert_eq!(list.entries[1].reason, "blurred somewhat");
        for (text, words) in [("a\nb\tblurred\n", "line 2: the second field is \"blurred\""), ("a\\b", "written twice")]
        {
            let error = Quarantine::parse(text).unwrap_err();
            assert!(error.contains(words) && error.contains("a line is a name"), "{error}");
        }
    }

    fn data() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in ["train/a/0.png", "train/a/1.png", "train/b/0.png", "val/a/0.png", "val/b/9.png"] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            image::RgbImage::new(4, 4).save(path).unwrap();
        }
        root
    }

    fn open(root: &Path, list: &str) -> Result<Dataset, DataError> {
        let file = root.join("list.txt");
        std::fs::write(&file, list).unwrap();
        let config = DataConfig { path: Some(root.to_owned()), quarantine: Some(file), ..Default::default() };
        Dataset::open(&config, 0)
    }

    fn names(split: &Split) -> Vec<String> {
        (0..split.len()).map(|id| split.name(id)).collect()
    }

    #[test]
    fn listed_images_are_left_out_of_their_split_and_strangers_are_noted() {
        let root = data();
        let data = open(root.path(), "a/0.png\ttrain\tleak\ngone.png\n").unwrap();
        assert_eq!(names(&data.train), ["a/1.png", "b/0.png"]);
        assert_eq!(names(data.test.as_ref().unwrap()), ["a/0.png", "b/9.png"], "of the same name in the other split");
        assert_eq!(data.problems[0], "a/0.png is in the quarantine list (leak)");
        assert!(data.problems[1].starts_with("gone.png, which") && data.problems.len() == 2, "{:?}", data.problems);
        let both = open(root.path(), "a/0.png\n").unwrap();
        assert_eq!([both.train.len(), both.test.unwrap().len()], [2, 1], "a name alone is any");
        let labels: Vec<_> = (0..2).map(|id| both.train.label(id)).collect();
        assert_eq!(labels, [Some(0), Some(1)]);
        let no_tests = open(root.path(), "a/0.png\ttest\t\nb/9.png\ttest\t\n").unwrap();
        assert!(no_tests.test.is_none() && no_tests.train.len() == 3);
        assert_eq!(open(root.path(), "# nothing wrong\n").unwrap().train.len(), 3);
    }

    #[test]
    fn a_list_of_other_data_or_of_everything_is_refused() {
        let root = data();
        let all = "a/0.png\ttrain\t\na/1.png\ttrain\t\nb/0.png\ttrain\t\n";
        let binary = "\u{0}\tx";
        for (list, words) in [("x.png\ny.png\n", "other data"), (all, "every training image"), (binary, "line 1")] {
            let error = open(root.path(), list).err().unwrap().to_string();
            assert!(error.contains("list.txt") && error.contains(words), "{error}");
        }
        let folder = Quarantine::read(root.path()).unwrap_err().to_string();
        assert!(folder.contains("quarantine.txt"), "{folder}");
    }
}
