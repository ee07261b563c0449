//! Parameter space: pulls coefficients ∂L/∂h back through a frozen network, h ↦ Σ cᵀ·∂h/∂w.

use super::{FiniteProblem, Version, global_objective, through_norm};
use crate::encoder::{Model, Pass};
use crate::math::{Matrix, UnitRows};
use crate::optim::NamedGrads;
use burn::tensor::{Device, Tensor, TensorData};
use ndarray::{Array2, Axis};

/// Images that go through the network at once.
const CHUNK: usize = 256;

/// A network in inference mode, so that an embedding is a function of its image alone, and all images of a finite problem.
pub struct Probe {
    model: Model,
    /// `[rows, 3, size, size]`
    pixels: Vec<f32>,
    size: usize,
    augmentations: usize,
    device: Device,
}

impl Probe {
    pub fn new(model: Model, pixels: Vec<f32>, size: usize, augmentations: usize, device: Device) -> Self {
        Self { model, pixels, size, augmentations, device: device.autodiff() }
    }

    fn area(&self) -> usize {
        3 * self.size * self.size
    }

    fn images_of(&self, rows: &[usize], device: &Device) -> Tensor<4> {
        let area = self.area();
        let pixels: Vec<f32> = rows.iter().flat_map(|row| &self.pixels[row * area..][..area]).copied().collect();
        Tensor::from_data(TensorData::new(pixels, [rows.len(), 3, self.size, self.size]), device)
    }

    /// Embeddings of all augmentations.
    pub fn problem(&self) -> FiniteProblem {
        let rows: Vec<usize> = (0..self.pixels.len() / self.area()).collect();
        let device = self.device.clone().inner();
        let blocks: Vec<Matrix> = rows
            .chunks(CHUNK)
            .map(|rows| matrix(self.model.forward(self.images_of(rows, &device), &mut Pass::Eval)))
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
            let h = self.model.forward(self.images_of(rows, &self.device), &mut Pass::Eval);
            let dh: Vec<f32> = dh.iter().map(|v| *v as f32).collect();
            let dh = Tensor::<2>::from_data(TensorData::new(dh, h.dims()), &self.device);
            // The gradients of Σ h·dh.
            let mut gradients = (h * dh).sum().backward();
            all.add(NamedGrads::collect(&self.model, &mut gradients));
        }
        all.into_values()
    }
}

fn matrix(h: Tensor<2>) -> Matrix {
    let (dims, values) = (h.dims(), h.into_data().try_to_vec::<f32>().expect("embeddings are f32"));
    Matrix::from_shape_vec(dims, values).expect("as many values as the shape says")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::{EncoderConfig, EncoderName, HeadConfig, ModelConfig, NamedTensors, export, import};
    use crate::math::SampleRng;

    /// F changes along a direction in all parameters as the gradient says: none is missing or in another's place.
    #[test]
    fn the_exact_gradient_is_that_of_every_parameter() {
        let (size, augmentations) = (8, 2);
        let encoder = EncoderConfig { width: 0.25, ..EncoderConfig::for_size(EncoderName::Resnet8, size) };
        let head = Some(HeadConfig { layers: 2, hidden: 8, output: 4, norm: true });
        let config = ModelConfig { encoder, head, text: None, image_size: size };
        let device = Device::default();
        let mut rng = SampleRng::weights(1, "theory.probe.test");
        let pixels: Vec<f32> = (0..4 * augmentations * 3 * size * size).map(|_| rng.normal()).collect();
        let probe_of = |weights: Option<&NamedTensors>| {
            let model = Model::new(&config, 0, &device.clone().autodiff());
            let model = weights.map_or_else(|| model.clone(), |weights| import(model.clone(), weights).unwrap());
            Probe::new(model, pixels.clone(), size, augmentations, device.clone())
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
