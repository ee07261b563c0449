//! What is trained: an image encoder with its projection head, or an image and a text encoder.

use super::batch_norm::Pass;
use super::config::{EncoderConfig, HeadConfig, VIT_LAYERS};
use super::head::Head;
use super::image::ImageEncoder;
use super::params::{initialise, initialise_by};
use super::text::{TextConfig, TextEncoder};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// What a model is built from.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    pub encoder: EncoderConfig,
    /// Absent for image–text pairs.
    pub head: Option<HeadConfig>,
    /// For image–text pairs only.
    pub text: Option<TextConfig>,
    /// Side of the largest images in pixels.
    pub image_size: usize,
}

impl ModelConfig {
    /// Dimension of what the loss contrasts.
    pub fn output(&self) -> usize {
        self.head.as_ref().map_or(self.encoder.feature_dim(), |head| head.output)
    }
}

/// The trained network; the head is dropped after pre-training.
#[derive(Module, Debug)]
pub struct Model {
    pub encoder: ImageEncoder,
    pub head: Option<Head>,
    pub text: Option<TextEncoder>,
}

impl Model {
    /// A freshly initialised model: every weight is a function of (seed, its name).
    pub fn new(config: &ModelConfig, seed: u64, device: &Device) -> Self {
        let features = config.encoder.feature_dim();
        let model = Self {
            encoder: ImageEncoder::new(&config.encoder, config.image_size, device),
            head: config.head.as_ref().map(|head| Head::new(head, features, device)),
            text: config.text.as_ref().map(|text| TextEncoder::new(text, features, device)),
        };
        if !config.encoder.is_clip() {
            return initialise(model, seed);
        }
        let layers = |name: &str| match &config.text {
            Some(text) if name.starts_with("text.") => text.layers,
            _ => VIT_LAYERS,
        };
        initialise_by(model, seed, |name, dims| clip_deviation(layers(name), name, dims))
    }

    /// `[N, 3, H, W]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let features = self.encoder.forward(x, pass);
        match &self.head {
            Some(head) => head.forward(features, pass),
            None => features,
        }
    }
}

/// Standard deviations of CLIP's initial weights, for transformers of `layers` blocks; `None` for what is not drawn.
fn clip_deviation(layers: usize, name: &str, dims: &[usize]) -> Option<f64> {
    let root = |variance: f64| Some(variance.sqrt());
    let last = name.rsplit('.').next().unwrap_or(name);
    match dims {
        // PyTorch's default of a convolution.
        [_, input, height, width] => root(1.0 / (3 * input * height * width) as f64),
        [_, _] if name == "text.token_embedding.weight" => Some(0.02),
        [_, _] if name == "text.positional_embedding" => Some(0.01),
        [input, _] if last == "text_projection" || last == "proj" => root(1.0 / *input as f64),
        [_, input] if name.contains("mlp.c_fc.") => root(1.0 / (2 * input) as f64),
        // The end of a residual branch.
        [width, _] if name.contains("attn.out_proj.") || name.contains("mlp.c_proj.") => {
            root(1.0 / (2 * width * layers) as f64)
        }
        [_, input] => root(1.0 / *input as f64),
        [width] if last == "class_embedding" => root(1.0 / *width as f64),
        _ => None,
    }
}
