//! Colour operations on three planes of [0, 1], several in one pass: a block of pixels stays in the cache for all of them.
//!
//! Loops over arrays of one length, which the compiler turns into the lanes of each instruction set. There is no fused
//! multiply–add and no sum whose order matters, so every instruction set gives the bytes of the plain formulas.

use crate::isa::{Isa, dispatch};
use crate::lanes::Lanes;

/// One operation. f is its factor, x the value, l(x) the pixel's luma; each result is clipped to [0, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Colour {
    /// f·x
    Brightness(f32),
    /// f·x + shift, with shift = (1−f)·[`mean_luma`].
    Contrast(f32, f32),
    /// f·x + (1−f)·l(x)
    Saturation(f32),
    /// Turns the hue by this share of the colour circle, through HSV.
    Hue(f32),
    /// l(x), not clipped.
    Grey,
}

/// Pixels that are worked on at once.
const BLOCK: usize = 128;
/// Sums that run side by side.
const SUMS: usize = 16;

type Pixels<'a> = [&'a mut [f32; BLOCK]; 3];

/// Applies `steps` in order to the pixels of `planes`: red, green and blue.
pub fn colour(isa: Isa, planes: &mut [f32], steps: &[Colour]) {
    assert!(planes.len().is_multiple_of(3), "three planes");
    // SAFETY: plain Rust; the set is the CPU's.
    unsafe { apply(isa, planes, steps) }
}

/// The mean luma of the pixels of `planes`, in f64 as if added up from first to last.
pub fn mean_luma(isa: Isa, planes: &[f32]) -> f64 {
    assert!(planes.len().is_multiple_of(3), "three planes");
    let len = planes.len() / 3;
    // SAFETY: plain Rust; the set is the CPU's.
    let (sum, smallest) = unsafe { sum(isa, planes) };
    // A luma of at least 2^e is a multiple of 2^(e−23), and so are their sums; below 2^(e+30) those are exact in f64, in any order.
    let bits = len.max(1).next_power_of_two().trailing_zeros() as i32;
    let sum = if smallest >= 2_f32.powi(bits - 30) { sum } else { sum_in_order(planes) };
    sum / len as f64
}

/// torchvision's weights.
#[inline(always)]
fn luma(r: f32, g: f32, b: f32) -> f32 {
    0.2989 * r + 0.587 * g + 0.114 * b
}

#[inline(always)]
fn clip(v: f32) -> f32 {
    v.clamp(0.0, 1.0)
}

fn sum_in_order(planes: &[f32]) -> f64 {
    let (r, rest) = planes.split_at(planes.len() / 3);
    let (g, b) = rest.split_at(r.len());
    r.iter().zip(g).zip(b).map(|((r, g), b)| f64::from(luma(*r, *g, *b))).sum()
}

dispatch! {
    unsafe fn apply = apply_lanes(planes: &mut [f32], steps: &[Colour])
}

dispatch! {
    unsafe fn sum = sum_lanes(planes: &[f32]) -> (f64, f32)
}

#[inline(always)]
unsafe fn apply_lanes<V: Lanes>(planes: &mut [f32], steps: &[Colour]) {
    let (r, rest) = planes.split_at_mut(planes.len() / 3);
    let (g, b) = rest.split_at_mut(r.len());
    let ((r, r_rest), (g, g_rest), (b, b_rest)) =
        (r.as_chunks_mut::<BLOCK>(), g.as_chunks_mut::<BLOCK>(), b.as_chunks_mut::<BLOCK>());
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        apply_to_block([r, g, b], steps);
    }
    let mut block = [[0.0; BLOCK]; 3];
    let rest = [r_rest, g_rest, b_rest];
    block.iter_mut().zip(&rest).for_each(|(block, rest)| block[..rest.len()].copy_from_slice(rest));
    apply_to_block(block.each_mut(), steps);
    rest.into_iter().zip(&block).for_each(|(rest, block)| rest.copy_from_slice(&block[..rest.len()]));
}

#[inline(always)]
fn apply_to_block(mut pixels: Pixels, steps: &[Colour]) {
    for step in steps {
        match *step {
            Colour::Brightness(factor) => affine(&mut pixels, factor, 0.0),
            Colour::Contrast(factor, shift) => affine(&mut pixels, factor, shift),
            Colour::Saturation(factor) => saturate(&mut pixels, factor),
            Colour::Hue(shift) => turn(&mut pixels, shift),
            Colour::Grey => grey(&mut pixels),
        }
    }
}

/// Sum of the lumas in any order, and the smallest of them that is not 0.
#[inline(always)]
unsafe fn sum_lanes<V: Lanes>(planes: &[f32]) -> (f64, f32) {
    let (r, rest) = planes.split_at(planes.len() / 3);
    let (g, b) = rest.split_at(r.len());
    let (mut sums, mut smallest) = ([0.0_f64; SUMS], [f32::MAX; SUMS]);
    let whole = r.len() / SUMS * SUMS;
    for at in (0..whole).step_by(SUMS) {
        let (r, g, b) = (&r[at..at + SUMS], &g[at..at + SUMS], &b[at..at + SUMS]);
        for i in 0..SUMS {
            let l = luma(r[i], g[i], b[i]);
            sums[i] += f64::from(l);
            let seen = if l == 0.0 { f32::MAX } else { l };
            smallest[i] = if seen < smallest[i] { seen } else { smallest[i] };
        }
    }
    for at in whole..r.len() {
        let l = luma(r[at], g[at], b[at]);
        sums[0] += f64::from(l);
        smallest[0] = if l == 0.0 { smallest[0] } else { smallest[0].min(l) };
    }
    (sums.iter().sum(), smallest.iter().copied().fold(f32::MAX, f32::min))
}

#[inline(always)]
fn affine(pixels: &mut Pixels, factor: f32, shift: f32) {
    for block in pixels {
        for v in block.iter_mut() {
            *v = clip(factor * *v + shift);
        }
    }
}

#[inline(always)]
fn saturate([r, g, b]: &mut Pixels, factor: f32) {
    for i in 0..BLOCK {
        let grey = (1.0 - factor) * luma(r[i], g[i], b[i]);
        r[i] = clip(factor * r[i] + grey);
        g[i] = clip(factor * g[i] + grey);
        b[i] = clip(factor * b[i] + grey);
    }
}

#[inline(always)]
fn grey([r, g, b]: &mut Pixels) {
    for i in 0..BLOCK {
        let grey = luma(r[i], g[i], b[i]);
        (r[i], g[i], b[i]) = (grey, grey, grey);
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn turn([r, g, b]: &mut Pixels, shift: f32) {
    for i in 0..BLOCK {
        (r[i], g[i], b[i]) = turned(r[i], g[i], b[i], shift);
    }
}

/// Selections in place of branches. Of (max − x)/range for red, green and blue one is 0 and one is 1: only the middle one is
/// divided.
#[inline(always)]
fn turned(r: f32, g: f32, b: f32, shift: f32) -> (f32, f32, f32) {
    let (max, min) = (larger(r, larger(g, b)), smaller(r, smaller(g, b)));
    let middle = larger(smaller(r, g), smaller(larger(r, g), b));
    let range = max - min;
    let divisor = if range == 0.0 { 1.0 } else { range };
    let share = (max - middle) / divisor;
    let of = |x: f32| if x == min { 1.0 } else { share };
    let (rc, gc, bc) = (of(r), of(g), of(b));
    let from_green = if max == g { (2.0 + rc) - bc } else { (4.0 + gc) - rc };
    let sector = if max == r { bc - gc } else { from_green };
    // The fraction of a number that is not negative is exact.
    let circle = sector / 6.0 + 1.0 + shift;
    let sixths = (circle - circle.floor()) * 6.0;
    let index = sixths.floor();
    let fraction = sixths - index;
    let s = range / if max == 0.0 { 1.0 } else { max };
    let p = clip(max * (1.0 - s));
    let q = clip(max * (1.0 - s * fraction));
    let t = clip(max * (1.0 - s * (1.0 - fraction)));
    let pick = |zero: f32, one: f32, two: f32, three: f32, four: f32, five: f32| {
        let low = if index == 0.0 || index == 6.0 { zero } else { one };
        let middle = if index == 2.0 { two } else { three };
        let high = if index == 4.0 { four } else { five };
        let upper = if index == 2.0 || index == 3.0 { middle } else { high };
        if index == 0.0 || index == 1.0 || index == 6.0 { low } else { upper }
    };
    let out = (pick(max, q, p, p, t, max), pick(t, max, max, q, p, p), pick(p, p, t, max, max, q));
    // Grey has no hue.
    if range == 0.0 { (r, g, b) } else { out }
}
