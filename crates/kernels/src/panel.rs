//! Products of any size, cut into the tiles of [`crate::tile`]: by packed weights, and of a transposed matrix by packed rows.

use crate::conv::LANES;
use crate::element::Element;
use crate::lanes::Lanes;
use crate::shared::Shared;
use crate::tile::{self, Line};

/// Rows of a matrix, `step` values from one to the next.
#[derive(Clone, Copy)]
pub struct Rows<'a, T = f32> {
    pub(crate) values: &'a [T],
    pub(crate) step: usize,
    pub(crate) count: usize,
}

/// Blocks of sixteen columns, `[block][row][16]`, or `[block][pair of rows][16][2]` of bf16; `step` values from one block to the next.
#[derive(Clone, Copy)]
pub struct Packed<'a, T = f32> {
    pub(crate) values: &'a [T],
    pub(crate) step: usize,
    pub(crate) blocks: usize,
}

/// out[r·out_step + 16·b + lane] (+)= Σ_k x[r][k]·w[b][k][lane] over k < `len`.
///
/// # Safety
/// Every row of x has `len` values, every block of w `len` rows, and `out` all places.
#[inline(always)]
pub(crate) unsafe fn times<V: Lanes>(x: Rows, len: usize, w: Packed, out: &Shared, out_step: usize, accumulate: bool) {
    let mut block = 0;
    while block < w.blocks {
        let weights = &w.values[block * w.step..];
        macro_rules! panel {
            ($p:literal, $c:literal) => {{
                let mut row = 0;
                macro_rules! tiles {
                    ($rows:literal) => {
                        while row + $rows <= x.count {
                            let from = std::array::from_fn(|j| (row + j) * x.step);
                            let to = std::array::from_fn(|j| (row + j) * out_step + block * LANES);
                            // SAFETY: the caller's contract.
                            unsafe {
                                tile::rows::<V, $rows, $c>(
                                    x.values,
                                    from,
                                    &[0],
                                    len,
                                    weights,
                                    w.step,
                                    out,
                                    to,
                                    LANES,
                                    accumulate,
                                )
                            };
                            row += $rows;
                        }
                    };
                }
                tiles!($p);
                tiles!(2);
                tiles!(1);
                block += $c;
            }};
        }
        match (V::REGISTERS, w.blocks - block) {
            (32, 4..) => panel!(6, 4),
            (32, 2..) => panel!(12, 2),
            (32, _) => panel!(12, 1),
            (8, _) => panel!(6, 1),
            _ => panel!(4, 1),
        }
    }
}

/// out[b·out_step + 16·j + lane] (+)= Σ_i x[i][j]·d[b][i][lane] for the first `columns` columns j of x.
///
/// # Safety
/// Every row of x has `columns` values, every block of d as many rows as x, and `out` all places.
#[inline(always)]
pub(crate) unsafe fn transposed_times<V: Lanes>(
    x: Rows,
    columns: usize,
    d: Packed,
    out: &mut [f32],
    out_step: usize,
    accumulate: bool,
) {
    let lines = [Line { x: 0, d: 0, count: x.count }];
    let mut block = 0;
    while block < d.blocks {
        macro_rules! panel {
            ($c:literal: $($p:literal)*) => {{
                let mut j = 0;
                $(
                    while j + $p <= columns {
                        // SAFETY: the caller's contract.
                        unsafe {
                            tile::outer::<V, $p, $c>(
                                x.values, j, x.step, d.values, block * d.step, d.step, &lines, out,
                                block * out_step + j * LANES, out_step, accumulate,
                            )
                        };
                        j += $p;
                    }
                )*
                block += $c;
            }};
        }
        match (V::REGISTERS, d.blocks - block) {
            (32, 4..) => panel!(4: 4 1),
            (32, 2..) => panel!(2: 8 1),
            (32, _) => panel!(1: 16 4 1),
            (8, _) => panel!(1: 6 4 1),
            _ => panel!(1: 4 1),
        }
    }
}

/// Columns of rows x `[row][columns]` as `[block][row][16]`, blocks `step` values apart; lanes beyond the last column are zero.
///
/// # Safety
/// Every row of x has `columns` values, and `out` a place for each row of each block.
#[inline(always)]
pub(crate) unsafe fn pack<V: Lanes>(x: Rows<impl Element>, columns: usize, out: &mut [f32], step: usize) {
    for row in 0..x.count {
        for (block, column) in (0..columns).step_by(LANES).enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let value = load_some::<V>(x.values, row * x.step + column, columns - column);
                crate::lanes::store(value, out, block * step + row * LANES);
            }
        }
    }
}

/// Rows of x as columns: `[block of sixteen rows][k][16]` of the first `len` values k of each row, times `factor`; lanes beyond the
/// last row are zero. Blocks lie one after the other.
pub(crate) fn pack_transposed(x: Rows<impl Element>, len: usize, factor: f32, out: &mut [f32]) {
    for (block, out) in out.chunks_exact_mut(LANES * len).enumerate().take(x.count.div_ceil(LANES)) {
        let first = block * LANES;
        let count = LANES.min(x.count - first);
        for (k, out) in out.chunks_exact_mut(LANES).enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = if lane < count { x.values[(first + lane) * x.step + k].to_f32() * factor } else { 0.0 };
            }
        }
    }
}

/// Rows of x as f32, one after the other, in `out`.
///
/// # Safety
/// Every row of x has `columns` values.
#[inline(always)]
pub(crate) unsafe fn widen<'a, V: Lanes>(x: Rows<impl Element>, columns: usize, out: &'a mut [f32]) -> Rows<'a> {
    for (row, out) in out.chunks_exact_mut(columns).enumerate().take(x.count) {
        for at in (0..columns).step_by(LANES) {
            // SAFETY: the caller's contract.
            unsafe { store_row(load_some::<V>(x.values, row * x.step + at, columns - at), out, at) };
        }
    }
    Rows { values: out, step: columns, count: x.count }
}

/// The first `count` of sixteen values from `at` on, zeros after them.
///
/// # Safety
/// That many values are there.
#[inline(always)]
pub(crate) unsafe fn load_some<V: Lanes>(from: &[impl Element], at: usize, count: usize) -> V {
    // SAFETY: the caller's contract; sixteen floats where fewer are there.
    unsafe {
        if count >= LANES {
            return crate::lanes::load(from, at);
        }
        let mut some = [0.0_f32; LANES];
        some.iter_mut().zip(&from[at..at + count]).for_each(|(some, from)| *some = from.to_f32());
        crate::lanes::load(&some, 0)
    }
}

/// Writes the first `count` of sixteen values to `at`.
///
/// # Safety
/// The places are inside the slice and belong to the calling task alone.
#[inline(always)]
pub(crate) unsafe fn store_some<V: Lanes, T: Element>(value: V, to: &Shared<T>, at: usize, count: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if count >= LANES {
            return to.store(value, at);
        }
        let mut some = [T::from_f32(0.0); LANES];
        crate::lanes::store(value, &mut some, 0);
        for (lane, value) in some[..count].iter().enumerate() {
            to.set(*value, at + lane);
        }
    }
}

/// Writes sixteen values, or as many as there are places.
#[inline(always)]
pub(crate) unsafe fn store_row<V: Lanes, T: Element>(value: V, to: &mut [T], at: usize) {
    // SAFETY: sixteen places, or a copy.
    unsafe {
        if at + LANES <= to.len() {
            return crate::lanes::store(value, to, at);
        }
        let mut some = [T::from_f32(0.0); LANES];
        crate::lanes::store(value, &mut some, 0);
        let left = to.len() - at;
        to[at..].copy_from_slice(&some[..left]);
    }
}
