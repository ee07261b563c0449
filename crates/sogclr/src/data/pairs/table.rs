//! Tables of image path and caption: tab- or comma-separated, or one JSON object on each line.

use super::{DataError, Read};
use crate::storage::read_regular;
use serde_json::Value;
use std::path::{Path, PathBuf};

const IMAGE: [&str; 5] = ["image", "filepath", "path", "file", "filename"];
const CAPTION: [&str; 4] = ["caption", "text", "title", "sentence"];

/// Columns are named by a first line; without one there are two, image and caption. A row with more is a problem: its
/// caption was taken apart.
pub(super) fn read_delimited(path: &Path, delimiter: u8) -> Result<Read, DataError> {
    let bytes = read_bytes(path)?;
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .flexible(true)
        .quoting(delimiter == b',')
        .from_reader(bytes.as_slice());
    let mut read = Read::new(path);
    let mut columns = None;
    let (mut line, mut counted) = (1, 0);
    for record in reader.byte_records() {
        let record = record.map_err(|error| DataError::Format { path: path.to_owned(), cause: error.to_string() })?;
        // A record's position, and csv's line number, is the end of the one before: in front of the \n of a CRLF and of
        // blank lines.
        let end = record.position().map_or(0, |position| position.byte() as usize);
        let start = end + bytes[end..].iter().take_while(|&byte| matches!(byte, b'\r' | b'\n')).count();
        line += bytes[counted..start].iter().filter(|&&byte| byte == b'\n').count();
        counted = start;
        let fields: Option<Vec<&str>> = record.iter().map(|field| std::str::from_utf8(field).ok()).collect();
        let Some(fields) = fields else {
            read.problem(line, "not valid UTF-8");
            continue;
        };
        let Some((image, caption, count)) = columns else {
            let place = |names: &[&str]| fields.iter().position(|f| names.contains(&f.trim().to_lowercase().as_str()));
            match (place(&IMAGE), place(&CAPTION)) {
                (Some(image), Some(caption)) => columns = Some((image, caption, fields.len())),
                _ if fields.len() == 2 => {
                    columns = Some((0, 1, 2));
                    read.add_row(line, fields[0], fields[1]);
                }
                _ => {
                    let path = PathBuf::from(format!("{}:{line}", path.display()));
                    let cause =
                        format!("the columns are {fields:?}: name them `image` and `caption`, or have just these two");
                    return Err(DataError::Format { path, cause });
                }
            }
            continue;
        };
        if fields.len() > count {
            let advice = match delimiter {
                b',' => "quote captions that contain commas",
                _ => "a caption must not contain tabs",
            };
            read.problem(line, format!("{} columns where {count} are expected: {advice}", fields.len()));
            continue;
        }
        match (fields.get(image), fields.get(caption)) {
            (Some(image), Some(caption)) => read.add_row(line, image, caption),
            _ => {
                let cause = format!("{} columns where {} are needed", fields.len(), 1 + image.max(caption));
                read.problem(line, cause);
            }
        }
    }
    Ok(read)
}

/// `{"image": …, "caption": …}`; the caption may be a list of them.
pub(super) fn read_jsonl(path: &Path) -> Result<Read, DataError> {
    let bytes = read_bytes(path)?;
    let mut read = Read::new(path);
    for (index, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        let Ok(text) = std::str::from_utf8(text) else {
            read.problem(line, "not valid UTF-8");
            continue;
        };
        if text.trim().is_empty() {
            continue;
        }
        let object: Value = match serde_json::from_str(text) {
            Ok(object) => object,
            Err(error) => {
                read.problem(line, format!("not JSON ({error})"));
                continue;
            }
        };
        let field = |names: &[&str]| names.iter().find_map(|name| object.get(name));
        let (Some(Value::String(image)), Some(caption)) = (field(&IMAGE), field(&CAPTION)) else {
            read.problem(line, "no keys `image` and `caption`");
            continue;
        };
        let captions = match caption {
            Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        if captions.is_empty() {
            read.problem(line, "the caption is empty");
        }
        for caption in captions {
            match caption {
                Value::String(caption) => read.add_row(line, image, caption),
                _ => read.problem(line, "a caption is not a text"),
            }
        }
    }
    Ok(read)
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, DataError> {
    read_regular(path).map_err(|source| DataError::Read { path: path.to_owned(), source })
}

impl Read {
    /// One more row of a table, in which no caption of an image stands twice.
    fn add_row(&mut self, line: usize, image: &str, caption: &str) {
        self.add(line, &format!("{}\t{}", image.trim(), caption.trim()), image, caption);
    }
}
