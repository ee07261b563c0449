//! Matrix products of bf16 pairs: the one inner loop that forward passes and all gradients are made of.

use super::lanes::{PairLanes, dispatch_pairs};
use crate::conv::LANES;
use crate::element::Element;
use crate::lanes::Lanes;
use crate::panel::{Packed, Rows};
use crate::shared::Shared;
use half::bf16;
use std::ops::Range;

/// Values of sixteen pairs.
pub(super) const PAIRS: usize = 2 * LANES;

/// out[to_j + c·out_block] (+)= Σ_k a[from_j + k·step]·b[c·b_block + k·32] over `count` pairs, for `P` rows j and `C`
/// blocks c of sixteen columns.
#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn tile<V: PairLanes, T: Element, const P: usize, const C: usize>(
    a: &[bf16],
    from: [usize; P],
    step: usize,
    b: &[bf16],
    b_block: usize,
    count: usize,
    out: &Shared<T>,
    to: [usize; P],
    out_block: usize,
    accumulate: bool,
) {
    debug_assert!(count == 0 || (0..P).all(|j| from[j] + (count - 1) * step + 2 <= a.len()), "rows of {}", a.len());
    debug_assert!(count == 0 || (C - 1) * b_block + count * PAIRS <= b.len(), "columns of {}", b.len());
    // SAFETY: the caller's places hold `count` pairs of each row and of each block, and sixteen outputs for both.
    unsafe {
        let mut sums = [[V::Sum::zero(); C]; P];
        if accumulate {
            for j in 0..P {
                for c in 0..C {
                    sums[j][c] = out.load(to[j] + c * out_block);
                }
            }
        }
        let rows: [*const bf16; P] = from.map(|from| a.as_ptr().wrapping_add(from));
        let columns = b.as_ptr();
        for k in 0..count {
            let mut blocks = [V::load_pairs(columns.add(k * PAIRS)); C];
            for c in 1..C {
                blocks[c] = V::load_pairs(columns.add(c * b_block + k * PAIRS));
            }
            for j in 0..P {
                let pair = V::splat_pair(rows[j].add(k * step));
                for c in 0..C {
                    sums[j][c] = V::dot(sums[j][c], pair, blocks[c]);
                }
            }
        }
        for j in 0..P {
            for c in 0..C {
                out.store(sums[j][c], to[j] + c * out_block);
            }
        }
    }
}

/// out[r·out_step + 16·b + lane] (+)= Σ_k x[r][k]·w[b][k][lane] over `count` pairs k.
///
/// # Safety
/// Every row of x and every block of w has so many pairs, and `out` all places.
#[inline(always)]
pub(super) unsafe fn times<V: PairLanes>(
    x: Rows<bf16>,
    count: usize,
    w: Packed<bf16>,
    out: &Shared,
    out_step: usize,
    accumulate: bool,
) {
    let mut block = 0;
    while block < w.blocks {
        let b = &w.values[block * w.step..];
        macro_rules! panel {
            ($c:literal: $($p:literal)*) => {{
                let mut row = 0;
                $(
                    while row + $p <= x.count {
                        let from = std::array::from_fn(|j| (row + j) * x.step);
                        let to = std::array::from_fn(|j| (row + j) * out_step + block * LANES);
                        // SAFETY: the caller's contract.
                        unsafe {
                            tile::<V, f32, $p, $c>(x.values, from, 2, b, w.step, count, out, to, LANES, accumulate)
                        };
                        row += $p;
                    }
                )*
                block += $c;
            }};
        }
        match (V::SUMS, w.blocks - block) {
            (24, 4..) => panel!(4: 6 2 1),
            (24, 2..) => panel!(2: 12 4 1),
            (24, _) => panel!(1: 12 4 1),
            (16, 2..) => panel!(2: 8 2 1),
            (16, _) => panel!(1: 12 4 1),
            _ => panel!(1: 4 1),
        }
    }
}

dispatch_pairs! {
    /// y[to + lane] = row·column for the wanted blocks of columns: rows of `len` values lie one after the other, columns
    /// as `[block][len/2][16][2]`; of the last block `co` says how many are there. Outputs are rounded if they are bf16.
    pub(super) unsafe fn multiply<T> = multiply_with(
        rows: &[bf16], len: usize, to: &[usize], columns: &[bf16], blocks: Range<usize>, co: usize, y: &Shared<T>,
    )
}

#[inline(always)]
unsafe fn multiply_with<V: PairLanes, T: Element>(
    rows: &[bf16],
    len: usize,
    to: &[usize],
    columns: &[bf16],
    blocks: Range<usize>,
    co: usize,
    y: &Shared<T>,
) {
    let b_block = len * LANES;
    let whole = blocks.end.min(co / LANES);
    let mut block = blocks.start;
    while block < whole {
        let b = &columns[block * b_block..];
        macro_rules! panel {
            ($c:literal: $($p:literal)*) => {{
                let mut at = 0;
                $(
                    while at + $p <= to.len() {
                        let from = std::array::from_fn(|j| (at + j) * len);
                        let to = std::array::from_fn(|j| to[at + j] + block * LANES);
                        // SAFETY: the caller's contract.
                        unsafe { tile::<V, T, $p, $c>(rows, from, 2, b, b_block, len / 2, y, to, LANES, false) };
                        at += $p;
                    }
                )*
                block += $c;
            }};
        }
        match (V::SUMS, whole - block) {
            (24, 4..) => panel!(4: 6 2 1),
            (24, 2..) => panel!(2: 12 4 1),
            (24, _) => panel!(1: 12 4 1),
            (16, 2..) => panel!(2: 8 2 1),
            (16, _) => panel!(1: 12 4 1),
            _ => panel!(1: 4 1),
        }
    }
    // A last block with fewer channels goes through a buffer.
    if blocks.end > whole {
        let mut out = [T::from_f32(0.0); LANES];
        let b = &columns[whole * b_block..];
        for (row, to) in to.iter().enumerate() {
            let line = Shared::new(&mut out);
            // SAFETY: the caller's contract; `out` has sixteen places.
            unsafe {
                tile::<V, T, 1, 1>(rows, [row * len], 2, b, b_block, len / 2, &line, [0], LANES, false);
                for (lane, value) in out.iter().enumerate().take(co - whole * LANES) {
                    y.set(*value, to + whole * LANES + lane);
                }
            }
        }
    }
}

/// Pixels in pairs: `[block][pair][16 channels][2]`, `stride` values from block to block.
pub(super) struct PixelPairs<'a> {
    pub(super) values: &'a [bf16],
    pub(super) blocks: usize,
    pub(super) stride: usize,
}

dispatch_pairs! {
    /// out[d block][16·x block + x channel][d channel] (+)= Σ x·d over `count` pairs of pixels.
    pub(super) unsafe fn outer = outer_with(x: &PixelPairs, d: &PixelPairs, count: usize, out: &mut [f32], accumulate: bool)
}

#[inline(always)]
unsafe fn outer_with<V: PairLanes>(x: &PixelPairs, d: &PixelPairs, count: usize, out: &mut [f32], accumulate: bool) {
    let out_block = x.blocks * LANES * LANES;
    let out = &Shared::new(out);
    let mut block = 0;
    while block < d.blocks {
        let columns = &d.values[block * d.stride..];
        macro_rules! panel {
            ($c:literal: $($p:literal)*) => {{
                let mut row = 0;
                $(
                    while row + $p <= x.blocks * LANES {
                        let place = |row: usize| row / LANES * x.stride + row % LANES * 2;
                        let from = std::array::from_fn(|j| place(row + j));
                        let to = std::array::from_fn(|j| block * out_block + (row + j) * LANES);
                        // SAFETY: the caller's contract.
                        unsafe {
                            tile::<V, f32, $p, $c>(
                                x.values, from, PAIRS, columns, d.stride, count, out, to, out_block, accumulate,
                            )
                        };
                        row += $p;
                    }
                )*
                block += $c;
            }};
        }
        match (V::SUMS, d.blocks - block) {
            (24, 4..) => panel!(4: 6 4 2),
            (24, 2..) => panel!(2: 12 4),
            (24, _) => panel!(1: 16),
            (16, 2..) => panel!(2: 8),
            (16, _) => panel!(1: 8),
            _ => panel!(1: 4),
        }
    }
}
