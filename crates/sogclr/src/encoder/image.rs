//! Any image encoder.

use super::batch_norm::Pass;
use super::clip_resnet::ClipResNet;
use super::config::{EncoderConfig, Family};
use super::resnet::ResNet;
use super::vit::VisionTransformer;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

#[expect(clippy::large_enum_variant, reason = "a model has one")]
#[derive(Module, Debug)]
pub enum ImageEncoder {
    ResNet(ResNet),
    ClipResNet(ClipResNet),
    Vit(VisionTransformer),
}

impl ImageEncoder {
    /// For images of `size` pixels, which only the clip encoders depend on. Weights are zero until [`super::import`] or
    /// an initialisation fills them.
    pub fn new(config: &EncoderConfig, size: usize, device: &Device) -> Self {
        match config.family(size) {
            Family::ResNet => Self::ResNet(ResNet::new(config, device)),
            Family::ClipResNet(config) => Self::ClipResNet(ClipResNet::new(&config, device)),
            Family::Vit(config) => Self::Vit(VisionTransformer::new(&config, device)),
        }
    }

    /// `[N, 3, S, S]` → features `[N, dim]`
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        match self {
            Self::ResNet(net) => net.forward(x, pass),
            Self::ClipResNet(net) => net.forward(x, pass),
            Self::Vit(net) => net.forward(x),
        }
    }
}
