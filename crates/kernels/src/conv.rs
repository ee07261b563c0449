//! Convolutions on channel-last activations `[n, h, w, c]` with PyTorch's weights `[co, ci, k, k]`: forward, input
//! gradient and weight gradient, any size, stride and padding.
//!
//! 3×3 convolutions of stride 1 go through Winograd's F(4×4, 3×3) where that saves work and the [`Engine`] has it, all
//! others are direct sums. Work is cut by the shape alone and sums have a fixed order, so the bytes do not depend on the
//! number of threads.
//!
//! Activations and their gradients are f32 or bf16; weights and their gradients f32. Of bf16 activations direct sums take
//! products of bf16 (`pairs`); Winograd's algorithm computes in f32 between reading and writing, since its transformed
//! values would lose too much in bf16, and is still faster: it needs a quarter of the products, bf16 doubles their speed.

use crate::batch_norm::NormRelu;
use crate::normed::Read;
use crate::{Element, Isa, direct, pairs, pointwise, winograd};

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

    pub(crate) fn check(&self, x: usize, w: usize, y: usize) {
        assert!(self.n > 0, "a convolution needs at least one image");
        assert!(self.stride > 0 && self.k > 0 && self.h + 2 * self.pad >= self.k && self.w + 2 * self.pad >= self.k);
        assert_eq!((x, w, y), (self.x_len(), self.w_len(), self.y_len()), "buffer lengths of {self:?}");
    }

    /// Whether Winograd's algorithm is wanted and saves work.
    pub(crate) fn is_winograd(&self, engine: Engine) -> bool {
        engine.winograd && winograd::suits(self)
    }
}

/// Direct sums of one type of activations.
pub trait DirectSums: Sized {
    /// y = x ∗ w
    fn forward(isa: Isa, conv: Conv, x: &[Self], weight: &[f32], y: &mut [Self]);

    /// dx
    fn input_grad(isa: Isa, conv: Conv, dy: &[Self], weight: &[f32], dx: &mut [Self]);

    /// dw
    fn weight_grad(isa: Isa, conv: Conv, x: &[Self], dy: &[Self], dw: &mut [f32]);

    /// y = norm(x) ∗ w of a 1×1 convolution of stride 1 whose input channels are whole lanes
    fn forward_of_norm(isa: Isa, conv: Conv, x: &[Self], norm: NormRelu, weight: &[f32], y: &mut [Self]);

    /// dw of such a one
    fn weight_grad_of_norm(isa: Isa, conv: Conv, x: &[Self], norm: NormRelu, dy: &[Self], dw: &mut [f32]);
}

fn is_pointwise(conv: &Conv) -> bool {
    conv.k == 1 && conv.pad == 0
}

impl DirectSums for f32 {
    fn forward(isa: Isa, conv: Conv, x: &[f32], weight: &[f32], y: &mut [f32]) {
        if is_pointwise(&conv) {
            return pointwise::forward(isa, conv, x, weight, y);
        }
        direct::forward(isa, conv, Read::as_is(x), weight, y);
    }

    fn input_grad(isa: Isa, conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
        let way = if is_pointwise(&conv) { pointwise::input_grad } else { direct::input_grad };
        way(isa, conv, dy, weight, dx);
    }

    fn weight_grad(isa: Isa, conv: Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
        if is_pointwise(&conv) {
            return pointwise::weight_grad(isa, conv, x, dy, dw);
        }
        direct::weight_grad(isa, conv, Read::as_is(x), dy, dw);
    }

    fn forward_of_norm(isa: Isa, conv: Conv, x: &[f32], norm: NormRelu, weight: &[f32], y: &mut [f32]) {
        direct::forward(isa, pointwise::pixels(conv), Read { values: x, norm: Some(norm) }, weight, y);
    }

    fn weight_grad_of_norm(isa: Isa, conv: Conv, x: &[f32], norm: NormRelu, dy: &[f32], dw: &mut [f32]) {
        direct::weight_grad(isa, pointwise::pixels(conv), Read { values: x, norm: Some(norm) }, dy, dw);
    }
}

impl DirectSums for half::bf16 {
    fn forward(isa: Isa, conv: Conv, x: &[Self], weight: &[f32], y: &mut [Self]) {
        pairs::forward(isa, conv, Read::as_is(x), weight, y);
    }

    fn input_grad(isa: Isa, conv: Conv, dy: &[Self], weight: &[f32], dx: &mut [Self]) {
        pairs::input_grad(isa, conv, dy, weight, dx);
    }

    fn weight_grad(isa: Isa, conv: Conv, x: &[Self], dy: &[Self], dw: &mut [f32]) {
        pairs::weight_grad(isa, conv, Read::as_is(x), dy, dw);
    }

    fn forward_of_norm(isa: Isa, conv: Conv, x: &[Self], norm: NormRelu, weight: &[f32], y: &mut [Self]) {
        pairs::forward(isa, conv, Read { values: x, norm: Some(norm) }, weight, y);
    }

    fn weight_grad_of_norm(isa: Isa, conv: Conv, x: &[Self], norm: NormRelu, dy: &[Self], dw: &mut [f32]) {
        pairs::weight_grad(isa, conv, Read { values: x, norm: Some(norm) }, dy, dw);
    }
}

/// y = x ∗ w. `y` is overwritten.
pub fn conv2d<T: Element>(engine: Engine, conv: Conv, x: &[T], weight: &[f32], y: &mut [T]) {
    conv.check(x.len(), weight.len(), y.len());
    if conv.is_winograd(engine) {
        return winograd::forward(engine.isa, conv, Read::as_is(x), weight, y);
    }
    T::forward(engine.isa, conv, x, weight, y);
}

/// dx = the gradient of the input. `dx` is overwritten.
pub fn conv2d_input_grad<T: Element>(engine: Engine, conv: Conv, dy: &[T], weight: &[f32], dx: &mut [T]) {
    conv.check(dx.len(), weight.len(), dy.len());
    let way = if conv.is_winograd(engine) { winograd::input_grad } else { T::input_grad };
    way(engine.isa, conv, dy, weight, dx);
}

/// dw = the gradient of the weights, `[co, ci, k, k]`. `dw` is overwritten.
pub fn conv2d_weight_grad<T: Element>(engine: Engine, conv: Conv, x: &[T], dy: &[T], dw: &mut [f32]) {
    conv.check(x.len(), dw.len(), dy.len());
    if conv.is_winograd(engine) {
        return winograd::weight_grad(engine.isa, conv, Read::as_is(x), dy, dw);
    }
    T::weight_grad(engine.isa, conv, x, dy, dw);
}
