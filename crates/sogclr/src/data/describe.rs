//! What a configuration needs to know of a data set; made once, from headers alone.

use super::{Dataset, Modality, Split};
use std::collections::HashSet;

/// How many images tell the usual size.
const LOOKED_AT: usize = 64;

/// A data set in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Images alone, or with texts.
    pub modality: Modality,
    /// Training images.
    pub samples: usize,
    /// Classes of the training images; `None` without labels.
    pub classes: Option<usize>,
    /// The side of a crop that suits the images: their own where they are small, 224 at most.
    pub size: usize,
    /// Channels of the images.
    pub channels: usize,
}

impl Dataset {
    /// What a configuration needs to know.
    pub fn describe(&self) -> Description {
        self.describe_at(self.native_size.map_or_else(|| usual_size(&self.train), |size| size.clamp(8, 224)))
    }

    /// The same where the size of crops is settled; looks at no image.
    pub(crate) fn describe_at(&self, size: usize) -> Description {
        let train = &self.train;
        let classes: HashSet<u32> = (0..train.len()).filter_map(|id| train.label(id)).collect();
        Description {
            modality: train.modality(),
            samples: train.len(),
            classes: train.is_labelled().then_some(classes.len()),
            size,
            channels: self.channels,
        }
    }
}

/// The median of the shortest sides, rounded down to a usual crop, as a few thumbnails say nothing about the rest.
fn usual_size(train: &Split) -> usize {
    // Spread over the classes. A broken image is reported, with all others, by the check before training.
    let count = train.len().min(LOOKED_AT);
    let shape = |place: usize| train.dimensions(place * train.len() / count).ok();
    let mut sides: Vec<usize> = (0..count).filter_map(shape).map(|shape| shape.height.min(shape.width)).collect();
    sides.sort_unstable();
    let usual = sides.get(sides.len().saturating_sub(1) / 2).copied().unwrap_or(224);
    [224, 160, 128, 96, 64].into_iter().find(|&size| size <= usual).unwrap_or(usual.max(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataError, Dimensions, Image, Source};
    use std::sync::Arc;

    /// Images of these heights and twice the width; 0 is a broken one.
    struct Heights(Vec<usize>);

    impl Source for Heights {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn image(&self, _: usize) -> Result<Image, DataError> {
            unreachable!("headers are enough")
        }

        fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
            match self.0[index] {
                0 => Err(DataError::Decode { name: self.name(index), cause: "broken".into() }),
                height => Ok(Dimensions { height, width: 2 * height, channels: 3 }),
            }
        }
    }

    fn size(heights: Vec<usize>) -> usize {
        usual_size(&Split::new(Arc::new(Heights(heights)), None))
    }

    #[test]
    fn crops_follow_the_usual_image() {
        // One thumbnail, then a whole class of them, in front.
        assert_eq!(size([vec![16], vec![130; 40]].concat()), 128);
        assert_eq!(size([vec![16; 30], vec![130; 400]].concat()), 128);
        assert_eq!(size([vec![130; 30], vec![16; 400]].concat()), 16);
        // The lower of two in the middle, broken ones aside.
        assert_eq!(size(vec![0, 300, 20, 0]), 20);
        assert_eq!(size(vec![40; 3]), 40);
        assert_eq!((size(vec![4]), size(vec![300; 2]), size(vec![0]), size(vec![])), (8, 224, 224, 224));
    }
}
