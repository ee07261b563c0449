//! 1×1 convolutions: every pixel for itself. A batch is one long list of pixels, and a stride picks some of them.

use crate::buffer::Buffer;
use crate::conv::Conv;
use crate::normed::Read;
use crate::{Isa, direct};
use rayon::prelude::*;

/// y = x ∗ w
pub(crate) fn forward(isa: Isa, conv: Conv, x: &[f32], weight: &[f32], y: &mut [f32]) {
    if conv.stride == 1 {
        return direct::forward(isa, pixels(conv), Read::as_is(x), weight, y);
    }
    direct::forward(isa, pixels(conv), Read::as_is(&picked(conv, x)), weight, y);
}

/// dx: zero where the stride skips a pixel
pub(crate) fn input_grad(isa: Isa, conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
    if conv.stride == 1 {
        return direct::input_grad(isa, pixels(conv), dy, weight, dx);
    }
    let flat = pixels(conv);
    let mut some = Buffer::new(flat.x_len());
    direct::input_grad(isa, flat, dy, weight, &mut some);
    let ((ho, wo), ci) = (conv.out(), conv.ci);
    dx.par_chunks_mut(conv.h * conv.w * ci).zip(some.par_chunks(ho * wo * ci)).for_each(|(dx, some)| {
        dx.fill(0.0);
        for (index, pixel) in some.chunks_exact(ci).enumerate() {
            dx[place(&conv, index)..][..ci].copy_from_slice(pixel);
        }
    });
}

/// dw `[co, ci, 1, 1]`
pub(crate) fn weight_grad(isa: Isa, conv: Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    if conv.stride == 1 {
        return direct::weight_grad(isa, pixels(conv), Read::as_is(x), dy, dw);
    }
    direct::weight_grad(isa, pixels(conv), Read::as_is(&picked(conv, x)), dy, dw);
}

/// The convolution with each output pixel as an image of its own.
pub(crate) fn pixels(conv: Conv) -> Conv {
    let (ho, wo) = conv.out();
    Conv { n: conv.n * ho * wo, h: 1, w: 1, stride: 1, ..conv }
}

/// Where output pixel `index` of an image reads its input.
fn place(conv: &Conv, index: usize) -> usize {
    let (_, wo) = conv.out();
    (index / wo * conv.w + index % wo) * conv.stride * conv.ci
}

/// The pixels that the stride visits.
fn picked(conv: Conv, x: &[f32]) -> Buffer {
    let ((ho, wo), ci) = (conv.out(), conv.ci);
    let mut some = Buffer::new(conv.n * ho * wo * ci);
    some.par_chunks_mut(ho * wo * ci).zip(x.par_chunks(conv.h * conv.w * ci)).for_each(|(some, x)| {
        for (index, pixel) in some.chunks_exact_mut(ci).enumerate() {
            pixel.copy_from_slice(&x[place(&conv, index)..][..ci]);
        }
    });
    some
}
