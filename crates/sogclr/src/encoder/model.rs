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
            head: config.head.as_ref().map(|head| Head::new(head, features, compute)),
            text: config.text.as_ref().map(|text| TextEncoder::new(text, config.shared_dim(), compute)),
            ..Self::image_side(config, compute)
        };
        model.initialised(config, seed)
    }

    /// The image encoder and its projection alone; weights are zero until an initialisation or an import fills them.
    pub(crate) fn image_side(config: &ModelConfig, compute: &Compute) -> Self {
        let encoder = config.encoder.build(config.image_size, config.channels, compute);
        Self { encoder, head: None, projection: config.projection(compute), text: None }
    }

    /// The same with weights as the seed draws them, by their names in a model of `config`.
    pub(crate) fn initialised(self, config: &ModelConfig, seed: u64) -> Self {
        initialise_by(self, seed, |name, dims| config.deviation(name, dims))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Group;
    use crate::params::export;

    /// A ResNet of one to four channels for images of 8 pixels.
    fn resnet() -> ModelConfig {
        let encoder = toml::from_str("name = 'resnet8'\nwidth = 0.0625\nstem = 'cifar'").unwrap();
        ModelConfig { encoder, head: None, text: None, image_size: 8, channels: 3 }
    }

    /// CLIP's smallest, of two channels; its embedding has 256 values at any width.
    fn clip() -> ModelConfig {
        let encoder = toml::from_str("name = 'clip-xs'\nwidth = 0.0833\nstem = 'clip'").unwrap();
        ModelConfig { encoder, head: None, text: None, image_size: 32, channels: 3 }
    }

    fn text(output: Option<usize>) -> Option<TextConfig> {
        Some(TextConfig { width: 8, layers: 1, heads: 2, context: 5, vocabulary: 11, output })
    }

    fn head() -> Option<HeadConfig> {
        Some(HeadConfig { layers: 2, hidden: 7, output: 6, norm: true, norm_output: true })
    }

    #[test]
    fn only_pairs_whose_encoder_gives_no_embedding_have_a_projection() {
        let compute = Compute::cpu();
        let shape = |config: ModelConfig| config.projection(&compute).map(|linear| linear.weight.val().dims());
        assert_eq!(shape(resnet()), None);
        assert_eq!(shape(ModelConfig { text: text(Some(9)), ..resnet() }), Some([9, 4]));
        assert_eq!(shape(ModelConfig { text: text(None), ..resnet() }), Some([4, 4]));
        assert_eq!(shape(ModelConfig { text: text(Some(9)), ..clip() }), None);
    }

    #[test]
    fn the_output_is_the_heads_the_shared_embeddings_or_the_features() {
        assert_eq!(ModelConfig { head: head(), ..resnet() }.output(), 6);
        assert_eq!(ModelConfig { text: text(Some(9)), ..resnet() }.output(), 9);
        assert_eq!(ModelConfig { text: text(None), ..resnet() }.output(), 4);
        assert_eq!(ModelConfig { text: text(Some(9)), ..clip() }.output(), 256, "a clip encoder fixes it");
        assert_eq!(resnet().output(), 4);
    }

    #[test]
    fn images_become_as_many_values_as_the_output_says() {
        let compute = Compute::cpu();
        let with_head = ModelConfig { head: head(), ..resnet() };
        let pairs = ModelConfig { text: text(Some(9)), ..resnet() };
        for config in [resnet(), with_head, pairs] {
            let shape = compute.layout().shape(2, 3, config.image_size);
            let y = Model::new(&config, 1, &compute)
                .forward(Tensor::ones(shape, compute.device()), &mut Pass::Batch(&Group::solo()));
            assert_eq!(y.dims(), [2, config.output()]);
        }
    }

    #[test]
    fn a_weight_is_a_function_of_the_seed_and_its_name() {
        let tensors = |config: &ModelConfig, seed| export(&Model::new(config, seed, &Compute::cpu()));
        let with_head = ModelConfig { head: head(), ..resnet() };
        let (alone, more, other) = (tensors(&resnet(), 1), tensors(&with_head, 1), tensors(&with_head, 2));
        assert!(alone.iter().all(|(name, tensor)| more[name] == *tensor), "a head changes nothing below it");
        for name in ["encoder.conv1.weight", "head.layers.0.linear.weight"] {
            assert_ne!(more[name], other[name]);
        }
        assert_ne!(more["encoder.layer1.0.conv1.weight"], more["encoder.layer1.0.conv2.weight"]);
    }

    #[test]
    fn every_part_draws_its_own_weights() {
        let config = ModelConfig { head: head(), text: text(None), ..resnet() };
        let deviation = |name: &str, dims: &[usize]| config.deviation(name, dims);
        // √(2/fan-out) of the ResNet, CLIP's 0.02 of tokens, √(1/fan-in) of what is left
        assert_eq!(deviation("encoder.conv1.weight", &[2, 3, 5, 5]), Some(0.2));
        assert_eq!(deviation("text.token_embedding.weight", &[11, 8]), Some(0.02));
        assert_eq!(deviation("head.layers.0.linear.weight", &[7, 4]), Some(0.5));
        assert_eq!(deviation("projection.weight", &[9, 16]), Some(0.25));
        assert_eq!(deviation("head.layers.0.bn.weight", &[7]), None);
    }
}
