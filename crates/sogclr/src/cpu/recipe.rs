//! A convolution's output that is made twice: for the batch norm that reads it, and again when that norm's gradient wants it.
//! Between the two only what it is made of is kept, which the convolution keeps anyway.

use super::ops::{ChannelsLastGrad, Norm};
use burn::backend::tensor::FloatTensor;
use sogclr_kernels::Engine;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// What an output is made of, once its convolution has run on the graph; empty until then and off the graph.
#[derive(Clone, Debug, Default)]
pub struct Recipe(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

/// A convolution and the norm that it reads.
#[derive(Clone)]
pub(super) struct Ingredients<B: ChannelsLastGrad> {
    pub norm: Norm<B>,
    pub conv: FloatTensor<B>,
    pub stride: usize,
    pub engine: Engine,
}

impl Recipe {
    pub(super) fn write<B: ChannelsLastGrad>(&self, of: impl FnOnce() -> Ingredients<B>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(of()));
    }

    /// Whether it was written.
    pub(crate) fn is_there(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The output again; the recipe is used up.
    pub(super) fn make<B: ChannelsLastGrad>(&self) -> FloatTensor<B> {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner).take().expect("gradients come back once");
        let written = written.downcast::<Ingredients<B>>().expect("a recipe of the same backend");
        B::norm_conv_again(*written)
    }
}
