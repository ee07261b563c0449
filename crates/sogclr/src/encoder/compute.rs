//! Where and how a network computes, and what its activations are stored as. Nothing about it is global: two models in one process may differ.

use crate::check::parse_name;
use crate::cpu::Engine;
use crate::math::{Isa, Layout};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What activations are stored as, and what is kept of them for the backward pass: in a ResNet from its first layer to its last pool, in
/// a transformer inside of every branch. The sum that branches add to, weights, statistics, heads, similarities, losses and optimisers
/// are f32 in any case, and so are all sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Four bytes, 24 bits of fraction.
    #[default]
    F32,
    /// Two bytes, 8 bits of fraction, the range of f32.
    Bf16,
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        parse_name(name)
    }
}

/// The name that users give.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl Precision {
    /// Whether it is what runs have unless it is set; they do not mention it.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Bytes that a step keeps of convolutions that put out so many values, at the least: 1.7 to 3.3 values for each were measured.
    pub(super) fn kept_of_convolutions(self, values: usize) -> usize {
        values * self.bytes() * 17 / 10
    }

    /// Bytes that a step keeps of one token in a transformer's block: queries, keys, values, what attention mixes and the MLP's eight
    /// widths, and in f32 what the two branches add to.
    pub(super) fn kept_of_block(self, width: usize) -> usize {
        (12 * self.bytes() + 2 * Self::F32.bytes()) * width
    }

    /// What burn calls it.
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// What is not a convolution or follows the last of them is f32 again.
    pub(super) fn leave<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::F32 => x,
            Self::Bf16 => x.cast(FloatDType::F32),
        }
    }

    /// What a network's first layer reads; the layers after it follow the type of what they are given.
    pub(super) fn enter<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::F32 => x,
            Self::Bf16 => x.cast(FloatDType::BF16),
        }
    }
}

/// A device, and on the CPU whether our kernels compute, and with which instructions.
#[derive(Clone, Debug)]
pub struct Compute {
    device: Device,
    /// `None`: burn's plain operations on channel-first activations, as on every device but the CPU.
    engine: Option<Engine>,
    precision: Precision,
}

impl Compute {
    /// The CPU with our kernels at their fastest.
    pub fn cpu() -> Self {
        Self::cpu_with(Engine::default())
    }

    /// The CPU with our kernels as `engine` says.
    pub fn cpu_with(engine: Engine) -> Self {
        Self { device: Device::flex(), engine: Some(engine), precision: Precision::F32 }
    }

    /// The CPU without Winograd's algorithm, which rounds less and is slower.
    pub fn cpu_exact() -> Self {
        Self::cpu_with(Engine { winograd: false, ..Engine::default() })
    }

    /// Burn's plain operations on any device.
    pub fn plain(device: Device) -> Self {
        Self { device, engine: None, precision: Precision::F32 }
    }

    /// The same with activations stored as `precision`; our kernels alone have another than f32.
    pub fn with_precision(self, precision: Precision) -> Self {
        assert!(self.engine.is_some() || precision == Precision::F32, "plain operations have no bf16");
        Self { precision, ..self }
    }

    /// The same with gradients.
    pub fn autodiff(&self) -> Self {
        Self { device: self.device.clone().autodiff(), ..self.clone() }
    }

    /// The same without gradients.
    pub fn inner(&self) -> Self {
        Self { device: self.device.clone().inner(), ..self.clone() }
    }

    /// The device of tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How our kernels compute, where they do.
    pub fn engine(&self) -> Option<Engine> {
        self.engine
    }

    /// What activations are stored as.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The instructions that similarities are computed with.
    pub fn isa(&self) -> Isa {
        self.engine.map_or(Isa::best(), |engine| engine.isa)
    }

    /// The order of the pixels of images.
    pub fn layout(&self) -> Layout {
        if self.engine.is_some() { Layout::ChannelsLast } else { Layout::ChannelsFirst }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_kernels_want_channels_last_and_burns_operations_first() {
        let (ours, plain) = (Compute::cpu(), Compute::plain(Device::flex()));
        assert_eq!((ours.layout(), plain.layout()), (Layout::ChannelsLast, Layout::ChannelsFirst));
        assert_eq!(plain.engine(), None);
    }

    #[test]
    fn gradients_change_neither_engine_nor_layout() {
        let exact = Compute::cpu_exact();
        assert_eq!(exact.engine(), Some(Engine { winograd: false, ..Engine::default() }));
        assert_eq!(Compute::cpu().engine(), Some(Engine { winograd: true, ..Engine::default() }));
        let graph = exact.autodiff();
        assert_eq!([&exact, &graph, &graph.inner()].map(|c| c.device().is_autodiff()), [false, true, false]);
        assert_eq!([&graph, &graph.inner()].map(Compute::engine), [exact.engine(); 2]);
        assert_eq!(Compute::plain(Device::flex()).autodiff().layout(), Layout::ChannelsFirst);
    }
}
