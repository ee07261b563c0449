//! The configuration of a run: one type, fully resolved before anything is written. What the user gave (recipe
//! file, `--set`, flags) is laid over defaults that fit the data; unknown keys fail.

mod defaults;
mod merge;
mod reference;
mod validate;

pub use merge::Overrides;
pub use reference::reference_markdown;

use crate::augment::AugmentConfig;
use crate::data::{DataConfig, DataError, Dataset};
use crate::encoder::{EncoderConfig, HeadConfig, ModelConfig, TextConfig};
use crate::method::MethodConfig;
use crate::optim::{LearningRate, OptimizerConfig};
use schemars::JsonSchema;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// Everything that decides the result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of every random choice: weights, order, augmentation, subset.
    pub seed: u64,
    pub data: DataConfig,
    pub train: TrainConfig,
    pub method: MethodConfig,
    pub encoder: EncoderConfig,
    /// Absent for image–text pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadConfig>,
    /// For image–text pairs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextConfig>,
    pub learning_rate: LearningRate,
    pub optimizer: OptimizerConfig,
    pub augment: AugmentConfig,
}

/// The training loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Images in each step, over all processes.
    pub batch: usize,
    /// Images that go through the network at once, for batches that do not fit into memory; absent: all. The loss still
    /// contrasts the whole batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
    /// Passes over the data.
    pub epochs: usize,
    /// Where to compute; wgpu and cuda are cargo features. cpu-exact sums every convolution directly, which rounds less
    /// than Winograd's algorithm and is about half as fast.
    pub device: DeviceName,
    /// Safetensors file with the weights of the encoder to start from, under torchvision's names, or of both encoders of
    /// image–text pairs under open_clip's; absent: drawn by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Minutes between checkpoints; 0 writes one after every step.
    pub checkpoint_minutes: f64,
    /// Keep the checkpoint of every E-th epoch; absent: only the newest ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_every: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceName {
    /// The CPU.
    Cpu,
    /// The CPU without Winograd's algorithm.
    CpuExact,
    /// GPUs through Vulkan, Metal or DirectX.
    Wgpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        parse_name(name)
    }
}

/// The variant of an enum that serde calls `name`.
pub(crate) fn parse_name<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let name: StrDeserializer<ValueError> = name.into_deserializer();
    T::deserialize(name).map_err(|error| error.to_string())
}

impl DeviceName {
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::CpuExact)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the recipe {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{origin}: {message}")]
    Syntax { origin: String, message: String },
    #[error("configuration: {0}; `sogclr config reference` lists all keys")]
    Key(String),
    #[error("configuration key {key} {problem}")]
    Value { key: String, problem: String },
    #[error("{0} is not in this build: build it again with `--features {0}`, or use --device cpu")]
    Device(&'static str),
    #[error(transparent)]
    Data(#[from] DataError),
}

impl RunConfig {
    /// Lays `overrides` over defaults that fit the data, and checks the result against the data.
    pub fn resolve(overrides: &Overrides) -> Result<(Self, Dataset), ConfigError> {
        let (config, data) = defaults::resolve(overrides)?;
        config.validate(data.train.len())?;
        if config.method.spec().needs_labels() {
            let method = config.method.name();
            let first = data.train.label(0);
            let problem = if first.is_none() {
                "the data has none: sort the images into one folder for each class"
            } else if (0..data.train.len()).all(|id| data.train.label(id) == first) {
                "the data has one class only: add images of another class, or choose a method without labels"
            } else {
                return Ok((config, data));
            };
            return Err(ConfigError::Value {
                key: "method".into(),
                problem: format!("{method} needs labels, and {problem}"),
            });
        }
        Ok((config, data))
    }

    /// What the model is built from.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            encoder: self.encoder.clone(),
            head: self.head.clone(),
            text: self.text.clone(),
            image_size: self.augment.views[0].size,
        }
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is plain data")
    }
}
