//! The CPU path: channel-last activations through `sogclr-kernels`, as operations that burn's autodiff knows.
//!
//! On every other backend the same layers run as plain burn operations on channel-first activations.

mod autodiff;
mod flex;
mod ops;

pub(crate) use flex::in_place;

use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{Device, Tensor};
use ops::ChannelsLast;
use std::sync::atomic::{AtomicBool, Ordering};

static PLAIN: AtomicBool = AtomicBool::new(false);

/// Sends the CPU through the plain burn operations of the other backends (`true`), or through our kernels again; for
/// tests and comparisons. A network must run forward and backward under one setting.
pub fn use_plain_operations(on: bool) {
    PLAIN.store(on, Ordering::Relaxed);
}

fn is_cpu(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}

/// Whether activations on `device` are `[n, h, w, c]`.
pub(super) fn is_channels_last(device: &Device) -> bool {
    is_cpu(device) && !PLAIN.load(Ordering::Relaxed)
}

/// x ∗ weight with padding k/2; x `[n, h, w, ci]`, weight `[co, ci, k, k]`.
pub(super) fn conv(x: Tensor<4>, weight: Tensor<4>, stride: usize) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::conv_last(x.into_dispatch(), weight.into_dispatch(), stride))
}

/// The 3×3 maximum of stride 2 and padding 1; x `[n, h, w, c]`.
pub(super) fn max_pool(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::max_pool_last(x.into_dispatch()))
}

/// The mean over the pixels; x `[n, h, w, c]` → `[n, c]`.
pub(super) fn mean_pool(x: Tensor<4>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::mean_pool_last(x.into_dispatch()))
}

/// Output, mean and biased variance of batch norm over all axes but the last, then the residual, then ReLU.
pub(super) fn norm_train<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    residual: Option<Tensor<D>>,
    relu: bool,
    epsilon: f64,
) -> (Tensor<D>, Tensor<1>, Tensor<1>) {
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    let (y, mean, var) = match residual {
        None => <Dispatch as ChannelsLast>::norm(x, weight, bias, relu, epsilon),
        Some(r) => <Dispatch as ChannelsLast>::norm_add(x, weight, bias, r.into_dispatch(), relu, epsilon),
    };
    (Tensor::from_dispatch(y), Tensor::from_dispatch(mean), Tensor::from_dispatch(var))
}

/// x·scale + shift + residual, then ReLU; for inference.
pub(super) fn scale_shift<const D: usize>(
    x: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    residual: Option<Tensor<D>>,
    relu: bool,
) -> Tensor<D> {
    let has_residual = residual.is_some();
    let residual = residual.unwrap_or_else(|| x.clone());
    let (x, scale, shift) = (x.inner().into_dispatch(), scale.inner().into_dispatch(), shift.inner().into_dispatch());
    let residual = residual.inner().into_dispatch();
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::scale_shift(x, scale, shift, residual, has_residual, relu))
}
