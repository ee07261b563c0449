//! Convolutions on channel-last activations `[n, h, w, c]` with PyTorch's weights `[co, ci, k, k]`: forward, input
//! gradient and weight gradient, any size, stride and padding.
//!
//! All three are the products of `tile`: a padded copy of a group of images makes every tap a contiguous run. Groups
//! depend on the shape alone and each writes its own output, so the bytes do not depend on the number of threads; the
//! weight gradient adds a fixed number of shards in order.

use crate::isa::dispatch;
use crate::lanes::Lanes;
use crate::tile;
use rayon::prelude::*;

/// Channels in one block of lanes.
pub(crate) const LANES: usize = 16;

/// Pixels that share one pass over the weights.
const GROUP_PIXELS: usize = 256;

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub ci: usize,
    pub co: usize,
    /// Side of the square kernel.
    pub k: usize,
    pub stride: usize,
    pub pad: usize,
}

impl Conv {
    /// Height and width of the output.
    pub fn out(&self) -> (usize, usize) {
        let side = |x: usize| (x + 2 * self.pad - self.k) / self.stride + 1;
        (side(self.h), side(self.w))
    }

    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.ci
    }

    pub fn y_len(&self) -> usize {
        let (ho, wo) = self.out();
        self.n * ho * wo * self.co
    }

    pub fn w_len(&self) -> usize {
        self.co * self.ci * self.k * self.k
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        assert!(self.n > 0, "a convolution needs at least one image");
        assert!(self.stride > 0 && self.k > 0 && self.h + 2 * self.pad >= self.k && self.w + 2 * self.pad >= self.k);
        assert_eq!((x, w, y), (self.x_len(), self.w_len(), self.y_len()), "buffer lengths of {self:?}");
    }
}

/// y = x ∗ w. `y` is overwritten.
pub fn conv2d(conv: Conv, x: &[f32], weight: &[f32], y: &mut [f32]) {
    conv.check(x.len(), weight.len(), y.len());
    let (ho, wo) = conv.out();
    let frame = Frame { h: conv.h, w: conv.w, c: conv.ci, before: conv.pad, after: conv.pad };
    let taps: Vec<(usize, usize)> = (0..conv.k).flat_map(|kh| (0..conv.k).map(move |kw| (kh, kw))).collect();
    let packed = pack(
        conv.co,
        taps.len() * conv.ci,
        |o, row| {
            let (tap, i) = (row / conv.ci, row % conv.ci);
            ((o * conv.ci + i) * conv.k + taps[tap].0) * conv.k + taps[tap].1
        },
        weight,
    );
    // (kw, ci) is contiguous in the frame: one run for each row of the kernel.
    let runs: Vec<usize> = (0..conv.k).map(|kh| kh * frame.row()).collect();
    let pixels: Vec<(usize, usize)> = (0..ho)
        .flat_map(|r| (0..wo).map(move |c| (r, c)))
        .map(|(r, c)| (r * conv.stride * frame.row() + c * conv.stride * conv.ci, (r * wo + c) * conv.co))
        .collect();
    let class = Class { packed, runs, len: conv.k * conv.ci, pixels };
    run_classes(conv.n, &frame, x, &[class], conv.co, ho * wo * conv.co, y);
}

/// dx = the gradient of the input. `dx` is overwritten.
///
/// Input pixels fall into stride² classes by their remainder; each is a convolution of dy with the taps that reach it.
pub fn conv2d_input_grad(conv: Conv, dy: &[f32], weight: &[f32], dx: &mut [f32]) {
    conv.check(dx.len(), weight.len(), dy.len());
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
        let packed = pack(
            conv.ci,
            both.len() * conv.co,
            |i, row| {
                let ((kh, _), (kw, _)) = both[row / conv.co];
                ((row % conv.co * conv.ci + i) * conv.k + kh) * conv.k + kw
            },
            weight,
        );
        let (first_row, first_column) = (row_phase as usize, column_phase as usize);
        let pixels = (first_row..conv.h)
            .step_by(conv.stride)
            .enumerate()
            .flat_map(|(q, u)| (first_column..conv.w).step_by(conv.stride).enumerate().map(move |(t, v)| (q, u, t, v)))
            .map(|(q, u, t, v)| (q * frame.row() + t * conv.co, (u * conv.w + v) * conv.ci))
            .collect();
        classes.push(Class { packed, runs, len: conv.co, pixels });
    }
    run_classes(conv.n, &frame, dy, &classes, conv.ci, conv.h * conv.w * conv.ci, dx);
}

/// dw = the gradient of the weights, `[co, ci, k, k]`. `dw` is overwritten.
pub fn conv2d_weight_grad(conv: Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    conv.check(x.len(), dw.len(), dy.len());
    let (ho, wo) = conv.out();
    let frame = Frame { h: conv.h, w: conv.w, c: conv.ci, before: conv.pad, after: conv.pad };
    let blocks = conv.co.div_ceil(LANES);
    let rows = conv.k * conv.k * conv.ci;
    let group = (GROUP_PIXELS * 2).div_ceil(ho * wo).min(conv.n);
    let shards = if rows * conv.co > 1 << 18 { 2 } else { 8 };
    let per_shard = conv.n.div_ceil(shards).next_multiple_of(group);
    // Column blocks are independent; a task is one of them in one shard.
    let columns = blocks.min(if rows * conv.co > 1 << 18 { 4 } else { 1 });
    let per_column = blocks.div_ceil(columns);
    let tasks: Vec<(usize, usize)> =
        (0..conv.n.div_ceil(per_shard)).flat_map(|s| (0..columns).map(move |c| (s, c))).collect();
    let partial: Vec<Vec<f32>> = tasks
        .par_iter()
        .map(|&(shard, column)| {
            let first_block = column * per_column;
            let last_block = ((column + 1) * per_column).min(blocks);
            let mut acc = vec![0.0; rows * (last_block - first_block) * LANES];
            let (mut padded, mut grads) = (Vec::new(), Vec::new());
            let images = shard * per_shard..((shard + 1) * per_shard).min(conv.n);
            for first in images.clone().step_by(group) {
                let count = group.min(images.end - first);
                frame.blocked(x, first, count, &mut padded);
                pack_pixels(dy, first * ho * wo, count * ho * wo, conv.co, first_block..last_block, &mut grads);
                // SAFETY: `padded` holds `count` frames, `grads` count·ho·wo pixels of each block, `acc` all rows.
                unsafe { weight_group(&conv, &frame, count, &padded, &grads, last_block - first_block, &mut acc) };
            }
            acc
        })
        .collect();
    // dw[o][i][kh][kw] = Σ over shards, in order
    dw.par_chunks_mut(conv.ci * conv.k * conv.k).enumerate().for_each(|(o, out)| {
        let (block, lane) = (o / LANES, o % LANES);
        let (column, within) = (block / per_column, block % per_column);
        for (index, out) in out.iter_mut().enumerate() {
            let (i, tap) = (index / (conv.k * conv.k), index % (conv.k * conv.k));
            let row = tap * conv.ci + i;
            let parts = tasks.iter().zip(&partial).filter(|((_, c), _)| *c == column);
            *out = parts.map(|(_, acc)| acc[(within * rows + row) * LANES + lane]).sum();
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

    /// Copies `count` images from number `first` into frames. Borders stay zero between calls of one shape.
    fn fill(&self, x: &[f32], first: usize, count: usize, out: &mut Vec<f32>) {
        out.resize(count * self.len(), 0.0);
        let image = self.h * self.w * self.c;
        for (source, out) in x[first * image..].chunks_exact(image).zip(out.chunks_exact_mut(self.len())).take(count) {
            for (r, line) in source.chunks_exact(self.w * self.c).enumerate() {
                let at = (r + self.before) * self.row() + self.before * self.c;
                out[at..at + line.len()].copy_from_slice(line);
            }
        }
    }

    /// Sixteen channels side by side: `[c/16][image][row][column][16]` if the channels divide, else as [`Frame::fill`].
    fn blocked(&self, x: &[f32], first: usize, count: usize, out: &mut Vec<f32>) {
        if !self.c.is_multiple_of(LANES) || self.c == LANES {
            return self.fill(x, first, count, out);
        }
        out.resize(count * self.len(), 0.0);
        let (image, width) = (self.h * self.w * self.c, self.w + self.before + self.after);
        let block_len = count * self.len() / (self.c / LANES);
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

/// Pixels that share their taps.
struct Class {
    /// Weights `[co/16][row][16]`
    packed: Vec<f32>,
    /// Offsets of the runs from a pixel's place in the frame.
    runs: Vec<usize>,
    len: usize,
    /// (place in the frame, place in the output image)
    pixels: Vec<(usize, usize)>,
}

/// Weights as `[channels/16][rows][16]`; lanes beyond the last channel are zero.
fn pack(channels: usize, rows: usize, place: impl Fn(usize, usize) -> usize + Sync, weight: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; channels.div_ceil(LANES) * rows * LANES];
    if rows == 0 {
        return out;
    }
    out.par_chunks_mut(rows * LANES).enumerate().for_each(|(block, out)| {
        for (row, lanes) in out.chunks_exact_mut(LANES).enumerate() {
            for (lane, value) in lanes.iter_mut().enumerate().take(channels - block * LANES) {
                *value = weight[place(block * LANES + lane, row)];
            }
        }
    });
    out
}

fn run_classes(n: usize, frame: &Frame, x: &[f32], classes: &[Class], co: usize, image: usize, y: &mut [f32]) {
    let most = classes.iter().map(|class| class.pixels.len()).max().unwrap_or(1).max(1);
    let group = GROUP_PIXELS.div_ceil(most).min(n);
    y.par_chunks_mut(group * image).enumerate().for_each_init(Vec::new, |padded, (index, y)| {
        let count = y.len() / image;
        frame.fill(x, index * group, count, padded);
        for class in classes {
            // SAFETY: pixels and runs stay inside `count` frames by construction, outputs inside `y`.
            unsafe { run_class(padded, frame.len(), class, count, co, image, y) };
        }
    });
}

dispatch! {
    unsafe fn run_class = run_class_with(
        x: &[f32], frame: usize, class: &Class, count: usize, co: usize, image: usize, y: &mut [f32],
    )
}

/// Every pixel of `count` images, one block of output channels after the other.
#[inline(always)]
unsafe fn run_class_with<V: Lanes>(
    x: &[f32],
    frame: usize,
    class: &Class,
    count: usize,
    co: usize,
    image: usize,
    y: &mut [f32],
) {
    let rows = class.runs.len() * class.len;
    let total = count * class.pixels.len();
    let place = |index: usize| {
        let (i, pixel) = (index / class.pixels.len(), index % class.pixels.len());
        (i * frame + class.pixels[pixel].0, i * image + class.pixels[pixel].1)
    };
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    for block in 0..co.div_ceil(LANES) {
        let lanes = (co - block * LANES).min(LANES);
        // SAFETY: the caller's contract; a last block with fewer lanes goes through a buffer.
        unsafe {
            let w = class.packed.as_ptr().add(block * rows * LANES);
            let mut at = 0;
            macro_rules! rows {
                ($p:literal) => {
                    while at + $p <= total {
                        let mut from = [x; $p];
                        let mut to = [y; $p];
                        for j in 0..$p {
                            let (input, output) = place(at + j);
                            from[j] = x.add(input);
                            to[j] = y.add(output + block * LANES);
                        }
                        if lanes == LANES {
                            tile::rows::<V, $p>(from, &class.runs, class.len, w, to, false);
                        } else {
                            let mut buffer = [[0.0_f32; LANES]; $p];
                            let mut rows = to;
                            for j in 0..$p {
                                rows[j] = buffer[j].as_mut_ptr();
                            }
                            tile::rows::<V, $p>(from, &class.runs, class.len, w, rows, false);
                            for j in 0..$p {
                                std::ptr::copy_nonoverlapping(buffer[j].as_ptr(), to[j], lanes);
                            }
                        }
                        at += $p;
                    }
                };
            }
            match V::ROWS {
                12 => rows!(12),
                6 => rows!(6),
                _ => {}
            }
            rows!(4);
            rows!(1);
        }
    }
}

/// `count` pixels of the wanted blocks as `[block][pixel][16]`; missing lanes are zero.
fn pack_pixels(dy: &[f32], first: usize, count: usize, co: usize, blocks: std::ops::Range<usize>, out: &mut Vec<f32>) {
    out.resize(blocks.len() * count * LANES, 0.0);
    for (block, out) in blocks.zip(out.chunks_exact_mut(count * LANES)) {
        let lanes = (co - block * LANES).min(LANES);
        for (pixel, out) in dy[first * co..].chunks_exact(co).zip(out.chunks_exact_mut(LANES)) {
            out[..lanes].copy_from_slice(&pixel[block * LANES..][..lanes]);
        }
    }
}

dispatch! {
    unsafe fn weight_group = weight_group_with(
        conv: &Conv, frame: &Frame, count: usize, x: &[f32], dy: &[f32], blocks: usize, acc: &mut [f32],
    )
}

/// Adds the outer products of `count` images to `acc` `[block][kh·kw·ci][16]`.
#[inline(always)]
unsafe fn weight_group_with<V: Lanes>(
    conv: &Conv,
    frame: &Frame,
    count: usize,
    x: &[f32],
    dy: &[f32],
    blocks: usize,
    acc: &mut [f32],
) {
    let (ho, wo) = conv.out();
    let rows = conv.k * conv.k * conv.ci;
    // In blocked frames a tap is sixteen rows of one channel block, else k·ci rows of one kernel row.
    let is_blocked = conv.ci.is_multiple_of(LANES);
    let channels = if is_blocked { LANES } else { conv.ci };
    let width = frame.w + frame.before + frame.after;
    let height = frame.h + frame.before + frame.after;
    let lines: Vec<(usize, usize)> = (0..count)
        .flat_map(|i| (0..ho).map(move |r| (i, r)))
        .map(|(i, r)| ((i * height + r * conv.stride) * width * channels, (i * ho + r) * wo * LANES))
        .collect();
    let pixels = count * ho * wo;
    for block in 0..blocks {
        for kh in 0..conv.k {
            // (offset in x, first row of acc, number of rows)
            let taps: Vec<(usize, usize, usize)> = if is_blocked {
                let places = (0..conv.ci / LANES).flat_map(|b| (0..conv.k).map(move |kw| (b, kw)));
                places
                    .map(|(b, kw)| {
                        let offset = ((b * count * height + kh) * width + kw) * LANES;
                        (offset, (kh * conv.k + kw) * conv.ci + b * LANES, LANES)
                    })
                    .collect()
            } else {
                vec![(kh * width * channels, kh * conv.k * conv.ci, conv.k * conv.ci)]
            };
            for (offset, first_row, tap_rows) in taps {
                let mut row = 0;
                // SAFETY: the caller's contract: lines, taps and rows stay inside their buffers.
                unsafe {
                    let d = dy.as_ptr().add(block * pixels * LANES);
                    let step = conv.stride * channels;
                    macro_rules! outer {
                        ($p:literal) => {
                            while row + $p <= tap_rows {
                                let from = x.as_ptr().add(offset + row);
                                let to = acc.as_mut_ptr().add((block * rows + first_row + row) * LANES);
                                tile::outer::<V, $p>(from, step, d, &lines, wo, to);
                                row += $p;
                            }
                        };
                    }
                    match V::ROWS {
                        12 => outer!(16),
                        6 => outer!(6),
                        _ => {}
                    }
                    outer!(4);
                    outer!(1);
                }
            }
        }
    }
}
