//! The projection head of SimCLR's released program: [linear, batch norm, ReLU]·(k−1), linear, batch norm without
//! shift. Without batch norm it is MoCo v2's: linear layers with bias and ReLU between them.

use super::Compute;
use super::batch_norm::{BatchNorm, Pass};
use super::layers::Linear;
use crate::check::{Problem, require};
use burn::module::Module;
use burn::tensor::{Tensor, activation::relu};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The projection head, used in pre-training only: linear, batch norm and ReLU, repeated; the last layer is
/// linear and batch norm without shift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Number of linear layers: 2, 3 or 4.
    pub layers: usize,
    /// Width of the hidden layers: the released program's 2048 for ResNet-50; 128 is the paper's text.
    pub hidden: usize,
    /// Dimension of the embedding that the loss contrasts.
    pub output: usize,
    /// Batch norm in every layer; without it the linear layers have biases (MoCo v2).
    pub norm: bool,
    /// Batch norm after the last layer, where there is any; BYOL, Barlow Twins and VICReg have none there.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub norm_output: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_yes(value: &bool) -> bool {
    *value
}

impl HeadConfig {
    /// Two layers, the hidden one as wide as the features.
    pub fn for_features(features: usize) -> Self {
        Self { layers: 2, hidden: features.clamp(128, 2048), output: 128, norm: true, norm_output: true }
    }

    /// Refuses impossible values.
    pub fn check(&self) -> Result<(), Problem> {
        let layers = self.layers;
        require((2..=4).contains(&layers), "head.layers", || format!("is {layers}; heads have 2, 3 or 4 layers"))?;
        for (key, size) in [("head.hidden", self.hidden), ("head.output", self.output)] {
            require((2..=65_536).contains(&size), key, || format!("is {size}; it must lie between 2 and 65536"))?;
        }
        Ok(())
    }
}

/// One linear layer and what normalises it.
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
    /// Weights are zero until an initialisation or an import fills them.
    pub fn new(config: &HeadConfig, features: usize, compute: &Compute) -> Self {
        let layers = (0..config.layers)
            .map(|index| {
                let input = if index == 0 { features } else { config.hidden };
                let last = index + 1 == config.layers;
                let output = if last { config.output } else { config.hidden };
                let linear = Linear::new(input, output, compute);
                if last && config.norm && !config.norm_output {
                    return HeadLayer { linear, bn: None };
                }
                if !config.norm {
                    return HeadLayer { linear: linear.with_bias(), bn: None };
                }
                let bn = BatchNorm::new(output, compute);
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
