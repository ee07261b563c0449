//! Parameter space: pulls coefficients ∂L/∂h back through a frozen network, h ↦ Σ cᵀ·∂h/∂w.

use super::{FiniteProblem, Version, global_objective, through_norm};
use crate::batch::{Crops, render};
use crate::comm::Group;
use crate::config::RunConfig;
use crate::data::{DataError, Split};
use crate::encoder::{BufferUpdates, Compute, Model, Pass, apply_buffers};
use crate::math::{Matrix, Purpose, SampleRng, UnitRows};
use crate::optim::{NamedGrads, pull_back};
use crate::params::{NamedTensors, ParamError, import, to_matrix};
use burn::tensor::Tensor;
use ndarray::{Array2, Axis};

/// Images that go through the network at once.
const CHUNK: usize = 256;

/// A network in inference mode, so that an embedding is a function of its image alone, and all images of a finite problem.
pub struct Probe {
    model: Model,
    /// One crop for each augmentation, image after image.
    views: Crops,
    augmentations: usize,
    compute: Compute,
}

impl Probe {
    /// `views` holds `augmentations` crops of each image, one after the other.
    pub fn new(model: Model, views: Crops, augmentations: usize, compute: &Compute) -> Self {
        Self { model, views, augmentations, compute: compute.autodiff() }
    }

    /// `images` images of a run's data, drawn by `seed`, through `augmentations` views each, and the run's network with `weights`;
    /// without them one as it is drawn, whose batch norm has seen the images.
    pub fn of_run(
        config: &RunConfig,
        split: &Split,
        images: usize,
        augmentations: usize,
        seed: u64,
        weights: Option<&NamedTensors>,
        compute: &Compute,
    ) -> Result<Self, ProbeError> {
        let views = views_of(config, split, images, augmentations, seed, compute)?;
        let model = Model::new(&config.model(), config.seed, &compute.autodiff());
        let model = match weights {
            Some(weights) => import(model, weights)?,
            None => calibrated(model, &views, compute),
        };
        Ok(Self::new(model, views, augmentations, compute))
    }

    fn images_of(&self, rows: &[usize], compute: &Compute) -> Tensor<4> {
        self.views.tensor(0..1, rows, compute.device())
    }

    /// Embeddings of all augmentations.
    pub fn problem(&self) -> FiniteProblem {
        let rows: Vec<usize> = (0..self.views.pixels.len() / self.views.area()).collect();
        let compute = self.compute.inner();
        let blocks: Vec<Matrix> = rows
            .chunks(CHUNK)
            .map(|rows| to_matrix(self.model.forward(self.images_of(rows, &compute), &mut Pass::Eval)))
            .collect();
        let views: Vec<_> = blocks.iter().map(|block| block.view()).collect();
        let embeddings = ndarray::concatenate(Axis(0), &views).expect("blocks have one dimension");
        FiniteProblem { embeddings, augmentations: self.augmentations }
    }

    /// The global objective and its gradient.
    pub fn exact(&self, tau: f64, version: Version) -> (f64, Vec<f64>) {
        let problem = self.problem();
        let h = problem.embeddings.mapv(f64::from);
        let z = UnitRows::new(problem.embeddings).matrix().mapv(f64::from);
        let (value, dz) = global_objective(z.view(), self.augmentations, tau, version);
        let rows: Vec<usize> = (0..h.nrows()).collect();
        (value, self.pull_back(&rows, &through_norm(h.view(), dz.view())))
    }

    /// Σ over `rows` of dhᵀ·∂h/∂w, all parameters in the order of their names.
    pub fn pull_back(&self, rows: &[usize], dh: &Array2<f64>) -> Vec<f64> {
        let mut all = NamedGrads::default();
        for (rows, dh) in rows.chunks(CHUNK).zip(dh.axis_chunks_iter(Axis(0), CHUNK)) {
            let h = self.model.forward(self.images_of(rows, &self.compute), &mut Pass::Eval);
            let mut gradients = pull_back([(h, dh.mapv(|v| v as f32))]);
            all.add(NamedGrads::collect(&self.model, &mut gradients));
        }
        all.into_values()
    }
}

/// What keeps a probe from being made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// An image cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The weights are of another model.
    #[error(transparent)]
    Weights(#[from] ParamError),
}

fn views_of(
    config: &RunConfig,
    split: &Split,
    images: usize,
    augmentations: usize,
    seed: u64,
    compute: &Compute,
) -> Result<Crops, DataError> {
    let (group, layout) = (&config.augment.views[0], compute.layout());
    let mut views = Crops::new(1, group.size, config.augment.channels(), images * augmentations, layout);
    let area = views.area();
    // Folders come class after class: the first images would be of one class.
    let mut ids = SampleRng::new(seed, Purpose::Theory, 0, 0, 1).permutation(split.len());
    ids.truncate(images);
    let places: Vec<&mut [f32]> = views.pixels.chunks_exact_mut(augmentations * area).collect();
    render(split, &config.augment, layout, &ids, places, |augmenter, image, id, out| {
        for (view, out) in out.chunks_exact_mut(area).enumerate() {
            augmenter.view(image, group, &mut SampleRng::augment(seed, 0, id, view), out);
        }
    })?;
    Ok(views)
}

/// An untrained model whose batch norm knows the images.
fn calibrated(mut model: Model, views: &Crops, compute: &Compute) -> Model {
    const VIEWS: usize = 256;
    const REPEATS: usize = 30;
    let count = (views.pixels.len() / views.area()).min(VIEWS);
    let rows: Vec<usize> = (0..count).collect();
    for _ in 0..REPEATS {
        let mut updates = BufferUpdates::default();
        model.forward(
            views.tensor(0..1, &rows, compute.inner().device()),
            &mut Pass::Train(&mut updates, &Group::solo()),
        );
        model = apply_buffers(model, &mut updates);
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::{HeadConfig, ModelConfig, ResNetConfig, ResNetName};
    use crate::params::export;

    /// F changes along a direction in all parameters as the gradient says: none is missing or in another's place.
    #[test]
    fn the_exact_gradient_is_that_of_every_parameter() {
        let (size, augmentations) = (8, 2);
        let encoder = ResNetConfig { width: 0.25, ..ResNetConfig::for_size(ResNetName::Resnet8, size) }.into();
        let head = Some(HeadConfig { layers: 2, hidden: 8, output: 4, norm: true, norm_output: true });
        let config = ModelConfig { encoder, head, text: None, image_size: size, channels: 3 };
        let compute = Compute::cpu();
        let mut rng = SampleRng::weights(1, "theory.probe.test");
        let pixels: Vec<f32> = (0..4 * augmentations * 3 * size * size).map(|_| rng.normal()).collect();
        let probe_of = |weights: Option<&NamedTensors>| {
            let model = Model::new(&config, 0, &compute.autodiff());
            let model = weights.map_or_else(|| model.clone(), |weights| import(model.clone(), weights).unwrap());
            let views = Crops { pixels: pixels.clone(), ..Crops::new(1, size, 3, 4 * augmentations, compute.layout()) };
            Probe::new(model, views, augmentations, &compute)
        };
        // A residual block begins as zero, where the rectifier has a kink.
        let is_trained = |name: &str| !name.contains("running_");
        let mut weights = export(&probe_of(None).model);
        for (_, tensor) in weights.iter_mut().filter(|(name, _)| is_trained(name)) {
            tensor.values.iter_mut().for_each(|value| *value += 0.2 * rng.normal());
        }
        let weights = weights;
        for version in [Version::V1, Version::V2] {
            let (_, gradient) = probe_of(Some(&weights)).exact(0.5, version);
            // The gradient's own direction, and one that has nothing to do with it.
            let other: Vec<f64> = gradient.iter().map(|_| f64::from(rng.normal())).collect();
            for direction in [gradient.clone(), other] {
                let norm = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
                let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum::<f64>() / norm;
                let moved = |by: f64| {
                    let mut at = direction.iter().map(|d| (by * d / norm) as f32);
                    let mut weights = weights.clone();
                    for (_, tensor) in weights.iter_mut().filter(|(name, _)| is_trained(name)) {
                        tensor.values.iter_mut().zip(&mut at).for_each(|(value, by)| *value += by);
                    }
                    assert_eq!(at.next(), None, "as many values as parameters");
                    probe_of(Some(&weights)).exact(0.5, version).0
                };
                let found = (moved(4e-3) - moved(-4e-3)) / 8e-3;
                assert!((found - slope).abs() < 0.03 * slope.abs().max(0.05), "{version:?}: {found} {slope}");
            }
        }
    }
}
