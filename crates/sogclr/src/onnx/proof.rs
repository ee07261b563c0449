//! Another engine (rten) runs the files on real images, and its results are compared with ours.

use super::{Exported, Pixels};
use crate::batch::{Texts, render};
use crate::data::Split;
use crate::encoder::Compute;
use crate::math::{Layout, Matrix, UnitRows};
use crate::trained::{TrainedError, TrainedRun};
use rten::Model;
use rten_tensor::{AsView as _, Layout as _, Tensor};

/// Images that are compared.
const IMAGES: usize = 16;
/// What texts are compared by.
const TEXTS: [&str; 3] = ["a dog", "two children play on a beach while the sun goes down behind them", "?"];

/// Why two engines could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The run, its encoder or its images.
    #[error(transparent)]
    Run(#[from] TrainedError),
    /// The other engine cannot load or run the file.
    #[error("rten cannot run the file: {0}")]
    Engine(String),
}

/// How far two engines are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Images, or texts.
    pub compared: usize,
    /// The largest difference of two values.
    pub absolute: f64,
    /// The same, in lengths of the row of values that it is found in.
    pub relative: f64,
}

impl Difference {
    /// What two engines that round their own way may differ by, in lengths of a row.
    pub const MOST: f64 = 1e-3;

    fn between(ours: &Matrix, theirs: &Matrix) -> Self {
        let mut found = Self { compared: ours.nrows(), absolute: 0.0, relative: 0.0 };
        for (ours, theirs) in ours.outer_iter().zip(theirs.outer_iter()) {
            let length = ours.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt().max(1e-30);
            // A value that is not a number is as far away as can be.
            let far = |(a, b): (&f32, &f32)| Some((f64::from(*a) - f64::from(*b)).abs()).filter(|d| d.is_finite());
            let most = ours.iter().zip(theirs).map(|pair| far(pair).unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
            found.absolute = found.absolute.max(most);
            found.relative = found.relative.max(most / length);
        }
        found
    }
}

impl Exported {
    /// The difference on some of the images of `split`.
    pub fn differs_by(&self, run: &TrainedRun, split: &Split) -> Result<Difference, ProofError> {
        let ids: Vec<usize> = (0..split.len()).step_by(split.len().div_ceil(IMAGES).max(1)).collect();
        let encoder = run.encoder(Compute::cpu_exact())?;
        let ours = encoder.embed_at(split, &ids, |_| {}).map_err(TrainedError::from)?;
        let config = &run.config;
        let (size, channels) = (config.eval_size(), config.augment.channels());
        let area = size * size;
        let mut pixels = vec![0.0; ids.len() * channels * area];
        let places = pixels.chunks_exact_mut(channels * area).collect();
        render(split, &config.augment, Layout::ChannelsFirst, &ids, places, |augmenter, image, _, out: &mut [f32]| {
            augmenter.centre_view(image, size, out);
        })
        .map_err(TrainedError::from)?;
        if self.pixels == Pixels::Unit {
            for (plane, values) in pixels.chunks_exact_mut(area).enumerate() {
                let (mean, std) = (config.augment.mean[plane % channels], config.augment.std[plane % channels]);
                values.iter_mut().for_each(|value| *value = *value * std + mean);
            }
        }
        let input = Tensor::from_data(&[ids.len(), channels, size, size], pixels);
        Ok(Difference::between(&ours, &run_file(&self.image, input)?))
    }

    /// The difference of the embeddings of texts, of length one; `None` for a run on images alone.
    pub fn texts_differ_by(&self, run: &TrainedRun) -> Result<Option<Difference>, ProofError> {
        let (Some(file), Some(text)) = (&self.text, &run.config.text) else { return Ok(None) };
        let encoders = run.pair_encoders(Compute::cpu_exact())?;
        let ours = encoders.text.embed(&TEXTS, |_| {}).map_err(TrainedError::from)?;
        let tokens = Texts::tokenize(TEXTS.into_iter(), text.context);
        let ids: Vec<i32> = tokens.ids.iter().map(|&id| id as i32).collect();
        let theirs = UnitRows::new(run_file(file, Tensor::from_data(&[TEXTS.len(), text.context], ids))?);
        Ok(Some(Difference::between(ours.matrix(), theirs.matrix())))
    }
}

fn run_file<T>(file: &[u8], input: Tensor<T>) -> Result<Matrix, ProofError>
where
    rten::ValueOrView<'static>: From<Tensor<T>>,
{
    let failed = |error: &dyn std::fmt::Display| ProofError::Engine(error.to_string());
    let model = Model::load(file.to_vec()).map_err(|error| failed(&error))?;
    let output = model.run_one(input.into(), None).map_err(|error| failed(&error))?;
    let output: Tensor<f32> = output.try_into().map_err(|_| failed(&"it gives something else than numbers"))?;
    let &[rows, columns] = output.shape() else { return Err(failed(&"it gives something else than rows")) };
    Ok(Matrix::from_shape_vec((rows, columns), output.to_vec()).expect("as many as its shape says"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn differences_are_measured_by_the_length_of_a_row() {
        let ours = array![[3.0, 4.0], [0.0, 1.0]];
        let found = Difference::between(&ours, &array![[3.0, 4.5], [0.2, 1.0]]);
        assert!((found.absolute - 0.5).abs() < 1e-6 && (found.relative - 0.2).abs() < 1e-6, "{found:?}");
        let broken = Difference::between(&ours, &array![[3.0, f32::NAN], [0.0, 1.0]]);
        assert!(broken.relative > Difference::MOST, "{broken:?}");
    }
}
