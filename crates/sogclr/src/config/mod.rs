//! The configuration of a run: one type, fully resolved before anything is written. What the user gave (recipe
//! file, `--set`, flags) is laid over defaults that fit the data; unknown keys fail.

mod merge;
mod modest;
mod nearest;
mod reference;
mod resolve;
mod unusual;
mod validate;

pub use merge::Overrides;
pub use reference::reference_markdown;
pub use validate::check_precision;

use crate::augment::AugmentConfig;
use crate::check::{Problem, parse_name};
use crate::data::{DataConfig, DataError, Dataset, Description};
use crate::encoder::{EncoderConfig, HeadConfig, ModelConfig, Precision, TextConfig};
use crate::method::MethodConfig;
use crate::optim::{LearningRate, OptimizerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// Everything that decides the result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of every random choice: weights, order, augmentation, subset.
    pub seed: u64,
    /// Which images or pairs to use.
    pub data: DataConfig,
    /// The training loop.
    pub train: TrainConfig,
    /// The method and its hyper-parameters.
    pub method: MethodConfig,
    /// The network that is kept after pre-training.
    pub encoder: EncoderConfig,
    /// Absent for image–text pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadConfig>,
    /// For image–text pairs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextConfig>,
    /// The learning rate and its schedule.
    pub learning_rate: LearningRate,
    /// How gradients become updates.
    pub optimizer: OptimizerConfig,
    /// How views are made of an image.
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
    /// What activations are stored as, on the CPU; bf16 halves their memory. Weights, statistics, heads, losses and sums are f32 in any
    /// case, and so is evaluation.
    #[serde(default, skip_serializing_if = "Precision::is_f32")]
    pub precision: Precision,
    /// Weights to start from: a safetensors file with those of the encoder under torchvision's names, or of both encoders of
    /// image–text pairs under open_clip's; or the folder of a run with the same encoder, whose u of the images that are the
    /// same is carried over; absent: drawn by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Minutes between checkpoints; 0 writes one after every step.
    pub checkpoint_minutes: f64,
    /// Keep the checkpoint of every E-th epoch; absent: only the newest ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_every: Option<usize>,
}

/// Where tensors are computed.
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

impl DeviceName {
    /// Whether it needs no GPU.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::CpuExact)
    }
}

/// What is wrong with a configuration; it names the key and the cause.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A recipe that cannot be read.
    #[error("cannot read the recipe {path}: {source}")]
    Read {
        /// The recipe.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something that is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where it came from.
        origin: String,
        /// What is wrong with it.
        message: String,
    },
    /// A key that does not exist, or a value of another type.
    #[error("configuration: {0}; `sogclr config reference` lists all keys")]
    Key(String),
    /// A key that does not exist.
    #[error("configuration: there is no key {given}{}; `sogclr config reference` lists all keys", nearest.as_ref().map_or(String::new(), |key| format!(", did you mean {key}?")))]
    UnknownKey {
        /// The key.
        given: String,
        /// The one that it may stand for.
        nearest: Option<String>,
    },
    /// A value that cannot work.
    #[error("configuration key {0}")]
    Value(#[from] Problem),
    /// A device that was not compiled in.
    #[error("{0} is not in this build: build it again with the cargo feature {0}, or set train.device to cpu")]
    Device(&'static str),
    /// The data cannot be opened.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl RunConfig {
    /// Lays `overrides` over defaults that fit such data, and checks the result. Opens nothing.
    pub fn resolve(data: &Description, overrides: &Overrides) -> Result<Self, ConfigError> {
        let config = resolve::resolve(data, overrides)?;
        config.validate(data)?;
        Ok(config)
    }

    /// Opens the data that `overrides` names, and resolves the configuration for it.
    pub fn open(overrides: &Overrides) -> Result<(Self, Dataset), ConfigError> {
        let (data, seed) = overrides.data()?;
        let data = Dataset::open(&data, seed)?;
        let config = Self::resolve(&data.describe(), overrides)?;
        Ok((config, data))
    }

    /// What the model is built from.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            encoder: self.encoder.clone(),
            head: self.head.clone(),
            text: self.text.clone(),
            image_size: self.augment.views[0].size,
            channels: self.augment.channels(),
        }
    }

    /// The side of images at evaluation: absent in runs whose crops are as large, and in those of before it could differ.
    pub fn eval_size(&self) -> usize {
        self.data.eval_size.unwrap_or(self.augment.views[0].size)
    }

    /// As a recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is plain data")
    }
}
