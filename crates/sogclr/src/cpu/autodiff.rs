//! The operations on burn's autodiff graph, with their gradients.

use super::meeting::{MeetBackward, Meeting};
use super::ops::{ChannelsLast, ChannelsLastGrad};
use crate::comm::Group;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::DType;
use sogclr_kernels::{Engine, Isa};

#[derive(Debug)]
struct ConvBackward;

impl<B: ChannelsLastGrad> Backward<B, 2> for ConvBackward {
    /// x, weight, stride, engine
    type State = (FloatTensor<B>, FloatTensor<B>, usize, Engine);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let [x_node, weight_node] = ops.parents;
        let dy = grads.consume::<B>(&ops.node);
        let (x, weight, stride, engine) = ops.state;
        let (dx, dw) = B::conv_last_backward(x, weight, dy, stride, engine, x_node.is_some());
        for (node, grad) in [(x_node, dx), (weight_node, Some(dw))] {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

#[derive(Debug)]
struct MaxPoolBackward;

impl<B: ChannelsLastGrad> Backward<B, 1> for MaxPoolBackward {
    /// x, y
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (x, y) = ops.state;
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::max_pool_last_backward(x, y, dy));
        }
    }
}

#[derive(Debug)]
struct AveragePoolBackward;

impl<B: ChannelsLastGrad> Backward<B, 1> for AveragePoolBackward {
    type State = ();

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::average_pool_last_backward(dy));
        }
    }
}

#[derive(Debug)]
struct MeanPoolBackward;

impl<B: ChannelsLastGrad> Backward<B, 1> for MeanPoolBackward {
    /// The input's shape and type.
    type State = ([usize; 4], DType);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::mean_pool_last_backward(dy, ops.state.0, ops.state.1));
        }
    }
}

/// What a batch norm keeps for its gradient.
#[derive(Clone, Debug)]
struct NormState<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    mean: FloatTensor<B>,
    var: FloatTensor<B>,
    /// The output, where ReLU was applied.
    y: Option<FloatTensor<B>>,
    epsilon: f64,
    isa: Isa,
    /// The ranks that share the batch.
    group: Group,
}

/// y, mean, var
type NormOutput<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>);

/// N is 3 (x, weight, bias) or 4 (and the residual).
#[derive(Debug)]
struct NormBackward;

impl<B: ChannelsLastGrad, const N: usize> Backward<B, N> for NormBackward {
    type State = NormState<B>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let NormState { x, weight, mean, var, y, epsilon, isa, group } = ops.state;
        let wants_residual = ops.parents.get(3).is_some_and(Option::is_some);
        let grad = B::norm_backward(x, weight, mean, var, y, dy, wants_residual, epsilon, isa, &group);
        let all = [Some(grad.x), Some(grad.weight), Some(grad.bias), grad.residual];
        for (node, grad) in ops.parents.into_iter().zip(all) {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// Puts the output of a batch norm on the graph, with N parents; mean and variance stay off it.
fn track_norm<B: ChannelsLastGrad, C: CheckpointStrategy, const N: usize>(
    nodes: [NodeGuard; N],
    state: NormState<B>,
    y: FloatTensor<B>,
) -> NormOutput<Autodiff<B, C>> {
    let (mean, var) = (state.mean.clone(), state.var.clone());
    let y = match Backward::<B, N>::prepare::<C>(NormBackward, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    };
    (y, Autodiff::<B, C>::from_inner(mean), Autodiff::<B, C>::from_inner(var))
}

impl<B: ChannelsLastGrad, C: CheckpointStrategy> ChannelsLast for Autodiff<B, C> {
    fn conv_last(x: FloatTensor<Self>, weight: FloatTensor<Self>, stride: usize, engine: Engine) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let y = B::conv_last(x.clone(), weight.clone(), stride, engine);
        match Backward::<B, 2>::prepare::<C>(ConvBackward, [x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, weight, stride, engine), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn max_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let y = B::max_pool_last(x.clone());
        match Backward::<B, 1>::prepare::<C>(MaxPoolBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, y.clone()), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn average_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let y = B::average_pool_last(x);
        match Backward::<B, 1>::prepare::<C>(AveragePoolBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn mean_pool_last(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let state = (x.shape().dims(), x.dtype());
        let y = B::mean_pool_last(x);
        match Backward::<B, 1>::prepare::<C>(MeanPoolBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(state, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, x_node), (weight, weight_node), (bias, bias_node)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let (y, mean, var) = B::norm(x.clone(), weight.clone(), bias, relu, epsilon, isa, group.clone());
        let state = NormState { x, weight, mean, var, y: relu.then(|| y.clone()), epsilon, isa, group };
        track_norm::<B, C, 3>([x_node, weight_node, bias_node], state, y)
    }

    fn norm_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        relu: bool,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let ((bias, bias_node), (residual, residual_node)) = (bias.into_parts(), residual.into_parts());
        let (y, mean, var) = B::norm_add(x.clone(), weight.clone(), bias, residual, relu, epsilon, isa, group.clone());
        let state = NormState { x, weight, mean, var, y: relu.then(|| y.clone()), epsilon, isa, group };
        track_norm::<B, C, 4>([x_node, weight_node, bias_node, residual_node], state, y)
    }

    fn meet(x: FloatTensor<Self>, meeting: Meeting, isa: Isa) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match Backward::<B, 1>::prepare::<C>(MeetBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((meeting, isa), x),
            OpsKind::UnTracked(prep) => prep.finish(x),
        }
    }

    fn scale_shift(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        has_residual: bool,
        relu: bool,
        isa: Isa,
    ) -> FloatTensor<Self> {
        let inner = |tensor: FloatTensor<Self>| tensor.into_parts().0;
        Self::from_inner(B::scale_shift(inner(x), inner(scale), inner(shift), inner(residual), has_residual, relu, isa))
    }
}
