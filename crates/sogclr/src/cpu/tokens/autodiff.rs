//! The operations on burn's autodiff graph, with their gradients.

use super::ops::{Branch, BranchState, Tokens, TokensGrad};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use sogclr_kernels::Isa;

#[derive(Debug)]
struct NormBackward;

impl<B: TokensGrad> Backward<B, 3> for NormBackward {
    /// x, weight, ε, instructions
    type State = (FloatTensor<B>, FloatTensor<B>, f64, Isa);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (x, weight, epsilon, isa) = ops.state;
        let all = B::token_norm_backward(x, weight, dy, epsilon, isa);
        for (node, grad) in ops.parents.into_iter().zip(all) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

#[derive(Debug)]
struct BranchBackward;

impl<B: TokensGrad> Backward<B, 7> for BranchBackward {
    type State = BranchState<B>;

    fn backward(self, ops: Ops<Self::State, 7>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let all = B::branch_backward(ops.state, dy);
        for (node, grad) in ops.parents.into_iter().zip(all) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

impl<B: TokensGrad, C: CheckpointStrategy> Tokens for Autodiff<B, C> {
    fn token_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
        isa: Isa,
    ) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node), (bias, bias_node)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let y = B::token_norm(x.clone(), weight.clone(), bias, epsilon, isa);
        let nodes = [x_node, weight_node, bias_node];
        match Backward::<B, 3>::prepare::<C>(NormBackward, nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, weight, epsilon, isa), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn branch(
        x: FloatTensor<Self>,
        norm_weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        first_weight: FloatTensor<Self>,
        first_bias: FloatTensor<Self>,
        second_weight: FloatTensor<Self>,
        second_bias: FloatTensor<Self>,
        branch: Branch,
    ) -> FloatTensor<Self> {
        let tensors = [x, norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias];
        let [x, b, c, d, e, f, g] = tensors.map(|tensor| tensor.into_parts());
        let nodes = [x.1, b.1, c.1, d.1, e.1, f.1, g.1];
        let (y, state) = B::branch_forward([x.0, b.0, c.0, d.0, e.0, f.0, g.0], branch);
        match Backward::<B, 7>::prepare::<C>(BranchBackward, nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(state, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
