//! Where and how a network computes. Nothing about it is global: two models in one process may differ.

use crate::cpu::Engine;
use crate::math::{Isa, Layout};
use burn::tensor::Device;

/// A device, and on the CPU whether our kernels compute, and with which instructions.
#[derive(Clone, Debug)]
pub struct Compute {
    device: Device,
    /// `None`: burn's plain operations on channel-first activations, as on every device but the CPU.
    engine: Option<Engine>,
}

impl Compute {
    /// The CPU with our kernels at their fastest.
    pub fn cpu() -> Self {
        Self::cpu_with(Engine::default())
    }

    /// The CPU with our kernels as `engine` says.
    pub fn cpu_with(engine: Engine) -> Self {
        Self { device: Device::flex(), engine: Some(engine) }
    }

    /// The CPU without Winograd's algorithm, which rounds less and is slower.
    pub fn cpu_exact() -> Self {
        Self::cpu_with(Engine { winograd: false, ..Engine::default() })
    }

    /// Burn's plain operations on any device.
    pub fn plain(device: Device) -> Self {
        Self { device, engine: None }
    }

    /// The same with gradients.
    pub fn autodiff(&self) -> Self {
        Self { device: self.device.clone().autodiff(), engine: self.engine }
    }

    /// The same without gradients.
    pub fn inner(&self) -> Self {
        Self { device: self.device.clone().inner(), engine: self.engine }
    }

    /// The device of tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How our kernels compute, where they do.
    pub fn engine(&self) -> Option<Engine> {
        self.engine
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
