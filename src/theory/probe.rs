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
