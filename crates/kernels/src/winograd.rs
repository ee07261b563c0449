//! Winograd's F(4×4, 3×3): 36 products for 16 outputs of a 3×3 convolution, where the direct sum takes 144.
//!
//! y = Aᵀ[(G w Gᵀ) ⊙ (Bᵀ x B)]A on tiles of 6×6 inputs, with interpolation points 0, ±3/4, ±3/2, ∞, whose rounding error
//! is half that of the textbook's 0, ±1, ±2, ∞. The input gradient is the same with flipped weights; the weight
//! gradient is Gᵀ[Σ (Bᵀ x B) ⊗ (A dy Aᵀ)]G.
//!
//! Transformed data lies as `[ξ][channel/16][tile][16]` for each of the 36 points ξ, so that the products over channels
//! are those of `tile`. Of bf16 activations only reading and writing is different: transforms and products are in f32.

// Long: one algorithm: its transforms, products and three gradients share their tables and layouts.

use crate::buffer::Buffer;
use crate::conv::{Conv, LANES};
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, splat, store};
use crate::normed::{Read, norm_relu};
use crate::shared::Shared;
use crate::tile::{self, Line};
use rayon::prelude::*;
use std::ops::Range;

/// Points of a tile, 6×6.
const POINTS: usize = 36;
/// Outputs along a tile's side.
const SIDE: usize = 4;
/// Rows of a product are processed in steps that divide this.
const ROW_STEP: usize = 12;
/// Floats between planes of points that keep them off the same cache set.
const STAGGER: usize = 16;
/// Tiles whose transformed values stay in the cache; a multiple of the row step.
const CHUNK_TILES: usize = 3 * ROW_STEP;
/// Fewest tasks that the tiles of small batches are cut into, and the step of their tiles.
const TASKS: usize = 6;
const SMALL_STEP: usize = ROW_STEP / 2;
/// Parts of a batch whose weight gradients are summed apart, and added in order.
const SHARDS: usize = 8;
/// Tiles up to which, and pairs of channels from which, the sums of a part are shorter than the way of its copy of the gradient
/// through memory.
const FEW_TILES: usize = 96;
const WIDE_WEIGHTS: usize = 48 * 48;
/// Transformed weights above this are made group by group, where they are used.
const LARGE_WEIGHTS: usize = 200 * 200;
/// Input and output channels of one such group.
const GROUP_CHANNELS: usize = 64;
/// Tiles whose transformed values are kept while groups pass.
const LARGE_TILES: usize = 384;
/// Tiles that stay in the nearest cache while channels pass; a multiple of the row step.
const PAIR_TILES: usize = 8 * ROW_STEP;

/// Whether the convolution can go this way and saves work.
pub(crate) fn suits(conv: &Conv) -> bool {
    let is_kind = conv.k == 3 && conv.stride == 1 && conv.pad == 1;
    let is_whole = conv.ci.is_multiple_of(LANES) && conv.co.is_multiple_of(LANES);
    let tiles = conv.h.div_ceil(SIDE) * conv.w.div_ceil(SIDE);
    is_kind && is_whole && 3 * tiles * POINTS <= 2 * conv.h * conv.w * 9
}

/// y = x ∗ w
pub(crate) fn forward<T: Element>(isa: Isa, conv: Conv, x: Read<T>, weight: &[f32], y: &mut [T]) {
    convolve(isa, Grid::new(&conv), x, Weights { values: weight, ci: conv.ci, co: conv.co, is_flipped: false }, y);
}

/// dx = dy ∗ w, flipped and with inputs and outputs exchanged
pub(crate) fn input_grad<T: Element>(isa: Isa, conv: Conv, dy: &[T], weight: &[f32], dx: &mut [T]) {
    convolve(
        isa,
        Grid::new(&conv),
        Read::as_is(dy),
        Weights { values: weight, ci: conv.co, co: conv.ci, is_flipped: true },
        dx,
    );
}

/// The tiles of a batch of images.
#[derive(Clone, Copy)]
struct Grid {
    h: usize,
    w: usize,
    down: usize,
    across: usize,
    tiles: usize,
}

impl Grid {
    fn new(conv: &Conv) -> Self {
        let (down, across) = (conv.h.div_ceil(SIDE), conv.w.div_ceil(SIDE));
        Self { h: conv.h, w: conv.w, down, across, tiles: conv.n * down * across }
    }

    /// (image, first row, first column) of the outputs of a tile
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (image, within) = (tile / (self.down * self.across), tile % (self.down * self.across));
        (image, within / self.across * SIDE, within % self.across * SIDE)
    }
}

/// Weights `[co, ci, 3, 3]`, or those of the input gradient: `[ci, co, 3, 3]`, flipped.
#[derive(Clone, Copy)]
struct Weights<'a> {
    values: &'a [f32],
    ci: usize,
    co: usize,
    is_flipped: bool,
}

fn convolve<T: Element>(isa: Isa, grid: Grid, x: Read<T>, weights: Weights, y: &mut [T]) {
    let Weights { ci, co, .. } = weights;
    let y = Shared::new(y);
    if ci * co <= LARGE_WEIGHTS {
        let mut u = Buffer::new(plane(co, ci) * POINTS);
        let shared = Shared::new(&mut u);
        (0..co / LANES).into_par_iter().for_each(|block| {
            // SAFETY: `u` holds all channels; blocks write places of their own.
            unsafe { transform_weights(isa, weights, 0..ci, 0..co, block, &shared) };
        });
        let stride = CHUNK_TILES;
        let chunk = grid.tiles.div_ceil(TASKS).next_multiple_of(SMALL_STEP).min(stride);
        ranges(0..grid.tiles, chunk).into_par_iter().for_each(|tiles| {
            let mut v = Buffer::new(plane(ci, stride) * POINTS);
            let mut m = Buffer::new(plane(co, stride) * POINTS);
            let (rows, v_plane) = (tiles.len(), plane(ci, stride));
            let product = Product { ci, co, rows, v_stride: stride, v_plane, stride, accumulate: false };
            // SAFETY: the buffers hold `stride` tiles of all channels; tiles write pixels of their own.
            unsafe {
                transform_input(isa, &grid, x, ci, tiles.clone(), 0, &Shared::new(&mut v), stride);
                multiply(isa, &v, &u, &mut m, product);
                transform_output(isa, &grid, &m, co, 0..co, tiles, &y, stride);
            }
        });
        return;
    }
    // Large weights do not fit the cache once transformed: transformed inputs are kept, weights pass in groups.
    for tiles in ranges(0..grid.tiles, LARGE_TILES) {
        let v_stride = tiles.len().next_multiple_of(ROW_STEP);
        let v = all_tiles(&tiles, ci, v_stride, |part, v| {
            // SAFETY: the buffer holds all tiles of the chunk; each part writes tiles of its own.
            unsafe { transform_input(isa, &grid, x, ci, part.clone(), part.start - tiles.start, v, v_stride) };
        });
        let groups = ranges(0..co, GROUP_CHANNELS);
        let parts = ranges(tiles.clone(), PAIR_TILES);
        let tasks: Vec<_> = parts.iter().flat_map(|part| groups.iter().map(move |group| (part, group))).collect();
        tasks.into_par_iter().for_each(|(part, outputs)| {
            let (width, stride) = (outputs.len(), part.len().next_multiple_of(ROW_STEP));
            let mut u = Buffer::new(plane(width, GROUP_CHANNELS) * POINTS);
            let mut m = Buffer::new(plane(width, stride) * POINTS);
            for inputs in ranges(0..ci, GROUP_CHANNELS) {
                let v = &v[inputs.start * v_stride + (part.start - tiles.start) * LANES..];
                let product = Product {
                    ci: inputs.len(),
                    co: width,
                    rows: part.len(),
                    v_stride,
                    v_plane: plane(ci, v_stride),
                    stride,
                    accumulate: inputs.start > 0,
                };
                // SAFETY: the buffers hold the group's channels and all tiles of the part.
                unsafe {
                    for block in 0..width / LANES {
                        transform_weights(isa, weights, inputs.clone(), outputs.clone(), block, &Shared::new(&mut u));
                    }
                    multiply(isa, v, &u, &mut m, product);
                }
            }
            // SAFETY: tasks write tiles or channels of their own.
            unsafe { transform_output(isa, &grid, &m, co, outputs.clone(), part.clone(), &y, stride) };
        });
    }
}

/// dw `[co, ci, 3, 3]`
pub(crate) fn weight_grad<T: Element>(isa: Isa, conv: Conv, x: Read<T>, dy: &[T], dw: &mut [f32]) {
    let grid = Grid::new(&conv);
    let (ci, co) = (conv.ci, conv.co);
    if ci * co > LARGE_WEIGHTS {
        return wide_weight_grad(isa, &grid, [ci, co], x, dy, dw, None);
    }
    let per_shard = grid.tiles.div_ceil(SHARDS);
    if grid.tiles <= FEW_TILES && ci * co >= WIDE_WEIGHTS {
        return wide_weight_grad(isa, &grid, [ci, co], x, dy, dw, Some(per_shard));
    }
    sharded_weight_grad(isa, &grid, [ci, co], x, dy, dw, per_shard);
}

/// A gradient for each shard, added in order.
fn sharded_weight_grad<T: Element>(
    isa: Isa,
    grid: &Grid,
    [ci, co]: [usize; 2],
    x: Read<T>,
    dy: &[T],
    dw: &mut [f32],
    per_shard: usize,
) {
    let stride = CHUNK_TILES;
    let partial: Vec<Buffer> = ranges(0..grid.tiles, per_shard)
        .into_par_iter()
        .map(|shard| {
            let mut acc = Buffer::new(plane(ci, co) * POINTS);
            let mut v = Buffer::new(plane(ci, stride) * POINTS);
            let mut z = Buffer::new(plane(co, stride) * POINTS);
            for tiles in ranges(shard.clone(), stride) {
                let accumulate = tiles.start > shard.start;
                let pairs = Pairs { inputs: 0..ci, ci, outputs: 0..co, co, tiles: tiles.len(), stride, accumulate };
                // SAFETY: the buffers hold `stride` tiles of all channels, and all pairs.
                unsafe {
                    transform_input(isa, grid, x, ci, tiles.clone(), 0, &Shared::new(&mut v), stride);
                    transform_output_grad(isa, grid, dy, co, tiles, 0, &Shared::new(&mut z), stride);
                    multiply_pairs(isa, &v, &z, &mut acc, &pairs);
                }
            }
            acc
        })
        .collect();
    let dw = Shared::new(dw);
    (0..ci / LANES).into_par_iter().for_each(|block| {
        let parts: Vec<&[f32]> = partial.iter().map(|acc| &acc[block * co * LANES..]).collect();
        // SAFETY: every shard holds all pairs; a block of inputs writes places of its own.
        unsafe { transform_weight_grad(isa, &parts, plane(ci, co), ci, block * LANES, 0..co, &dw, false) }
    });
}

/// Gradients too large for copies, or for as many as there are shards of few tiles: the transformed data of a chunk of tiles is
/// kept, and each block of input channels sums over all of it; shard by shard, if there are shards, as copies would.
fn wide_weight_grad<T: Element>(
    isa: Isa,
    grid: &Grid,
    [ci, co]: [usize; 2],
    x: Read<T>,
    dy: &[T],
    dw: &mut [f32],
    per_shard: Option<usize>,
) {
    let dw = Shared::new(dw);
    for tiles in ranges(0..grid.tiles, LARGE_TILES) {
        let stride = tiles.len().next_multiple_of(ROW_STEP);
        // SAFETY (both): the buffer holds all tiles of the chunk; each part writes tiles of its own.
        let v = all_tiles(&tiles, ci, stride, |part, v| unsafe {
            transform_input(isa, grid, x, ci, part.clone(), part.start - tiles.start, v, stride);
        });
        let z = all_tiles(&tiles, co, stride, |part, z| unsafe {
            transform_output_grad(isa, grid, dy, co, part.clone(), part.start - tiles.start, z, stride);
        });
        (0..ci / LANES).into_par_iter().for_each(|block| {
            let inputs = block * LANES..(block + 1) * LANES;
            let mut acc = Buffer::new(plane(LANES, GROUP_CHANNELS) * POINTS);
            for outputs in ranges(0..co, GROUP_CHANNELS) {
                let (inputs, outputs) = (inputs.clone(), outputs.clone());
                let width = outputs.len();
                let pairs =
                    Pairs { inputs, ci, outputs: outputs.clone(), co, tiles: tiles.len(), stride, accumulate: false };
                // SAFETY: `acc` holds one block of inputs and the group's outputs; a block writes places of its own.
                unsafe {
                    match per_shard {
                        None => multiply_pairs(isa, &v, &z, &mut acc, &pairs),
                        Some(per_shard) => multiply_shards(isa, &v, &z, &mut acc, &pairs, per_shard),
                    }
                    let is_later = tiles.start > 0;
                    transform_weight_grad(isa, &[&acc], plane(LANES, width), ci, block * LANES, outputs, &dw, is_later);
                }
            }
        });
    }
}

/// Floats from one point to the next, for `a`·`b` values each.
fn plane(a: usize, b: usize) -> usize {
    a * b + STAGGER
}

fn ranges(all: Range<usize>, step: usize) -> Vec<Range<usize>> {
    all.clone().step_by(step).map(|first| first..(first + step).min(all.end)).collect()
}

/// A transform of `tiles`, in parallel.
fn all_tiles(
    tiles: &Range<usize>,
    channels: usize,
    stride: usize,
    transform: impl Fn(Range<usize>, &Shared) + Sync,
) -> Buffer {
    let mut out = Buffer::new(plane(channels, stride) * POINTS);
    let shared = Shared::new(&mut out);
    ranges(tiles.clone(), ROW_STEP).into_par_iter().for_each(|part| transform(part, &shared));
    out
}

/// The interpolation points ±a and ±b, beside 0 and ∞, and the scales of their rows in G.
const A: f32 = 0.75;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;
const F0: f32 = 1.0 / (A2 * B2);
const FA: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
const FB: f32 = 1.0 / (2.0 * B2 * (B2 - A2));

/// c·x + y
#[inline(always)]
unsafe fn axpy<V: Lanes>(c: f32, x: V, y: V) -> V {
    // SAFETY (this and the transforms below): the caller runs under the instruction set of V.
    unsafe { V::splat(c).fma(x, y) }
}

#[inline(always)]
unsafe fn scale<V: Lanes>(c: f32, x: V) -> V {
    unsafe { V::splat(c).mul(x) }
}

/// Bᵀd
#[inline(always)]
unsafe fn input_side<V: Lanes>(d: [V; 6]) -> [V; 6] {
    unsafe {
        let (even_b, odd_b) = (axpy(-B2, d[2], d[4]), axpy(-B2, d[1], d[3]));
        let (even_a, odd_a) = (axpy(-A2, d[2], d[4]), axpy(-A2, d[1], d[3]));
        [
            axpy(A2 * B2, d[0], axpy(-(A2 + B2), d[2], d[4])),
            axpy(A, odd_b, even_b),
            axpy(-A, odd_b, even_b),
            axpy(B, odd_a, even_a),
            axpy(-B, odd_a, even_a),
            axpy(A2 * B2, d[1], axpy(-(A2 + B2), d[3], d[5])),
        ]
    }
}

/// Aᵀm
#[inline(always)]
unsafe fn output_side<V: Lanes>(m: [V; 6]) -> [V; 4] {
    unsafe {
        let (sum_a, difference_a) = (m[1].add(m[2]), m[1].sub(m[2]));
        let (sum_b, difference_b) = (m[3].add(m[4]), m[3].sub(m[4]));
        [
            m[0].add(sum_a.add(sum_b)),
            axpy(A, difference_a, scale(B, difference_b)),
            axpy(A2, sum_a, scale(B2, sum_b)),
            axpy(A * A2, difference_a, axpy(B * B2, difference_b, m[5])),
        ]
    }
}

/// A·dy
#[inline(always)]
unsafe fn output_grad_side<V: Lanes>(y: [V; 4]) -> [V; 6] {
    unsafe {
        let (even_a, odd_a) = (axpy(A2, y[2], y[0]), axpy(A2, y[3], y[1]));
        let (even_b, odd_b) = (axpy(B2, y[2], y[0]), axpy(B2, y[3], y[1]));
        [y[0], axpy(A, odd_a, even_a), axpy(-A, odd_a, even_a), axpy(B, odd_b, even_b), axpy(-B, odd_b, even_b), y[3]]
    }
}

/// G·w
#[inline(always)]
unsafe fn weight_side<V: Lanes>(w: [V; 3]) -> [V; 6] {
    unsafe {
        let (even_a, odd_a) = (scale(FA, axpy(A2, w[2], w[0])), scale(A * FA, w[1]));
        let (even_b, odd_b) = (scale(FB, axpy(B2, w[2], w[0])), scale(B * FB, w[1]));
        [scale(F0, w[0]), even_a.add(odd_a), even_a.sub(odd_a), even_b.add(odd_b), even_b.sub(odd_b), w[2]]
    }
}

/// Gᵀu
#[inline(always)]
unsafe fn weight_grad_side<V: Lanes>(u: [V; 6]) -> [V; 3] {
    unsafe {
        let (even_a, odd_a) = (scale(FA, u[1].add(u[2])), scale(FA * A, u[1].sub(u[2])));
        let (even_b, odd_b) = (scale(FB, u[3].add(u[4])), u[3].sub(u[4]));
        [axpy(F0, u[0], even_a.add(even_b)), axpy(B * FB, odd_b, odd_a), axpy(A2, even_a, axpy(B2, even_b, u[5]))]
    }
}

/// Applies `side` to the columns of a square, then to its rows.
macro_rules! both_sides {
    ($side:ident, $from:literal => $to:literal, $get:expr, $put:expr) => {{
        // Not zeroed first: that would cost as much as the sums. Every value is written before it is read.
        let mut half = std::mem::MaybeUninit::<[[V; $from]; $to]>::uninit();
        let half = half.as_mut_ptr().cast::<V>();
        for j in 0..$from {
            let mut column = [V::zero(); $from];
            for i in 0..$from {
                column[i] = $get(i, j);
            }
            let column = $side(column);
            for i in 0..$to {
                half.add(i * $from + j).write(column[i]);
            }
        }
        for i in 0..$to {
            let mut row = [V::zero(); $from];
            for j in 0..$from {
                row[j] = half.add(i * $from + j).read();
            }
            let row = $side(row);
            for j in 0..$to {
                $put(row[j], i, j);
            }
        }
    }};
}

dispatch! {
    /// G w Gᵀ of sixteen output channels, block `block` of `outputs`, for all `inputs`: `u[ξ][block][input][16]`.
    unsafe fn transform_weights = transform_weights_with(
        weights: Weights, inputs: Range<usize>, outputs: Range<usize>, block: usize, u: &Shared,
    )
}

#[inline(always)]
unsafe fn transform_weights_with<V: Lanes>(
    weights: Weights,
    inputs: Range<usize>,
    outputs: Range<usize>,
    block: usize,
    u: &Shared,
) {
    let plane = plane(outputs.len(), inputs.len());
    let first = outputs.start + block * LANES;
    let mut taps = [[0.0_f32; LANES]; 9];
    for (index, input) in inputs.clone().enumerate() {
        for lane in 0..LANES {
            let output = first + lane;
            let at = if weights.is_flipped { input * weights.co + output } else { output * weights.ci + input };
            for (tap, value) in weights.values[at * 9..][..9].iter().enumerate() {
                taps[if weights.is_flipped { 8 - tap } else { tap }][lane] = *value;
            }
        }
        let to = (block * inputs.len() + index) * LANES;
        // SAFETY: the caller's buffer holds the group's channels.
        unsafe {
            both_sides!(
                weight_side,
                3 => 6,
                |i: usize, j: usize| V::load(taps[3 * i + j].as_ptr()),
                |value: V, i: usize, j: usize| u.store(value, to + (6 * i + j) * plane)
            );
        }
    }
}

dispatch! {
    /// Bᵀ x B of `tiles`, as rows from `first` of `v[ξ][channel/16][row][16]`.
    unsafe fn transform_input<T> = transform_input_with(
        grid: &Grid, x: Read<T>, channels: usize, tiles: Range<usize>, first: usize, v: &Shared, stride: usize,
    )
}

#[inline(always)]
unsafe fn transform_input_with<V: Lanes, T: Element>(
    grid: &Grid,
    x: Read<T>,
    channels: usize,
    tiles: Range<usize>,
    first: usize,
    v: &Shared,
    stride: usize,
) {
    let plane = plane(channels, stride);
    for (index, tile) in tiles.enumerate() {
        let (image, row, column) = grid.place(tile);
        let is_inside = row > 0 && row + 5 <= grid.h && column > 0 && column + 5 <= grid.w;
        for block in 0..channels / LANES {
            let to = (block * stride + first + index) * LANES;
            let put = |value: V, i: usize, j: usize| unsafe { v.store(value, to + (6 * i + j) * plane) };
            // The place of input (1, 1) of the tile.
            let at = |i: usize, j: usize| {
                ((image * grid.h + row + i - 1) * grid.w + column + j - 1) * channels + block * LANES
            };
            macro_rules! transform {
                ($read:expr) => {
                    if is_inside {
                        both_sides!(input_side, 6 => 6, |i: usize, j: usize| $read(at(i, j)), put);
                    } else {
                        let get = |i: usize, j: usize| {
                            let is_pixel = (1..=grid.h).contains(&(row + i)) && (1..=grid.w).contains(&(column + j));
                            if is_pixel { $read(at(i, j)) } else { V::zero() }
                        };
                        both_sides!(input_side, 6 => 6, get, put);
                    }
                };
            }
            // SAFETY: pixels outside the image are zeros and are not read; the caller's buffer holds the rows.
            unsafe {
                match x.norm {
                    None => transform!(|at: usize| load(x.values, at)),
                    Some(norm) => {
                        let line = norm.line(block * LANES);
                        transform!(|at: usize| norm_relu::<V, T>(load(x.values, at), line));
                    }
                }
            }
        }
    }
}

dispatch! {
    /// A dy Aᵀ of `tiles`, as rows from `first` of `z[ξ][channel/16][row][16]`.
    unsafe fn transform_output_grad<T> = transform_output_grad_with(
        grid: &Grid, dy: &[T], channels: usize, tiles: Range<usize>, first: usize, z: &Shared, stride: usize,
    )
}

#[inline(always)]
unsafe fn transform_output_grad_with<V: Lanes, T: Element>(
    grid: &Grid,
    dy: &[T],
    channels: usize,
    tiles: Range<usize>,
    first: usize,
    z: &Shared,
    stride: usize,
) {
    let plane = plane(channels, stride);
    for (index, tile) in tiles.enumerate() {
        let (image, row, column) = grid.place(tile);
        for block in 0..channels / LANES {
            let to = (block * stride + first + index) * LANES;
            // SAFETY: pixels outside the image are zeros and are not read; the caller's buffer holds the rows.
            unsafe {
                let get = |i: usize, j: usize| {
                    let at = ((image * grid.h + row + i) * grid.w + column + j) * channels + block * LANES;
                    if row + i < grid.h && column + j < grid.w { load(dy, at) } else { V::zero() }
                };
                let put = |value: V, i: usize, j: usize| z.store(value, to + (6 * i + j) * plane);
                both_sides!(output_grad_side, 4 => 6, get, put);
            }
        }
    }
}

dispatch! {
    /// y = Aᵀ m A of `tiles`, the channels `outputs` of `y`'s `channels`.
    unsafe fn transform_output<T> = transform_output_with(
        grid: &Grid, m: &[f32], channels: usize, outputs: Range<usize>, tiles: Range<usize>, y: &Shared<T>,
        stride: usize,
    )
}

#[inline(always)]
unsafe fn transform_output_with<V: Lanes, T: Element>(
    grid: &Grid,
    m: &[f32],
    channels: usize,
    outputs: Range<usize>,
    tiles: Range<usize>,
    y: &Shared<T>,
    stride: usize,
) {
    let plane = plane(outputs.len(), stride);
    for (index, tile) in tiles.enumerate() {
        let (image, row, column) = grid.place(tile);
        for block in 0..outputs.len() / LANES {
            let from = (block * stride + index) * LANES;
            // SAFETY: the caller's buffer holds the tiles, and these pixels are inside the image.
            unsafe {
                let get = |i: usize, j: usize| load(m, from + (6 * i + j) * plane);
                let put = |value: V, i: usize, j: usize| {
                    if row + i < grid.h && column + j < grid.w {
                        let pixel = (image * grid.h + row + i) * grid.w + column + j;
                        y.store(value, pixel * channels + outputs.start + block * LANES);
                    }
                };
                both_sides!(output_side, 6 => 4, get, put);
            }
        }
    }
}

/// The sizes of m[ξ] = v[ξ]·u[ξ].
struct Product {
    ci: usize,
    co: usize,
    rows: usize,
    /// Rows of one block of v.
    v_stride: usize,
    v_plane: usize,
    /// Rows of one block of m.
    stride: usize,
    accumulate: bool,
}

dispatch! {
    unsafe fn multiply = multiply_with(v: &[f32], u: &[f32], m: &mut [f32], product: Product)
}

/// `m[ξ][co/16][row][16]` (+)= Σ over input channels. The rows up to the next step are computed too, and ignored.
#[inline(always)]
unsafe fn multiply_with<V: Lanes>(v: &[f32], u: &[f32], m: &mut [f32], product: Product) {
    let Product { ci, co, rows, v_stride, v_plane, stride, accumulate } = product;
    let (u_plane, m_plane) = (plane(co, ci), plane(co, stride));
    let runs: Vec<usize> = (0..ci / LANES).map(|block| block * v_stride * LANES).collect();
    let blocks = co / LANES;
    let m = &Shared::new(m);
    for point in 0..POINTS {
        let (v, u) = (&v[point * v_plane..], &u[point * u_plane..]);
        let mut block = 0;
        while block < blocks {
            macro_rules! panel {
                ($p:literal, $c:literal) => {{
                    for row in (0..rows).step_by($p) {
                        let from = std::array::from_fn(|j| (row + j) * LANES);
                        let to = std::array::from_fn(|j| point * m_plane + (block * stride + row + j) * LANES);
                        let (w, w_block) = (&u[block * ci * LANES..], ci * LANES);
                        // SAFETY: `stride` is a multiple of the step, so all rows are inside the caller's buffers.
                        unsafe {
                            tile::rows::<V, $p, $c>(
                                v,
                                from,
                                &runs,
                                LANES,
                                w,
                                w_block,
                                m,
                                to,
                                stride * LANES,
                                accumulate,
                            )
                        };
                    }
                    block += $c;
                }};
            }
            match (V::REGISTERS, blocks - block) {
                (32, 4..) => panel!(6, 4),
                (32, 2..) => panel!(12, 2),
                (32, _) => panel!(12, 1),
                (8, _) => panel!(6, 1),
                _ => panel!(4, 1),
            }
        }
    }
}

/// The sizes of acc[ξ] = v[ξ]ᵀ·z[ξ].
struct Pairs {
    inputs: Range<usize>,
    ci: usize,
    outputs: Range<usize>,
    co: usize,
    tiles: usize,
    stride: usize,
    accumulate: bool,
}

dispatch! {
    unsafe fn multiply_pairs = multiply_pairs_with(v: &[f32], z: &[f32], acc: &mut [f32], pairs: &Pairs)
}

/// `acc[ξ][ci/16][co/16][16][16]` (+)= Σ over tiles, for the wanted channels.
#[inline(always)]
unsafe fn multiply_pairs_with<V: Lanes>(v: &[f32], z: &[f32], acc: &mut [f32], pairs: &Pairs) {
    let &Pairs { ref inputs, ci, ref outputs, co, tiles, stride, accumulate } = pairs;
    let (v_plane, z_plane) = (plane(ci, stride), plane(co, stride));
    let acc_plane = plane(inputs.len(), outputs.len());
    let blocks = outputs.len() / LANES;
    for (point, first) in (0..POINTS).flat_map(|point| (0..tiles).step_by(PAIR_TILES).map(move |first| (point, first)))
    {
        let line = Line { x: first * LANES, d: first * LANES, count: PAIR_TILES.min(tiles - first) };
        let accumulate = accumulate || first > 0;
        for input in 0..inputs.len() / LANES {
            let x_from = point * v_plane + (inputs.start + input * LANES) * stride;
            let mut block = 0;
            while block < blocks {
                let d_from = point * z_plane + (outputs.start + block * LANES) * stride;
                let to = point * acc_plane + (input * blocks + block) * LANES * LANES;
                macro_rules! panel {
                    ($c:literal: $($p:literal)*) => {{
                        let mut row = 0;
                        $(
                            while row + $p <= LANES {
                                // SAFETY: the caller's buffers hold the tiles and the pairs.
                                unsafe {
                                    tile::outer::<V, $p, $c>(
                                        v, x_from + row, LANES, z, d_from, stride * LANES, &[line], acc,
                                        to + row * LANES, LANES * LANES, accumulate,
                                    )
                                };
                                row += $p;
                            }
                        )*
                        block += $c;
                    }};
                }
                match (V::REGISTERS, blocks - block) {
                    (32, 4..) => panel!(4: 4),
                    (32, 2..) => panel!(2: 8),
                    (32, _) => panel!(1: 16),
                    (8, _) => panel!(1: 6 4),
                    _ => panel!(1: 4),
                }
            }
        }
    }
}

dispatch! {
    unsafe fn multiply_shards = multiply_shards_with(
        v: &[f32], z: &[f32], acc: &mut [f32], pairs: &Pairs, per_shard: usize,
    )
}

/// `acc[ξ][ci/16][co/16][16][16]` = Σ over shards, in order, of the sums over their tiles, for the wanted channels. Both sums stay
/// in registers.
#[inline(always)]
unsafe fn multiply_shards_with<V: Lanes>(v: &[f32], z: &[f32], acc: &mut [f32], pairs: &Pairs, per_shard: usize) {
    let &Pairs { ref inputs, ci, ref outputs, co, tiles, stride, .. } = pairs;
    let (v_plane, z_plane, acc_plane) = (plane(ci, stride), plane(co, stride), plane(inputs.len(), outputs.len()));
    let blocks = outputs.len() / LANES;
    let acc = &Shared::new(acc);
    for (point, input) in (0..POINTS).flat_map(|point| (0..inputs.len() / LANES).map(move |input| (point, input))) {
        let x_from = point * v_plane + (inputs.start + input * LANES) * stride;
        let mut block = 0;
        while block < blocks {
            let d_from = point * z_plane + (outputs.start + block * LANES) * stride;
            let to = point * acc_plane + (input * blocks + block) * LANES * LANES;
            macro_rules! panel {
                ($c:literal, $p:literal) => {{
                    for row in (0..LANES).step_by($p) {
                        // SAFETY: the caller's buffers hold the tiles and the pairs.
                        unsafe {
                            let mut total = [[V::zero(); $c]; $p];
                            for first in (0..tiles).step_by(per_shard) {
                                let mut sum = [[V::zero(); $c]; $p];
                                for tile in first..(first + per_shard).min(tiles) {
                                    let mut grad = [V::zero(); $c];
                                    for c in 0..$c {
                                        grad[c] = load(z, d_from + c * stride * LANES + tile * LANES);
                                    }
                                    for j in 0..$p {
                                        let value: V = splat(v, x_from + tile * LANES + row + j);
                                        for c in 0..$c {
                                            sum[j][c] = value.fma(grad[c], sum[j][c]);
                                        }
                                    }
                                }
                                for j in 0..$p {
                                    for c in 0..$c {
                                        total[j][c] = total[j][c].add(sum[j][c]);
                                    }
                                }
                            }
                            for j in 0..$p {
                                for c in 0..$c {
                                    acc.store(total[j][c], to + c * LANES * LANES + (row + j) * LANES);
                                }
                            }
                        }
                    }
                    block += $c;
                }};
            }
            match (V::REGISTERS, blocks - block) {
                (32, 4..) => panel!(4, 2),
                (32, 2..) => panel!(2, 4),
                (32, _) => panel!(1, 8),
                _ => panel!(1, 2),
            }
        }
    }
}

dispatch! {
    /// dw (+)= Gᵀ(Σ parts)G for sixteen input channels from `input` and the channels `outputs`.
    unsafe fn transform_weight_grad = transform_weight_grad_with(
        parts: &[&[f32]], plane: usize, ci: usize, input: usize, outputs: Range<usize>, dw: &Shared, accumulate: bool,
    )
}

#[inline(always)]
unsafe fn transform_weight_grad_with<V: Lanes>(
    parts: &[&[f32]],
    plane: usize,
    ci: usize,
    input: usize,
    outputs: Range<usize>,
    dw: &Shared,
    accumulate: bool,
) {
    for block in 0..outputs.len() / LANES {
        for row in 0..LANES {
            let from = (block * LANES + row) * LANES;
            let mut taps = [[0.0_f32; LANES]; 9];
            // SAFETY: the caller's parts hold the pairs, and dw all weights.
            unsafe {
                let get = |i: usize, j: usize| {
                    let mut sum = V::zero();
                    for part in parts {
                        sum = sum.add(load(part, from + (6 * i + j) * plane));
                    }
                    sum
                };
                both_sides!(weight_grad_side, 6 => 3, get, |value: V, i: usize, j: usize| store(
                    value,
                    &mut taps[3 * i + j],
                    0
                ));
                for lane in 0..LANES {
                    let at = ((outputs.start + block * LANES + lane) * ci + input + row) * 9;
                    for tap in 0..9 {
                        dw.update(taps[tap][lane], at + tap, accumulate);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_in_registers_add_up_to_the_bytes_of_copies() {
        for (n, side, ci, co) in [(1, 8, 64, 64), (3, 7, 48, 80), (5, 13, 32, 112), (1, 4, 16, 16)] {
            let conv = Conv { n, h: side, w: side, ci, co, k: 3, stride: 1, pad: 1 };
            let values = |len: usize, step: f32| (0..len).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
            let (x, dy, grid) = (values(conv.x_len(), 0.7), values(conv.y_len(), 1.3), Grid::new(&conv));
            let per_shard = grid.tiles.div_ceil(SHARDS);
            for isa in Isa::available() {
                let [mut copies, mut registers] = [9.0, 7.0].map(|v| vec![v; conv.w_len()]);
                sharded_weight_grad(isa, &grid, [ci, co], Read::as_is(&x), &dy, &mut copies, per_shard);
                wide_weight_grad(isa, &grid, [ci, co], Read::as_is(&x), &dy, &mut registers, Some(per_shard));
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(&copies) == bits(&registers), "{isa} {conv:?}");
            }
        }
    }
}
