//! A `.txt` list of images: a path on each line, relative to the list unless absolute; a class behind a tab, on every line or
//! on none.

use super::folder::FolderImages;
use super::form::{Files, Pixels};
use super::named_labels::numbered;
use super::{DataError, Dataset, Layout, Split};
use crate::storage::read_regular;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Opens `path` if it is a list.
pub(super) fn open(path: &Path, pixels: Pixels) -> Option<Result<Dataset, DataError>> {
    let is_list = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"));
    (is_list && path.is_file()).then(|| read(path, pixels))
}

fn read(path: &Path, pixels: Pixels) -> Result<Dataset, DataError> {
    let bytes = read_regular(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let problem = |line: usize, cause: String| {
        let path = PathBuf::from(format!("{}:{line}", path.display()));
        Err(DataError::Format { path, cause })
    };
    let (mut files, mut labels, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = HashMap::new();
    for (index, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        let Ok(text) = std::str::from_utf8(text) else {
            return problem(line, "not valid UTF-8: name one image on each line".into());
        };
        let (file, label) = text.split_once('\t').map_or((text, None), |(file, label)| (file, Some(label.trim())));
        let file = file.trim();
        if file.is_empty() {
            continue;
        }
        // Two samples of one name could not be told apart when the run is resumed.
        if let Some(first) = seen.insert(file.to_owned(), line) {
            return problem(line, format!("{file} is already in line {first}: remove one of them"));
        }
        files.push(PathBuf::from(file));
        labels.push(label.filter(|label| !label.is_empty()).map(str::to_owned));
        lines.push(line);
    }
    if files.is_empty() {
        return Err(DataError::Empty(path.to_owned()));
    }
    let numbered = match numbered(&labels) {
        Ok(numbered) => numbered,
        Err(index) => return problem(lines[index], "there is no class, as on other lines: a tab and its name".into()),
    };
    let (classes, labels) = numbered.map_or((Vec::new(), None), |(classes, labels)| (classes, Some(labels)));
    let root = path.parent().map(Path::to_owned).unwrap_or_default();
    let (images, form) = FolderImages::new(root, files).formed(pixels);
    let train = Split::new(images, labels);
    let title = path.display().to_string();
    Ok(Dataset {
        title,
        train,
        test: None,
        classes,
        native_size: None,
        channels: form.channels(),
        pixels: form.pixels(),
        problems: Vec::new(),
        layout: Layout::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_images_with_a_class_or_without() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train.txt");
        image::RgbImage::from_pixel(4, 3, image::Rgb([9; 3])).save(root.path().join("b.png")).unwrap();
        let absolute = root.path().join("b.png").display().to_string();
        std::fs::write(&path, format!("b.png\t10\r\n\n{absolute}\t9\r\nno.png\t10")).unwrap();
        let data = open(&path, Pixels::Auto).unwrap().unwrap();
        assert_eq!(data.classes, ["9", "10"]);
        assert_eq!([0, 1, 2].map(|id| data.train.label(id)), [Some(1), Some(0), Some(1)]);
        assert_eq!(data.train.image(0).unwrap(), data.train.image(1).unwrap());
        let error = data.train.image(2).unwrap_err().to_string();
        assert!(error.contains("no.png"), "{error}");
        std::fs::write(&path, "b.png\nc.png\t\n").unwrap();
        assert!(!open(&path, Pixels::Auto).unwrap().unwrap().train.is_labelled());
        assert!(open(root.path(), Pixels::Auto).is_none());
    }

    #[test]
    fn what_is_wrong_with_a_list_is_named_by_line() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.txt");
        for (content, words) in [
            (b"a.png\tcat\n\nb.png\n".as_slice(), "x.txt:3: there is no class"),
            (b"a.png\nb.png\na.png", "x.txt:3: a.png is already in line 1"),
            (b"a.png\n\xFF\xD8\xFF\n", "x.txt:2: not valid UTF-8"),
            (b" \n\n", "holds no images"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = open(&path, Pixels::Auto).unwrap().err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
