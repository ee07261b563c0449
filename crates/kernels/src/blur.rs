//! A separable filter with mirrored borders: rows, then columns.
//!
//! Each output is Σ_k w_k·x_k with the products added from the first tap to the last and without fused multiply–add: the bytes are
//! those of the plain loop under every instruction set.

use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};

/// Values of a cache line, at whose borders the rows of the second pass begin.
const ALIGNED: usize = 16;

/// Filters `plane`, rows of `width` values, with an odd number of `taps` in both directions. `scratch` is reused between calls.
pub fn separable(isa: Isa, plane: &mut [f32], width: usize, taps: &[f32], scratch: &mut Vec<f32>) {
    assert!(width > 0 && plane.len().is_multiple_of(width), "whole rows");
    assert!(taps.len() % 2 == 1, "a tap in the middle");
    // SAFETY: lengths are checked.
    unsafe { filter(isa, plane, width, taps, scratch) }
}

dispatch! {
    unsafe fn filter = filter_lanes(plane: &mut [f32], width: usize, taps: &[f32], scratch: &mut Vec<f32>)
}

#[inline(always)]
unsafe fn filter_lanes<V: Lanes>(plane: &mut [f32], width: usize, taps: &[f32], scratch: &mut Vec<f32>) {
    let (height, stride, radius) = (plane.len() / width, width.next_multiple_of(16), taps.len() / 2);
    // One row with its mirrored ends, then the filtered rows, each as long as whole lanes.
    let padded = stride + 2 * radius;
    scratch.resize(ALIGNED + padded.next_multiple_of(ALIGNED) + (height + 1) * stride, 0.0);
    // A load across two lines takes twice as long.
    let start = scratch.as_ptr().align_offset(64).min(ALIGNED);
    let (row, filtered) = scratch[start..].split_at_mut(padded.next_multiple_of(ALIGNED));
    let (filtered, out) = filtered.split_at_mut(height * stride);
    let out = &mut out[..stride];
    for (from, to) in plane.chunks_exact(width).zip(filtered.chunks_exact_mut(stride)) {
        row[radius..radius + width].copy_from_slice(from);
        for k in 0..radius {
            row[k] = from[mirrored(k as isize - radius as isize, width)];
            row[radius + width + k] = from[mirrored((width + k) as isize, width)];
        }
        // SAFETY: the row has 2·radius values more than `to`.
        unsafe { weighted_sum::<V>(row, |k| k, taps, to) };
    }
    for (y, to) in plane.chunks_exact_mut(width).enumerate() {
        let first = |k: usize| mirrored((y + k) as isize - radius as isize, height) * stride;
        // SAFETY: mirrored rows are inside.
        unsafe { weighted_sum::<V>(filtered, first, taps, out) };
        to.copy_from_slice(&out[..width]);
    }
}

/// to = Σ_k taps_k·from[first(k)..], for whole lanes.
#[inline(always)]
unsafe fn weighted_sum<V: Lanes>(from: &[f32], first: impl Fn(usize) -> usize, taps: &[f32], to: &mut [f32]) {
    let mut at = 0;
    // SAFETY: the caller's contract; `at` counts what is left of `to`.
    unsafe {
        while V::REGISTERS > 16 && to.len() - at >= 128 {
            at = strip::<V, 8>(from, &first, taps, to, at);
        }
        while to.len() - at >= 64 {
            at = strip::<V, 4>(from, &first, taps, to, at);
        }
        while to.len() - at >= 32 {
            at = strip::<V, 2>(from, &first, taps, to, at);
        }
        while to.len() - at >= 16 {
            at = strip::<V, 1>(from, &first, taps, to, at);
        }
    }
}

/// 16·N values from `at` on, whose sums stay in registers; where the next strip starts.
#[inline(always)]
unsafe fn strip<V: Lanes, const N: usize>(
    from: &[f32],
    first: impl Fn(usize) -> usize,
    taps: &[f32],
    to: &mut [f32],
    at: usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [V::zero(); N];
        for (k, &tap) in taps.iter().enumerate() {
            let (tap, place) = (V::splat(tap), first(k) + at);
            for i in 0..N {
                sums[i] = sums[i].add(tap.mul(load::<V>(from, place + 16 * i)));
            }
        }
        for i in 0..N {
            store(sums[i], to, at + 16 * i);
        }
    }
    at + 16 * N
}

/// The place that `at` is the mirror image of, without repeating the border.
#[inline(always)]
fn mirrored(mut at: isize, len: usize) -> usize {
    let last = len as isize - 1;
    if last == 0 {
        return 0;
    }
    while at < 0 || at > last {
        at = if at < 0 { -at } else { 2 * last - at };
    }
    at as usize
}
