//! The projection head of SimCLR's released program: [linear, batch norm, ReLU]·(k−1), linear, batch norm without
//! shift. Without batch norm it is MoCo v2's: linear layers with bias and ReLU between them.

use super::batch_norm::{BatchNorm, Pass};
use super::config::HeadConfig;
use super::layers::Linear;
use burn::module::Module;
use burn::tensor::{Device, Tensor, activation::relu};

#[derive(Module, Debug)]
pub struct HeadLayer {
    linear: Linear,
    bn: Option<BatchNorm>,
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
                let linear = Linear::new(input, output, device);
                if !config.norm {
                    return HeadLayer { linear: linear.with_bias(), bn: None };
                }
                let bn = BatchNorm::new(output, device);
                HeadLayer { linear, bn: Some(if last { bn.without_bias() } else { bn }) }
            })
            .collect();
        Self { layers }
    }

    /// features `[N, dim]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, mut x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        for (index, layer) in self.layers.iter().enumerate() {
            let is_hidden = index + 1 < self.layers.len();
            x = layer.linear.forward(x);
            x = match &layer.bn {
                Some(bn) => bn.forward(x, None, is_hidden, pass),
                None if is_hidden => relu(x),
                None => x,
            };
        }
        x
    }
}
