//! Convolutions on channel-last activations `[n, h, w, c]` with PyTorch's weights `[co, ci, k, k]`: forward, input
//! gradient and weight gradient, any size, stride and padding.
//!
//! 3×3 convolutions of stride 1 go through Winograd's F(4×4, 3×3) where that saves work, all others are direct sums;
//! [`force_direct`] makes those of all. Work is cut by the shape alone and sums have a fixed order, so
//! the bytes do not depend on the number of threads.

use crate::{direct, pointwise, winograd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Channels in one block of lanes.
pub(crate) const LANES: usize = 16;

static DIRECT_ONLY: AtomicBool = AtomicBool::new(false);

/// Turns Winograd's algorithm off (`true`) or on again: direct sums round less, at half the speed or less.
pub fn force_direct(on: bool) {
    DIRECT_ONLY.store(on, Ordering::Relaxed);
}

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub ci: usize,
    pub co: usize,
    /// Side of the square kernel.
    pub k: usize,
    pub stride: usize,
    pub pad: usize,
}

impl Conv {
    /// Height and width of the output.
    pub fn out(&self) -> (usize, usize) {
        let side = |x: usize| (x + 2 * self.pad - self.k) / self.stride + 1;
        (side(self.h), side(self.w))
    }

    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.ci
    }

    pub fn y_len(&self) -> usize {
        let (ho, wo) = self.out();
        self.n * ho * wo * self.co
    }

    pub fn w_len(&self) -> usize {
        self.co * self.ci * self.k * self.k
    }

    /// Additions and multiplications of the direct sum.
    pub fn flops(&self) -> usize {
        2 * self.y_len() * self.ci * self.k * self.k
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        assert!(self.n > 0, "a convolution needs at least one image");
        assert!(self.stride > 0 && self.k > 0 && self.h + 2 * self.pad >= self.k && self.w + 2 * self.pad >= self.k);
        assert_eq!((x, w, y), (self.x_len(), self.w_len(), self.y_len()), "buffer lengths of {self:?}");
    }

    fn way(&self) -> Way {
        if winograd::suits(self) && !DIRECT_ONLY.load(Ordering::Relaxed) {
            Way::Winograd
        } else if self.k == 1 && self.pad == 0 {
            Way::Pointwise
        } else {
            Way::Direct
        }
    }
}

/// How a convolution is computed.
enum Way {
    Winograd,
    Pointwise,
    Direct,
}

/// y = x ∗ w. `y` is overwritten.
pub fn conv2d(conv: Conv, x: &[f32], weight: &[f32], y: &mut [f32]) {
    conv.check(x.len(), weight.len(), y.len());
    match conv.way() {
        Way::Winograd => winograd::forward(conv, x, weight, y),
        Way::Pointwise => pointwise::forward(conv, x, weight, y),
        Way::Direct => direct::forward(conv, x, weight, y),
    }
}

/// dx = the gradient of the input. `dx` is overwritten.
pub fn conv2d_input_grad(conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
    conv.check(dx.len(), weight.len(), dy.len());
    match conv.way() {
        Way::Winograd => winograd::input_grad(conv, dy, weight, dx),
        Way::Pointwise => pointwise::input_grad(conv, dy, weight, dx),
        Way::Direct => direct::input_grad(conv, dy, weight, dx),
    }
}

/// dw = the gradient of the weights, `[co, ci, k, k]`. `dw` is overwritten.
pub fn conv2d_weight_grad(conv: Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    conv.check(x.len(), dw.len(), dy.len());
    match conv.way() {
        Way::Winograd => winograd::weight_grad(conv, x, dy, dw),
        Way::Pointwise => pointwise::weight_grad(conv, x, dy, dw),
        Way::Direct => direct::weight_grad(conv, x, dy, dw),
    }
}
