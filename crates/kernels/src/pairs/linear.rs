//! Products of linear layers of bf16 rows: weights are rounded and packed in pairs, sums are f32.

use super::lanes::{PairLanes, dispatch_pairs};
use super::product::{self, PAIRS, PixelPairs};
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, store};
use crate::linear::{After, LinearSums, WIDE, Weights};
use crate::panel::{Packed, Rows, load_some};
use crate::shared::Shared;
use half::bf16;
use std::ops::Range;

/// Rows of packed weights that stay in the nearest cache while a group passes; whole pairs.
const PANEL: usize = 256;

impl LinearSums for bf16 {
    fn whole(rows: usize) -> usize {
        rows.next_multiple_of(2)
    }

    unsafe fn pack_rows(isa: Isa, x: Rows<impl Element>, columns: usize, out: &mut [bf16], step: usize) {
        // SAFETY: the caller's contract.
        unsafe { pack_rows(isa, x, columns, out, step) }
    }

    unsafe fn pack_columns(isa: Isa, weight: Rows, len: usize, out: &mut [bf16]) {
        // SAFETY: the caller's contract.
        unsafe { pack_columns(isa, weight, len, out) }
    }

    unsafe fn products<Y: Element>(
        isa: Isa,
        x: Rows<bf16>,
        first: usize,
        weights: &Weights<bf16>,
        blocks: Range<usize>,
        after: &After<Y>,
        sums: &mut [f32],
        y: &Shared<Y>,
    ) {
        // SAFETY: the caller's contract; rows are as long as those of packed weights.
        unsafe { products(isa, x, first, weights, blocks, after, sums, y) }
    }

    unsafe fn outer(isa: Isa, dy: Packed<bf16>, x: Packed<bf16>, count: usize, products: &mut [f32], accumulate: bool) {
        let [dy, x] = [dy, x].map(|side| PixelPairs { values: side.values, blocks: side.blocks, stride: side.step });
        // SAFETY: the caller's contract; the rows of a last odd pair are zero.
        unsafe { product::outer(isa, &dy, &x, count.div_ceil(2), products, accumulate) };
    }
}

dispatch_pairs! {
    unsafe fn products<Y> = products_with(
        x: Rows<bf16>, first: usize, weights: &Weights<bf16>, blocks: Range<usize>, after: &After<Y>, sums: &mut [f32],
        y: &Shared<Y>,
    )
}

#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn products_with<V: PairLanes, Y: Element>(
    x: Rows<bf16>,
    first: usize,
    weights: &Weights<bf16>,
    blocks: Range<usize>,
    after: &After<Y>,
    sums: &mut [f32],
    y: &Shared<Y>,
) {
    let inner = x.step;
    let part = inner.div_ceil(inner.div_ceil(PANEL)).next_multiple_of(2);
    for block in blocks.clone().step_by(WIDE) {
        let count = WIDE.min(blocks.end - block);
        let out = Shared::new(sums);
        for k in (0..inner).step_by(part) {
            let x = Rows { values: &x.values[k..], ..x };
            let values = &weights.values[(block * inner + k) * LANES..];
            let w = Packed { values, step: inner * LANES, blocks: count };
            // SAFETY: the rows and the panel of weights are there, and `sums` holds a block of sums for each row.
            unsafe { product::times::<V>(x, part.min(inner - k) / 2, w, &out, WIDE * LANES, k > 0) };
        }
        // SAFETY: the sums of these rows and blocks; places of y that belong to the task.
        unsafe { weights.finish::<V::Sum, Y>(first..first + x.count, block..block + count, sums, after, y) };
    }
}

dispatch! {
    unsafe fn pack_rows<T> = pack_rows_with(x: Rows<T>, columns: usize, out: &mut [bf16], step: usize)
}

/// Two rows at a time, their values side by side.
#[inline(always)]
unsafe fn pack_rows_with<V: Lanes, T: Element>(x: Rows<T>, columns: usize, out: &mut [bf16], step: usize) {
    for pair in 0..x.count.div_ceil(2) {
        let first = 2 * pair * x.step;
        for (block, column) in (0..columns).step_by(LANES).enumerate() {
            let (mut a, mut b) = ([bf16::ZERO; LANES], [bf16::ZERO; LANES]);
            // SAFETY: the caller's contract.
            unsafe {
                store(load_some::<V>(x.values, first + column, columns - column), &mut a, 0);
                if 2 * pair + 1 < x.count {
                    store(load_some::<V>(x.values, first + x.step + column, columns - column), &mut b, 0);
                }
            }
            let out = &mut out[block * step + pair * PAIRS..][..PAIRS];
            for lane in 0..LANES {
                (out[2 * lane], out[2 * lane + 1]) = (a[lane], b[lane]);
            }
        }
    }
}

dispatch! {
    unsafe fn pack_columns = pack_columns_with(weight: Rows, len: usize, out: &mut [bf16])
}

/// Thirty-two values of each of sixteen rows at a time: rounded where they lie side by side, then pairs change places.
#[inline(always)]
unsafe fn pack_columns_with<V: Lanes>(weight: Rows, len: usize, out: &mut [bf16]) {
    let mut square = [[bf16::ZERO; PAIRS]; LANES];
    for (part, out) in out.chunks_mut(PAIRS * LANES).enumerate() {
        let first = part * PAIRS;
        for (row, square) in square.iter_mut().enumerate().take(weight.count) {
            for at in [0, LANES] {
                let left = len.saturating_sub(first + at);
                // SAFETY: as many values as the row has left, zeros behind them.
                unsafe {
                    let value = if left == 0 {
                        V::zero()
                    } else {
                        load_some(weight.values, row * weight.step + first + at, left)
                    };
                    store::<V>(value, square, at);
                }
            }
        }
        for (pair, out) in out.chunks_exact_mut(PAIRS).enumerate() {
            for lane in 0..LANES {
                (out[2 * lane], out[2 * lane + 1]) = (square[lane][2 * pair], square[lane][2 * pair + 1]);
            }
        }
    }
}
