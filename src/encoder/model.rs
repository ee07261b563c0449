//! Encoder and head together: what is trained.

use super::batch_norm::Pass;
use super::config::{EncoderConfig, HeadConfig};
use super::head::Head;
use super::params::initialise;
use super::resnet::ResNet;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// The trained network; the head is dropped after pre-training.
#[derive(Module, Debug)]
pub struct Model {
    pub encoder: ResNet,
    pub head: Head,
}

impl Model {
    /// A freshly initialised model: every weight is a function of (seed, its name).
    pub fn new(encoder: &EncoderConfig, head: &HeadConfig, seed: u64, device: &Device) -> Self {
        let model =
            Self { encoder: ResNet::new(encoder, device), head: Head::new(head, encoder.feature_dim(), device) };
        initialise(model, seed)
    }

    /// `[N, 3, H, W]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let features = self.encoder.forward(x, pass);
        self.head.forward(features, pass)
    }
}
