//! Classes from labels that are written as text.

use std::collections::{BTreeMap, BTreeSet};

/// Names of the classes, and the class of each image.
pub(super) type Numbered = (Vec<String>, Vec<u32>);

/// The classes, and the class of each image; none without labels. Numbers come first and in their order, so that 2 stands before
/// 10. Where some images have a label and others not, the first that has none is the error.
pub(super) fn numbered(labels: &[Option<String>]) -> Result<Option<Numbered>, usize> {
    let without = labels.iter().position(Option::is_none);
    if labels.iter().all(Option::is_none) {
        return Ok(None);
    }
    if let Some(index) = without {
        return Err(index);
    }
    let key = |label: &'_ str| (label.parse::<u32>().unwrap_or(u32::MAX), label.to_owned());
    let distinct: BTreeSet<_> = labels.iter().flatten().map(|label| key(label)).collect();
    let classes: Vec<String> = distinct.into_iter().map(|(_, label)| label).collect();
    let numbers: BTreeMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
    let labels = labels.iter().flatten().map(|label| numbers[label.as_str()]).collect();
    Ok(Some((classes, labels)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_their_order_and_a_gap_is_found() {
        let labels = |all: &[&str]| all.iter().map(|text| Some((*text).to_owned())).collect::<Vec<_>>();
        let classes = ["2", "10", "cat"].map(str::to_owned).to_vec();
        assert_eq!(numbered(&labels(&["cat", "10", "2", "10"])), Ok(Some((classes, vec![2, 1, 0, 1]))));
        assert_eq!(numbered(&[None, None]), Ok(None));
        assert_eq!(numbered(&[Some("a".into()), None]), Err(1));
    }
}
