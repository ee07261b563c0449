//! ImageNet-S, the paper's 100 classes of ImageNet: WordNet ids, sorted, with CLIP's names. Built in, as `data.classes`.

use std::path::Path;

const LIST: &str = include_str!("../../assets/imagenet-s.tsv");
/// What `data.classes` calls the list.
pub(crate) const IMAGENET_S: &str = "imagenet-s";

/// Whether `data.classes` means the built-in list.
pub(super) fn is_built_in(classes: &Path) -> bool {
    classes == Path::new(IMAGENET_S)
}

/// Id and name of every class.
pub(super) fn classes() -> impl Iterator<Item = (&'static str, &'static str)> {
    LIST.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'))
}

/// The name of a class by its id.
pub(super) fn name_of(id: &str) -> Option<&'static str> {
    classes().find(|(known, _)| *known == id).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_hundred_classes_in_order() {
        let ids: Vec<&str> = classes().map(|(id, _)| id).collect();
        assert_eq!((ids.len(), ids.is_sorted()), (100, true));
        let is_id = |id: &&str| id.len() == 9 && id.starts_with('n') && id[1..].bytes().all(|b| b.is_ascii_digit());
        assert!(ids.iter().all(is_id) && classes().all(|(_, name)| !name.is_empty()));
        assert_eq!((name_of("n01440764"), name_of("n00000000")), (Some("tench"), None));
    }
}
