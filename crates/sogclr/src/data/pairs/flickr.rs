//! Flickr8k's own files: `Flickr8k.token.txt` (perhaps gzipped) with `image.jpg#k<TAB>caption` on each line, and beside it
//! the lists of images `Flickr_8k.trainImages.txt`, `Flickr_8k.testImages.txt` and `Flickr_8k.devImages.txt` (not used).

use super::{DataError, Named, Read};
use crate::storage::read_regular;
use flate2::read::GzDecoder;
use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;

pub(super) fn read(path: &Path) -> Result<Read, DataError> {
    let error = |source| DataError::Read { path: path.to_owned(), source };
    let mut bytes = read_regular(path).map_err(error)?;
    if bytes.starts_with(&[0x1F, 0x8B]) {
        let mut plain = Vec::new();
        GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).map_err(error)?;
        bytes = plain;
    }
    let mut read = Read::new(path);
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let number = index + 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Ok(line) = std::str::from_utf8(line) else {
            read.problem(number, "not valid UTF-8");
            continue;
        };
        let parts = line.split_once('\t').and_then(|(key, caption)| Some((key, key.rsplit_once('#')?.0, caption)));
        match parts {
            Some((key, image, caption)) => read.add(number, key, image, caption),
            None => read.problem(number, "expected image.jpg#k, a tab and a caption"),
        }
    }
    read_lists(path, &mut read)?;
    Ok(read)
}

/// Splits by the lists that there are. Without one for training nothing is for training, rather than everything.
fn read_lists(path: &Path, read: &mut Read) -> Result<(), DataError> {
    let list_path = |split: &str| path.with_file_name(format!("Flickr_8k.{split}Images.txt"));
    let mut lists = [None, None, None];
    for (list, split) in lists.iter_mut().zip(["train", "test", "dev"]) {
        let path = list_path(split);
        if path.exists() {
            let text = std::fs::read_to_string(&path).map_err(|source| DataError::Read { path, source })?;
            let names = text.lines().map(str::trim).filter(|line| !line.is_empty());
            *list = Some(names.map(str::to_owned).collect::<Vec<String>>());
        }
    }
    if lists[0].is_none() && lists[1].is_none() {
        return Ok(());
    }
    let listed: HashSet<&str> = lists.iter().flatten().flatten().map(String::as_str).collect();
    let captioned: HashSet<&str> = read.captions.iter().map(|named| named.image.as_str()).collect();
    for Named { image, line, .. } in read.captions.iter().filter(|named| !listed.contains(named.image.as_str())) {
        read.notes.push(format!("{}:{line}: {image} is in no list of images", path.display()));
    }
    for (list, split) in lists.iter().zip(["train", "test"]) {
        for image in list.iter().flatten().filter(|image| !captioned.contains(image.as_str())) {
            read.notes.push(format!("{}: {image} has no caption", list_path(split).display()));
        }
    }
    let [train, test, _] = lists;
    read.splits = Some((train.unwrap_or_default(), test));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::data::pairs::open;
    use crate::data::pairs::tests::{folder, sample, summary};

    #[test]
    fn a_key_stands_once_and_a_caption_may_repeat() {
        let text = b"a.png#0\tsame\r\na.png#1\tsame\r\n\r\na.png#0\tother\r\n";
        let (_root, file) = folder(&["a.png"], "Flickr8k.token.txt", text);
        let error = open(&file, None, false).err().unwrap().to_string();
        let words = "1 of 3 captions cannot be used, first ";
        assert!(error.starts_with(words) && error.contains(":4: \"a.png#0\" is already in line 1"), "{error}");
        assert_eq!(summary(&open(&file, None, true).unwrap().train), [sample("a.png", &["same", "same"])]);
    }

    #[test]
    fn what_no_list_names_is_left_out_and_counted() {
        let text = b"x.png#0\tone\ny.png#0\ttwo\nz.png#0\tdev\nx.png.1#0\tstray\nx.png.1#1\tstray too\n";
        let (root, file) = folder(&["x.png", "y.png"], "Flickr8k.token.txt", text);
        let list = |split: &str| root.path().join(format!("Flickr_8k.{split}Images.txt"));
        std::fs::write(list("dev"), "z.png\n").unwrap();
        std::fs::write(list("test"), "y.png\nlost.png\n").unwrap();
        // Test images alone train nothing.
        let data = open(&file, None, false).unwrap();
        assert_eq!((data.train.len(), data.test.as_ref().map(|test| test.len())), (0, Some(1)));
        let config = crate::data::DataConfig { pairs: Some(file.clone()), ..Default::default() };
        let error = crate::data::Dataset::open(&config, 0).err().unwrap().to_string();
        assert!(error.contains("Flickr8k.token.txt: ") && error.contains("for testing"), "{error}");

        std::fs::write(list("train"), "x.png\n").unwrap();
        let data = open(&file, None, false).unwrap();
        assert_eq!(summary(&data.train), [sample("x.png", &["one"])]);
        let ends = [
            "txt:4: x.png.1 is in no list of images",
            "txt:5: x.png.1 is in no list of images",
            "lost.png has no caption",
        ];
        assert_eq!(data.problems.len(), 3, "{:?}", data.problems);
        assert!(data.problems.iter().zip(ends).all(|(note, end)| note.ends_with(end)), "{:?}", data.problems);

        std::fs::remove_file(list("test")).unwrap();
        let data = open(&file, None, false).unwrap();
        assert_eq!((data.train.len(), data.test.is_none(), data.problems.len()), (1, true, 3));
    }
}
