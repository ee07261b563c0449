//! Linear layers of transformers, y = x·Wᵀ + b over rows `[rows, input]` with PyTorch's weights `[output, input]`, and their
//! gradients. What follows a product (bias, residual, activation) is done while its sums are in the nearest cache.
//!
//! Work is cut by the shape alone and every sum has one order, so the bytes do not depend on the number of threads.

use crate::activation::{Activation, activate};
use crate::buffer::Buffer;
use crate::conv::LANES;
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
const WIDE: usize = 4;
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
pub fn linear(
    isa: Isa,
    shape: Linear,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    residual: Option<&[f32]>,
    y: &mut [f32],
) {
    shape.check(x.len(), weight.len(), y.len());
    assert!(bias.len() == shape.output && residual.is_none_or(|r| r.len() == y.len()), "operands of {shape:?}");
    run(isa, shape.rows, x, &forward_weights(shape, weight), After::Bias { bias, residual }, y);
}

/// y = f(x·Wᵀ + b) and `slope` = f′(x·Wᵀ + b), both overwritten.
#[allow(clippy::too_many_arguments)] // the operands of one layer
pub fn linear_activate(
    isa: Isa,
    shape: Linear,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    activation: Activation,
    y: &mut [f32],
    slope: &mut [f32],
) {
    shape.check(x.len(), weight.len(), y.len());
    assert!(bias.len() == shape.output && slope.len() == y.len(), "operands of {shape:?}");
    let after = After::Activate { bias, activation, slope: Shared::new(slope) };
    run(isa, shape.rows, x, &forward_weights(shape, weight), after, y);
}

/// dx = dy·W, each value times that of `factor`, if there is one. `dx` is overwritten.
pub fn linear_input_grad(isa: Isa, shape: Linear, dy: &[f32], weight: &[f32], factor: Option<&[f32]>, dx: &mut [f32]) {
    shape.check(dx.len(), weight.len(), dy.len());
    assert!(factor.is_none_or(|f| f.len() == dx.len()), "operands of {shape:?}");
    let Linear { input, output, .. } = shape;
    let mut values = Buffer::new(input.div_ceil(LANES) * output * LANES);
    values.par_chunks_mut(output * LANES).enumerate().for_each(|(block, out)| {
        let rows = Rows { values: &weight[block * LANES..], step: input, count: output };
        // SAFETY: a block of columns of the weights, and its place.
        unsafe { pack_rows(isa, rows, LANES.min(input - block * LANES), out, output * LANES) };
    });
    run(isa, shape.rows, dy, &Weights { values, inner: output, columns: input }, After::Times(factor), dx);
}

/// Packed weights `[columns/16][inner][16]`.
struct Weights {
    values: Buffer,
    inner: usize,
    columns: usize,
}

fn forward_weights(shape: Linear, weight: &[f32]) -> Weights {
    let Linear { input, output, .. } = shape;
    let mut values = Buffer::new(output.div_ceil(LANES) * input * LANES);
    values.par_chunks_mut(input * LANES).zip(weight.par_chunks(input * LANES)).for_each(|(out, weight)| {
        panel::pack_transposed(Rows { values: weight, step: input, count: weight.len() / input }, input, 1.0, out);
    });
    Weights { values, inner: input, columns: output }
}

/// What becomes of a sum.
enum After<'a> {
    /// sum + bias + residual
    Bias { bias: &'a [f32], residual: Option<&'a [f32]> },
    /// f(sum + bias), and f′ beside it
    Activate { bias: &'a [f32], activation: Activation, slope: Shared<'a> },
    /// sum·factor
    Times(Option<&'a [f32]>),
}

fn run(isa: Isa, rows: usize, x: &[f32], weights: &Weights, after: After, y: &mut [f32]) {
    let blocks = weights.columns.div_ceil(LANES);
    let groups = rows.div_ceil(rows.div_ceil(8).clamp(GROUP.1, GROUP.0));
    // Whole tiles of six or twelve rows.
    let group = rows.div_ceil(groups).next_multiple_of(12);
    let per_task = blocks.div_ceil(TASKS.div_ceil(groups)).next_multiple_of(WIDE);
    let tasks = blocks.div_ceil(per_task);
    let y = Shared::new(y);
    (0..rows.div_ceil(group) * tasks).into_par_iter().for_each_init(
        || Buffer::new(group * WIDE * LANES),
        |sums, task| {
            let (first, column) = (task / tasks * group, task % tasks * per_task);
            let rows = first..(first + group).min(rows);
            let blocks = column..(column + per_task).min(blocks);
            // SAFETY: lengths are checked by the callers, and a task writes rows and columns of its own.
            unsafe { products(isa, x, rows, weights, blocks, &after, sums, &y) };
        },
    );
}

dispatch! {
    unsafe fn products = products_with(
        x: &[f32], rows: Range<usize>, weights: &Weights, blocks: Range<usize>, after: &After, sums: &mut [f32], y: &Shared,
    )
}

#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn products_with<V: Lanes>(
    x: &[f32],
    rows: Range<usize>,
    weights: &Weights,
    blocks: Range<usize>,
    after: &After,
    sums: &mut [f32],
    y: &Shared,
) {
    let inner = weights.inner;
    let part = inner.div_ceil(inner.div_ceil(PANEL));
    for block in blocks.clone().step_by(WIDE) {
        let count = WIDE.min(blocks.end - block);
        let out = Shared::new(sums);
        for k in (0..inner).step_by(part) {
            let x = Rows { values: &x[rows.start * inner + k..], step: inner, count: rows.len() };
            let values = &weights.values[(block * inner + k) * LANES..];
            let w = Packed { values, step: inner * LANES, blocks: count };
            // SAFETY: the rows and the panel of weights are there, and `sums` holds a block of sums for each row.
            unsafe { panel::times::<V>(x, part.min(inner - k), w, &out, WIDE * LANES, k > 0) };
        }
        for (at, row) in rows.clone().enumerate() {
            for b in 0..count {
                let column = (block + b) * LANES;
                // SAFETY: the sums of this row and block; places of y that belong to the task.
                unsafe {
                    let sum = load::<V>(sums, (at * WIDE + b) * LANES);
                    finish(sum, row * weights.columns + column, column, weights.columns, after, y);
                }
            }
        }
    }
}

/// Sixteen sums from `column` on become values of y from `place` on.
#[inline(always)]
unsafe fn finish<V: Lanes>(sum: V, place: usize, column: usize, columns: usize, after: &After, y: &Shared) {
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
    unsafe fn pack_rows = pack_rows_with(x: Rows, columns: usize, out: &mut [f32], step: usize)
}

#[inline(always)]
unsafe fn pack_rows_with<V: Lanes>(x: Rows, columns: usize, out: &mut [f32], step: usize) {
    // SAFETY: the caller's contract.
    unsafe { panel::pack::<V>(x, columns, out, step) }
}
