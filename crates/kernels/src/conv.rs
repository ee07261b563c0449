//! Convolutions on channel-last activations `[n, h, w, c]` with PyTorch's weights `[co, ci, k, k]`: forward, input
//! gradient and weight gradient, any size, stride and padding.
//!
//! 3×3 convolutions of stride 1 go through Winograd's F(4×4, 3×3) where that saves work and the [`Engine`] has it, all
//! others are direct sums. Work is cut by the shape alone and sums have a fixed order, so the bytes do not depend on the
//! number of threads.

use crate::{Isa, direct, pointwise, winograd};

/// Channels in one block of lanes.
pub(crate) const LANES: usize = 16;

/// How convolutions are computed. Another engine may round otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The instruction set.
    pub isa: Isa,
    /// Winograd's algorithm where it saves work; without it all are direct sums, which round less, at half the speed or
    /// less.
    pub winograd: bool,
}

/// The fastest: the best instruction set, and Winograd's algorithm.
impl Default for Engine {
    fn default() -> Self {
        Self { isa: Isa::best(), winograd: true }
    }
}

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Images.
    pub n: usize,
    /// Height of the input.
    pub h: usize,
    /// Width of the input.
    pub w: usize,
    /// Input channels.
    pub ci: usize,
    /// Output channels.
    pub co: usize,
    /// Side of the square kernel.
    pub k: usize,
    /// Input pixels from one output to the next.
    pub stride: usize,
    /// Zeros on each side of the input.
    pub pad: usize,
}

impl Conv {
    /// Height and width of the output.
    pub fn out(&self) -> (usize, usize) {
        let side = |x: usize| (x + 2 * self.pad - self.k) / self.stride + 1;
        (side(self.h), side(self.w))
    }

    /// Values of the input: n·h·w·ci.
    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.ci
    }

    /// Values of the output: n·h'·w'·co with (h', w') = [`Conv::out`].
    pub fn y_len(&self) -> usize {
        let (ho, wo) = self.out();
        self.n * ho * wo * self.co
    }

    /// Weights: co·ci·k².
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

    fn way(&self, engine: Engine) -> Way {
        if engine.winograd && winograd::suits(self) {
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
pub fn conv2d(engine: Engine, conv: Conv, x: &[f32], weight: &[f32], y: &mut [f32]) {
    conv.check(x.len(), weight.len(), y.len());
    match conv.way(engine) {
        Way::Winograd => winograd::forward(engine.isa, conv, x, weight, y),
        Way::Pointwise => pointwise::forward(engine.isa, conv, x, weight, y),
        Way::Direct => direct::forward(engine.isa, conv, x, weight, y),
    }
}

/// dx = the gradient of the input. `dx` is overwritten.
pub fn conv2d_input_grad(engine: Engine, conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
    conv.check(dx.len(), weight.len(), dy.len());
    match conv.way(engine) {
        Way::Winograd => winograd::input_grad(engine.isa, conv, dy, weight, dx),
        Way::Pointwise => pointwise::input_grad(engine.isa, conv, dy, weight, dx),
        Way::Direct => direct::input_grad(engine.isa, conv, dy, weight, dx),
    }
}

/// dw = the gradient of the weights, `[co, ci, k, k]`. `dw` is overwritten.
pub fn conv2d_weight_grad(engine: Engine, conv: Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    conv.check(x.len(), dw.len(), dy.len());
    match conv.way(engine) {
        Way::Winograd => winograd::weight_grad(engine.isa, conv, x, dy, dw),
        Way::Pointwise => pointwise::weight_grad(engine.isa, conv, x, dy, dw),
        Way::Direct => direct::weight_grad(engine.isa, conv, x, dy, dw),
    }
}
