//! The operations on burn's autodiff graph, with their gradients.

use super::meeting::{MeetBackward, Meeting};
use super::ops::{ChannelsLast, ChannelsLastGrad, Norm, NormGrads};
use super::recipe::{Ingredients, Recipe};
use crate::comm::Group;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, TensorMetadata};
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

/// y, mean, var
type NormOutput<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>);

/// Hands the gradients to the parents that want them.
fn register<B: ChannelsLastGrad>(
    grads: &mut Gradients,
    parents: impl IntoIterator<Item = Option<NodeId>>,
    all: impl IntoIterator<Item = Option<FloatTensor<B>>>,
) {
    for (node, grad) in parents.into_iter().zip(all) {
        if let (Some(node), Some(grad)) = (node, grad) {
            grads.register::<B>(node, grad);
        }
    }
}

/// A norm whose input is there, or is made again.
#[derive(Clone, Debug)]
enum Kept<B: ChannelsLastGrad> {
    Whole(Norm<B>),
    /// In the place of x stands the mean, which is small.
    WithoutInput(Norm<B>, Recipe),
}

impl<B: ChannelsLastGrad> Kept<B> {
    fn new(norm: Norm<B>, recipe: Recipe) -> Self {
        match recipe.is_there() {
            true => Self::WithoutInput(Norm { x: norm.mean.clone(), ..norm }, recipe),
            false => Self::Whole(norm),
        }
    }

    fn norm(self) -> Norm<B> {
        match self {
            Self::Whole(norm) => norm,
            Self::WithoutInput(norm, recipe) => Norm { x: recipe.make::<B>(), ..norm },
        }
    }
}

/// N is 3 (x, weight, bias) or 4 (and the residual).
#[derive(Debug)]
struct NormBackward;

impl<B: ChannelsLastGrad, const N: usize> Backward<B, N> for NormBackward {
    /// The norm; its input where a recipe makes it again; the output, where ReLU was applied.
    type State = (Kept<B>, Option<FloatTensor<B>>);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (kept, y) = ops.state;
        let norm = kept.norm();
        let wants_residual = ops.parents.get(3).is_some_and(Option::is_some);
        let NormGrads { x, weight, bias, residual } = B::norm_backward(norm, y, dy, wants_residual);
        register::<B>(
            grads,
            ops.parents.map(|node| node.map(|node| node.id)),
            [Some(x), Some(weight), Some(bias), residual],
        );
    }
}

/// Of a batch norm and the convolution that reads it.
#[derive(Debug)]
struct NormConvBackward;

impl<B: ChannelsLastGrad> Backward<B, 4> for NormConvBackward {
    /// the norm, the convolution's weight, stride, engine
    type State = (Norm<B>, FloatTensor<B>, usize, Engine);

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (norm, conv, stride, engine) = ops.state;
        let (NormGrads { x, weight, bias, .. }, conv) = B::norm_conv_backward(norm, conv, dy, stride, engine);
        register::<B>(grads, ops.parents.map(|node| node.map(|node| node.id)), [x, weight, bias, conv].map(Some));
    }
}

/// Of a batch norm and the maximum of its output.
#[derive(Debug)]
struct NormMaxPoolBackward;

impl<B: ChannelsLastGrad> Backward<B, 3> for NormMaxPoolBackward {
    /// the norm, the maximum
    type State = (Norm<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let NormGrads { x, weight, bias, .. } = B::norm_max_pool_backward(ops.state.0, ops.state.1, dy);
        register::<B>(grads, ops.parents.map(|node| node.map(|node| node.id)), [x, weight, bias].map(Some));
    }
}

/// Puts the output of a batch norm, alone or with what follows, on the graph, with N parents; mean and variance stay off it.
fn track_norm<B: ChannelsLastGrad, C: CheckpointStrategy, R: Backward<B, N>, const N: usize>(
    backward: R,
    nodes: [NodeGuard; N],
    state: R::State,
    (y, mean, var): NormOutput<B>,
) -> NormOutput<Autodiff<B, C>> {
    let y = match backward.prepare::<C>(nodes).compute_bound().stateful() {
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
        let out = B::norm(x.clone(), weight.clone(), bias.clone(), relu, epsilon, isa, group.clone());
        let y = relu.then(|| out.0.clone());
        let norm = Norm { x, weight, bias, mean: out.1.clone(), var: out.2.clone(), epsilon, isa, group };
        track_norm::<B, C, _, 3>(NormBackward, [x_node, weight_node, bias_node], (Kept::Whole(norm), y), out)
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
        recipe: Recipe,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let ((bias, bias_node), (residual, residual_node)) = (bias.into_parts(), residual.into_parts());
        let out = B::norm_add(
            x.clone(),
            weight.clone(),
            bias.clone(),
            residual,
            relu,
            epsilon,
            isa,
            group.clone(),
            recipe.clone(),
        );
        let y = relu.then(|| out.0.clone());
        let norm = Norm { x, weight, bias, mean: out.1.clone(), var: out.2.clone(), epsilon, isa, group };
        let state = (Kept::new(norm, recipe), y);
        track_norm::<B, C, _, 4>(NormBackward, [x_node, weight_node, bias_node, residual_node], state, out)
    }

    fn norm_conv(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        conv: FloatTensor<Self>,
        stride: usize,
        epsilon: f64,
        engine: Engine,
        group: Group,
        recipe: Recipe,
    ) -> NormOutput<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let ((bias, bias_node), (conv, conv_node)) = (bias.into_parts(), conv.into_parts());
        let (a, b, c, d) = (x.clone(), weight.clone(), bias.clone(), conv.clone());
        let out = B::norm_conv(a, b, c, d, stride, epsilon, engine, group.clone(), recipe.clone());
        let (mean, var, isa) = (out.1.clone(), out.2.clone(), engine.isa);
        let norm = Norm { x, weight, bias, mean, var, epsilon, isa, group };
        recipe.write::<B>(|| Ingredients { norm: norm.clone(), conv: conv.clone(), stride, engine });
        let nodes = [x_node, weight_node, bias_node, conv_node];
        track_norm::<B, C, _, 4>(NormConvBackward, nodes, (norm, conv, stride, engine), out)
    }

    fn norm_max_pool(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        isa: Isa,
        group: Group,
    ) -> NormOutput<Self> {
        let ((x, x_node), (weight, weight_node), (bias, bias_node)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let out = B::norm_max_pool(x.clone(), weight.clone(), bias.clone(), epsilon, isa, group.clone());
        let (mean, var, y) = (out.1.clone(), out.2.clone(), out.0.clone());
        let norm = Norm { x, weight, bias, mean, var, epsilon, isa, group };
        track_norm::<B, C, _, 3>(NormMaxPoolBackward, [x_node, weight_node, bias_node], (norm, y), out)
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
