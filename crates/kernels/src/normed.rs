//! Convolutions of what batch norm and ReLU make of their input. That output is made while it is read, forward and again for
//! the weight gradient, and never lies in memory as a whole: it is half of what a network would keep for its backward pass.
//! Its values are those of `norm_apply` to the bit.

use crate::batch_norm::{NormRelu, norm_apply};
use crate::buffer::Buffer;
use crate::conv::{Conv, Engine, LANES, conv2d, conv2d_weight_grad};
use crate::element::Element;
use crate::lanes::{Lanes, load};
use crate::winograd;

/// The values that a convolution reads: as they lie, or normalised and rectified.
#[derive(Clone, Copy)]
pub(crate) struct Read<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) norm: Option<NormRelu<'a>>,
}

impl<'a, T> Read<'a, T> {
    pub(crate) fn as_is(values: &'a [T]) -> Self {
        Self { values, norm: None }
    }

    /// Values that nothing is made of.
    pub(crate) fn as_they_lie(&self) -> &'a [T] {
        assert!(self.norm.is_none(), "this way does not normalise");
        self.values
    }
}

impl NormRelu<'_> {
    /// Scale and shift of sixteen channels.
    #[inline(always)]
    pub(crate) unsafe fn line<V: Lanes>(&self, first: usize) -> (V, V) {
        // SAFETY: the caller has sixteen channels from `first`.
        unsafe { (load(self.scale, first), load(self.shift, first)) }
    }
}

/// max(0, x·scale + shift), as it would be stored; a NaN stays one.
#[inline(always)]
pub(crate) unsafe fn norm_relu<V: Lanes, T: Element>(x: V, (scale, shift): (V, V)) -> V {
    // SAFETY: the caller runs under the instruction set of V.
    unsafe { T::rounded(V::zero().max(x.fma(scale, shift))) }
}

/// y = norm(x) ∗ w. `y` is overwritten.
pub fn conv2d_of_norm<T: Element>(engine: Engine, conv: Conv, x: &[T], norm: NormRelu, weight: &[f32], y: &mut [T]) {
    check(&conv, norm);
    conv.check(x.len(), weight.len(), y.len());
    if conv.is_winograd(engine) {
        winograd::forward(engine.isa, conv, Read { values: x, norm: Some(norm) }, weight, y);
    } else if reads_pixels(&conv) {
        T::forward_of_norm(engine.isa, conv, x, norm, weight, y);
    } else {
        conv2d(engine, conv, &normed(engine, x, norm), weight, y);
    }
}

/// dw = the gradient of the weights, `[co, ci, k, k]`. `dw` is overwritten.
pub fn conv2d_of_norm_weight_grad<T: Element>(
    engine: Engine,
    conv: Conv,
    x: &[T],
    norm: NormRelu,
    dy: &[T],
    dw: &mut [f32],
) {
    check(&conv, norm);
    conv.check(x.len(), dw.len(), dy.len());
    if conv.is_winograd(engine) {
        winograd::weight_grad(engine.isa, conv, Read { values: x, norm: Some(norm) }, dy, dw);
    } else if reads_pixels(&conv) {
        T::weight_grad_of_norm(engine.isa, conv, x, norm, dy, dw);
    } else {
        conv2d_weight_grad(engine, conv, &normed(engine, x, norm), dy, dw);
    }
}

/// Whether direct sums can normalise what they read, a group of pixels at a time.
fn reads_pixels(conv: &Conv) -> bool {
    conv.k == 1 && conv.pad == 0 && conv.stride == 1 && conv.ci.is_multiple_of(LANES)
}

fn check(conv: &Conv, norm: NormRelu) {
    assert_eq!((norm.scale.len(), norm.shift.len()), (conv.ci, conv.ci), "a scale and a shift for each channel");
}

fn normed<T: Element>(engine: Engine, x: &[T], norm: NormRelu) -> Buffer<T> {
    let mut y = Buffer::of(x.len());
    norm_apply(engine.isa, x, None, norm.scale, norm.shift, true, &mut y);
    y
}
