//! What is trained: an image encoder with its projection head, or an image and a text encoder.

use super::batch_norm::Pass;
use super::head::{Head, HeadConfig};
use super::layers::Linear;
use super::text::{TextConfig, TextEncoder};
use super::{Compute, EncoderConfig, ImageEncoder, Network};
use crate::params::initialise_by;
use burn::module::Module;
use burn::tensor::Tensor;

/// What a model is built from.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The image encoder.
    pub encoder: EncoderConfig,
    /// Absent for image–text pairs.
    pub head: Option<HeadConfig>,
    /// For image–text pairs only.
    pub text: Option<TextConfig>,
    /// Side of the largest images in pixels.
    pub image_size: usize,
    /// Channels of the images.
    pub channels: usize,
}

impl ModelConfig {
    /// Dimension of what the loss contrasts.
    pub fn output(&self) -> usize {
        match (&self.head, &self.text) {
            (Some(head), _) => head.output,
            (None, Some(_)) => self.shared_dim(),
            (None, None) => self.encoder.feature_dim(),
        }
    }

    /// Dimension of the embedding that images and texts share.
    fn shared_dim(&self) -> usize {
        let open = self.text.as_ref().and_then(|text| text.output).filter(|_| !self.encoder.spec().is_embedding());
        open.unwrap_or_else(|| self.encoder.feature_dim())
    }

    /// The projection of image features to what texts share, where the encoder has none of its own.
    fn projection(&self, compute: &Compute) -> Option<Linear> {
        let is_needed = self.text.is_some() && !self.encoder.spec().is_embedding();
        is_needed.then(|| Linear::new(self.encoder.feature_dim(), self.shared_dim(), compute))
    }

    /// Standard deviation of the initial values of a parameter of the model.
    fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64> {
        match (name.split_once('.'), dims) {
            (Some(("encoder", rest)), _) => self.encoder.spec().deviation(rest, dims),
            (Some(("text", rest)), _) => self.text.as_ref()?.deviation(rest, dims),
            (_, [_, input]) => Some((1.0 / *input as f64).sqrt()),
            _ => None,
        }
    }
}

/// The trained network; the head is dropped after pre-training.
#[derive(Module, Debug)]
pub struct Model {
    /// What is kept after pre-training.
    pub encoder: ImageEncoder,
    /// Used in pre-training only.
    pub head: Option<Head>,
    /// From image features to the embedding that texts share.
    pub projection: Option<Linear>,
    /// Of image–text pairs.
    pub text: Option<TextEncoder>,
}

impl Model {
    /// A freshly initialised model: every weight is a function of (seed, its name).
    pub fn new(config: &ModelConfig, seed: u64, compute: &Compute) -> Self {
        let features = config.encoder.feature_dim();
        let model = Self {
            encoder: config.encoder.build(config.image_size, config.channels, compute),
            head: config.head.as_ref().map(|head| Head::new(head, features, compute)),
            projection: config.projection(compute),
            text: config.text.as_ref().map(|text| TextEncoder::new(text, config.shared_dim(), compute)),
        };
        initialise_by(model, seed, |name, dims| config.deviation(name, dims))
    }

    /// Images in the layout of the model's [`Compute`] → embeddings `[N, output]`, not normalised.
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let features = self.encoder.forward(x, pass);
        match (&self.head, &self.projection) {
            (Some(head), _) => head.forward(features, pass),
            (None, Some(projection)) => projection.forward(features),
            (None, None) => features,
        }
    }
}
