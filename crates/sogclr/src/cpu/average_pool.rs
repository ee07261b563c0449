//! The mean over 2×2 pixels, with which CLIP's ResNets make images smaller.

use super::flex::{FlexTensor, dims, packed, pooled, values};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use sogclr_kernels::Buffer;

/// The operation.
#[backend_extension(Flex, Autodiff)]
pub trait AveragePool: Backend {
    fn average_pool(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Its gradient, on a backend that holds values.
pub trait AveragePoolGrad: AveragePool {
    fn average_pool_backward(dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// x `[n, h, w, c]` of even sides → `[n, h/2, w/2, c]`
pub(crate) fn average_pool(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as AveragePool>::average_pool(x.into_dispatch()))
}

impl AveragePool for Flex {
    fn average_pool(x: FlexTensor) -> FlexTensor {
        let x = packed(x);
        let shape = dims(&x);
        let (n, h, w, c) = (shape[0], shape[1], shape[2], shape[3]);
        let mut y = Buffer::new(n * h / 2 * (w / 2) * c);
        sogclr_kernels::average_pool(w, c, values(&x), &mut y);
        pooled(y, &[n, h / 2, w / 2, c])
    }
}

impl AveragePoolGrad for Flex {
    fn average_pool_backward(dy: FlexTensor) -> FlexTensor {
        let dy = packed(dy);
        let shape = dims(&dy);
        let (n, h, w, c) = (shape[0], 2 * shape[1], 2 * shape[2], shape[3]);
        let mut dx = Buffer::new(n * h * w * c);
        sogclr_kernels::average_pool_grad(w, c, values(&dy), &mut dx);
        pooled(dx, &[n, h, w, c])
    }
}

#[derive(Debug)]
struct AveragePoolBackward;

impl<B: AveragePoolGrad> Backward<B, 1> for AveragePoolBackward {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::average_pool_backward(dy));
        }
    }
}

impl<B: AveragePoolGrad, C: CheckpointStrategy> AveragePool for Autodiff<B, C> {
    fn average_pool(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let y = B::average_pool(x);
        match Backward::<B, 1>::prepare::<C>(AveragePoolBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
