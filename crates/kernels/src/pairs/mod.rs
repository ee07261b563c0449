//! Products of bf16 activations: linear layers (`linear`), and convolutions as direct sums. Weights are rounded to bf16, products are exact and summed in f32, and
//! outputs are rounded once. Sums have one order on every instruction set.

mod lanes;
mod linear;
mod patches;
mod product;

use crate::buffer::Buffer;
use crate::conv::{Conv, LANES};
use crate::direct::add_shards;
use crate::isa::Isa;
use crate::normed::Read;
use crate::shared::Shared;
use half::bf16;
use patches::{Patches, pair_pixels};
use product::{PAIRS, PixelPairs};
use rayon::prelude::*;

/// Bytes of the rows that share one pass over the weights.
const ROWS_BYTES: usize = 1 << 18;
/// Rows of a group: at most, and the step of the tallest tile.
const MOST_ROWS: usize = 384;
const ROW_STEP: usize = 12;
/// Pixels whose outer products are summed in registers.
const LINE_PIXELS: usize = 128;
/// Values under a kernel above which half as many pixels stay in the cache.
const LONG_ROW: usize = 1024;
/// Values of a weight gradient above which it has few copies.
const LARGE_GRADIENT: usize = 1 << 18;
/// Fewest tasks that a batch is cut into.
const TASKS: usize = 16;

/// y = x ∗ w
pub(crate) fn forward(isa: Isa, conv: Conv, x: Read<bf16>, weight: &[f32], y: &mut [bf16]) {
    let taps = conv.k * conv.k;
    let patches = Patches::of_outputs(&conv);
    let columns = patches.columns(isa, weight, (conv.co, conv.ci * taps), (conv.ci, taps));
    multiply(isa, conv.n, x, &[(patches, columns)], conv.co, y);
}

/// dx: input pixels fall into stride² classes by their remainder; each is a convolution of dy with the taps that reach
/// it.
pub(crate) fn input_grad(isa: Isa, conv: Conv, dy: &[bf16], weight: &[f32], dx: &mut [bf16]) {
    let (s, taps) = (conv.stride, conv.k * conv.k);
    let class = |remainders| {
        let patches = Patches::of_inputs(&conv, remainders);
        let columns = patches.columns(isa, weight, (conv.ci, taps), (conv.co, conv.ci * taps));
        (patches, columns)
    };
    let classes: Vec<_> = (0..s).flat_map(|a| (0..s).map(move |b| (a, b))).map(class).collect();
    multiply(isa, conv.n, Read::as_is(dy), &classes, conv.ci, dx);
}

/// The rows of every class times its columns.
fn multiply(isa: Isa, n: usize, x: Read<bf16>, classes: &[(Patches, Buffer<bf16>)], co: usize, y: &mut [bf16]) {
    let blocks = co.div_ceil(LANES);
    let tasks = classes.iter().flat_map(|class| {
        let (patches, _) = class;
        let all = n * patches.pixels();
        let rows = (ROWS_BYTES / (2 * patches.row().max(1))).clamp(4 * ROW_STEP, MOST_ROWS) / ROW_STEP * ROW_STEP;
        let columns = TASKS.div_ceil(all.div_ceil(rows).max(1));
        let per_column = blocks.div_ceil(columns).next_multiple_of(4);
        let parts = move |first: usize| {
            let rows = first..(first + rows).min(all);
            (0..blocks)
                .step_by(per_column)
                .map(move |from| (class, rows.clone(), from..(from + per_column).min(blocks)))
        };
        (0..all).step_by(rows).flat_map(parts)
    });
    let tasks: Vec<_> = tasks.collect();
    let y = Shared::new(y);
    tasks.into_par_iter().for_each_init(
        || Buffer::of(0),
        |copy, ((patches, columns), pixels, blocks)| {
            let places = patches.places(pixels.clone());
            let rows = patches.rows(isa, x, pixels, copy);
            // SAFETY: there is a row for each place, places are inside `y`, and a task writes pixels or channels of its
            // own.
            unsafe { product::multiply(isa, rows, patches.row(), &places, columns, blocks, co, &y) };
        },
    );
}

/// dw `[co, ci, k, k]`: a fixed number of shards of the pixels, added in order.
pub(crate) fn weight_grad(isa: Isa, conv: Conv, x: Read<bf16>, dy: &[bf16], dw: &mut [f32]) {
    let patches = Patches::of_outputs(&conv);
    let all = conv.n * patches.pixels();
    let (width, blocks) = (patches.width(), conv.co.div_ceil(LANES));
    let x_blocks = width.div_ceil(LANES);
    let line = if width > LONG_ROW { LINE_PIXELS / 2 } else { LINE_PIXELS };
    // Large gradients: fewer copies of them, more tasks by columns.
    let is_large = width * conv.co > LARGE_GRADIENT;
    let per_shard = all.div_ceil(if is_large { 2 } else { TASKS }).next_multiple_of(line);
    let shards = all.div_ceil(per_shard);
    let wanted = if is_large { TASKS / 4 } else { 1 }.max(TASKS.div_ceil(shards) / 2);
    let per_column = blocks.div_ceil(wanted).next_multiple_of(4).min(blocks);
    let columns = blocks.div_ceil(per_column);
    let stride = line / 2 * PAIRS + PAIRS;
    let partial: Vec<Buffer> = (0..shards * columns)
        .into_par_iter()
        .map(|task| {
            let (shard, column) = (task / columns, task % columns);
            let channels = column * per_column * LANES..((column + 1) * per_column * LANES).min(conv.co);
            let blocks = channels.len().div_ceil(LANES);
            let mut acc = Buffer::new(x_blocks * blocks * LANES * LANES);
            let (mut copy, mut xs, mut ds) =
                (Buffer::of(0), Buffer::of(x_blocks * stride), Buffer::of(blocks * stride));
            let pixels = shard * per_shard..((shard + 1) * per_shard).min(all);
            for first in pixels.clone().step_by(line) {
                let pixels_of_line = first..(first + line).min(pixels.end);
                let count = pixels_of_line.len().div_ceil(2);
                let dy = &dy[first * conv.co..pixels_of_line.end * conv.co];
                let rows = patches.rows(isa, x, pixels_of_line, &mut copy);
                // SAFETY: bounds are checked inside.
                unsafe {
                    pair_pixels(isa, dy, conv.co, channels.clone(), &mut ds, stride);
                    pair_pixels(isa, rows, patches.row(), 0..width, &mut xs, stride);
                }
                let xs = PixelPairs { values: &xs, blocks: x_blocks, stride };
                let ds = PixelPairs { values: &ds, blocks, stride };
                // SAFETY: both hold `count` pairs of all their blocks, `acc` a square for any two blocks.
                unsafe { product::outer(isa, &xs, &ds, count, &mut acc, first > pixels.start) };
            }
            acc
        })
        .collect();
    add_shards(&conv, &partial, shards, per_column, x_blocks * LANES, dw);
}
