//! What a product needs of a convolution: for each output pixel the values under its kernel as one row, and weights in
//! columns that match.

use super::product::PAIRS;
use crate::batch_norm::apply_chunk;
use crate::buffer::Buffer;
use crate::conv::{Conv, LANES};
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::normed::Read;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// Values that are copied at once where fewer are needed.
const SHORT: usize = 32;

/// `count` neighbouring pixels of a row, at an offset from where an output pixel looks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    row: isize,
    column: isize,
    count: usize,
}

/// Output pixels that look at the same taps, and the images that they look at.
pub(super) struct Patches {
    /// Of the images that are read.
    h: usize,
    w: usize,
    c: usize,
    runs: Vec<Run>,
    /// Pixels read from one output to the next.
    stride: usize,
    /// Rows and columns of outputs in an image.
    grid: (usize, usize),
    /// Places of the outputs: first, from row to row, from column to column, from image to image.
    places: [usize; 4],
    /// The kernel's taps in the order of the runs.
    taps: Vec<usize>,
}

impl Patches {
    /// All outputs of a convolution over its inputs.
    pub(super) fn of_outputs(conv: &Conv) -> Self {
        let (ho, wo) = conv.out();
        let pad = conv.pad as isize;
        Self {
            h: conv.h,
            w: conv.w,
            c: conv.ci,
            runs: (0..conv.k as isize).map(|kh| Run { row: kh - pad, column: -pad, count: conv.k }).collect(),
            stride: conv.stride,
            grid: (ho, wo),
            places: [0, wo * conv.co, conv.co, ho * wo * conv.co],
            taps: (0..conv.k * conv.k).collect(),
        }
    }

    /// The inputs whose row and column leave the remainders `rows` and `columns`, over the gradients of the outputs.
    pub(super) fn of_inputs(conv: &Conv, (rows, columns): (usize, usize)) -> Self {
        let (ho, wo) = conv.out();
        let (s, p, k) = (conv.stride as isize, conv.pad as isize, conv.k as isize);
        // u = r·s + kh − p, so an input row u = q·s + phase meets output row r = q + (phase + p − kh)/s; by rising r.
        let taps = |phase: usize| -> Vec<(usize, isize)> {
            let shift = |kh: isize| phase as isize + p - kh;
            let meets = (0..k).rev().filter(|kh| shift(*kh).rem_euclid(s) == 0);
            meets.map(|kh| (kh as usize, shift(kh).div_euclid(s))).collect()
        };
        let (down, across) = (taps(rows), taps(columns));
        let run = |row| across.first().map(|&(_, column)| Run { row, column, count: across.len() });
        let side = |all: usize, first: usize| all.saturating_sub(first).div_ceil(conv.stride);
        Self {
            h: ho,
            w: wo,
            c: conv.co,
            runs: down.iter().filter_map(|&(_, row)| run(row)).collect(),
            stride: 1,
            grid: (side(conv.h, rows), side(conv.w, columns)),
            places: [
                (rows * conv.w + columns) * conv.ci,
                conv.stride * conv.w * conv.ci,
                conv.stride * conv.ci,
                conv.h * conv.w * conv.ci,
            ],
            taps: down.iter().flat_map(|(kh, _)| across.iter().map(move |(kw, _)| kh * conv.k + kw)).collect(),
        }
    }

    /// Output pixels in an image.
    pub(super) fn pixels(&self) -> usize {
        self.grid.0 * self.grid.1
    }

    /// Values of a row that come from pixels.
    pub(super) fn width(&self) -> usize {
        self.taps.len() * self.c
    }

    /// Values of a row: whole pairs.
    pub(super) fn row(&self) -> usize {
        self.width().next_multiple_of(2)
    }

    /// The image, the row and the column of each output.
    fn outputs(&self, pixels: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
        let (down, across) = self.grid;
        let within = pixels.start % self.pixels();
        let first = (pixels.start / self.pixels(), within / across, within % across);
        let next = move |&(n, q, t): &(usize, usize, usize)| match (t + 1 == across, q + 1 == down) {
            (false, _) => Some((n, q, t + 1)),
            (true, false) => Some((n, q + 1, 0)),
            (true, true) => Some((n + 1, 0, 0)),
        };
        std::iter::successors(Some(first), next).take(pixels.len())
    }

    /// Where outputs are written.
    pub(super) fn places(&self, pixels: Range<usize>) -> Vec<usize> {
        let [first, down, across, image] = self.places;
        self.outputs(pixels).map(|(n, q, t)| n * image + first + q * down + t * across).collect()
    }

    /// The rows of some outputs: the images' own values where a row is one pixel, else a copy in `copy`.
    pub(super) fn rows<'a>(
        &self,
        isa: Isa,
        x: Read<'a, bf16>,
        pixels: Range<usize>,
        copy: &'a mut Buffer<bf16>,
    ) -> &'a [bf16] {
        let at_itself = [Run { row: 0, column: 0, count: 1 }];
        let is_itself =
            self.runs == at_itself && self.stride == 1 && self.grid == (self.h, self.w) && self.c.is_multiple_of(2);
        let row = self.row();
        let len = row * pixels.len();
        if copy.len() < len + SHORT && !(is_itself && x.norm.is_none()) {
            *copy = Buffer::of(len + SHORT);
        }
        if is_itself {
            let x_rows = &x.values[pixels.start * self.c..pixels.end * self.c];
            let Some(norm) = x.norm else { return x_rows };
            let copy = &mut copy[..len];
            // SAFETY: both have one length, whole pixels of as many channels as the norm.
            unsafe { apply_chunk(isa, x_rows, None, norm.scale, norm.shift, true, copy) };
            return copy;
        }
        let x = x.as_they_lie();
        self.outputs(pixels).enumerate().for_each(|(index, output)| self.gather(x, output, &mut copy[index * row..]));
        &copy[..len]
    }

    /// The values under the kernel at one output, zeros outside the image; `row` has [`SHORT`] values more than it needs.
    #[inline]
    fn gather(&self, x: &[bf16], (n, q, t): (usize, usize, usize), row: &mut [bf16]) {
        let mut at = 0;
        for run in &self.runs {
            let width = run.count * self.c;
            let (u, v) = ((q * self.stride) as isize + run.row, (t * self.stride) as isize + run.column);
            let is_inside = u >= 0 && u < self.h as isize;
            if is_inside && v >= 0 && v + run.count as isize <= self.w as isize {
                let from = ((n * self.h + u as usize) * self.w + v as usize) * self.c;
                // A copy of fixed length is one instruction; what it copies too much is overwritten.
                match x.get(from..from + SHORT) {
                    Some(short) if width <= SHORT => row[at..at + SHORT].copy_from_slice(short),
                    _ => row[at..at + width].copy_from_slice(&x[from..from + width]),
                }
            } else {
                let part = &mut row[at..at + width];
                let first = if is_inside { (-v).clamp(0, run.count as isize) as usize } else { run.count };
                let end = (self.w as isize - v).clamp(first as isize, run.count as isize) as usize;
                part[..first * self.c].fill(bf16::ZERO);
                part[end * self.c..].fill(bf16::ZERO);
                if first < end {
                    let column = (v + first as isize) as usize;
                    let from = ((n * self.h + u as usize) * self.w + column) * self.c;
                    part[first * self.c..end * self.c].copy_from_slice(&x[from..from + (end - first) * self.c]);
                }
            }
            at += width;
        }
        row[at..self.row()].fill(bf16::ZERO);
    }

    /// Weights as columns for these rows, `[lanes/16][row/2][16][2]`, rounded; lanes beyond the last channel are zero.
    /// `lanes` and `inner` are (length, distance) of the axis of the outputs and of the one that is summed.
    pub(super) fn columns(
        &self,
        isa: Isa,
        weight: &[f32],
        lanes: (usize, usize),
        inner: (usize, usize),
    ) -> Buffer<bf16> {
        let mut out = Buffer::of(lanes.0.div_ceil(LANES) * self.row() * LANES);
        if self.row() == 0 {
            return out;
        }
        let offsets: Vec<usize> =
            self.taps.iter().flat_map(|tap| (0..inner.0).map(move |i| tap + i * inner.1)).collect();
        out.par_chunks_mut(self.row() * LANES).enumerate().for_each(|(block, out)| {
            // SAFETY: `out` holds whole pairs of sixteen lanes for all offsets.
            unsafe { round_block(isa, weight, &offsets, lanes, block * LANES, out) };
        });
        out
    }
}

dispatch! {
    unsafe fn round_block = round_block_with(
        weight: &[f32], offsets: &[usize], lanes: (usize, usize), first: usize, out: &mut [bf16],
    )
}

#[inline(always)]
unsafe fn round_block_with<V: Lanes>(
    weight: &[f32],
    offsets: &[usize],
    lanes: (usize, usize),
    first: usize,
    out: &mut [bf16],
) {
    let count = LANES.min(lanes.0 - first);
    let mut square = [0.0_f32; LANES * LANES];
    // Sixteen rows at a time: lanes are far apart, and a line of each is read once.
    for (offsets, out) in offsets.chunks(LANES).zip(out.chunks_mut(LANES * LANES)) {
        if offsets.len() < LANES {
            square.fill(0.0);
        }
        for lane in 0..count {
            let weight = &weight[(first + lane) * lanes.1..];
            for (k, offset) in offsets.iter().enumerate() {
                square[k / 2 * PAIRS + 2 * lane + k % 2] = weight[*offset];
            }
        }
        for at in (0..out.len()).step_by(LANES) {
            // SAFETY: sixteen values at a multiple of sixteen inside both.
            unsafe { store(load::<V>(&square, at), out, at) };
        }
    }
}

dispatch! {
    /// Pixels of `rows`, each of `len` values, in pairs: the wanted channels as `[block][pair][16][2]`, `stride` values from
    /// block to block. Missing channels and the second of a last odd pixel are zero.
    pub(super) unsafe fn pair_pixels = pair_pixels_with(
        rows: &[bf16], len: usize, channels: Range<usize>, out: &mut [bf16], stride: usize,
    )
}

#[inline(always)]
unsafe fn pair_pixels_with<V: Lanes>(
    rows: &[bf16],
    len: usize,
    channels: Range<usize>,
    out: &mut [bf16],
    stride: usize,
) {
    let whole = channels.len() / LANES;
    for (pair, both) in rows.chunks(2 * len).enumerate() {
        let (a, b) = both.split_at(len);
        let a = &a[channels.clone()];
        let b = b.get(channels.clone());
        let place = |block: usize| block * stride + pair * PAIRS;
        let is_fast = b.is_some();
        if let Some(b) = b {
            for (block, (a, b)) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)).enumerate() {
                let out = &mut out[place(block)..][..PAIRS];
                for lane in 0..LANES {
                    (out[2 * lane], out[2 * lane + 1]) = (a[lane], b[lane]);
                }
            }
        }
        // What is not whole.
        for (block, a) in a.chunks(LANES).enumerate().skip(if is_fast { whole } else { 0 }) {
            let out = &mut out[place(block)..][..PAIRS];
            out.fill(bf16::ZERO);
            for (lane, a) in a.iter().enumerate() {
                (out[2 * lane], out[2 * lane + 1]) = (*a, b.map_or(bf16::ZERO, |b| b[block * LANES + lane]));
            }
        }
    }
}
