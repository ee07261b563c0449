//! Narrowing a dataset: wanted classes, a stratified number of images, and test data with the same classes.

use super::{DataError, Dataset, Split, imagenet_s};
use crate::math::{Purpose, SampleRng};
use std::path::Path;
use std::sync::Arc;

/// Keeps the classes that `file` names, one on each line, or those of ImageNet-S, and numbers them in that order.
pub(super) fn keep_classes(data: &mut Dataset, file: &Path) -> Result<(), DataError> {
    if !data.train.is_labelled() {
        return Err(DataError::NoLabels(data.title.clone()));
    }
    let wanted: Vec<String> = match imagenet_s::is_built_in(file) {
        true => imagenet_s::classes().map(|(id, _)| id.to_owned()).collect(),
        false => {
            let read = std::fs::read_to_string(file);
            let text = read.map_err(|source| DataError::Read { path: file.to_owned(), source })?;
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
        }
    };
    if wanted.is_empty() {
        return Err(DataError::NoClasses(file.to_owned()));
    }
    if let Some(class) = wanted.iter().find(|class| !data.classes.contains(class)) {
        let known = data.classes.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        return Err(DataError::UnknownClass { path: file.to_owned(), class: class.clone(), known: known + ", …" });
    }
    let old = std::mem::replace(&mut data.classes, wanted);
    for split in std::iter::once(&mut data.train).chain(&mut data.test) {
        renumber(split, &old, &data.classes);
    }
    if data.train.is_empty() {
        return Err(DataError::Empty(file.to_owned()));
    }
    Ok(())
}

/// The test split of `test`, its labels numbered as in `classes`.
pub(super) fn align_classes(test: Dataset, classes: &[String], path: &Path) -> Result<Split, DataError> {
    let mut split = test.test.unwrap_or(test.train);
    if split.is_labelled() && !classes.is_empty() {
        if let Some(class) = test.classes.iter().find(|class| !classes.contains(class)) {
            let known = classes.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            return Err(DataError::UnknownClass { path: path.to_owned(), class: class.clone(), known });
        }
        renumber(&mut split, &test.classes, classes);
    }
    Ok(split)
}

/// Keeps the images whose class is in `new`, numbered by their place there.
fn renumber(split: &mut Split, old: &[String], new: &[String]) {
    let place: Vec<Option<u32>> =
        old.iter().map(|class| new.iter().position(|name| name == class).map(|at| at as u32)).collect();
    let Some(labels) = split.labels.clone() else { return };
    split.rows.retain(|&row| place[labels[row as usize] as usize].is_some());
    split.labels = Some(Arc::new(labels.iter().map(|&label| place[label as usize].unwrap_or(u32::MAX)).collect()));
}

/// Keeps `limit` images: the same share of each class, chosen by `seed`, in their old order.
pub(super) fn limit(split: &mut Split, limit: usize, seed: u64) -> Result<(), DataError> {
    if limit > split.len() {
        return Err(DataError::Limit { limit, available: split.len() });
    }
    let mut order = SampleRng::new(seed, Purpose::Subset, 0, 0, 0).order(split.len());
    // The k-th image of each class before the (k+1)-th of any.
    let mut seen = std::collections::HashMap::<Option<u32>, u32>::new();
    let mut rank = vec![0_u32; split.len()];
    for &id in &order {
        let id = id as usize;
        let count = seen.entry(split.label(id)).or_default();
        rank[id] = *count;
        *count += 1;
    }
    order.sort_by_key(|&id| if split.is_labelled() { rank[id as usize] } else { 0 });
    let mut chosen = vec![false; split.len()];
    order[..limit].iter().for_each(|&id| chosen[id as usize] = true);
    split.retain(|id| chosen[id]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{DataConfig, Dataset};

    #[test]
    fn limit_takes_each_class_alike_and_depends_on_the_seed() {
        let names = |limit, seed| {
            let config = DataConfig { limit: Some(limit), ..Default::default() };
            let data = Dataset::open(&config, seed).unwrap();
            let count = |class| (0..data.train.len()).filter(|&id| data.train.label(id) == Some(class)).count();
            let counts: Vec<usize> = (0..10).map(count).collect();
            assert_eq!(counts.iter().sum::<usize>(), limit);
            assert!(counts.iter().all(|&c| c == limit / 10 || c == limit / 10 + 1), "{counts:?}");
            (0..data.train.len()).map(|id| data.train.name(id)).collect::<Vec<_>>()
        };
        assert_eq!(names(205, 1), names(205, 1));
        assert_ne!(names(205, 1), names(205, 2));
    }

    #[test]
    fn classes_are_renumbered_in_the_order_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "bag\ndress\n").unwrap();
        let config = DataConfig { classes: Some(file.path().to_owned()), ..Default::default() };
        let data = Dataset::open(&config, 0).unwrap();
        assert_eq!((data.train.len(), data.test.as_ref().unwrap().len()), (2000, 400));
        let bags = (0..2000).filter(|&id| data.train.label(id) == Some(0)).count();
        assert_eq!((data.classes.as_slice(), bags), (["bag".to_owned(), "dress".to_owned()].as_slice(), 1000));
        std::fs::write(file.path(), "hat\n").unwrap();
        assert!(Dataset::open(&config, 0).err().unwrap().to_string().contains("\"hat\""));
    }
}
