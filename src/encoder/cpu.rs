//! The CPU path: channel-last activations through `sogclr-kernels`, as operations that burn's autodiff knows.
//!
//! On every other backend the same layers run as plain burn operations on channel-first activations.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, DispatchDevice, Flex, backend_extension};
use burn::tensor::{Device, Tensor, TensorData};
use sogclr_kernels::{
    Conv, NormStats, conv2d, conv2d_input_grad, conv2d_weight_grad, norm_apply, norm_backward, norm_stats,
};

/// Whether activations on `device` are `[n, h, w, c]`.
pub(super) fn is_channels_last(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}

/// x ∗ weight with padding k/2; x `[n, h, w, ci]`, weight `[co, ci, k, k]`.
pub(super) fn conv(x: Tensor<4>, weight: Tensor<4>, stride: usize) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as ChannelsLast>::conv_last(x.into_dispatch(), weight.into_dispatch(), stride))
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

/// The operations that our kernels compute.
#[backend_extension(Flex, Autodiff)]
pub trait ChannelsLast: Backend {
    fn conv_last(x: FloatTensor<Self>, weight: FloatTensor<Self>, stride: usize) -> FloatTensor<Self>;

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn norm_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn scale_shift(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        has_residual: bool,
        relu: bool,
    ) -> FloatTensor<Self>;
}

/// Their gradients, on a backend that holds values.
pub trait ChannelsLastGrad: ChannelsLast {
    /// Gradients of x (if wanted, else empty) and weight.
    fn conv_last_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        stride: usize,
        wants_dx: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Gradients of x, weight, bias and residual (empty unless wanted). `y` is the output, ReLU's mask.
    #[allow(clippy::too_many_arguments)] // the inputs of one formula
    fn norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        var: FloatTensor<Self>,
        y: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        relu: bool,
        wants_residual: bool,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

type FlexTensor = FloatTensor<Flex>;

/// The tensor with its values in order.
fn packed(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("a packed f32 tensor")
}

fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.to_vec()))
}

fn dims(tensor: &FlexTensor) -> Vec<usize> {
    tensor.layout().shape().as_slice().to_vec()
}

fn conv_shape(x: &FlexTensor, weight: &FlexTensor, stride: usize) -> Conv {
    let (x, w) = (dims(x), dims(weight));
    Conv { n: x[0], h: x[1], w: x[2], ci: x[3], co: w[0], k: w[2], stride, pad: w[2] / 2 }
}

fn norm_forward(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
    relu: bool,
    epsilon: f64,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (x, weight, bias, residual) = (packed(x), packed(weight), packed(bias), residual.map(packed));
    let channels = values(&weight).len();
    let stats = norm_stats(values(&x), channels);
    let scale: Vec<f32> =
        values(&weight).iter().zip(&stats.var).map(|(w, var)| w / (var + epsilon as f32).sqrt()).collect();
    let shift: Vec<f32> = (0..channels).map(|c| values(&bias)[c] - stats.mean[c] * scale[c]).collect();
    let mut y = vec![0.0; values(&x).len()];
    norm_apply(values(&x), residual.as_ref().map(values), &scale, &shift, relu, &mut y);
    (tensor(y, &dims(&x)), tensor(stats.mean, &[channels]), tensor(stats.var, &[channels]))
}

impl ChannelsLast for Flex {
    fn conv_last(x: FlexTensor, weight: FlexTensor, stride: usize) -> FlexTensor {
        let (x, weight) = (packed(x), packed(weight));
        let shape = conv_shape(&x, &weight, stride);
        let mut y = vec![0.0; shape.y_len()];
        conv2d(shape, values(&x), values(&weight), &mut y);
        let (h, w) = shape.out();
        tensor(y, &[shape.n, h, w, shape.co])
    }

    fn norm(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        relu: bool,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        norm_forward(x, weight, bias, None, relu, epsilon)
    }

    fn norm_add(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: FlexTensor,
        relu: bool,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        norm_forward(x, weight, bias, Some(residual), relu, epsilon)
    }

    fn scale_shift(
        x: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        residual: FlexTensor,
        has_residual: bool,
        relu: bool,
    ) -> FlexTensor {
        let (x, scale, shift, residual) = (packed(x), packed(scale), packed(shift), packed(residual));
        let mut y = vec![0.0; values(&x).len()];
        let residual = has_residual.then(|| values(&residual));
        norm_apply(values(&x), residual, values(&scale), values(&shift), relu, &mut y);
        tensor(y, &dims(&x))
    }
}

impl ChannelsLastGrad for Flex {
    fn conv_last_backward(
        x: FlexTensor,
        weight: FlexTensor,
        dy: FlexTensor,
        stride: usize,
        wants_dx: bool,
    ) -> (FlexTensor, FlexTensor) {
        let (x, weight, dy) = (packed(x), packed(weight), packed(dy));
        let shape = conv_shape(&x, &weight, stride);
        let mut dw = vec![0.0; shape.w_len()];
        conv2d_weight_grad(shape, values(&x), values(&dy), &mut dw);
        let dw = tensor(dw, &dims(&weight));
        if !wants_dx {
            return (tensor(Vec::new(), &[0]), dw);
        }
        let mut dx = vec![0.0; shape.x_len()];
        conv2d_input_grad(shape, values(&dy), values(&weight), &mut dx);
        (tensor(dx, &dims(&x)), dw)
    }

    fn norm_backward(
        x: FlexTensor,
        weight: FlexTensor,
        mean: FlexTensor,
        var: FlexTensor,
        y: FlexTensor,
        dy: FlexTensor,
        relu: bool,
        wants_residual: bool,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let (x, weight, y, dy) = (packed(x), packed(weight), packed(y), packed(dy));
        let stats = NormStats { mean: values(&packed(mean)).to_vec(), var: values(&packed(var)).to_vec() };
        let len = values(&x).len();
        let (mut dx, mut residual) = (vec![0.0; len], vec![0.0; if wants_residual { len } else { 0 }]);
        let grad = norm_backward(
            values(&x),
            relu.then(|| values(&y)),
            values(&dy),
            &stats,
            values(&weight),
            epsilon as f32,
            &mut dx,
            wants_residual.then_some(residual.as_mut_slice()),
        );
        let (shape, channels) = (dims(&x), stats.mean.len());
        let residual_shape = if wants_residual { shape.clone() } else { vec![0] };
        (
            tensor(dx, &shape),
            tensor(grad.weight, &[channels]),
            tensor(grad.bias, &[channels]),
            tensor(residual, &residual_shape),
        )
    }
}

#[derive(Debug)]
struct ConvBackward;

impl<B: ChannelsLastGrad> Backward<B, 2> for ConvBackward {
    type State = (FloatTensor<B>, FloatTensor<B>, usize);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let [x_node, weight_node] = ops.parents;
        let dy = grads.consume::<B>(&ops.node);
        let (x, weight, stride) = ops.state;
        let (dx, dw) = B::conv_last_backward(x, weight, dy, stride, x_node.is_some());
        if let Some(node) = x_node {
            grads.register::<B>(node.id, dx);
        }
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, dw);
        }
    }
}

/// x, weight, mean, var, y, relu, epsilon
type NormState<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, bool, f64);

/// y, mean, var
type NormOutput<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>);

/// N is 3 (x, weight, bias) or 4 (and the residual).
#[derive(Debug)]
struct NormBackward;

impl<B: ChannelsLastGrad, const N: usize> Backward<B, N> for NormBackward {
    type State = NormState<B>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (x, weight, mean, var, y, relu, epsilon) = ops.state;
        let wants_residual = ops.parents.get(3).is_some_and(Option::is_some);
        let (dx, dweight, dbias, dresidual) =
            B::norm_backward(x, weight, mean, var, y, dy, relu, wants_residual, epsilon);
        for (node, grad) in ops.parents.into_iter().zip([dx, dweight, dbias, dresidual]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// Puts the output of a batch norm on the graph, with N parents; mean and variance stay off it.
fn track_norm<B: ChannelsLastGrad, C: CheckpointStrategy, const N: usize>(
    nodes: [NodeGuard; N],
    state: NormState<B>,
) -> NormOutput<Autodiff<B, C>> {
    let (_, _, mean, var, y, ..) = state.clone();
    let y = match Backward::<B, N>::prepare::<C>(NormBackward, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    };
    (y, Autodiff::<B, C>::from_inner(mean), Autodiff::<B, C>::from_inner(var))
}

impl<B: ChannelsLastGrad, C: CheckpointStrategy> ChannelsLast for Autodiff<B, C> {
    fn conv_last(x: FloatTensor<Self>, weight: FloatTensor<Self>, stride: usize) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let y = B::conv_last(x.clone(), weight.clone(), stride);
        match Backward::<B, 2>::prepare::<C>(ConvBackward, [x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, weight, stride), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, x_node), (weight, weight_node), (bias, bias_node)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let (y, mean, var) = B::norm(x.clone(), weight.clone(), bias, relu, epsilon);
        let state = (x, weight, mean, var, y, relu, epsilon);
        track_norm::<B, C, 3>([x_node, weight_node, bias_node], state)
    }

    fn norm_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let ((bias, bias_node), (residual, residual_node)) = (bias.into_parts(), residual.into_parts());
        let (y, mean, var) = B::norm_add(x.clone(), weight.clone(), bias, residual, relu, epsilon);
        let state = (x, weight, mean, var, y, relu, epsilon);
        track_norm::<B, C, 4>([x_node, weight_node, bias_node, residual_node], state)
    }

    fn scale_shift(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        has_residual: bool,
        relu: bool,
    ) -> FloatTensor<Self> {
        let inner = |tensor: FloatTensor<Self>| tensor.into_parts().0;
        Self::from_inner(B::scale_shift(inner(x), inner(scale), inner(shift), inner(residual), has_residual, relu))
    }
}
