//! Flickr8k's own files: `Flickr8k.token.txt` (perhaps gzipped) with `image.jpg#k<TAB>caption` on each line, and beside it
//! the lists `Flickr_8k.trainImages.txt` and `Flickr_8k.testImages.txt`.

use super::{DataError, Read};
use flate2::read::GzDecoder;
use std::io::Read as _;
use std::path::Path;

pub(super) fn read(path: &Path) -> Result<Read, DataError> {
    let error = |source| DataError::Read { path: path.to_owned(), source };
    let mut bytes = std::fs::read(path).map_err(error)?;
    if bytes.starts_with(&[0x1F, 0x8B]) {
        let mut plain = Vec::new();
        GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).map_err(error)?;
        bytes = plain;
    }
    let mut read = Read::default();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let number = index + 1;
        let mut problem = |cause: &str| read.problems.push(format!("{}:{number}: {cause}", path.display()));
        let Ok(line) = std::str::from_utf8(line) else {
            problem("not valid UTF-8");
            continue;
        };
        let parts = line.split_once('\t').and_then(|(key, caption)| Some((key.rsplit_once('#')?.0, caption)));
        match parts {
            Some((image, caption)) => read.add(path, number, image, caption),
            None => problem("expected image.jpg#k, a tab and a caption"),
        }
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let list = |name: &str| -> Result<Option<Vec<String>>, DataError> {
        let path = folder.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).map_err(|source| DataError::Read { path, source })?;
        Ok(Some(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()))
    };
    let lists = (list("Flickr_8k.trainImages.txt")?, list("Flickr_8k.testImages.txt")?);
    if let (Some(train), Some(test)) = lists {
        read.splits = Some((train, test));
    }
    Ok(read)
}
