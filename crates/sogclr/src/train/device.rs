//! From a device's name to where tensors are computed.

use super::TrainError;
use crate::config::{ConfigError, DeviceName, TrainConfig, check_precision};
use crate::encoder::Compute;

/// Opens what a run trains on: its device, with activations stored as it says.
pub fn open_for(train: &TrainConfig, local_rank: usize) -> Result<Compute, TrainError> {
    check_precision(train.precision, train.device).map_err(ConfigError::from)?;
    Ok(open_device_of(train.device, local_rank)?.with_precision(train.precision))
}

/// Opens the device, with activations in f32. A GPU that is not there is an error here, not a crash in the first step.
pub fn open_device(name: DeviceName) -> Result<Compute, TrainError> {
    open_device_of(name, 0)
}

/// The device of the `local_rank`-th process of this machine: each takes its own GPU.
pub fn open_device_of(name: DeviceName, local_rank: usize) -> Result<Compute, TrainError> {
    #[cfg(not(any(feature = "wgpu", feature = "cuda")))]
    let _ = local_rank;
    match name {
        DeviceName::Cpu => Ok(Compute::cpu()),
        DeviceName::CpuExact => Ok(Compute::cpu_exact()),
        #[cfg(feature = "wgpu")]
        DeviceName::Wgpu => {
            use burn::tensor::DeviceKind::{DefaultDevice, DiscreteGpu};
            probe("wgpu", || {
                let there = Device::enumerate(DeviceType::Wgpu);
                let gpus = (0..).map(|index| Device::wgpu(DiscreteGpu(index)));
                let gpus: Vec<Device> = gpus.take_while(|gpu| there.contains(gpu)).collect();
                // The first process takes what one process takes; where there are fewer GPUs than processes they share.
                match gpus.len() {
                    count if count > 1 && local_rank > 0 => gpus[local_rank % count].clone(),
                    _ => Device::wgpu(DefaultDevice),
                }
            })
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => probe("cuda", || {
            let count = Device::enumerate(DeviceType::Cuda).iter().count();
            Device::cuda(local_rank % count.max(1))
        }),
        #[cfg(not(feature = "wgpu"))]
        DeviceName::Wgpu => Err(crate::config::ConfigError::Device("wgpu").into()),
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda => Err(crate::config::ConfigError::Device("cuda").into()),
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn::tensor::{Device, DeviceType};

/// Runs one addition on the device: GPU runtimes report a missing driver by a panic at first use, whose own words stand before
/// our error.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn probe(name: &'static str, open: impl FnOnce() -> Device + std::panic::UnwindSafe) -> Result<Compute, TrainError> {
    let outcome = std::panic::catch_unwind(|| {
        let device = open();
        let sum: f32 = burn::tensor::Tensor::<1>::ones([2], &device).sum().into_scalar();
        (device, sum)
    });
    match outcome {
        Ok((device, sum)) if sum == 2.0 => Ok(Compute::plain(device)),
        Ok(_) => Err(TrainError::Device { device: name, cause: "it cannot add".into() }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            let cause = text.unwrap_or_default().lines().next().unwrap_or("no message").to_owned();
            Err(TrainError::Device { device: name, cause })
        }
    }
}
