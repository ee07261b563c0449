//! CIFAR-10 and CIFAR-100 in their standard binary form: label byte(s), then 1024 red, green and blue bytes.

use super::form::Pixels;
use super::memory::MemoryImages;
use super::{DataError, Dataset, Layout, Split};
use crate::storage::read_regular;
use std::path::Path;
use std::sync::Arc;

const PIXELS: usize = 32 * 32;

struct Format {
    title: &'static str,
    train: &'static [&'static str],
    test: &'static str,
    names: &'static str,
    /// CIFAR-100 stores the coarse label before the fine one.
    label_bytes: usize,
    classes: u32,
}

const FORMATS: [Format; 2] = [
    Format {
        title: "CIFAR-10",
        train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
        test: "test_batch.bin",
        names: "batches.meta.txt",
        label_bytes: 1,
        classes: 10,
    },
    Format {
        title: "CIFAR-100",
        train: &["train.bin"],
        test: "test.bin",
        names: "fine_label_names.txt",
        label_bytes: 2,
        classes: 100,
    },
];

/// Opens `folder` if it holds CIFAR batches.
pub(super) fn open(folder: &Path, _pixels: Pixels) -> Option<Result<Dataset, DataError>> {
    FORMATS.iter().find(|format| folder.join(format.train[0]).exists()).map(|format| read_folder(folder, format))
}

fn read_folder(folder: &Path, format: &Format) -> Result<Dataset, DataError> {
    let train = read_split(folder, format.train, format)?;
    let test = match folder.join(format.test).exists() {
        true => Some(read_split(folder, &[format.test], format)?),
        false => None,
    };
    let names = std::fs::read_to_string(folder.join(format.names)).unwrap_or_default();
    let mut classes: Vec<String> = names.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    if classes.is_empty() {
        classes = (0..format.classes).map(|class| class.to_string()).collect();
    }
    if classes.len() != format.classes as usize {
        let cause = format!("{} names for {} classes: fetch the file again", classes.len(), format.classes);
        return Err(DataError::Format { path: folder.join(format.names), cause });
    }
    let title = format.title.to_owned();
    Ok(Dataset {
        title,
        train,
        test,
        classes,
        native_size: Some(32),
        channels: 3,
        pixels: Pixels::Rgb,
        problems: Vec::new(),
        layout: Layout::default(),
    })
}

fn read_split(folder: &Path, files: &[&str], format: &Format) -> Result<Split, DataError> {
    let label_bytes = format.label_bytes;
    let record = label_bytes + 3 * PIXELS;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for file in files {
        let path = folder.join(file);
        let bytes = read_regular(&path).map_err(|source| DataError::Read { path: path.clone(), source })?;
        if bytes.is_empty() || bytes.len() % record != 0 {
            let cause = format!("{} bytes are not whole records of {record}: fetch the file again", bytes.len());
            return Err(DataError::Format { path, cause });
        }
        for image in bytes.chunks_exact(record) {
            let label = u32::from(image[label_bytes - 1]);
            if label >= format.classes {
                let cause = format!("label {label} of {} classes: fetch the file again", format.classes);
                return Err(DataError::Format { path, cause });
            }
            labels.push(label);
            let planes = &image[label_bytes..];
            pixels.extend((0..PIXELS).flat_map(|p| [planes[p], planes[PIXELS + p], planes[2 * PIXELS + p]]));
        }
    }
    let name = files[0].to_owned();
    let source = MemoryImages { name, side: (32, 32), channels: 3, pixels };
    Ok(Split::new(Arc::new(source), Some(labels)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Samples;

    #[test]
    fn planes_become_interleaved_pixels() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = vec![3_u8, 7];
        record.extend((0..3 * PIXELS).map(|i| (i / PIXELS * 50 + i % 2) as u8));
        std::fs::write(folder.path().join("train.bin"), &record).unwrap();
        let data = open(folder.path(), Pixels::Auto).unwrap().unwrap();
        assert_eq!(data.train.label(0), Some(7), "the fine label counts");
        let Samples::U8(first) = data.train.image(0).unwrap().data else { panic!("bytes") };
        assert_eq!(first[..6], [0, 50, 100, 1, 51, 101]);
        assert_eq!(data.classes.len(), 100);

        std::fs::write(folder.path().join("fine_label_names.txt"), "apple\n\nbee\n").unwrap();
        let error = open(folder.path(), Pixels::Auto).unwrap().err().unwrap().to_string();
        assert!(error.contains("fine_label_names.txt: 2 names for 100 classes"), "{error}");

        std::fs::write(folder.path().join("train.bin"), &record[1..]).unwrap();
        let error = open(folder.path(), Pixels::Auto).unwrap().err().unwrap().to_string();
        assert!(error.contains("train.bin") && error.contains("whole records"), "{error}");
    }
}
