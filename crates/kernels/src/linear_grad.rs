//! The gradient of a linear layer's weights and bias: dW = dyᵀ·x, db = Σ dy.
//!
//! The narrower of x and dy is packed once, the wider by tasks that each own some of its channels. A task sums over all rows in
//! their order, so the bytes do not depend on the number of threads. Rows of bf16 are packed and multiplied in pairs.

use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::linear::Linear;
use crate::panel::{Packed, Rows, load_some, store_some};
use crate::shared::Shared;
use rayon::prelude::*;
use std::ops::Range;

/// Rows whose packed channels stay in the nearest caches at once; whole pairs.
const PANEL: usize = 128;
/// Blocks of the wider operand that a task owns, at most.
const WIDE: usize = 8;
/// Fewest tasks, if there are as many blocks.
const TASKS: usize = 16;

/// dw `[output, input]` and db `[output]`, both overwritten.
pub fn linear_weight_grad<T: Element>(isa: Isa, shape: Linear, x: &[T], dy: &[T], dw: &mut [f32], db: &mut [f32]) {
    shape.check(x.len(), dw.len(), dy.len());
    assert_eq!(db.len(), shape.output, "gradient of the bias of {shape:?}");
    let (x, dy) = (Side { values: x, channels: shape.input }, Side { values: dy, channels: shape.output });
    let is_dy_wide = dy.channels >= x.channels;
    let (wide, narrow) = if is_dy_wide { (dy, x) } else { (x, dy) };
    let step = step::<T>(shape.rows);
    let mut packed = Buffer::of(narrow.blocks() * step);
    let (dw, db) = (Shared::new(dw), Shared::new(db));
    packed.par_chunks_mut(step).enumerate().for_each(|(block, out)| {
        let mut sums = [0.0; LANES];
        for first in (0..shape.rows).step_by(PANEL) {
            let rows = first..(first + PANEL).min(shape.rows);
            // SAFETY: rows of a block that there is, and their places.
            unsafe {
                narrow.pack(isa, block..block + 1, rows.clone(), &mut out[first * LANES..], step);
                if !is_dy_wide {
                    add_rows(isa, dy, block..block + 1, rows, &mut sums);
                }
            };
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
        let own_step = self::step::<T>(PANEL);
        let mut local = Buffer::of(blocks.len() * own_step);
        let mut sums = Buffer::zeroed(blocks.len() * LANES);
        let mut products = Buffer::new(inputs.len() * outputs.len().next_multiple_of(LANES) * LANES);
        for first in (0..shape.rows).step_by(PANEL) {
            let rows = first..(first + PANEL).min(shape.rows);
            let count = rows.len();
            // SAFETY: rows and blocks are there; local holds a panel of each block, products all sums.
            unsafe {
                wide.pack(isa, blocks.clone(), rows.clone(), &mut local, own_step);
                if is_dy_wide {
                    add_rows(isa, dy, blocks.clone(), rows, &mut sums);
                }
                let own = Packed { values: &local, step: own_step, blocks: blocks.len() };
                let other = Packed { values: &packed[first * LANES..], step, blocks: narrow.blocks() };
                let (d, x) = if is_dy_wide { (own, other) } else { (other, own) };
                T::outer(isa, d, x, count, &mut products, first > 0);
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

/// Values from one block of packed rows to the next: a line of the cache more than they have, which keeps blocks off the same cache
/// sets.
fn step<T: Element>(rows: usize) -> usize {
    T::whole(rows) * LANES + 64 / size_of::<T>()
}

/// One operand: rows of `channels` values.
#[derive(Clone, Copy)]
struct Side<'a, T> {
    values: &'a [T],
    channels: usize,
}

impl<T: Element> Side<'_, T> {
    fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }

    /// The wanted rows from the first channel of a block on, and how many channels the blocks have.
    fn part(&self, blocks: Range<usize>, rows: Range<usize>) -> (Rows<'_, T>, usize) {
        let first = blocks.start * LANES;
        let values = &self.values[rows.start * self.channels + first..];
        let columns = (blocks.end * LANES).min(self.channels) - first;
        (Rows { values, step: self.channels, count: rows.len() }, columns)
    }

    /// Packs the wanted blocks and rows.
    ///
    /// # Safety
    /// They are there, and `out` has their places.
    unsafe fn pack(&self, isa: Isa, blocks: Range<usize>, rows: Range<usize>, out: &mut [T], step: usize) {
        let (rows, columns) = self.part(blocks, rows);
        // SAFETY: the caller's contract.
        unsafe { T::pack_rows(isa, rows, columns, out, step) };
    }
}

dispatch! {
    /// Adds the wanted rows to `sums` `[block][16]`.
    unsafe fn add_rows<T> = add_rows_with(side: Side<T>, blocks: Range<usize>, rows: Range<usize>, sums: &mut [f32])
}

#[inline(always)]
unsafe fn add_rows_with<V: Lanes, T: Element>(
    side: Side<T>,
    blocks: Range<usize>,
    rows: Range<usize>,
    sums: &mut [f32],
) {
    let (rows, columns) = side.part(blocks, rows);
    for at in (0..columns).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut sum = V::zero();
            for row in 0..rows.count {
                sum = sum.add(load_some(rows.values, row * rows.step + at, columns - at));
            }
            store(sum.add(load(sums, at)), sums, at);
        }
    }
}

dispatch! {
    unsafe fn write = write_with(
        products: &[f32], outputs: Range<usize>, inputs: Range<usize>, input: usize, dw: &Shared,
    )
}

/// Products `[block of x][output, in whole blocks][16]` to their places in dw.
#[inline(always)]
unsafe fn write_with<V: Lanes>(
    products: &[f32],
    outputs: Range<usize>,
    inputs: Range<usize>,
    input: usize,
    dw: &Shared,
) {
    let height = outputs.len().next_multiple_of(LANES);
    for (row, output) in outputs.clone().enumerate() {
        for (at, block) in inputs.clone().enumerate() {
            let (from, column) = ((at * height + row) * LANES, block * LANES);
            // SAFETY: the caller's contract.
            unsafe { store_some::<V, f32>(load(products, from), dw, output * input + column, input - column) };
        }
    }
}

dispatch! {
    unsafe fn write_sums = write_sums_with(sums: &[f32], block: usize, output: usize, db: &Shared)
}

#[inline(always)]
unsafe fn write_sums_with<V: Lanes>(sums: &[f32], block: usize, output: usize, db: &Shared) {
    // SAFETY: the caller's contract.
    unsafe { store_some::<V, f32>(load(sums, 0), db, block * LANES, output - block * LANES) };
}
