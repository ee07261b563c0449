//! The projection head of SimCLR's released program: [linear, batch norm, ReLU]·(k−1), linear, batch norm without
//! shift.

use super::batch_norm::{BatchNorm, Pass};
use super::config::HeadConfig;
use super::layers::Linear;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct HeadLayer {
    linear: Linear,
    bn: BatchNorm,
}

/// Maps features to the embedding that the loss contrasts.
#[derive(Module, Debug)]
pub struct Head {
    layers: Vec<HeadLayer>,
}

impl Head {
    pub fn new(config: &HeadConfig, features: usize, device: &Device) -> Self {
        let layers = (0..config.layers)
            .map(|index| {
                let input = if index == 0 { features } else { config.hidden };
                let last = index + 1 == config.layers;
                let output = if last { config.output } else { config.hidden };
                let bn = BatchNorm::new(output, device);
                let bn = if last { bn.without_bias() } else { bn };
                HeadLayer { linear: Linear::new(input, output, device), bn }
            })
            .collect();
        Self { layers }
    }

    /// features `[N, dim]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, mut x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        for (index, layer) in self.layers.iter().enumerate() {
            let is_hidden = index + 1 < self.layers.len();
            x = layer.bn.forward(layer.linear.forward(x), None, is_hidden, pass);
        }
        x
    }
}
