//! Captions and prompts from the classes of labelled images.

use super::{DataError, Dataset};
use crate::data::imagenet_s;
use std::collections::HashMap;
use std::path::Path;

/// Gives every image of a labelled data set the caption that `template` makes of its class, `[CLASS]` replaced by its name
/// in `names` (see [`class_names`]).
pub fn caption_classes(data: &mut Dataset, template: &str, names: Option<&Path>) -> Result<(), DataError> {
    if !data.train.is_labelled() {
        return Err(DataError::NoLabels(data.title.clone()));
    }
    let names = class_names(data, names)?;
    let captions: Vec<String> = names.iter().map(|name| fill_template(template, name)).collect();
    for split in [Some(&mut data.train), data.test.as_mut()].into_iter().flatten() {
        if let Some(labels) = &split.labels {
            // Images of classes that were left out have no label, and need no caption.
            let caption = |&label: &u32| captions.get(label as usize).cloned().into_iter().collect();
            let texts = labels.iter().map(caption).collect();
            *split = split.clone().with_captions(texts);
        }
    }
    Ok(())
}

/// A name for each class. `file` has either one on each line, in the order of the classes, or lines of folder, tab and
/// name; without it names are those of the folders, or CLIP's where those are ids of ImageNet-S.
pub fn class_names(data: &Dataset, file: Option<&Path>) -> Result<Vec<String>, DataError> {
    let Some(path) = file else {
        let built_in = |class: &String| imagenet_s::name_of(class).map(str::to_owned);
        let is_unnamed = |class: &&String| is_wordnet_id(class) && built_in(class).is_none();
        return match data.classes.iter().find(is_unnamed) {
            None => {
                Ok(data.classes.iter().map(|class| built_in(class).unwrap_or_else(|| class_words(class))).collect())
            }
            Some(id) => Err(DataError::Format {
                path: data.title.clone().into(),
                cause: format!("classes such as {id} have no names: name a file of them as data.class_names"),
            }),
        };
    };
    let format = |cause| DataError::Format { path: path.to_owned(), cause };
    let text = std::fs::read_to_string(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if !lines.iter().any(|line| line.contains('\t')) {
        let (count, classes) = (lines.len(), data.classes.len());
        let problem = || {
            format!(
                "there are {count} names for {classes} classes of {}: write one on each line in the order of the classes, \
                 or lines of folder, tab and name",
                data.title
            )
        };
        return if count == classes {
            Ok(lines.into_iter().map(str::to_owned).collect())
        } else {
            Err(format(problem()))
        };
    }
    let mut names = HashMap::new();
    for line in lines {
        let pair = line.split_once('\t').map(|(folder, name)| (folder.trim(), name.trim()));
        let (folder, name) = pair.ok_or_else(|| format(format!("{line:?} is not a folder, a tab and a name")))?;
        if names.insert(folder, name).is_some_and(|other| other != name) {
            return Err(format(format!("{folder} has two names: keep one of them")));
        }
    }
    let name = |class: &String| match names.get(class.as_str()) {
        Some(name) => Ok((*name).to_owned()),
        None => Err(format(format!("class {class} has no name: add a line of {class}, a tab and its name"))),
    };
    data.classes.iter().map(name).collect()
}

/// `[CLASS]` or `{}` replaced by the name of a class.
pub fn fill_template(template: &str, name: &str) -> String {
    template.replace("[CLASS]", name).replace("{}", name)
}

/// The name of a class as words, from the name of its folder.
fn class_words(folder: &str) -> String {
    folder.replace(['_', '-'], " ")
}

/// ImageNet's folders: n01440764.
fn is_wordnet_id(class: &str) -> bool {
    class.strip_prefix('n').is_some_and(|rest| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DataConfig;

    #[test]
    fn classes_become_captions() {
        let mut data = Dataset::open(&Default::default(), 0).unwrap();
        caption_classes(&mut data, "This is a photo of [CLASS]", None).unwrap();
        let id = (0..100).find(|&id| data.train.label(id) == Some(9)).unwrap();
        assert_eq!(data.train.captions(id), ["This is a photo of ankle boot"]);
        assert_eq!(fill_template("art of a {}", "t-shirt"), "art of a t-shirt");
    }

    /// A file of names for a folder with three of ImageNet's classes.
    fn named(text: &str, more: DataConfig) -> Result<Dataset, DataError> {
        let root = tempfile::tempdir().unwrap();
        for class in ["n01440764", "n01443537", "n02123045"] {
            let folder = root.path().join("data").join(class);
            std::fs::create_dir_all(&folder).unwrap();
            image::RgbImage::new(2, 2).save(folder.join("0.png")).unwrap();
        }
        let file = root.path().join("names.txt");
        std::fs::write(&file, text).unwrap();
        let class_names = (!text.is_empty()).then_some(file);
        let (path, template) = (Some(root.path().join("data")), Some("a [CLASS]".into()));
        Dataset::open(&DataConfig { path, template, class_names, ..more }, 0)
    }

    fn captions(data: &Dataset) -> Vec<&str> {
        (0..data.train.len()).flat_map(|id| data.train.captions(id)).map(String::as_str).collect()
    }

    #[test]
    fn names_come_by_line_or_by_folder_and_are_never_wordnet_ids() {
        let by_line = named("tench\n\ngold-fish\ntabby\n", DataConfig::default()).unwrap();
        assert_eq!(captions(&by_line), ["a tench", "a gold-fish", "a tabby"]);
        let table = "n02123045\ttabby\nn09999999\tother\nn01443537\tgoldfish\r\nn01440764\ttench\n";
        assert_eq!(captions(&named(table, DataConfig::default()).unwrap()), ["a tench", "a goldfish", "a tabby"]);

        for (text, words) in [
            ("", "classes such as n02123045 have no names: name a file of them as data.class_names"),
            ("tench\ngoldfish\n", "names.txt: there are 2 names for 3 classes"),
            ("n01440764\ttench\nn02123045\ttabby\n", "names.txt: class n01443537 has no name"),
            ("n01440764\ttench\nn02123045 tabby\n", "\"n02123045 tabby\" is not a folder, a tab and a name"),
            ("n01440764\ttench\nn01440764\tcarp\n", "n01440764 has two names"),
        ] {
            let error = named(text, DataConfig::default()).err().unwrap().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn only_the_classes_in_use_need_names() {
        let wanted = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(wanted.path(), "n01443537\nn01440764\n").unwrap();
        let config = DataConfig { classes: Some(wanted.path().to_owned()), ..Default::default() };
        assert_eq!(captions(&named("", config).unwrap()), ["a tench", "a goldfish"], "ImageNet-S has CLIP's names");
        std::fs::write(wanted.path(), "n02123045\nn01440764\n").unwrap();
        let config = DataConfig { classes: Some(wanted.path().to_owned()), ..Default::default() };
        let by_folder = named("n01440764\ttench\nn02123045\ttabby\n", config.clone()).unwrap();
        assert_eq!(captions(&by_folder), ["a tench", "a tabby"]);
        let by_line = named("tabby\ntench\n", config).unwrap();
        assert_eq!(captions(&by_line), ["a tench", "a tabby"], "in the order of the classes");
    }
}
