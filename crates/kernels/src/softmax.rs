//! Exponentials of one row of similarities: the sum over a softmax, and the coefficients of its gradient.
//!
//! e^x = 2^n·e^r with n = round(x/ln 2): a polynomial of degree 7 in |r| ≤ ½ ln 2 (Cephes), within 2 units in the last
//! place. Below e^−87 the result is that value, which no sum of these kernels can notice.

use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};

/// Values whose f32 sum is moved to f64 at once.
const BLOCK: usize = 512;

/// ln Σ e^{x/τ}, and the mean of x under that softmax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxSum {
    /// ln Σ e^{x/τ}
    pub log_sum: f64,
    /// Σ x·e^{x/τ} / Σ e^{x/τ}
    pub mean: f64,
}

/// Sums a row; −∞ leaves a value out. `scale` is 1/τ.
pub fn softmax_sum(isa: Isa, x: &[f32], scale: f32) -> SoftmaxSum {
    // SAFETY: lengths are checked inside.
    unsafe { sum(isa, x, scale) }
}

/// x_b ← factor·(e^{x_b·scale_a + offset_a} + e^{x_b·scale_b + offset_b}): what anchor a and key b, an anchor as well,
/// have of their similarity.
pub fn softmax_pair(
    isa: Isa,
    x: &mut [f32],
    (scale, offset): (f32, f32),
    scales: &[f32],
    offsets: &[f32],
    factor: f32,
) {
    assert!(x.len() == scales.len() && x.len() == offsets.len(), "one scale and offset for each value");
    // SAFETY: the slices have one length.
    unsafe { pair(isa, x, scale, offset, scales, offsets, factor) }
}

dispatch! {
    unsafe fn sum = sum_lanes(x: &[f32], scale: f32) -> SoftmaxSum
}

dispatch! {
    unsafe fn pair = pair_lanes(x: &mut [f32], scale: f32, offset: f32, scales: &[f32], offsets: &[f32], factor: f32)
}

/// Sixteen values from `at` on, `fill` beyond the end.
#[inline(always)]
pub(crate) unsafe fn load_rest<V: Lanes>(from: &[f32], at: usize, fill: f32) -> V {
    let mut rest = [fill; 16];
    let left = &from[at..];
    rest[..left.len().min(16)].copy_from_slice(&left[..left.len().min(16)]);
    // SAFETY: sixteen floats.
    unsafe { load::<V>(&rest, 0) }
}

#[inline(always)]
pub(crate) unsafe fn total<V: Lanes>(value: V) -> f64 {
    let mut lanes = [0.0; 16];
    // SAFETY: sixteen floats.
    unsafe { store(value, &mut lanes, 0) };
    lanes.iter().map(|&v| f64::from(v)).sum()
}

#[inline(always)]
pub(crate) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: the caller runs on the right CPU.
    unsafe {
        // min(88, max(−87, x)): the powers of two that f32 has
        let x = x.max(V::splat(-87.0));
        let x = V::zero().sub(V::zero().sub(x).max(V::splat(-88.0)));
        // Adding and taking away 1.5·2^23 rounds to an integer.
        let magic = V::splat(12_582_912.0);
        let n = x.fma(V::splat(std::f32::consts::LOG2_E), magic).sub(magic);
        let r = n.fma(V::splat(-355.0 / 512.0), x);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let p = V::splat(1.987_569_2e-4);
        let p = p.fma(r, V::splat(1.398_199_9e-3));
        let p = p.fma(r, V::splat(8.333_452e-3));
        let p = p.fma(r, V::splat(4.166_579_6e-2));
        let p = p.fma(r, V::splat(1.666_666_5e-1));
        let p = p.fma(r, V::splat(0.5));
        let y = p.fma(r.mul(r), r.add(V::splat(1.0)));
        y.mul(n.power_of_two())
    }
}

#[inline(always)]
unsafe fn sum_lanes<V: Lanes>(x: &[f32], scale: f32) -> SoftmaxSum {
    let whole = x.len() / 16 * 16;
    // SAFETY: `at` stays below `whole`, and the rest is copied.
    unsafe {
        let mut most = load_rest::<V>(x, whole, f32::NEG_INFINITY);
        for at in (0..whole).step_by(16) {
            most = most.max(load::<V>(x, at));
        }
        let mut lanes = [0.0_f32; 16];
        store(most, &mut lanes, 0);
        let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return SoftmaxSum { log_sum: f64::NEG_INFINITY, mean: 0.0 };
        }
        let (top, scale_lanes) = (V::splat(max), V::splat(scale));
        let (mut sum, mut weighted) = (0.0, 0.0);
        for block in (0..x.len()).step_by(BLOCK) {
            let end = (block + BLOCK).min(x.len());
            let (mut e_sum, mut d_sum) = (V::zero(), V::zero());
            for at in (block..end).step_by(16) {
                let value =
                    if at + 16 <= x.len() { load::<V>(x, at) } else { load_rest::<V>(x, at, f32::NEG_INFINITY) };
                // d = x − max, at least −10⁶: a value that is left out adds 0·d
                let d = value.sub(top).max(V::splat(-1e6));
                let e = exp(d.mul(scale_lanes));
                e_sum = e_sum.add(e);
                d_sum = e.fma(d, d_sum);
            }
            sum += total(e_sum);
            weighted += total(d_sum);
        }
        SoftmaxSum { log_sum: f64::from(max) * f64::from(scale) + sum.ln(), mean: f64::from(max) + weighted / sum }
    }
}

// Functions, not closures: a closure would not be compiled for the instruction set around it.
#[inline(always)]
unsafe fn both<V: Lanes>(x: V, (scale, offset): (V, V), (scales, offsets): (V, V)) -> V {
    // SAFETY: the caller runs on the right CPU.
    unsafe { exp(x.fma(scale, offset)).add(exp(x.fma(scales, offsets))) }
}

#[inline(always)]
unsafe fn pair_lanes<V: Lanes>(x: &mut [f32], scale: f32, offset: f32, scales: &[f32], offsets: &[f32], factor: f32) {
    // SAFETY: `at` stays in bounds, and the rest is copied.
    unsafe {
        let (scale, offset, factor) = (V::splat(scale), V::splat(offset), V::splat(factor));
        let whole = x.len() / 16 * 16;
        for at in (0..whole).step_by(16) {
            let (value, scales, offsets) = (load::<V>(x, at), load::<V>(scales, at), load::<V>(offsets, at));
            store(both(value, (scale, offset), (scales, offsets)).mul(factor), x, at);
        }
        if whole < x.len() {
            let (scales, offsets) = (load_rest::<V>(scales, whole, 0.0), load_rest::<V>(offsets, whole, 0.0));
            let value = load_rest::<V>(x, whole, 0.0);
            let mut rest = [0.0; 16];
            store(both(value, (scale, offset), (scales, offsets)).mul(factor), &mut rest, 0);
            let left = x.len() - whole;
            x[whole..].copy_from_slice(&rest[..left]);
        }
    }
}
