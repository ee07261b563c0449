//! What needs no network: a histogram of the colours of an image. An encoder that is not better has learned nothing that colour
//! does not tell.

use super::{EvalError, Labelled};
use crate::data::{Image, Split};
use crate::math::Matrix;
use rayon::prelude::*;

/// Bins: 4 × 4 × 4 of red, green and blue, or 64 of a single channel.
pub const HISTOGRAM_BINS: usize = 64;
const SIDE: usize = 4;

/// The share of every image's pixels in each bin; `progress` is told how many more images are done. `[n, 64]`
pub fn colour_histograms(split: &Split, progress: impl Fn(usize) + Sync) -> Result<Labelled, EvalError> {
    let row = |id: usize| {
        let image = split.image(id)?;
        progress(1);
        Ok(histogram(&image))
    };
    let rows: Vec<Vec<f32>> = (0..split.len()).into_par_iter().map(row).collect::<Result<_, EvalError>>()?;
    let features = Matrix::from_shape_vec((rows.len(), HISTOGRAM_BINS), rows.concat()).expect("64 bins a row");
    let labels = (0..split.len()).map(|id| split.label(id).unwrap_or_default()).collect();
    Ok(Labelled { features, labels })
}

fn histogram(image: &Image) -> Vec<f32> {
    let mut counts = vec![0_usize; HISTOGRAM_BINS];
    let pixels = image.height * image.width;
    let level = |index: usize, bins: usize| ((image.data.unit(index) * bins as f32) as usize).min(bins - 1);
    for pixel in 0..pixels {
        let at = pixel * image.channels;
        let bin = match image.channels {
            1 | 2 => level(at, HISTOGRAM_BINS),
            _ => (0..3).fold(0, |bin, channel| SIDE * bin + level(at + channel, SIDE)),
        };
        counts[bin] += 1;
    }
    counts.into_iter().map(|count| count as f32 / pixels as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Samples;

    #[test]
    fn pixels_are_counted_by_hand() {
        // Black twice, (255, 0, 64) and (63, 128, 255).
        let data = Samples::U8(vec![0, 0, 0, 0, 0, 0, 255, 0, 64, 63, 128, 255]);
        let found = histogram(&Image { width: 2, height: 2, channels: 3, data });
        let want = [(0, 0.5), (3 * 16 + 1, 0.25), (2 * 4 + 3, 0.25)];
        want.iter().for_each(|&(bin, share)| assert_eq!(found[bin], share, "{bin}"));
        assert_eq!(found.iter().sum::<f32>(), 1.0);
        let grey = histogram(&Image { width: 2, height: 1, channels: 1, data: Samples::F32(vec![1.0, 0.5]) });
        assert_eq!((grey[63], grey[32]), (0.5, 0.5));
    }
}
