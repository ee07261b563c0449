//! Features of a frozen encoder in inference mode.

use super::EvalError;
use crate::augment::{AugmentConfig, Augmenter};
use crate::data::Split;
use crate::encoder::{EncoderConfig, ImageEncoder, Model, ModelConfig, NamedTensors, Pass, from_open_clip, import};
use crate::math::{Matrix, Purpose, SampleRng};
use burn::tensor::{Device, Tensor, TensorData};
use ndarray::{Axis, s};
use rayon::prelude::*;

/// Images in one forward pass.
const CHUNK: usize = 128;

/// Features `[n, dim]` and their classes.
pub struct Labelled {
    pub features: Matrix,
    pub labels: Vec<u32>,
}

/// An encoder in inference mode, without gradients; nothing that it offers can change its weights.
pub struct FrozenEncoder {
    net: ImageEncoder,
    augment: AugmentConfig,
    size: usize,
    device: Device,
}

impl FrozenEncoder {
    /// From exported weights (`encoder.safetensors`).
    pub fn load(
        config: &EncoderConfig,
        weights: &NamedTensors,
        augment: &AugmentConfig,
        device: Device,
    ) -> Result<Self, EvalError> {
        let net = ImageEncoder::new(config, augment.views[0].size, &device);
        let net = if config.is_clip() { import(net, &image_weights(weights))? } else { import(net, weights)? };
        Ok(Self::freeze(net, augment, device))
    }

    /// The encoder that a run with `seed` starts from, for comparison.
    pub fn untrained(config: &EncoderConfig, seed: u64, augment: &AugmentConfig, device: Device) -> Self {
        // Weights are drawn by name, so the encoder has to stand where it stands in a model.
        let image_size = augment.views[0].size;
        let config = ModelConfig { encoder: config.clone(), head: None, text: None, image_size };
        Self::freeze(Model::new(&config, seed, &device).encoder, augment, device)
    }

    fn freeze(net: ImageEncoder, augment: &AugmentConfig, device: Device) -> Self {
        Self { net, augment: augment.clone(), size: augment.views[0].size, device }
    }

    /// Features of the centre view of every image, in order.
    pub fn extract(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<Labelled, EvalError> {
        let features = self.features_of(split, &(0..split.len()).collect::<Vec<_>>(), None, progress)?;
        let labels = (0..split.len()).map(|id| split.label(id).unwrap_or_default()).collect();
        Ok(Labelled { features, labels })
    }

    /// Features of randomly cropped and flipped views, the randomness a function of (seed, epoch, image).
    pub fn extract_crops(&self, split: &Split, ids: &[usize], seed: u64, epoch: usize) -> Result<Matrix, EvalError> {
        self.features_of(split, ids, Some((seed, epoch)), |_| {})
    }

    fn features_of(
        &self,
        split: &Split,
        ids: &[usize],
        crops: Option<(u64, usize)>,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Matrix, EvalError> {
        let view = 3 * self.size * self.size;
        let mut features: Option<Matrix> = None;
        for (chunk, ids_of_chunk) in ids.chunks(CHUNK).enumerate() {
            let mut pixels = vec![0.0_f32; ids_of_chunk.len() * view];
            pixels.par_chunks_exact_mut(view).zip(ids_of_chunk).try_for_each_init(
                || Augmenter::new(&self.augment),
                |augmenter, (out, &id)| {
                    let image = split.image(id)?;
                    match crops {
                        None => augmenter.centre_view(&image, self.size, out),
                        Some((seed, epoch)) => {
                            let mut rng = SampleRng::new(seed, Purpose::LinearEval, epoch as u64, id as u64, 1);
                            augmenter.crop_view(&image, self.size, &mut rng, out);
                        }
                    }
                    Ok::<(), EvalError>(())
                },
            )?;
            let shape = [ids_of_chunk.len(), 3, self.size, self.size];
            let x = Tensor::<4>::from_data(TensorData::new(pixels, shape), &self.device);
            let out = self.net.forward(x, &mut Pass::Eval);
            let dims = out.dims();
            let values = out.into_data().try_to_vec::<f32>().expect("features are f32");
            let block = Matrix::from_shape_vec(dims, values).expect("as many values as the shape says");
            let all = features.get_or_insert_with(|| Matrix::zeros((ids.len(), dims[1])));
            let first = chunk * CHUNK;
            all.slice_mut(s![first..first + dims[0], ..]).assign(&block);
            progress(dims[0]);
        }
        let features = features.unwrap_or_default();
        if features.axis_iter(Axis(0)).any(|row| row.iter().any(|v| !v.is_finite())) {
            return Err(EvalError::NonFinite);
        }
        Ok(features)
    }
}

/// The image encoder's part of a model of image–text pairs.
fn image_weights(weights: &NamedTensors) -> NamedTensors {
    let renamed = from_open_clip(weights).into_iter();
    renamed.filter_map(|(name, tensor)| Some((name.strip_prefix("encoder.")?.to_owned(), tensor))).collect()
}
