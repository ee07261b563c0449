//! The embedded set: 10,000 training and 2,000 test images of Fashion-MNIST (MIT, see `assets/fashion-mnist`).

use super::{DataError, Dataset, idx};
use std::path::Path;

macro_rules! asset {
    ($name:literal) => {
        (Path::new($name), include_bytes!(concat!("../../assets/fashion-mnist/", $name)).as_slice())
    };
}

/// The title of the embedded set.
pub const EMBEDDED: &str = "embedded Fashion-MNIST subset";

const CLASSES: [&str; 10] =
    ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot"];

pub(super) fn open() -> Result<Dataset, DataError> {
    let (path, train_images) = asset!("train-images-idx3-ubyte.gz");
    let train = idx::parse_split(path, train_images, Some(asset!("train-labels-idx1-ubyte.gz")))?;
    let (path, test_images) = asset!("t10k-images-idx3-ubyte.gz");
    let test = idx::parse_split(path, test_images, Some(asset!("t10k-labels-idx1-ubyte.gz")))?;
    let classes = CLASSES.map(str::to_owned).to_vec();
    Ok(idx::dataset(EMBEDDED.into(), train, Some(test), Some(classes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_a_thousand_training_and_two_hundred_test_images_of_each_class() {
        let data = open().unwrap();
        let count =
            |split: &crate::data::Split, class| (0..split.len()).filter(|&id| split.label(id) == Some(class)).count();
        for class in 0..10 {
            assert_eq!(count(&data.train, class), 1000);
            assert_eq!(count(data.test.as_ref().unwrap(), class), 200);
        }
        assert_eq!(data.native_size, Some(28));
    }
}
