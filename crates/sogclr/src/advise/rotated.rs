//! Images turned by quarters: telling by how much is a task that every folder of images has, without labels.

use crate::data::{DataError, Dimensions, Image, Samples, Source, Split};
use std::sync::Arc;

/// The images of a split, each turned by its number mod 4 quarters, which is its label.
pub(super) fn rotated(split: &Split) -> Split {
    let labels = (0..split.len()).map(|id| (id % 4) as u32).collect();
    Split::new(Arc::new(Rotated(split.clone())), Some(labels))
}

pub(super) struct Rotated(pub Split);

impl Source for Rotated {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        Ok((0..index % 4).fold(self.0.image(index)?, |image, _| quarter(&image)))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        let shape = self.0.dimensions(index)?;
        let turned = Dimensions { height: shape.width, width: shape.height, ..shape };
        Ok(if index % 2 == 1 { turned } else { shape })
    }
}

/// Turned by 90° to the right: the left column becomes the upper row.
fn quarter(image: &Image) -> Image {
    let Image { width, height, channels, .. } = *image;
    let order = (0..width).flat_map(|x| (0..height).rev().map(move |y| (y * width + x) * channels));
    let order: Vec<usize> = order.flat_map(|at| at..at + channels).collect();
    let data = match &image.data {
        Samples::U8(values) => Samples::U8(order.iter().map(|&at| values[at]).collect()),
        Samples::U16(values) => Samples::U16(order.iter().map(|&at| values[at]).collect()),
        Samples::F32(values) => Samples::F32(order.iter().map(|&at| values[at]).collect()),
    };
    Image { width: height, height: width, channels, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_to_the_right_and_four_are_none() {
        let image = Image { width: 3, height: 2, channels: 1, data: Samples::U8(vec![1, 2, 3, 4, 5, 6]) };
        let turned = quarter(&image);
        assert_eq!((turned.width, turned.height, &turned.data), (2, 3, &Samples::U8(vec![4, 1, 5, 2, 6, 3])));
        assert_eq!(quarter(&quarter(&quarter(&turned))), image);
    }
}
