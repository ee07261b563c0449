//! The CPU path: channel-last activations through `sogclr-kernels`, as operations that burn's autodiff knows.
//!
//! On every other backend the same layers run as plain burn operations on channel-first activations. Which of the two a layer
//! takes, and with which [`Engine`], is a field of the layer.

mod autodiff;
mod flex;
mod meeting;
mod norm;
mod ops;
mod recipe;
mod tokens;

pub(crate) use flex::in_place;
pub(crate) use sogclr_kernels::Activation;
pub use sogclr_kernels::{Engine, Isa};
pub(crate) use tokens::{Inner, branch, layer_norm};

use crate::comm::Group;
use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{Device, Tensor};
use meeting::Meeting;
use ops::ChannelsLast;
pub use recipe::Recipe;

fn is_cpu(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}

/// x ∗ weight with padding k/2; x `[n, h, w, ci]`, weight `[co, ci, k, k]`.
pub(crate) fn conv(x: Tensor<4>, weight: Tensor<4>, stride: usize, engine: Engine) -> Tensor<4> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::conv_last(x, weight, stride, engine))
}

/// x for two layers, both of which lead to what is differentiated: their gradients are added by our kernels.
pub(crate) fn fork(x: Tensor<4>, engine: Engine) -> [Tensor<4>; 2] {
    let meeting = Meeting::default();
    let meet = |x: Tensor<4>| {
        Tensor::from_dispatch(<Dispatch as ChannelsLast>::meet(x.into_dispatch(), meeting.clone(), engine.isa))
    };
    [meet(x.clone()), meet(x)]
}

/// The 3×3 maximum of stride 2 and padding 1; x `[n, h, w, c]`.
pub(crate) fn max_pool(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::max_pool_last(x.into_dispatch()))
}

/// The mean over 2×2 pixels; x `[n, h, w, c]`, sides are even.
pub(crate) fn average_pool(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::average_pool_last(x.into_dispatch()))
}

/// The mean over the pixels; x `[n, h, w, c]` → `[n, c]`.
pub(crate) fn mean_pool(x: Tensor<4>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::mean_pool_last(x.into_dispatch()))
}

/// Output, mean and biased variance of batch norm over all axes but the last, over the batches of all ranks, then the residual, then ReLU.
/// With a residual and the recipe of x, x is not kept for the gradient.
#[expect(clippy::too_many_arguments, reason = "the inputs of one formula")]
pub(crate) fn norm_train<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    residual: Option<Tensor<D>>,
    relu: bool,
    epsilon: f64,
    engine: Engine,
    group: &Group,
    recipe: Recipe,
) -> (Tensor<D>, Tensor<1>, Tensor<1>) {
    let group = group.clone();
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    let (y, mean, var) = match residual {
        None => <Dispatch as ChannelsLast>::norm(x, weight, bias, relu, epsilon, engine.isa, group),
        Some(r) => <Dispatch as ChannelsLast>::norm_add(
            x,
            weight,
            bias,
            r.into_dispatch(),
            relu,
            epsilon,
            engine.isa,
            group,
            recipe,
        ),
    };
    (Tensor::from_dispatch(y), Tensor::from_dispatch(mean), Tensor::from_dispatch(var))
}

/// The weights of a batch norm and where it runs.
pub(crate) struct NormLayer<'a> {
    pub weight: Tensor<1>,
    pub bias: Tensor<1>,
    pub epsilon: f64,
    pub engine: Engine,
    pub group: &'a Group,
}

/// What reads a batch norm's rectified output.
#[expect(clippy::large_enum_variant, reason = "it lives for one call")]
pub(crate) enum Reader {
    /// A convolution with this weight and stride; how its output is made again.
    Conv(Tensor<4>, usize, Recipe),
    /// The 3×3 maximum of stride 2 and padding 1.
    MaxPool,
}

/// What `reader` makes of ReLU(norm(x)), which is not kept, with mean and biased variance as [`norm_train`] has them.
pub(crate) fn norm_read(x: Tensor<4>, norm: NormLayer, reader: Reader) -> (Tensor<4>, Tensor<1>, Tensor<1>) {
    let NormLayer { weight, bias, epsilon, engine, group } = norm;
    let (x, weight, bias, group) = (x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch(), group.clone());
    let (y, mean, var) = match reader {
        Reader::Conv(conv, stride, recipe) => {
            let conv = conv.into_dispatch();
            <Dispatch as ChannelsLast>::norm_conv(x, weight, bias, conv, stride, epsilon, engine, group, recipe)
        }
        Reader::MaxPool => <Dispatch as ChannelsLast>::norm_max_pool(x, weight, bias, epsilon, engine.isa, group),
    };
    (Tensor::from_dispatch(y), Tensor::from_dispatch(mean), Tensor::from_dispatch(var))
}

/// x·scale + shift + residual, then ReLU; for inference.
pub(crate) fn scale_shift<const D: usize>(
    x: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    residual: Option<Tensor<D>>,
    relu: bool,
    engine: Engine,
) -> Tensor<D> {
    let has_residual = residual.is_some();
    let residual = residual.unwrap_or_else(|| x.clone());
    let (x, scale, shift) = (x.inner().into_dispatch(), scale.inner().into_dispatch(), shift.inner().into_dispatch());
    let residual = residual.inner().into_dispatch();
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::scale_shift(
        x,
        scale,
        shift,
        residual,
        has_residual,
        relu,
        engine.isa,
    ))
}
