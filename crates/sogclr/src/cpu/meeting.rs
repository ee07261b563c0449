//! A tensor that two layers read. Burn would add their gradients on one thread, into new memory; here the first waits for the
//! second, and one pass over both adds them where they lie.

use super::ops::ChannelsLastGrad;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use sogclr_kernels::Isa;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// The gradient of one of two uses, until that of the other comes.
#[derive(Clone, Debug, Default)]
pub struct Meeting(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl Meeting {
    /// The sum, once both are there.
    fn join<B: ChannelsLastGrad>(&self, grad: FloatTensor<B>, isa: Isa) -> Option<FloatTensor<B>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = waiting.take() else {
            *waiting = Some(Box::new(grad));
            return None;
        };
        let first = first.downcast::<FloatTensor<B>>().expect("a gradient on the same backend");
        Some(B::add_gradients(*first, grad, isa))
    }
}

/// Of x itself: its gradient goes through the meeting.
#[derive(Debug)]
pub(super) struct MeetBackward;

impl<B: ChannelsLastGrad> Backward<B, 1> for MeetBackward {
    type State = (Meeting, Isa);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (meeting, isa) = ops.state;
        if let ([Some(node)], Some(sum)) = (ops.parents, meeting.join::<B>(dy, isa)) {
            grads.register::<B>(node.id, sum);
        }
    }
}
