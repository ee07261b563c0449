//! Features of a frozen encoder in inference mode.

use super::EvalError;
use crate::augment::AugmentConfig;
use crate::batch::{Crops, render};
use crate::data::Split;
use crate::encoder::{Compute, ImageEncoder, Linear, Model, ModelConfig, Network, Pass, from_open_clip};
use crate::math::{Matrix, Purpose, SampleRng};
use crate::params::{NamedTensors, import, to_matrix};
use burn::tensor::Tensor;
use ndarray::{Axis, s};

/// Images in one forward pass.
const CHUNK: usize = 128;

/// Features `[n, dim]` and their classes.
pub struct Labelled {
    /// Before the head, not normalised. `[n, dim]`
    pub features: Matrix,
    /// Classes; all 0 where the data has none. `[n]`
    pub labels: Vec<u32>,
}

/// An encoder in inference mode, without gradients; nothing that it offers can change its weights.
pub struct FrozenEncoder {
    encoder: ImageEncoder,
    /// To the embedding that texts share, where the encoder has none of its own.
    projection: Option<Linear>,
    augment: AugmentConfig,
    size: usize,
    compute: Compute,
}

impl FrozenEncoder {
    /// From exported weights (`encoder.safetensors`).
    pub fn load(
        config: &ModelConfig,
        weights: &NamedTensors,
        augment: &AugmentConfig,
        compute: Compute,
    ) -> Result<Self, EvalError> {
        let blank = Self::freeze(Model::image_side(config, &compute), config, augment, compute);
        let (encoder, projection) = match config.text {
            None => (weights.clone(), NamedTensors::new()),
            Some(_) => (part_of(weights, "encoder."), part_of(weights, "projection.")),
        };
        let encoder = import(blank.encoder, &encoder)?;
        let projection = blank.projection.map(|linear| import(linear, &projection)).transpose()?;
        Ok(Self { encoder, projection, ..blank })
    }

    /// The encoder that a run with `seed` starts from, for comparison.
    pub fn untrained(config: &ModelConfig, seed: u64, augment: &AugmentConfig, compute: Compute) -> Self {
        // Weights are drawn by name, so the encoder has to stand where it stands in a model.
        let model = Model::image_side(config, &compute).initialised(config, seed);
        Self::freeze(model, config, augment, compute)
    }

    fn freeze(model: Model, config: &ModelConfig, augment: &AugmentConfig, compute: Compute) -> Self {
        let (encoder, projection) = (model.encoder, model.projection);
        Self { encoder, projection, augment: augment.clone(), size: config.image_size, compute }
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

    /// Embeddings of the centre view of every image, as they are compared with texts; not normalised.
    pub fn embed(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<Matrix, EvalError> {
        let ids: Vec<usize> = (0..split.len()).collect();
        self.forward(split, &ids, None, progress, |features| match &self.projection {
            Some(projection) => projection.forward(features),
            None => features,
        })
    }

    fn features_of(
        &self,
        split: &Split,
        ids: &[usize],
        crops: Option<(u64, usize)>,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Matrix, EvalError> {
        self.forward(split, ids, crops, progress, |features| features)
    }

    fn forward(
        &self,
        split: &Split,
        ids: &[usize],
        crops: Option<(u64, usize)>,
        progress: impl Fn(usize) + Sync,
        finish: impl Fn(Tensor<2>) -> Tensor<2>,
    ) -> Result<Matrix, EvalError> {
        let (channels, layout) = (self.augment.channels(), self.compute.layout());
        let mut features: Option<Matrix> = None;
        for (chunk, ids_of_chunk) in ids.chunks(CHUNK).enumerate() {
            let mut views = Crops::new(1, self.size, channels, ids_of_chunk.len(), layout);
            let area = views.area();
            let places: Vec<&mut [f32]> = views.pixels.chunks_exact_mut(area).collect();
            render(split, &self.augment, layout, ids_of_chunk, places, |augmenter, image, id, out| match crops {
                None => augmenter.centre_view(image, self.size, out),
                Some((seed, epoch)) => {
                    let mut rng = SampleRng::new(seed, Purpose::LinearEval, epoch as u64, id as u64, 1);
                    augmenter.crop_view(image, self.size, &mut rng, out);
                }
            })?;
            let rows: Vec<usize> = (0..ids_of_chunk.len()).collect();
            let x = views.tensor(0..1, &rows, self.compute.device());
            let block = to_matrix(finish(self.encoder.forward(x, &mut Pass::Eval)));
            let all = features.get_or_insert_with(|| Matrix::zeros((ids.len(), block.ncols())));
            let first = chunk * CHUNK;
            all.slice_mut(s![first..first + block.nrows(), ..]).assign(&block);
            progress(block.nrows());
        }
        let features = features.unwrap_or_default();
        if features.axis_iter(Axis(0)).any(|row| row.iter().any(|v| !v.is_finite())) {
            return Err(EvalError::NonFinite);
        }
        Ok(features)
    }
}

/// The part of a model of image–text pairs whose names begin with `prefix`, without it.
fn part_of(weights: &NamedTensors, prefix: &str) -> NamedTensors {
    let renamed = from_open_clip(weights).into_iter();
    renamed.filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor))).collect()
}
