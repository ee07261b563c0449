//! What a configuration needs to know of a data set; made once, from headers alone.

use super::{Dataset, Modality, Pixels, Split};
use crate::math::{Purpose, SampleRng};
use rayon::prelude::*;
use std::collections::HashSet;

/// How many images tell the usual size.
const LOOKED_AT: usize = 64;

/// How many images tell means and standard deviations.
const MEASURED: usize = 256;

/// A data set in a few numbers.
#[derive(Clone, Debug, PartialEq)]
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
    /// Of images with samples of their own; `None` of colours, whose statistics are known.
    pub measured: Option<ChannelStatistics>,
}

/// Means and standard deviations of the values, from 0 to 1, of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelStatistics {
    /// Of each channel.
    pub mean: Vec<f32>,
    /// 1 where all values are one.
    pub std: Vec<f32>,
}

impl Description {
    /// What the channels are of.
    pub fn pixels(&self) -> Pixels {
        if self.measured.is_some() { Pixels::Stored } else { Pixels::Rgb }
    }
}

impl Dataset {
    /// What a configuration needs to know.
    pub fn describe(&self) -> Description {
        let size = self.native_size.map_or_else(|| usual_size(&self.train), |size| size.clamp(8, 224));
        let measured = (self.pixels == Pixels::Stored).then(|| statistics(&self.train, self.channels));
        Description { measured, ..self.describe_at(size) }
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
            measured: None,
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

/// Of the pixels of some images, whatever the seed of the run. Broken ones are reported by the check before training.
fn statistics(train: &Split, channels: usize) -> ChannelStatistics {
    let mut ids = SampleRng::new(0, Purpose::Subset, 0, 0, 0).permutation(train.len());
    ids.truncate(MEASURED);
    let sums = ids.into_par_iter().filter_map(|id| {
        let image = train.image(id).ok().filter(|image| image.channels == channels)?;
        let pixels = image.height * image.width;
        let mut sums = vec![[0.0; 2]; channels];
        for (channel, [sum, squares]) in sums.iter_mut().enumerate() {
            for pixel in 0..pixels {
                let value = f64::from(image.data.unit(pixel * channels + channel));
                (*sum, *squares) = (*sum + value, *squares + value * value);
            }
        }
        Some((pixels as f64, sums))
    });
    let (mut count, mut all) = (0.0, vec![[0.0; 2]; channels]);
    // In the order of the images, whatever the number of threads.
    for (pixels, sums) in sums.collect::<Vec<_>>() {
        count += pixels;
        all.iter_mut().zip(sums).for_each(|(all, sums)| *all = [all[0] + sums[0], all[1] + sums[1]]);
    }
    let of_channel = |[sum, squares]: [f64; 2]| {
        let mean = sum / f64::max(count, 1.0);
        let std = (squares / f64::max(count, 1.0) - mean * mean).max(0.0).sqrt();
        (mean as f32, if std < 1e-6 { 1.0 } else { std as f32 })
    };
    let (mean, std) = all.into_iter().map(of_channel).unzip();
    ChannelStatistics { mean, std }
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
