//! Encoders and projection heads as burn modules. Module paths are the names of torchvision's, timm's or CLIP's state dicts,
//! so a parameter has one name everywhere: in the module, the optimiser, the checkpoint and the exported file.
//!
//! Adding an encoder: a new file here with its configuration ([`EncoderSpec`], [`Family`]) and its network ([`Network`]), and
//! one line in `encoders!`. Every encoder serves images alone and image–text pairs.

mod batch_norm;
mod clip_resnet;
mod clip_vit;
mod compute;
mod cuts;
mod head;
mod layers;
mod load_script;
mod model;
mod open_clip;
mod rank_sum;
mod recognise;
mod resnet;
mod text;
mod transformer;
mod vit;

pub use batch_norm::{BatchNorm, BufferUpdates, Pass, apply_buffers};
pub use clip_resnet::{ClipResNet, ClipResNetConfig, ClipResNetName, ClipStem};
pub use clip_vit::{ClipVit, ClipVitConfig, ClipVitName};
pub use compute::{Compute, Precision};
pub use cuts::Cuts;
pub use head::{Head, HeadConfig};
pub use layers::Linear;
pub use load_script::{Pictures, PythonLoader, load_script};
pub use model::{Model, ModelConfig};
pub use open_clip::{from_open_clip, to_open_clip};
pub use recognise::recognise;
pub use resnet::{ResNet, ResNetConfig, ResNetName, Stem};
pub use text::{TextConfig, TextEncoder};
pub use vit::{Pool, Vit, VitConfig, VitName};

use crate::check::Problem;
use burn::module::Module;
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use sogclr_kernels::Conv;

/// What is known of an image encoder without its weights.
pub trait EncoderSpec {
    /// The name that users give.
    fn name(&self) -> &'static str;

    /// Refuses what cannot be built for images of `size` pixels.
    fn check(&self, size: usize) -> Result<(), Problem>;

    /// Dimension of the features before the head.
    fn feature_dim(&self) -> usize;

    /// Whether the features are an embedding already, which texts can share without a projection.
    fn is_embedding(&self) -> bool {
        false
    }

    /// Whether all images must have the size that the network was built for.
    fn has_one_size(&self) -> bool {
        false
    }

    /// The text encoder that goes with it unless another is set.
    fn text(&self) -> TextConfig {
        TextConfig { heads: 4, layers: 4, ..TextConfig::clip_s() }
    }

    /// Standard deviation of the initial values of a parameter; `None` for what is not drawn.
    fn deviation(&self, name: &str, dims: &[usize]) -> Option<f64>;

    /// Bytes that training on the CPU keeps of one image of `size` pixels, at the least.
    fn kept_bytes(&self, size: usize, channels: usize, precision: Precision) -> usize;

    /// Every distinct convolution on one image of `size` pixels, with its number of layers; none where they are not what costs.
    fn convolutions(&self, _size: usize, _channels: usize) -> Vec<(usize, Conv)> {
        Vec::new()
    }

    /// Whether a tensor of another program's weights, such as a classifier, has no place in the encoder.
    fn is_foreign(&self, _name: &str) -> bool {
        false
    }

    /// `vision_cfg` of open_clip, where it has this encoder.
    fn open_clip(&self, _size: usize) -> Option<serde_json::Value> {
        None
    }

    /// How the encoder is built in Python.
    fn python(&self, size: usize, channels: usize) -> PythonLoader;
}

/// The encoders of one file.
pub trait Family: EncoderSpec + Sized {
    /// The network that a configuration describes.
    type Net: Network;

    /// The names of the family's encoders.
    const NAMES: &'static [&'static str];

    /// The encoder of that name as it suits images of `size` pixels.
    fn named(name: &str, size: usize) -> Option<Self>;

    /// The network for images of `size` pixels; its weights are zero until an initialisation or an import fills them.
    fn build(&self, size: usize, channels: usize, compute: &Compute) -> Self::Net;
}

/// From images to features.
pub trait Network {
    /// Images in the layout of the network's [`Compute`] → features `[N, dim]`.
    fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2>;
}

macro_rules! encoders {
    ($($(#[$doc:meta])* $variant:ident($config:ty) => $net:ty,)*) => {
        /// The network that is kept after pre-training; its `name` tells which one.
        #[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
        #[serde(untagged)]
        pub enum EncoderConfig {
            $($(#[$doc])* $variant($config),)*
        }

        $(impl From<$config> for EncoderConfig {
            fn from(config: $config) -> Self {
                Self::$variant(config)
            }
        })*

        /// Reads the configuration of the encoder that `name` names.
        impl<'de> Deserialize<'de> for EncoderConfig {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let table = toml::Table::deserialize(deserializer)?;
                let name = table.get("name").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
                $(if <$config as Family>::NAMES.contains(&name.as_str()) {
                    let config: Result<$config, _> = table.try_into();
                    return config.map(Self::$variant).map_err(|error| D::Error::custom(error.message()));
                })*
                Err(D::Error::custom(unknown(&name)))
            }
        }

        impl EncoderConfig {
            /// The names of all encoders.
            pub fn names() -> Vec<&'static str> {
                [$(<$config as Family>::NAMES),*].concat()
            }

            /// The encoder of that name as it suits images of `size` pixels.
            pub fn named(name: &str, size: usize) -> Result<Self, Problem> {
                $(if let Some(config) = <$config as Family>::named(name, size) {
                    return Ok(Self::$variant(config));
                })*
                Err(Problem::new("encoder.name", format!("is {}", unknown(name))))
            }

            /// What is known of it.
            pub fn spec(&self) -> &dyn EncoderSpec {
                match self {
                    $(Self::$variant(config) => config,)*
                }
            }

            /// The network for images of `size` pixels; its weights are zero until an initialisation or an import fills them.
            pub fn build(&self, size: usize, channels: usize, compute: &Compute) -> ImageEncoder {
                match self {
                    $(Self::$variant(config) => ImageEncoder::$variant(config.build(size, channels, compute)),)*
                }
            }
        }

        /// Any image encoder.
        #[expect(clippy::large_enum_variant, reason = "a model has one")]
        #[derive(Module, Debug)]
        pub enum ImageEncoder {
            $($(#[$doc])* $variant($net),)*
        }

        impl Network for ImageEncoder {
            fn forward(&self, x: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
                match self {
                    $(Self::$variant(net) => net.forward(x, pass),)*
                }
            }
        }
    };
}

encoders! {
    /// 8–56 are the CIFAR ResNets, 18–152 torchvision's.
    ResNet(ResNetConfig) => ResNet,
    /// CLIP's ResNets: clip-s, the paper's for image–text pairs, and clip-xs.
    ClipResNet(ClipResNetConfig) => ClipResNet,
    /// CLIP's vision transformer.
    ClipVit(ClipVitConfig) => ClipVit,
    /// timm's vision transformers.
    Vit(VitConfig) => Vit,
}

fn unknown(name: &str) -> String {
    format!("{name:?}; known encoders are {}", EncoderConfig::names().join(", "))
}

impl EncoderConfig {
    /// The name that users give.
    pub fn name(&self) -> &'static str {
        self.spec().name()
    }

    /// Dimension of the features before the head.
    pub fn feature_dim(&self) -> usize {
        self.spec().feature_dim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::export;

    fn read(text: &str) -> Result<EncoderConfig, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    /// What `config.toml` of earlier versions has.
    #[test]
    fn tables_of_name_width_and_stem_are_read() {
        let resnet = ResNetConfig { name: ResNetName::Resnet20, width: 0.5, stem: Stem::Imagenet };
        assert_eq!(read("name = 'resnet20'\nwidth = 0.5\nstem = 'imagenet'"), Ok(resnet.into()));
        let clip = ClipResNetConfig { name: ClipResNetName::ClipS, width: 2.0, stem: ClipStem::Clip };
        assert_eq!(read("name = 'clip-s'\nwidth = 2.0\nstem = 'clip'"), Ok(clip.clone().into()));
        assert_eq!(read("name = 'clip-s'\nwidth = 2.0"), Ok(clip.into()));
        let vit = ClipVitConfig { name: ClipVitName::ClipVitXs, width: 1.0, stem: ClipStem::Clip };
        assert_eq!(read("name = 'clip-vit-xs'\nwidth = 1.0\nstem = 'clip'"), Ok(vit.into()));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        for error in [read("name = 'resnet19'\nwidth = 1.0").unwrap_err(), unknown("resnet19")] {
            assert!(error.starts_with("\"resnet19\"; known encoders are resnet8, "), "{error}");
            assert!(
                ["resnet50", "clip-s", "clip-vit-xs", "vit-base"].iter().all(|name| error.contains(name)),
                "{error}"
            );
        }
        assert!(read("width = 1.0").unwrap_err().starts_with("\"\"; known encoders are"));
        let problem = EncoderConfig::named("resnet19", 32).unwrap_err();
        assert_eq!(problem.key, "encoder.name");
        assert!(problem.text.starts_with("is \"resnet19\"; known encoders are "), "{problem}");
    }

    #[test]
    fn a_key_of_another_encoder_is_refused_by_its_name() {
        let error = |text: &str| read(text).unwrap_err();
        let resnet = "name = 'resnet18'\nwidth = 1.0\nstem = 'cifar'";
        assert!(error(&format!("{resnet}\npatch = 4")).contains("unknown field `patch`"));
        let vit = "name = 'vit-tiny'\npatch = 4\npool = 'class'\nfreeze_patches = false";
        assert!(error(&format!("{vit}\nwidth = 1.0")).contains("unknown field `width`"));
        assert!(error("name = 'resnet18'\nwidth = 1.0").contains("missing field `stem`"));
        assert!(error("name = 'resnet18'\nwidth = 1.0\nstem = 'clip'").contains("clip"));
        assert!(error("name = 'clip-s'\nwidth = 1.0\nstem = 'cifar'").contains("cifar"));
    }

    #[test]
    fn every_name_gives_the_encoder_that_says_it() {
        assert_eq!(EncoderConfig::names().len(), 16);
        for name in EncoderConfig::names() {
            let config = EncoderConfig::named(name, 224).unwrap();
            assert_eq!(config.name(), name);
            assert_eq!(config.spec().check(224), Ok(()), "{name}");
            let written = toml::to_string(&config).unwrap();
            assert!(written.starts_with(&format!("name = \"{name}\"\n")), "{written}");
            assert_eq!(read(&written), Ok(config), "{name}");
        }
    }

    #[test]
    fn the_kind_of_encoder_is_no_part_of_a_parameters_name() {
        let config = read("name = 'resnet8'\nwidth = 0.0625\nstem = 'cifar'").unwrap();
        let tensors = export(&config.build(8, 5, &Compute::cpu()));
        assert_eq!(tensors["conv1.weight"].shape, [1, 5, 3, 3]);
        assert!(tensors.contains_key("layer3.0.downsample.1.running_var"));
    }
}
