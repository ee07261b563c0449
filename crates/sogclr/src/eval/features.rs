//! Features of a frozen encoder in inference mode.

use super::EvalError;
use super::cache::FeatureCache;
use crate::augment::AugmentConfig;
use crate::batch::{Crops, render};
use crate::comm::Group;
use crate::data::Split;
use crate::encoder::{Compute, ImageEncoder, Linear, Model, ModelConfig, Network, Pass, from_open_clip};
use crate::math::{Matrix, Purpose, SampleRng};
use crate::params::{NamedTensors, export, import, to_matrix};
use crate::provenance::NUMERICS;
use burn::tensor::Tensor;
use ndarray::{Axis, s};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    cache: Option<FeatureCache>,
    group: Group,
}

impl FrozenEncoder {
    /// From exported weights (`encoder.safetensors`), for images of `size` pixels.
    pub fn load(
        config: &ModelConfig,
        weights: &NamedTensors,
        augment: &AugmentConfig,
        size: usize,
        compute: Compute,
    ) -> Result<Self, EvalError> {
        let blank = Self::freeze(Model::image_side(config, &compute), augment, size, compute);
        let (encoder, projection) = match config.text {
            None => (weights.clone(), NamedTensors::new()),
            Some(_) => (part_of(weights, "encoder."), part_of(weights, "projection.")),
        };
        let encoder = import(blank.encoder, &encoder)?;
        let projection = blank.projection.map(|linear| import(linear, &projection)).transpose()?;
        Ok(Self { encoder, projection, ..blank })
    }

    /// The encoder that a run with `seed` starts from, for comparison.
    pub fn untrained(config: &ModelConfig, seed: u64, augment: &AugmentConfig, size: usize, compute: Compute) -> Self {
        // Weights are drawn by name, so the encoder has to stand where it stands in a model.
        let model = Model::image_side(config, &compute).initialised(config, seed);
        Self::freeze(model, augment, size, compute)
    }

    fn freeze(model: Model, augment: &AugmentConfig, size: usize, compute: Compute) -> Self {
        let (encoder, projection) = (model.encoder, model.projection);
        Self { encoder, projection, augment: augment.clone(), size, compute, cache: None, group: Group::solo() }
    }

    /// Keeps the features of centre views in a folder, and takes them from there. They are found again by the weights, the
    /// images and how those are prepared; what is damaged is computed again.
    pub fn cached_in(self, folder: PathBuf) -> Self {
        Self { cache: Some(FeatureCache::new(folder)), ..self }
    }

    /// Shares the images with the other ranks of `group`, each of which gets all features.
    pub fn shared_by(self, group: &Group) -> Self {
        Self { group: group.clone(), ..self }
    }

    /// The ranks that share the images.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Tells encoders apart that give different features: a hash of the weights, of how images are prepared, and of what
    /// computes.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hash_tensors(&mut hasher, &export(&self.encoder));
        if let Some(projection) = &self.projection {
            hash_tensors(&mut hasher, &export(projection));
        }
        let AugmentConfig { mean, std, .. } = &self.augment;
        let (resize, isa) = (self.augment.centre_resize(self.size), self.compute.isa());
        let (engine, device) = (self.compute.engine(), self.compute.device());
        let prepared = format!("{NUMERICS} {} {resize} {mean:?} {std:?} {isa:?} {engine:?} {device:?}", self.size);
        hasher.update(prepared.as_bytes()).finalize().to_hex().to_string()
    }

    /// Features of the centre view of every image, in order.
    pub fn extract(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<Labelled, EvalError> {
        let labels = (0..split.len()).map(|id| split.label(id).unwrap_or_default()).collect();
        let key = match &self.cache {
            Some(cache) => Some((cache, format!("{:.16}-{:.16}", self.digest(), split.digest()?))),
            None => None,
        };
        let kept = key.as_ref().and_then(|(cache, key)| cache.get(key));
        let kept = kept.filter(|features| features.nrows() == split.len());
        // All ranks take them or none does.
        let is_missing = self.group.any(kept.is_none());
        if let Some(features) = kept.filter(|_| !is_missing) {
            progress(split.len());
            return Ok(Labelled { features, labels });
        }
        let features = self.features_of(split, &(0..split.len()).collect::<Vec<_>>(), None, progress)?;
        if let Some((cache, key)) = key.as_ref().filter(|_| self.group.is_first()) {
            cache.put(key, &features);
        }
        Ok(Labelled { features, labels })
    }

    /// Features of the centre views of the images `ids`.
    pub fn features_at(
        &self,
        split: &Split,
        ids: &[usize],
        progress: impl Fn(usize) + Sync,
    ) -> Result<Matrix, EvalError> {
        self.features_of(split, ids, None, progress)
    }

    /// Features of randomly cropped and flipped views, the randomness a function of (seed, epoch, image).
    pub fn extract_crops(
        &self,
        split: &Split,
        ids: &[usize],
        seed: u64,
        epoch: usize,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Matrix, EvalError> {
        self.features_of(split, ids, Some((seed, epoch)), progress)
    }

    /// Embeddings of the centre view of every image, as they are compared with texts; not normalised.
    pub fn embed(&self, split: &Split, progress: impl Fn(usize) + Sync) -> Result<Matrix, EvalError> {
        self.embed_at(split, &(0..split.len()).collect::<Vec<_>>(), progress)
    }

    /// The same of the images `ids`.
    pub fn embed_at(&self, split: &Split, ids: &[usize], progress: impl Fn(usize) + Sync) -> Result<Matrix, EvalError> {
        self.forward(split, ids, None, progress, |features| match &self.projection {
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
        let (rank, size) = (self.group.rank(), self.group.size());
        if size == 1 {
            return self.forward_here(split, ids, crops, progress, finish);
        }
        // Whole chunks, so that every image meets the company that it has in one process.
        let chunks = ids.len().div_ceil(CHUNK);
        let from = |rank: usize| (rank * chunks / size * CHUNK).min(ids.len());
        let ours = &ids[from(rank)..from(rank + 1)];
        // Of all images, as if the other ranks were as far as this one.
        let done = AtomicUsize::new(0);
        let progress = |count: usize| {
            let before = done.fetch_add(count, Ordering::Relaxed);
            progress((before + count) * ids.len() / ours.len() - before * ids.len() / ours.len());
        };
        let features = match ours.is_empty() {
            true => Ok(Matrix::zeros((0, 0))),
            false => self.forward_here(split, ours, crops, progress, finish),
        };
        let features = self.group.together(features)?;
        let parts = self.group.gather_bytes(features.iter().flat_map(|value| value.to_le_bytes()).collect());
        let values = parts.concat();
        let values = values.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let values: Vec<f32> = values.collect();
        Ok(Matrix::from_shape_vec((ids.len(), values.len() / ids.len().max(1)), values).expect("a row for each image"))
    }

    fn forward_here(
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

/// Names, shapes and values.
pub(super) fn hash_tensors(hasher: &mut blake3::Hasher, tensors: &NamedTensors) {
    for (name, tensor) in tensors {
        hasher.update(format!("{name} {:?}", tensor.shape).as_bytes());
        for block in tensor.values.chunks(1 << 16) {
            hasher.update(&block.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        }
    }
}

/// The part of a model of image–text pairs whose names begin with `prefix`, without it.
fn part_of(weights: &NamedTensors, prefix: &str) -> NamedTensors {
    let renamed = from_open_clip(weights).into_iter();
    renamed.filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor))).collect()
}
