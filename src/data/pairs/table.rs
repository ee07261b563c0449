//! Tables of image path and caption: tab- or comma-separated, or one JSON object on each line.

use super::{DataError, Named, Read, checked_caption};
use serde_json::Value;
use std::path::Path;

const IMAGE: [&str; 5] = ["image", "filepath", "path", "file", "filename"];
const CAPTION: [&str; 4] = ["caption", "text", "title", "sentence"];

/// Columns are named by a first line; without one there are two, image and caption.
pub(super) fn read_delimited(path: &Path, delimiter: u8) -> Result<Read, DataError> {
    let source = |error: csv::Error| DataError::Format { path: path.to_owned(), cause: error.to_string() };
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .flexible(true)
        .quoting(delimiter == b',')
        .from_path(path)
        .map_err(source)?;
    let mut read = Read::default();
    let mut columns = None;
    for record in reader.byte_records() {
        let record = record.map_err(source)?;
        let line = record.position().map_or(0, |position| position.line() as usize);
        let mut problem = |cause: &str| read.problems.push(format!("{}:{line}: {cause}", path.display()));
        let fields: Option<Vec<&str>> = record.iter().map(|field| std::str::from_utf8(field).ok()).collect();
        let Some(fields) = fields else {
            problem("not valid UTF-8");
            continue;
        };
        let Some((image, caption)) = columns else {
            let place = |names: &[&str]| fields.iter().position(|f| names.contains(&f.trim().to_lowercase().as_str()));
            match (place(&IMAGE), place(&CAPTION)) {
                (Some(image), Some(caption)) => columns = Some((image, caption)),
                _ if fields.len() == 2 => {
                    columns = Some((0, 1));
                    read.add(path, line, fields[0], fields[1]);
                }
                _ => {
                    let cause = format!(
                        "its first line has the columns {fields:?}: name them `image` and `caption`, or have just these two"
                    );
                    return Err(DataError::Format { path: path.to_owned(), cause });
                }
            }
            continue;
        };
        match (fields.get(image), fields.get(caption)) {
            (Some(image), Some(caption)) => read.add(path, line, image, caption),
            _ => problem(&format!("{} columns where {} are needed", fields.len(), 1 + image.max(caption))),
        }
    }
    Ok(read)
}

/// `{"image": …, "caption": …}`; the caption may be a list of them.
pub(super) fn read_jsonl(path: &Path) -> Result<Read, DataError> {
    let bytes = std::fs::read(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let mut read = Read::default();
    for (index, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        if text.trim_ascii().is_empty() {
            continue;
        }
        let mut problem = |cause: String| read.problems.push(format!("{}:{line}: {cause}", path.display()));
        let object: Value = match serde_json::from_slice(text) {
            Ok(object) => object,
            Err(error) => {
                problem(format!("not JSON ({error})"));
                continue;
            }
        };
        let field = |names: &[&str]| names.iter().find_map(|name| object.get(name));
        let (Some(Value::String(image)), Some(caption)) = (field(&IMAGE), field(&CAPTION)) else {
            problem("no keys `image` and `caption`".into());
            continue;
        };
        let captions = match caption {
            Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        for caption in captions {
            match caption {
                Value::String(caption) => read.add(path, line, image, caption),
                _ => read.problems.push(format!("{}:{line}: a caption is not a text", path.display())),
            }
        }
    }
    Ok(read)
}

impl Read {
    /// One more caption, or why it cannot be used.
    pub(super) fn add(&mut self, path: &Path, line: usize, image: &str, caption: &str) {
        match checked_caption(caption) {
            Ok(caption) => self.captions.push(Named { image: image.trim().to_owned(), caption, line }),
            Err(cause) => self.problems.push(format!("{}:{line}: {cause}", path.display())),
        }
    }
}
