//! Where the graph of a forward pass is cut, so that its backward pass comes in parts: while one part runs, the gradients of
//! the one before it are already on their way to the other ranks.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, autodiff, backend_extension};
use burn::tensor::{Gradients, Tensor};

/// The cuts of a step's forward passes, by stage.
#[derive(Default)]
pub struct Cuts(Vec<Vec<Cut>>);

struct Cut {
    /// The end of the earlier part.
    end: Tensor<1>,
    /// The same values, where the later part begins.
    start: Tensor<1>,
}

impl Cuts {
    /// Cuts before `stage`.
    pub(super) fn cut<const D: usize>(&mut self, stage: usize, x: Tensor<D>) -> Tensor<D> {
        if !x.is_autodiff() {
            return x;
        }
        let (shape, end) = (x.dims(), x.reshape([-1]));
        let start = end.clone().detach().require_grad();
        if self.0.len() <= stage {
            self.0.resize_with(stage + 1, Vec::new);
        }
        self.0[stage].push(Cut { end, start: start.clone() });
        start.reshape(shape)
    }

    /// The backward pass of the part before the one that `gradients` are of. `None` at the first part of all.
    pub fn pull_back(&mut self, gradients: &mut Gradients) -> Option<Gradients> {
        while let Some(cuts) = self.0.pop() {
            let seeds =
                cuts.into_iter().filter_map(|Cut { end, start }| Some(seed(end, start.grad_remove(gradients)?)));
            if let Some(seeds) = seeds.reduce(|sum, seed| sum + seed) {
                return Some(seeds.backward());
            }
        }
        None
    }
}

/// A zero whose gradient with respect to `x` is `dx`.
fn seed(x: Tensor<1>, dx: Tensor<1>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as Seed>::zero_with_gradient(x.into_dispatch(), dx.into_dispatch()))
}

#[backend_extension(Flex, Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
trait Seed: Backend {
    fn zero_with_gradient(x: FloatTensor<Self>, dx: FloatTensor<Self>) -> FloatTensor<Self> {
        let _ = dx;
        Self::float_zeros([1].into(), &x.device(), x.dtype().into())
    }
}

impl Seed for burn::backend::Flex {}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Seed for burn::backend::Cube {}

#[derive(Debug)]
struct SeedBackward;

impl<B: Seed> Backward<B, 1> for SeedBackward {
    /// dx
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut autodiff::grads::Gradients, _: &mut Checkpointer) {
        grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, ops.state);
        }
    }
}

impl<B: Seed, C: CheckpointStrategy> Seed for Autodiff<B, C> {
    fn zero_with_gradient(x: FloatTensor<Self>, dx: FloatTensor<Self>) -> FloatTensor<Self> {
        let ((x, node), (dx, _)) = (x.into_parts(), dx.into_parts());
        let zero = B::zero_with_gradient(x, dx.clone());
        match Backward::<B, 1>::prepare::<C>(SeedBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(dx, zero),
            OpsKind::UnTracked(prep) => prep.finish(zero),
        }
    }
}
