//! Softmax attention of many heads, softmax(q·kᵀ/√size)·v for each, from queries, keys and values side by side.
//!
//! Heads are tasks. A head's logits exist for a few queries at a time; for the gradient they are computed again from the
//! logarithms of their sums. What is read and written is f32 or bf16; all that is between is f32.

use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::panel::{self, Packed, Rows, load_some, store_some};
use crate::shared::Shared;
use crate::softmax::{exp, load_rest, total};
use rayon::prelude::*;

/// Queries whose logits stay in the caches.
pub(crate) const QUERIES: usize = 48;

/// The shape of an attention: `n` sequences of `length` tokens, and heads of `size` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Sequences.
    pub n: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Heads.
    pub heads: usize,
    /// Values of a head's queries, keys and values.
    pub size: usize,
    /// A token looks at itself and at earlier ones alone.
    pub causal: bool,
}

impl Attention {
    /// Values of the output: n·length·heads·size. Queries, keys and values are three times as many.
    pub fn out_len(&self) -> usize {
        self.n * self.length * self.width()
    }

    /// Logarithms of sums: one for each token of each head.
    pub fn sums_len(&self) -> usize {
        self.n * self.heads * self.length
    }

    pub(crate) fn width(&self) -> usize {
        self.heads * self.size
    }

    /// Blocks of lanes of a head.
    pub(crate) fn blocks(&self) -> usize {
        self.size.div_ceil(LANES)
    }

    /// Tokens in whole blocks of lanes.
    pub(crate) fn padded(&self) -> usize {
        self.length.next_multiple_of(LANES)
    }

    /// 1/√size
    pub(crate) fn scale(&self) -> f32 {
        (self.size as f32).sqrt().recip()
    }

    /// Keys that some of the queries before `end` look at.
    pub(crate) fn keys(&self, end: usize) -> usize {
        if self.causal { end } else { self.length }
    }

    /// Rows of queries (`part` 0), keys (1) or values (2) of the task's head, from token `first`.
    pub(crate) fn part<'a, T>(
        &self,
        all: &'a [T],
        task: usize,
        part: usize,
        first: usize,
        count: usize,
    ) -> Rows<'a, T> {
        let (sequence, head) = (task / self.heads, task % self.heads);
        let step = 3 * self.width();
        let from = (sequence * self.length + first) * step + part * self.width() + head * self.size;
        Rows { values: &all[from..], step, count }
    }

    /// Where the output of the task's head for token `first` is.
    pub(crate) fn place(&self, task: usize, first: usize) -> usize {
        let (sequence, head) = (task / self.heads, task % self.heads);
        (sequence * self.length + first) * self.width() + head * self.size
    }

    pub(crate) fn check(&self, all: usize, out: usize, sums: usize) {
        assert!(self.out_len() > 0, "{self:?} is empty");
        assert_eq!(
            (all, out, sums),
            (3 * self.out_len(), self.out_len(), self.sums_len()),
            "buffer lengths of {self:?}"
        );
    }
}

/// What the heads mix, `[n, length, heads·size]`, from `all` = `[n, length, 3·heads·size]`: queries, keys and values. Both outputs
/// are overwritten; `log_sums` `[n, heads, length]` is for the gradient.
pub fn attention<T: Element>(isa: Isa, shape: Attention, all: &[T], out: &mut [T], log_sums: &mut [f32]) {
    shape.check(all.len(), out.len(), log_sums.len());
    let out = Shared::new(out);
    log_sums.par_chunks_mut(shape.length).enumerate().for_each_init(
        || Scratch::new(shape),
        |scratch, (task, log_sums)| {
            // SAFETY: lengths are checked, and a task writes the outputs of its head.
            unsafe { head(isa, shape, all, task, scratch, &out, log_sums) };
        },
    );
}

/// What a task needs beside its operands.
struct Scratch {
    queries: Buffer,
    keys: Buffer,
    values: Buffer,
    logits: Buffer,
    mixed: Buffer,
}

impl Scratch {
    fn new(shape: Attention) -> Self {
        let width = shape.blocks() * LANES;
        Self {
            queries: Buffer::new(QUERIES * shape.size),
            keys: Buffer::new(shape.padded() * shape.size),
            values: Buffer::new(shape.length * width),
            logits: Buffer::new(QUERIES * shape.padded()),
            mixed: Buffer::new(QUERIES * width),
        }
    }
}

dispatch! {
    unsafe fn head<T> = head_with(
        shape: Attention, all: &[T], task: usize, scratch: &mut Scratch, out: &Shared<T>, log_sums: &mut [f32],
    )
}

#[inline(always)]
unsafe fn head_with<V: Lanes, T: Element>(
    shape: Attention,
    all: &[T],
    task: usize,
    scratch: &mut Scratch,
    out: &Shared<T>,
    log_sums: &mut [f32],
) {
    let Attention { length, size, .. } = shape;
    let (padded, width) = (shape.padded(), shape.blocks() * LANES);
    let Scratch { queries, keys, values, logits, mixed } = scratch;
    panel::pack_transposed(shape.part(all, task, 1, 0, length), size, shape.scale(), keys);
    // SAFETY: scratch holds what `Scratch::new` says: all keys and values, logits and outputs of QUERIES tokens.
    unsafe { panel::pack::<V>(shape.part(all, task, 2, 0, length), size, values, length * LANES) };
    for first in (0..length).step_by(QUERIES) {
        let count = QUERIES.min(length - first);
        let reach = shape.keys(first + count);
        // SAFETY: as above; outputs of the task's head.
        unsafe {
            let queries = panel::widen::<V>(shape.part(all, task, 0, first, count), size, queries);
            let w = Packed { values: keys, step: size * LANES, blocks: reach.div_ceil(LANES) };
            panel::times::<V>(queries, size, w, &Shared::new(logits), padded, false);
            let mut shares = [0.0; QUERIES];
            for row in 0..count {
                let seen = shape.keys(first + row + 1);
                let row_logits = &mut logits[row * padded..][..reach];
                let (max, sum) = exponentials::<V>(&mut row_logits[..seen]);
                row_logits[seen..].fill(0.0);
                log_sums[first + row] = max + (sum as f32).ln();
                shares[row] = (1.0 / sum) as f32;
            }
            let weights = Rows { values: logits, step: padded, count };
            let w = Packed { values, step: length * LANES, blocks: shape.blocks() };
            panel::times::<V>(weights, reach, w, &Shared::new(mixed), width, false);
            for (row, share) in shares.iter().enumerate().take(count) {
                let place = shape.place(task, first + row);
                for at in (0..size).step_by(LANES) {
                    let value = load::<V>(mixed, row * width + at).mul(V::splat(*share));
                    store_some(value, out, place + at, size - at);
                }
            }
        }
    }
}

/// x ← e^{x − max}; the maximum and the sum.
#[inline(always)]
unsafe fn exponentials<V: Lanes>(x: &mut [f32]) -> (f32, f64) {
    let whole = x.len() / LANES * LANES;
    // SAFETY: `at` stays below `whole`, and the rest is copied.
    unsafe {
        let mut most = load_rest::<V>(x, whole, f32::NEG_INFINITY);
        for at in (0..whole).step_by(LANES) {
            most = most.max(load(x, at));
        }
        let mut lanes = [0.0_f32; LANES];
        store(most, &mut lanes, 0);
        let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = V::zero();
        for at in (0..whole).step_by(LANES) {
            let value = exp(load::<V>(x, at).sub(V::splat(max)));
            sum = sum.add(value);
            store(value, x, at);
        }
        let mut sum = total(sum);
        if whole < x.len() {
            let mut rest = [0.0; LANES];
            store(exp(load_rest::<V>(x, whole, max).sub(V::splat(max))), &mut rest, 0);
            let rest = &rest[..x.len() - whole];
            sum += rest.iter().map(|&v| f64::from(v)).sum::<f64>();
            x[whole..].copy_from_slice(rest);
        }
        (max, sum)
    }
}

/// a·b over `len` values from `at_a` and `at_b` on.
#[inline(always)]
pub(crate) unsafe fn dot<V: Lanes, T: Element>(a: &[T], at_a: usize, b: &[T], at_b: usize, len: usize) -> f32 {
    // SAFETY: the caller's values are there.
    unsafe {
        let mut sum = V::zero();
        for at in (0..len).step_by(LANES) {
            sum = load_some::<V>(a, at_a + at, len - at).fma(load_some(b, at_b + at, len - at), sum);
        }
        total(sum) as f32
    }
}
