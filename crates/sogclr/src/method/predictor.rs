//! A small network on top of the embeddings: linear, batch norm, ReLU, linear.

use crate::encoder::{BatchNorm, Linear, Pass};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct Predictor {
    hidden: Linear,
    bn: BatchNorm,
    output: Linear,
}

impl Predictor {
    pub fn new(dim: usize, hidden: usize, device: &Device) -> Self {
        Self {
            hidden: Linear::new(dim, hidden, device),
            bn: BatchNorm::new(hidden, device),
            output: Linear::new(hidden, dim, device).with_bias(),
        }
    }

    /// embeddings `[N, dim]` → predictions `[N, dim]`
    pub fn forward(&self, x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        self.output.forward(self.bn.forward(self.hidden.forward(x), None, true, pass))
    }
}
