//! The gradient of a linear layer's weights and bias: dW = dyᵀ·x, db = Σ dy.
//!
//! The narrower of x and dy is packed once, the wider by tasks that each own some of its channels. A task sums over all rows in
//! their order, so the bytes do not depend on the number of threads.

use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::linear::Linear;
use crate::panel::{self, Packed, Rows, store_some};
use crate::shared::Shared;
use rayon::prelude::*;
use std::ops::Range;

/// Rows whose packed channels stay in the nearest caches at once.
const PANEL: usize = 128;
/// Values from one block of a packed panel to the next: a few more than it has, which keeps blocks off the same cache sets.
const STEP: usize = PANEL * LANES + LANES;
/// Blocks of the wider operand that a task owns, at most.
const WIDE: usize = 8;
/// Fewest tasks, if there are as many blocks.
const TASKS: usize = 16;

/// dw `[output, input]` and db `[output]`, both overwritten.
pub fn linear_weight_grad(isa: Isa, shape: Linear, x: &[f32], dy: &[f32], dw: &mut [f32], db: &mut [f32]) {
    shape.check(x.len(), dw.len(), dy.len());
    assert_eq!(db.len(), shape.output, "gradient of the bias of {shape:?}");
    let (x, dy) = (Side { values: x, channels: shape.input }, Side { values: dy, channels: shape.output });
    let is_dy_wide = dy.channels >= x.channels;
    let (wide, narrow) = if is_dy_wide { (dy, x) } else { (x, dy) };
    let step = shape.rows * LANES + LANES;
    let mut packed = Buffer::new(narrow.blocks() * step);
    let (dw, db) = (Shared::new(dw), Shared::new(db));
    packed.par_chunks_mut(step).enumerate().for_each(|(block, out)| {
        let mut sums = [0.0; LANES];
        for first in (0..shape.rows).step_by(PANEL) {
            let rows = first..(first + PANEL).min(shape.rows);
            // SAFETY: rows of a block that there is, and their places.
            unsafe { pack(isa, narrow, block..block + 1, rows, &mut out[first * LANES..], step, &mut sums) };
        }
        if !is_dy_wide {
            // SAFETY: a block of db that is this task's alone.
            unsafe { write_sums(isa, &sums, block, shape.output, &db) };
        }
    });
    let per_task = wide.blocks().div_ceil(TASKS).clamp(1, WIDE);
    (0..wide.blocks().div_ceil(per_task)).into_par_iter().for_each(|task| {
        let blocks = task * per_task..((task + 1) * per_task).min(wide.blocks());
        let owned = blocks.start * LANES..(blocks.end * LANES).min(wide.channels);
        let (outputs, inputs) = if is_dy_wide { (owned, 0..x.blocks()) } else { (0..shape.output, blocks.clone()) };
        let mut local = Buffer::new(blocks.len() * STEP);
        let mut sums = Buffer::zeroed(blocks.len() * LANES);
        let mut products = Buffer::new(inputs.len() * outputs.len() * LANES);
        for first in (0..shape.rows).step_by(PANEL) {
            let rows = first..(first + PANEL).min(shape.rows);
            let count = rows.len();
            // SAFETY: rows and blocks are there; local holds a panel of each block, products all sums.
            unsafe {
                pack(isa, wide, blocks.clone(), rows, &mut local, STEP, &mut sums);
                let own = Packed { values: &local, step: STEP, blocks: blocks.len() };
                let other = Packed { values: &packed[first * LANES..], step, blocks: narrow.blocks() };
                let (d, x) = if is_dy_wide { (own, other) } else { (other, own) };
                add(isa, d, x, count, outputs.len(), &mut products, first > 0);
            }
        }
        // SAFETY: rows and columns of dw, and blocks of db, that are this task's alone.
        unsafe {
            write(isa, &products, outputs, inputs, shape.input, &dw);
            if is_dy_wide {
                blocks.clone().zip(sums.chunks_exact(LANES)).for_each(|(block, sums)| {
                    write_sums(isa, sums, block, shape.output, &db);
                });
            }
        }
    });
}

/// One operand: rows of `channels` values.
#[derive(Clone, Copy)]
struct Side<'a> {
    values: &'a [f32],
    channels: usize,
}

impl Side<'_> {
    fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }
}

dispatch! {
    /// Packs the wanted blocks and rows, and adds the rows to `sums` `[block][16]`.
    unsafe fn pack = pack_with(
        side: Side, blocks: Range<usize>, rows: Range<usize>, out: &mut [f32], step: usize, sums: &mut [f32],
    )
}

#[inline(always)]
unsafe fn pack_with<V: Lanes>(
    side: Side,
    blocks: Range<usize>,
    rows: Range<usize>,
    out: &mut [f32],
    step: usize,
    sums: &mut [f32],
) {
    let first = blocks.start * LANES;
    let values = &side.values[rows.start * side.channels + first..];
    let columns = (blocks.end * LANES).min(side.channels) - first;
    // SAFETY: the caller's contract.
    unsafe {
        panel::pack::<V>(Rows { values, step: side.channels, count: rows.len() }, columns, out, step);
        for block in 0..blocks.len() {
            let mut sum = V::zero();
            for row in 0..rows.len() {
                sum = sum.add(load(out, block * step + row * LANES));
            }
            store(sum.add(load(sums, block * LANES)), sums, block * LANES);
        }
    }
}

dispatch! {
    /// products[block of x][output][16] (+)= Σ over `count` rows of dy[output]·x[block]
    unsafe fn add = add_with(
        dy: Packed, x: Packed, count: usize, outputs: usize, products: &mut [f32], accumulate: bool,
    )
}

#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn add_with<V: Lanes>(
    dy: Packed,
    x: Packed,
    count: usize,
    outputs: usize,
    products: &mut [f32],
    accumulate: bool,
) {
    for first in (0..x.blocks).step_by(4) {
        let x = Packed { values: &x.values[first * x.step..], step: x.step, blocks: 4.min(x.blocks - first) };
        let products = &mut products[first * outputs * LANES..];
        for block in 0..dy.blocks {
            let rows = Rows { values: &dy.values[block * dy.step..], step: LANES, count };
            let columns = LANES.min(outputs - block * LANES);
            let out = &mut products[block * LANES * LANES..];
            // SAFETY: the caller's contract.
            unsafe { panel::transposed_times::<V>(rows, columns, x, out, outputs * LANES, accumulate) };
        }
    }
}

dispatch! {
    unsafe fn write = write_with(
        products: &[f32], outputs: Range<usize>, inputs: Range<usize>, input: usize, dw: &Shared,
    )
}

/// Products `[block of x][output][16]` to their places in dw.
#[inline(always)]
unsafe fn write_with<V: Lanes>(
    products: &[f32],
    outputs: Range<usize>,
    inputs: Range<usize>,
    input: usize,
    dw: &Shared,
) {
    for (row, output) in outputs.clone().enumerate() {
        for (at, block) in inputs.clone().enumerate() {
            let (from, column) = ((at * outputs.len() + row) * LANES, block * LANES);
            // SAFETY: the caller's contract.
            unsafe { store_some::<V>(load(products, from), dw, output * input + column, input - column) };
        }
    }
}

dispatch! {
    unsafe fn write_sums = write_sums_with(sums: &[f32], block: usize, output: usize, db: &Shared)
}

#[inline(always)]
unsafe fn write_sums_with<V: Lanes>(sums: &[f32], block: usize, output: usize, db: &Shared) {
    // SAFETY: the caller's contract.
    unsafe { store_some::<V>(load(sums, 0), db, block * LANES, output - block * LANES) };
}
