//! Σ over the ranks as an operation of the graph, on every device: values and gradients go by the host.

use crate::comm::{Collective, Group};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_std::reader::try_read_sync;

/// y = Σ_r x_r, the same on every rank.
pub(super) fn rank_sum(x: Tensor<1>, group: &Group) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as RankSum>::rank_sum(x.into_dispatch(), group.clone()))
}

#[backend_extension(Flex, Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
trait RankSum: Backend {
    fn rank_sum(x: FloatTensor<Self>, group: Group) -> FloatTensor<Self> {
        let device = x.device();
        let data = try_read_sync(Self::float_into_data(x)).expect("a device that answers at once").expect("values");
        let (mut values, shape) = (data.try_to_vec::<f32>().expect("f32"), data.shape());
        group.sum(&mut values);
        Self::float_from_data(TensorData::new(values, shape), &device)
    }
}

impl RankSum for burn::backend::Flex {}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl RankSum for burn::backend::Cube {}

#[derive(Debug)]
struct RankSumBackward;

impl<B: RankSum> Backward<B, 1> for RankSumBackward {
    type State = Group;

    /// Every rank's loss depends on x: ∂(Σ_r L_r)/∂x = Σ_r ∂L_r/∂y.
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        // Every rank takes part, whether or not its own x has a gradient.
        let dx = B::rank_sum(dy, ops.state);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, dx);
        }
    }
}

impl<B: RankSum, C: CheckpointStrategy> RankSum for Autodiff<B, C> {
    fn rank_sum(x: FloatTensor<Self>, group: Group) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let y = B::rank_sum(x, group.clone());
        match Backward::<B, 1>::prepare::<C>(RankSumBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(group, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
