//! Linear layers of transformers, y = x·Wᵀ + b over rows `[rows, input]` with PyTorch's weights `[output, input]`, and their
//! gradients. What follows a product (bias, residual, activation) is done while its sums are in the nearest cache.
//!
//! Rows are f32 or bf16; bf16 goes through products of pairs, with weights rounded to bf16. Sums are f32 in any case, and what
//! follows them takes them unrounded: an output is rounded once, if it is bf16. Work is cut by the shape alone and every sum has one
//! order, so the bytes do not depend on the number of threads.

use crate::activation::{Activation, activate};
use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load};
use crate::panel::{self, Packed, Rows, load_some, store_some};
use crate::shared::Shared;
use rayon::prelude::*;
use std::ops::Range;

/// Rows that share one pass over the weights, at most and at least.
const GROUP: (usize, usize) = (252, 48);
/// Fewest tasks that a product is cut into, if it is large enough.
const TASKS: usize = 16;
/// Blocks of columns that are summed at once.
pub(crate) const WIDE: usize = 4;
/// Rows of packed weights that stay in the nearest cache while a group passes.
const PANEL: usize = 128;

/// The shape of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Rows: tokens.
    pub rows: usize,
    /// Values of a row that goes in.
    pub input: usize,
    /// Values of a row that comes out.
    pub output: usize,
}

impl Linear {
    pub(crate) fn check(&self, x: usize, w: usize, y: usize) {
        let Self { rows, input, output } = *self;
        assert!(rows > 0 && input > 0 && output > 0, "{self:?} is empty");
        assert_eq!((x, w, y), (rows * input, output * input, rows * output), "buffer lengths of {self:?}");
    }
}

/// y = x·Wᵀ + b, and the residual, if there is one. `y` is overwritten.
pub fn linear<T: Element, Y: Element>(
    isa: Isa,
    shape: Linear,
    x: &[T],
    weight: &[f32],
    bias: &[f32],
    residual: Option<&[Y]>,
    y: &mut [Y],
) {
    shape.check(x.len(), weight.len(), y.len());
    assert!(bias.len() == shape.output && residual.is_none_or(|r| r.len() == y.len()), "operands of {shape:?}");
    run(isa, shape.rows, x, &forward_weights(isa, shape, weight), After::Bias { bias, residual }, y);
}

/// y = f(x·Wᵀ + b) and `slope` = f′(x·Wᵀ + b), both overwritten.
#[allow(clippy::too_many_arguments)] // the operands of one layer
pub fn linear_activate<T: Element>(
    isa: Isa,
    shape: Linear,
    x: &[T],
    weight: &[f32],
    bias: &[f32],
    activation: Activation,
    y: &mut [T],
    slope: &mut [T],
) {
    shape.check(x.len(), weight.len(), y.len());
    assert!(bias.len() == shape.output && slope.len() == y.len(), "operands of {shape:?}");
    let after = After::Activate { bias, activation, slope: Shared::new(slope) };
    run(isa, shape.rows, x, &forward_weights(isa, shape, weight), after, y);
}

/// dx = dy·W, each value times that of `factor`, if there is one. `dx` is overwritten.
pub fn linear_input_grad<T: Element>(
    isa: Isa,
    shape: Linear,
    dy: &[T],
    weight: &[f32],
    factor: Option<&[T]>,
    dx: &mut [T],
) {
    shape.check(dx.len(), weight.len(), dy.len());
    assert!(factor.is_none_or(|f| f.len() == dx.len()), "operands of {shape:?}");
    let Linear { input, output, .. } = shape;
    let block_len = T::whole(output) * LANES;
    let mut values = Buffer::of(input.div_ceil(LANES) * block_len);
    values.par_chunks_mut(block_len).enumerate().for_each(|(block, out)| {
        let rows = Rows { values: &weight[block * LANES..], step: input, count: output };
        // SAFETY: a block of columns of the weights, and its place.
        unsafe { T::pack_rows(isa, rows, LANES.min(input - block * LANES), out, block_len) };
    });
    run(isa, shape.rows, dy, &Weights { values, inner: output, columns: input }, After::Times(factor), dx);
}

/// Packed weights, as [`Packed`]: `inner` rows, or as many whole pairs.
pub struct Weights<T: Element> {
    pub(crate) values: Buffer<T>,
    inner: usize,
    columns: usize,
}

fn forward_weights<T: Element>(isa: Isa, shape: Linear, weight: &[f32]) -> Weights<T> {
    let Linear { input, output, .. } = shape;
    let block_len = T::whole(input) * LANES;
    let mut values = Buffer::of(output.div_ceil(LANES) * block_len);
    values.par_chunks_mut(block_len).zip(weight.par_chunks(input * LANES)).for_each(|(out, weight)| {
        let rows = Rows { values: weight, step: input, count: weight.len() / input };
        // SAFETY: at most sixteen rows of the weights, and the place of their block.
        unsafe { T::pack_columns(isa, rows, input, out) };
    });
    Weights { values, inner: input, columns: output }
}

/// What becomes of a sum.
pub enum After<'a, Y> {
    /// sum + bias + residual
    Bias { bias: &'a [f32], residual: Option<&'a [Y]> },
    /// f(sum + bias), and f′ beside it
    Activate { bias: &'a [f32], activation: Activation, slope: Shared<'a, Y> },
    /// sum·factor
    Times(Option<&'a [Y]>),
}

/// The products of linear layers for one type of rows.
pub trait LinearSums: Sized {
    /// So many rows as a product takes: all of them, or whole pairs.
    fn whole(rows: usize) -> usize;

    /// Columns of the rows x as [`Packed`] says; what is missing in the last block and pair is zero.
    ///
    /// # Safety
    /// Every row of x has `columns` values, and `out` a place for each row of each block.
    unsafe fn pack_rows(isa: Isa, x: Rows<impl Element>, columns: usize, out: &mut [Self], step: usize);

    /// At most sixteen rows of weights as the columns of one block.
    ///
    /// # Safety
    /// Every row has `len` values, and `out` a place for each.
    unsafe fn pack_columns(isa: Isa, weight: Rows, len: usize, out: &mut [Self]);

    /// The wanted rows of x times the wanted blocks of columns, and what follows.
    ///
    /// # Safety
    /// All operands have the places of these rows and columns, which are the calling task's alone in y; `sums` has sixteen for each of
    /// [`WIDE`] blocks of each row.
    #[allow(clippy::too_many_arguments)] // the operands of one product
    unsafe fn products<Y: Element>(
        isa: Isa,
        x: Rows<Self>,
        first: usize,
        weights: &Weights<Self>,
        blocks: Range<usize>,
        after: &After<Y>,
        sums: &mut [f32],
        y: &Shared<Y>,
    ) where
        Self: Element;

    /// products[block of x][16 to each block of dy][16] (+)= Σ over `count` rows of dy·x
    ///
    /// # Safety
    /// Both have so many rows of each block, and `products` places for all.
    unsafe fn outer(isa: Isa, dy: Packed<Self>, x: Packed<Self>, count: usize, products: &mut [f32], accumulate: bool);
}

impl LinearSums for f32 {
    fn whole(rows: usize) -> usize {
        rows
    }

    unsafe fn pack_rows(isa: Isa, x: Rows<impl Element>, columns: usize, out: &mut [f32], step: usize) {
        // SAFETY: the caller's contract.
        unsafe { pack_rows(isa, x, columns, out, step) }
    }

    unsafe fn pack_columns(_: Isa, weight: Rows, len: usize, out: &mut [f32]) {
        panel::pack_transposed(weight, len, 1.0, out);
    }

    unsafe fn products<Y: Element>(
        isa: Isa,
        x: Rows,
        first: usize,
        weights: &Weights<f32>,
        blocks: Range<usize>,
        after: &After<Y>,
        sums: &mut [f32],
        y: &Shared<Y>,
    ) {
        // SAFETY: the caller's contract.
        unsafe { products(isa, x, first, weights, blocks, after, sums, y) }
    }

    unsafe fn outer(isa: Isa, dy: Packed, x: Packed, count: usize, products: &mut [f32], accumulate: bool) {
        // SAFETY: the caller's contract.
        unsafe { outer(isa, dy, x, count, products, accumulate) }
    }
}

fn run<T: Element, Y: Element>(isa: Isa, rows: usize, x: &[T], weights: &Weights<T>, after: After<Y>, y: &mut [Y]) {
    let blocks = weights.columns.div_ceil(LANES);
    let groups = rows.div_ceil(rows.div_ceil(8).clamp(GROUP.1, GROUP.0));
    // Whole tiles of six or twelve rows.
    let group = rows.div_ceil(groups).next_multiple_of(12);
    let per_task = blocks.div_ceil(TASKS.div_ceil(groups)).next_multiple_of(WIDE);
    let tasks = blocks.div_ceil(per_task);
    let (inner, whole) = (weights.inner, T::whole(weights.inner));
    let y = Shared::new(y);
    (0..rows.div_ceil(group) * tasks).into_par_iter().for_each_init(
        || (Buffer::new(group * WIDE * LANES), Buffer::of(if whole == inner { 0 } else { group * whole })),
        |(sums, copy), task| {
            let (first, column) = (task / tasks * group, task % tasks * per_task);
            let count = group.min(rows - first);
            let blocks = column..(column + per_task).min(blocks);
            let mut x = &x[first * inner..(first + count) * inner];
            if whole != inner {
                x.chunks_exact(inner).zip(copy.chunks_exact_mut(whole)).for_each(|(x, copy)| {
                    copy[..inner].copy_from_slice(x);
                    copy[inner..].fill(T::from_f32(0.0));
                });
                x = copy;
            }
            let x = Rows { values: x, step: whole, count };
            // SAFETY: lengths are checked by the callers, and a task writes rows and columns of its own.
            unsafe { T::products(isa, x, first, weights, blocks, &after, sums, &y) };
        },
    );
}

dispatch! {
    unsafe fn products<Y> = products_with(
        x: Rows, first: usize, weights: &Weights<f32>, blocks: Range<usize>, after: &After<Y>, sums: &mut [f32], y: &Shared<Y>,
    )
}

#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn products_with<V: Lanes, Y: Element>(
    x: Rows,
    first: usize,
    weights: &Weights<f32>,
    blocks: Range<usize>,
    after: &After<Y>,
    sums: &mut [f32],
    y: &Shared<Y>,
) {
    let inner = weights.inner;
    let part = inner.div_ceil(inner.div_ceil(PANEL));
    for block in blocks.clone().step_by(WIDE) {
        let count = WIDE.min(blocks.end - block);
        let out = Shared::new(sums);
        for k in (0..inner).step_by(part) {
            let x = Rows { values: &x.values[k..], ..x };
            let values = &weights.values[(block * inner + k) * LANES..];
            let w = Packed { values, step: inner * LANES, blocks: count };
            // SAFETY: the rows and the panel of weights are there, and `sums` holds a block of sums for each row.
            unsafe { panel::times::<V>(x, part.min(inner - k), w, &out, WIDE * LANES, k > 0) };
        }
        // SAFETY: the sums of these rows and blocks; places of y that belong to the task.
        unsafe { weights.finish::<V, Y>(first..first + x.count, block..block + count, sums, after, y) };
    }
}

impl<T: Element> Weights<T> {
    /// Sums `[row][WIDE blocks][16]` become the values of these rows and blocks of y.
    ///
    /// # Safety
    /// As [`LinearSums::products`].
    #[inline(always)]
    pub(crate) unsafe fn finish<V: Lanes, Y: Element>(
        &self,
        rows: Range<usize>,
        blocks: Range<usize>,
        sums: &[f32],
        after: &After<Y>,
        y: &Shared<Y>,
    ) {
        for (at, row) in rows.enumerate() {
            for (b, block) in blocks.clone().enumerate() {
                let column = block * LANES;
                // SAFETY: the caller's contract.
                unsafe {
                    let sum = load::<V>(sums, (at * WIDE + b) * LANES);
                    finish(sum, row * self.columns + column, column, self.columns, after, y);
                }
            }
        }
    }
}

/// Sixteen sums from `column` on become values of y from `place` on.
#[inline(always)]
unsafe fn finish<V: Lanes, Y: Element>(
    sum: V,
    place: usize,
    column: usize,
    columns: usize,
    after: &After<Y>,
    y: &Shared<Y>,
) {
    let count = LANES.min(columns - column);
    // SAFETY: the caller's contract; operands are as long as y, biases as a row.
    unsafe {
        let value = match after {
            After::Bias { bias, residual } => {
                let value = sum.add(load_some(bias, column, count));
                match residual {
                    Some(residual) => value.add(load_some(residual, place, count)),
                    None => value,
                }
            }
            After::Activate { bias, activation, slope } => {
                let (value, derivative) = activate(*activation, sum.add(load_some(bias, column, count)));
                store_some(derivative, slope, place, count);
                value
            }
            After::Times(Some(factor)) => sum.mul(load_some(factor, place, count)),
            After::Times(None) => sum,
        };
        store_some(value, y, place, count);
    }
}

dispatch! {
    unsafe fn pack_rows<T> = pack_rows_with(x: Rows<T>, columns: usize, out: &mut [f32], step: usize)
}

#[inline(always)]
unsafe fn pack_rows_with<V: Lanes, T: Element>(x: Rows<T>, columns: usize, out: &mut [f32], step: usize) {
    // SAFETY: the caller's contract.
    unsafe { panel::pack::<V>(x, columns, out, step) }
}

dispatch! {
    unsafe fn outer = outer_with(dy: Packed, x: Packed, count: usize, products: &mut [f32], accumulate: bool)
}

#[inline(always)]
unsafe fn outer_with<V: Lanes>(dy: Packed, x: Packed, count: usize, products: &mut [f32], accumulate: bool) {
    let height = dy.blocks * LANES;
    for first in (0..x.blocks).step_by(WIDE) {
        let x = Packed { values: &x.values[first * x.step..], step: x.step, blocks: WIDE.min(x.blocks - first) };
        let products = &mut products[first * height * LANES..];
        for block in 0..dy.blocks {
            let rows = Rows { values: &dy.values[block * dy.step..], step: LANES, count };
            let out = &mut products[block * LANES * LANES..];
            // SAFETY: the caller's contract.
            unsafe { panel::transposed_times::<V>(rows, LANES, x, out, height * LANES, accumulate) };
        }
    }
}
