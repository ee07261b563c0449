//! Convolutions as direct sums. A framed copy of a group of images makes every tap a contiguous run of channels, and
//! the products of `tile` do the rest.

// Long: one way of cutting a convolution: forward and both gradients share it.

use crate::batch_norm::apply_chunk;
use crate::buffer::Buffer;
use crate::conv::{Conv, LANES};
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::normed::{Read, norm_relu};
use crate::shared::Shared;
use crate::tile::{self, Line};
use rayon::prelude::*;
use std::ops::Range;

/// Pixels that share one pass over the weights.
const GROUP_PIXELS: usize = 256;
/// Lines of packed weights that stay in the nearest cache while a group's pixels pass.
const PANEL: usize = 512;
/// Pixels whose gradients stay in the nearest cache while the taps pass.
const LINE_PIXELS: usize = 64;
/// Fewest tasks that a batch is cut into.
const TASKS: usize = 8;

/// y = x ∗ w
pub(crate) fn forward(isa: Isa, conv: Conv, x: Read<f32>, weight: &[f32], y: &mut [f32]) {
    let (ho, wo) = conv.out();
    let frame = Frame { h: conv.h, w: conv.w, c: conv.ci, before: conv.pad, after: conv.pad };
    let square = conv.k * conv.k;
    let taps: Vec<usize> = (0..square).collect();
    let packed =
        pack(weight, Axis { len: conv.co, step: conv.ci * square }, Axis { len: conv.ci, step: square }, &taps);
    // (kw, ci) is contiguous in the frame: one run for each row of the kernel.
    let runs = (0..conv.k).map(|kh| kh * frame.row()).collect();
    let pixels = (0..ho)
        .flat_map(|r| (0..wo).map(move |c| (r, c)))
        .map(|(r, c)| (r * conv.stride * frame.row() + c * conv.stride * conv.ci, (r * wo + c) * conv.co))
        .collect();
    let class = Class::new(packed, runs, conv.k * conv.ci, pixels);
    run_classes(isa, conv.n, &frame, x, &[class], conv.co, y);
}

/// dx: input pixels fall into stride² classes by their remainder; each is a convolution of dy with the taps that reach
/// it.
pub(crate) fn input_grad(isa: Isa, conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
    let (ho, wo) = conv.out();
    let (s, p, k) = (conv.stride as isize, conv.pad as isize, conv.k as isize);
    // u = r·s + kh − p, so an input row u = q·s + phase meets output row r = q + (phase + p − kh)/s.
    let taps = |phase: isize| -> Vec<(usize, isize)> {
        (0..k).filter(|kh| (phase + p - kh).rem_euclid(s) == 0).map(|kh| (kh as usize, (phase + p - kh) / s)).collect()
    };
    let all: Vec<isize> = (0..s).flat_map(taps).map(|(_, shift)| shift).collect();
    let before = all.iter().map(|shift| -shift).max().unwrap_or(0).max(0) as usize;
    let reach = |input: usize, output: usize| {
        let last_q = (input as isize - 1) / s;
        let furthest = all.iter().map(|shift| last_q + shift).max().unwrap_or(0);
        (furthest - (output as isize - 1)).max(0) as usize
    };
    let after = reach(conv.h, ho).max(reach(conv.w, wo));
    let frame = Frame { h: ho, w: wo, c: conv.co, before, after };
    let mut classes = Vec::new();
    for (row_phase, column_phase) in (0..s).flat_map(|a| (0..s).map(move |b| (a, b))) {
        let both: Vec<((usize, isize), (usize, isize))> = taps(row_phase)
            .into_iter()
            .flat_map(|row| taps(column_phase).into_iter().map(move |column| (row, column)))
            .collect();
        let at = |shift: isize| (shift + before as isize) as usize;
        let runs = both.iter().map(|&((_, dr), (_, dc))| at(dr) * frame.row() + at(dc) * conv.co).collect();
        let taps: Vec<usize> = both.iter().map(|((kh, _), (kw, _))| kh * conv.k + kw).collect();
        let square = conv.k * conv.k;
        let packed =
            pack(weight, Axis { len: conv.ci, step: square }, Axis { len: conv.co, step: conv.ci * square }, &taps);
        let (first_row, first_column) = (row_phase as usize, column_phase as usize);
        let pixels = (first_row..conv.h)
            .step_by(conv.stride)
            .enumerate()
            .flat_map(|(q, u)| (first_column..conv.w).step_by(conv.stride).enumerate().map(move |(t, v)| (q, u, t, v)))
            .map(|(q, u, t, v)| (q * frame.row() + t * conv.co, (u * conv.w + v) * conv.ci))
            .collect();
        classes.push(Class::new(packed, runs, conv.co, pixels));
    }
    run_classes(isa, conv.n, &frame, Read::as_is(dy), &classes, conv.ci, dx);
}

/// dw `[co, ci, k, k]`: a fixed number of shards of the batch, added in order.
pub(crate) fn weight_grad(isa: Isa, conv: Conv, x: Read<f32>, dy: &[f32], dw: &mut [f32]) {
    let (ho, wo) = conv.out();
    let frame = Frame { h: conv.h, w: conv.w, c: conv.ci, before: conv.pad, after: conv.pad };
    let blocks = conv.co.div_ceil(LANES);
    let rows = conv.k * conv.k * conv.ci;
    // Pixels without a border need no frame: as many as stay in the nearest cache.
    let group = if frame.is_bare() { LINE_PIXELS } else { GROUP_PIXELS * 2 }.div_ceil(ho * wo).min(conv.n);
    // Large gradients: fewer copies of them, more tasks by columns.
    let is_large = rows * conv.co > 1 << 18;
    let per_shard = conv.n.div_ceil(if is_large { 2 } else { TASKS }).next_multiple_of(group);
    let shards = conv.n.div_ceil(per_shard);
    let wanted = if is_large { 4 } else { 1 }.max(TASKS.div_ceil(shards));
    let per_column = blocks.div_ceil(wanted).next_multiple_of(4).min(blocks);
    let columns = blocks.div_ceil(per_column);
    let partial: Vec<Buffer> = (0..shards * columns)
        .into_par_iter()
        .map(|task| {
            let (shard, column) = (task / columns, task % columns);
            let blocks = column * per_column..((column + 1) * per_column).min(blocks);
            let mut acc = Buffer::new(rows * blocks.len() * LANES);
            let mut padded = Buffer::zeroed(frame.blocked_len(group));
            let d_stride = staggered(group * ho * wo * LANES);
            let mut grads = Buffer::zeroed(blocks.len() * d_stride);
            let images = shard * per_shard..((shard + 1) * per_shard).min(conv.n);
            for first in images.clone().step_by(group) {
                let count = group.min(images.end - first);
                frame.blocked(isa, x, first, count, &mut padded);
                let is_first = first == images.start;
                let dy = &dy[first * ho * wo * conv.co..][..count * ho * wo * conv.co];
                // SAFETY: `padded` holds `count` frames, `grads` count·ho·wo pixels of each block, `acc` all rows.
                unsafe {
                    pack_pixels(isa, Read::as_is(dy), conv.co, blocks.clone(), &mut grads, d_stride);
                    weight_group(isa, &conv, &frame, count, &padded, &grads, blocks.len(), &mut acc, !is_first);
                }
            }
            acc
        })
        .collect();
    add_shards(&conv, &partial, shards, per_column, rows, dw);
}

/// dw[o][i][kh][kw] = Σ over shards, in order; they lie as `[shard][column]`, each `[co/16][row][16]` with `rows` rows, of
/// which k²·ci count.
pub(crate) fn add_shards(
    conv: &Conv,
    partial: &[Buffer],
    shards: usize,
    per_column: usize,
    rows: usize,
    dw: &mut [f32],
) {
    let (taps, columns) = (conv.k * conv.k, partial.len() / shards);
    dw.par_chunks_mut(LANES * conv.ci * taps).enumerate().for_each(|(block, out)| {
        let (column, within) = (block / per_column, block % per_column);
        let mut sums = [[0.0_f32; LANES]; LANES];
        // Sixteen rows at a time: output channels are far apart, and a line of each is written once.
        for (tap, first) in (0..taps).flat_map(|tap| (0..conv.ci).step_by(LANES).map(move |first| (tap, first))) {
            let count = LANES.min(conv.ci - first);
            for (row, sum) in sums[..count].iter_mut().enumerate() {
                let at = (within * rows + tap * conv.ci + first + row) * LANES;
                *sum = [0.0; LANES];
                for shard in 0..shards {
                    let part = &partial[shard * columns + column][at..at + LANES];
                    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                }
            }
            for (lane, out) in out.chunks_exact_mut(conv.ci * taps).enumerate() {
                for (row, sum) in sums[..count].iter().enumerate() {
                    out[(first + row) * taps + tap] = sum[lane];
                }
            }
        }
    });
}

/// A zero-framed image: `before` rows and columns of zeros ahead, `after` behind.
struct Frame {
    h: usize,
    w: usize,
    c: usize,
    before: usize,
    after: usize,
}

impl Frame {
    /// Floats in one framed row.
    fn row(&self) -> usize {
        (self.w + self.before + self.after) * self.c
    }

    fn len(&self) -> usize {
        (self.h + self.before + self.after) * self.row()
    }

    /// An image without a border is its own frame.
    fn is_bare(&self) -> bool {
        self.before + self.after == 0
    }

    /// Copies `count` images from number `first` into frames.
    fn fill(&self, x: &[f32], first: usize, count: usize, out: &mut [f32]) {
        let image = self.h * self.w * self.c;
        let (left, line) = (self.before * self.c, self.w * self.c);
        for (source, out) in x[first * image..].chunks_exact(image).zip(out.chunks_exact_mut(self.len())).take(count) {
            out[..self.before * self.row()].fill(0.0);
            out[(self.before + self.h) * self.row()..].fill(0.0);
            let rows = out[self.before * self.row()..].chunks_exact_mut(self.row());
            for (source, row) in source.chunks_exact(line).zip(rows) {
                row[..left].fill(0.0);
                row[left..left + line].copy_from_slice(source);
                row[left + line..].fill(0.0);
            }
        }
    }

    /// Floats of `count` images in blocks of sixteen channels.
    fn blocked_len(&self, count: usize) -> usize {
        if self.c.is_multiple_of(LANES) {
            self.c / LANES * staggered(count * self.len() / (self.c / LANES))
        } else {
            count * self.len()
        }
    }

    /// Sixteen channels side by side: `[c/16][image][row][column][16]` if the channels divide, else as [`Frame::fill`].
    fn blocked(&self, isa: Isa, x: Read<f32>, first: usize, count: usize, out: &mut [f32]) {
        if !self.c.is_multiple_of(LANES) {
            return self.fill(x.as_they_lie(), first, count, out);
        }
        if self.is_bare() {
            let (image, blocks) = (self.len(), self.c / LANES);
            let (values, stride) = (&x.values[first * image..][..count * image], out.len() / blocks);
            // SAFETY: `out` holds `count` images of every block.
            return unsafe { pack_pixels(isa, Read { values, ..x }, self.c, 0..blocks, out, stride) };
        }
        let x = x.as_they_lie();
        let (image, width) = (self.h * self.w * self.c, self.w + self.before + self.after);
        let block_len = out.len() / (self.c / LANES);
        for (block, out) in out.chunks_exact_mut(block_len).enumerate() {
            for i in 0..count {
                for r in 0..self.h {
                    let source = &x[(first + i) * image + r * self.w * self.c..];
                    let row = i * (self.h + self.before + self.after) + r + self.before;
                    let at = (row * width + self.before) * LANES;
                    for column in 0..self.w {
                        out[at + column * LANES..][..LANES]
                            .copy_from_slice(&source[column * self.c + block * LANES..][..LANES]);
                    }
                }
            }
        }
    }
}

/// Distance between blocks of `len` floats that keeps them off the same cache sets.
fn staggered(len: usize) -> usize {
    len + LANES
}

/// Pixels that share their taps.
struct Class {
    /// Weights `[co/16][row][16]`
    packed: Buffer,
    /// Offsets of the runs from a pixel's place in the frame, all of `len` values.
    runs: Vec<usize>,
    len: usize,
    /// (place in the frame, place in the output image)
    pixels: Vec<(usize, usize)>,
}

impl Class {
    /// Long runs are cut into equal parts, so that a panel of weights fits the cache.
    fn new(packed: Buffer, runs: Vec<usize>, len: usize, pixels: Vec<(usize, usize)>) -> Self {
        let parts = (1..=len / 64).find(|parts| len.is_multiple_of(*parts) && len / parts <= PANEL / 4).unwrap_or(1);
        let part = len / parts;
        let runs = runs.into_iter().flat_map(|run| (0..parts).map(move |index| run + index * part)).collect();
        Self { packed, runs, len: part, pixels }
    }
}

/// One of the channel axes of the weights.
#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    step: usize,
}

/// Weights as `[lanes/16][tap][inner][16]`; lanes beyond the last channel are zero.
fn pack(weight: &[f32], lanes: Axis, inner: Axis, taps: &[usize]) -> Buffer {
    let rows = taps.len() * inner.len;
    let mut out = Buffer::new(lanes.len.div_ceil(LANES) * rows * LANES);
    if rows == 0 {
        return out;
    }
    out.par_chunks_mut(rows * LANES).enumerate().for_each(|(block, out)| {
        let first = block * LANES;
        let count = LANES.min(lanes.len - first);
        for (&tap, out) in taps.iter().zip(out.chunks_exact_mut(inner.len * LANES)) {
            // Sixteen rows at a time: lanes are far apart, and a line of each is read once.
            for (group, out) in out.chunks_mut(LANES * LANES).enumerate() {
                for lane in 0..LANES {
                    let from = (first + lane) * lanes.step + group * LANES * inner.step + tap;
                    for (row, out) in out.chunks_exact_mut(LANES).enumerate() {
                        out[lane] = if lane < count { weight[from + row * inner.step] } else { 0.0 };
                    }
                }
            }
        }
    });
    out
}

fn run_classes(isa: Isa, n: usize, frame: &Frame, x: Read<f32>, classes: &[Class], co: usize, y: &mut [f32]) {
    let image = y.len() / n;
    let most = classes.iter().map(|class| class.pixels.len()).max().unwrap_or(1).max(1);
    let blocks = co.div_ceil(LANES);
    // Framed images are cut by images alone, so that each is framed once; bare pixels by output channels too.
    let (group, per_column) = if frame.is_bare() {
        let group = GROUP_PIXELS.div_ceil(most).min(n);
        let columns = (2 * TASKS).div_ceil(n.div_ceil(group));
        (group, blocks.div_ceil(columns).next_multiple_of(4))
    } else {
        (GROUP_PIXELS.div_ceil(most).min(n.div_ceil(TASKS)), blocks)
    };
    let columns = blocks.div_ceil(per_column);
    // (place in the frames, place in the outputs) of every pixel of a group
    let places: Vec<Vec<(usize, usize)>> = classes
        .iter()
        .map(|class| {
            let of = |i: usize| class.pixels.iter().map(move |&(from, to)| (i * frame.len() + from, i * image + to));
            (0..group).flat_map(of).collect()
        })
        .collect();
    let y = Shared::new(y);
    (0..n.div_ceil(group) * columns).into_par_iter().for_each_init(
        || Buffer::new(if frame.is_bare() && x.norm.is_none() { 0 } else { group * frame.len() }),
        |padded, task| {
            let (first, column) = (task / columns * group, task % columns);
            let count = group.min(n - first);
            let x = match x.norm {
                None if frame.is_bare() => &x.values[first * frame.len()..][..count * frame.len()],
                None => {
                    frame.fill(x.values, first, count, padded);
                    &**padded
                }
                Some(norm) => {
                    assert!(frame.is_bare(), "a border is zero after the norm, not before it");
                    let (x, out) = (&x.values[first * frame.len()..][..count * frame.len()], &mut padded[..]);
                    let out = &mut out[..x.len()];
                    // SAFETY: x and the copy have one length, whole pixels of as many channels as the norm.
                    unsafe { apply_chunk(isa, x, None, norm.scale, norm.shift, true, out) };
                    &*out
                }
            };
            let blocks = column * per_column..((column + 1) * per_column).min(blocks);
            for (class, places) in classes.iter().zip(&places) {
                let places = &places[..count * class.pixels.len()];
                // SAFETY: pixels and runs stay inside `count` frames by construction, outputs inside `y`; a task
                // writes images or channels of its own.
                unsafe { run_class(isa, x, class, places, blocks.clone(), co, &y, first * image) };
            }
        },
    );
}

dispatch! {
    unsafe fn run_class = run_class_with(
        x: &[f32], class: &Class, places: &[(usize, usize)], blocks: Range<usize>, co: usize, y: &Shared, base: usize,
    )
}

/// All pixels of a group, one panel of weights after the other; outputs from `base`.
#[inline(always)]
unsafe fn run_class_with<V: Lanes>(
    x: &[f32],
    class: &Class,
    places: &[(usize, usize)],
    blocks: Range<usize>,
    co: usize,
    y: &Shared,
    base: usize,
) {
    let w_block = class.runs.len() * class.len * LANES;
    let whole = blocks.end.min(co / LANES);
    let mut block = blocks.start;
    while block < whole {
        let w = &class.packed[block * w_block..];
        macro_rules! panel {
            ($p:literal, $c:literal) => {{
                let per_panel = (PANEL / $c / class.len.max(1)).max(1);
                let mut first = 0;
                // At least once: a class without taps writes zeros.
                loop {
                    let runs = &class.runs[first..(first + per_panel).min(class.runs.len())];
                    let w = &w[first * class.len * LANES..];
                    let mut at = 0;
                    macro_rules! rows {
                        ($rows:literal) => {
                            while at + $rows <= places.len() {
                                let from = std::array::from_fn(|j| places[at + j].0);
                                let to = std::array::from_fn(|j| base + places[at + j].1 + block * LANES);
                                // SAFETY: the caller's contract.
                                unsafe {
                                    tile::rows::<V, $rows, $c>(
                                        x,
                                        from,
                                        runs,
                                        class.len,
                                        w,
                                        w_block,
                                        y,
                                        to,
                                        LANES,
                                        first > 0,
                                    )
                                };
                                at += $rows;
                            }
                        };
                    }
                    rows!($p);
                    rows!(2);
                    rows!(1);
                    first += per_panel;
                    if first >= class.runs.len() {
                        break;
                    }
                }
                block += $c;
            }};
        }
        match (V::REGISTERS, whole - block) {
            (32, 4..) => panel!(6, 4),
            (32, 2..) => panel!(12, 2),
            (32, _) => panel!(12, 1),
            (8, _) => panel!(6, 1),
            _ => panel!(4, 1),
        }
    }
    // A last block with fewer channels goes through a buffer.
    if blocks.end > whole {
        let mut out = [0.0_f32; LANES];
        let w = &class.packed[whole * w_block..];
        for &(from, to) in places {
            let line = Shared::new(&mut out);
            // SAFETY: the caller's contract; `out` has sixteen places.
            unsafe {
                tile::rows::<V, 1, 1>(x, [from], &class.runs, class.len, w, w_block, &line, [0], LANES, false);
                for (lane, value) in out.iter().enumerate().take(co - whole * LANES) {
                    y.update(*value, base + to + whole * LANES + lane, false);
                }
            }
        }
    }
}

dispatch! {
    /// Pixels x `[pixel][channels]` as `[block][pixel][16]` for the wanted blocks of channels; missing lanes stay zero.
    unsafe fn pack_pixels = pack_pixels_with(
        x: Read<f32>, channels: usize, blocks: Range<usize>, out: &mut [f32], stride: usize,
    )
}

#[inline(always)]
unsafe fn pack_pixels_with<V: Lanes>(
    x: Read<f32>,
    channels: usize,
    blocks: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let whole = blocks.start..blocks.end.min(channels / LANES);
    if let Some(norm) = x.norm {
        for block in whole {
            // SAFETY: the block is inside the pixel, and the caller's buffer holds all pixels of all blocks.
            unsafe {
                let line = norm.line::<V>(block * LANES);
                for pixel in 0..x.values.len() / channels {
                    let value = norm_relu::<V, f32>(load(x.values, pixel * channels + block * LANES), line);
                    store(value, out, (block - blocks.start) * stride + pixel * LANES);
                }
            }
        }
        return;
    }
    for (pixel, x) in x.values.chunks_exact(channels).enumerate() {
        for block in whole.clone() {
            // SAFETY: the block is inside the pixel, and the caller's buffer holds all pixels of all blocks.
            unsafe {
                store(load::<V>(x, block * LANES), out, (block - blocks.start) * stride + pixel * LANES);
            }
        }
        if whole.end < blocks.end {
            let rest = &x[whole.end * LANES..];
            out[(whole.end - blocks.start) * stride + pixel * LANES..][..rest.len()].copy_from_slice(rest);
        }
    }
}

dispatch! {
    unsafe fn weight_group = weight_group_with(
        conv: &Conv, frame: &Frame, count: usize, x: &[f32], dy: &[f32], blocks: usize, acc: &mut [f32], accumulate: bool,
    )
}

/// Adds the outer products of `count` images to `acc` `[block][kh·kw·ci][16]`.
#[allow(clippy::too_many_arguments)] // the operands of one product
#[inline(always)]
unsafe fn weight_group_with<V: Lanes>(
    conv: &Conv,
    frame: &Frame,
    count: usize,
    x: &[f32],
    dy: &[f32],
    blocks: usize,
    acc: &mut [f32],
    accumulate: bool,
) {
    let (ho, wo) = conv.out();
    let rows = conv.k * conv.k * conv.ci;
    // In blocked frames a tap is sixteen rows of one channel block, else k·ci rows of one kernel row.
    let is_blocked = conv.ci.is_multiple_of(LANES);
    let channels = if is_blocked { LANES } else { conv.ci };
    let width = frame.w + frame.before + frame.after;
    let height = frame.h + frame.before + frame.after;
    let x_block = if is_blocked { x.len() / (conv.ci / LANES) } else { 0 };
    let d_block = dy.len() / blocks;
    // Without a border and a stride the whole group is one line, cut where it suits.
    let is_one_line = frame.is_bare() && conv.stride == 1 && conv.k == 1;
    let lines: Vec<Line> = if is_one_line {
        let all = count * ho * wo;
        let cut = |first: usize| Line { x: first * channels, d: first * LANES, count: LINE_PIXELS.min(all - first) };
        (0..all).step_by(LINE_PIXELS).map(cut).collect()
    } else {
        let line = |i: usize, r: usize| Line {
            x: (i * height + r * conv.stride) * width * channels,
            d: (i * ho + r) * wo * LANES,
            count: wo,
        };
        (0..count).flat_map(|i| (0..ho).map(move |r| line(i, r))).collect()
    };
    let per_pass = if is_one_line { 1 } else { LINE_PIXELS.div_ceil(wo) };
    // (offset in x, first row of acc, number of rows)
    let taps: Vec<(usize, usize, usize)> = if is_blocked {
        (0..conv.k * conv.k)
            .flat_map(|tap| (0..conv.ci / LANES).map(move |b| (tap, b)))
            .map(|(tap, b)| {
                let offset = b * x_block + ((tap / conv.k) * width + tap % conv.k) * LANES;
                (offset, tap * conv.ci + b * LANES, LANES)
            })
            .collect()
    } else {
        (0..conv.k).map(|kh| (kh * width * channels, kh * conv.k * conv.ci, conv.k * conv.ci)).collect()
    };
    let step = conv.stride * channels;
    for (pass, lines) in lines.chunks(per_pass).enumerate() {
        let accumulate = accumulate || pass > 0;
        let mut block = 0;
        while block < blocks {
            macro_rules! panel {
            ($c:literal: $($p:literal)*) => {{
                for &(offset, first_row, tap_rows) in &taps {
                    let mut row = 0;
                    $(
                        while row + $p <= tap_rows {
                            let to = (block * rows + first_row + row) * LANES;
                            // SAFETY: the caller's contract: lines, taps and rows stay inside their buffers.
                            unsafe {
                                tile::outer::<V, $p, $c>(
                                    x, offset + row, step, dy, block * d_block, d_block, lines, acc, to,
                                    rows * LANES, accumulate,
                                )
                            };
                            row += $p;
                        }
                    )*
                }
                block += $c;
            }};
        }
            match (V::REGISTERS, blocks - block) {
                (32, 4..) => panel!(4: 4 1),
                (32, 2..) => panel!(2: 8 1),
                (32, _) => panel!(1: 16 4 1),
                (8, _) => panel!(1: 6 4 1),
                _ => panel!(1: 4 1),
            }
        }
    }
}
