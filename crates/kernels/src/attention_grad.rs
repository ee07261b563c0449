//! The gradient of softmax attention: with P = softmax and dP = dO·vᵀ, dv = Pᵀ·dO, dS = P∘(dP − Σ dO∘O), dq = dS·k and
//! dk = dSᵀ·q, for a few queries of a head at a time.

use crate::attention::{Attention, QUERIES, dot};
use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load};
use crate::panel::{self, Packed, Rows, load_some, store_row, store_some};
use crate::shared::Shared;
use crate::softmax::exp;
use rayon::prelude::*;

/// d_all `[n, length, 3·heads·size]`, overwritten, from what [`crate::attention`] was given and gave, and the gradient of `out`.
pub fn attention_grad<T: Element>(
    isa: Isa,
    shape: Attention,
    all: &[T],
    out: &[T],
    log_sums: &[f32],
    d_out: &[T],
    d_all: &mut [T],
) {
    shape.check(all.len(), out.len(), log_sums.len());
    assert_eq!((d_out.len(), d_all.len()), (out.len(), all.len()), "gradients of {shape:?}");
    let d_all = Shared::new(d_all);
    log_sums.par_chunks(shape.length).enumerate().for_each_init(
        || Scratch::new(shape),
        |scratch, (task, log_sums)| {
            // SAFETY: lengths are checked, and a task writes the gradients of its head.
            unsafe { head(isa, shape, Known { all, out, log_sums, d_out }, task, scratch, &d_all) };
        },
    );
}

/// What the gradient is made of; `log_sums` of one head.
#[derive(Clone, Copy)]
struct Known<'a, T> {
    all: &'a [T],
    out: &'a [T],
    log_sums: &'a [f32],
    d_out: &'a [T],
}

/// What a task needs beside its operands. Names in the order of the formulas above.
struct Scratch {
    /// A few rows of q, then of dO, in f32.
    rows: Buffer,
    /// k and v as columns, k, q and dO as rows.
    k_columns: Buffer,
    v_columns: Buffer,
    k: Buffer,
    q: Buffer,
    d_out: Buffer,
    /// S, then P, and dP, then dS, of QUERIES tokens.
    p: Buffer,
    ds: Buffer,
    dq: Buffer,
    dk: Buffer,
    dv: Buffer,
}

impl Scratch {
    fn new(shape: Attention) -> Self {
        let width = shape.blocks() * LANES;
        let columns = || Buffer::new(shape.padded() * shape.size);
        let tokens = || Buffer::new(shape.length * width);
        let logits = || Buffer::new(QUERIES * shape.padded());
        let few = || Buffer::new(QUERIES * width);
        Self {
            rows: Buffer::new(QUERIES * shape.size),
            k_columns: columns(),
            v_columns: columns(),
            k: tokens(),
            q: few(),
            d_out: few(),
            p: logits(),
            ds: logits(),
            dq: few(),
            dk: tokens(),
            dv: tokens(),
        }
    }
}

dispatch! {
    unsafe fn head<T> = head_with(shape: Attention, known: Known<T>, task: usize, scratch: &mut Scratch, d_all: &Shared<T>)
}

#[inline(always)]
unsafe fn head_with<V: Lanes, T: Element>(
    shape: Attention,
    known: Known<T>,
    task: usize,
    scratch: &mut Scratch,
    d_all: &Shared<T>,
) {
    let Attention { length, size, .. } = shape;
    let (padded, blocks) = (shape.padded(), shape.blocks());
    let (tokens, few, width) = (length * LANES, QUERIES * LANES, blocks * LANES);
    let part = |part: usize, first: usize, count: usize| shape.part(known.all, task, part, first, count);
    panel::pack_transposed(part(1, 0, length), size, shape.scale(), &mut scratch.k_columns);
    panel::pack_transposed(part(2, 0, length), size, 1.0, &mut scratch.v_columns);
    // SAFETY: scratch holds what `Scratch::new` says.
    unsafe { panel::pack::<V>(part(1, 0, length), size, &mut scratch.k, tokens) };
    scratch.dk.fill(0.0);
    scratch.dv.fill(0.0);
    for first in (0..length).step_by(QUERIES) {
        let count = QUERIES.min(length - first);
        let reach = shape.keys(first + count);
        let d_out = Rows { values: &known.d_out[shape.place(task, first)..], step: shape.width(), count };
        let columns = |values| Packed { values, step: size * LANES, blocks: reach.div_ceil(LANES) };
        let rows = |values, step| Packed { values, step, blocks };
        // SAFETY: as above; gradients of the task's head.
        unsafe {
            let q = panel::widen::<V>(part(0, first, count), size, &mut scratch.rows);
            panel::times::<V>(q, size, columns(&scratch.k_columns), &Shared::new(&mut scratch.p), padded, false);
            let d = panel::widen::<V>(d_out, size, &mut scratch.rows);
            panel::times::<V>(d, size, columns(&scratch.v_columns), &Shared::new(&mut scratch.ds), padded, false);
            for row in 0..count {
                let place = shape.place(task, first + row);
                let own = dot::<V, T>(known.d_out, place, known.out, place, size);
                let seen = shape.keys(first + row + 1);
                let p = &mut scratch.p[row * padded..][..reach];
                let ds = &mut scratch.ds[row * padded..][..reach];
                probabilities::<V>(&mut p[..seen], &mut ds[..seen], known.log_sums[first + row], own, shape.scale());
                p[seen..].fill(0.0);
                ds[seen..].fill(0.0);
            }
            panel::pack::<V>(part(0, first, count), size, &mut scratch.q, few);
            panel::pack::<V>(d_out, size, &mut scratch.d_out, few);
            let (p, ds) = (&scratch.p, &scratch.ds);
            let logits = |values| Rows { values, step: padded, count };
            panel::transposed_times::<V>(logits(p), reach, rows(&scratch.d_out, few), &mut scratch.dv, tokens, true);
            panel::transposed_times::<V>(logits(ds), reach, rows(&scratch.q, few), &mut scratch.dk, tokens, true);
            let dq = &Shared::new(&mut scratch.dq);
            panel::times::<V>(logits(ds), reach, rows(&scratch.k, tokens), dq, width, false);
            write::<V, T>(shape, &scratch.dq, (width, LANES), task, 0, first..first + count, d_all);
        }
    }
    // SAFETY: as above.
    unsafe {
        write::<V, T>(shape, &scratch.dk, (LANES, tokens), task, 1, 0..length, d_all);
        write::<V, T>(shape, &scratch.dv, (LANES, tokens), task, 2, 0..length, d_all);
    }
}

/// S → P = e^{S − log_sum} and dP → dS = P∘(dP − own)·scale
#[inline(always)]
unsafe fn probabilities<V: Lanes>(s: &mut [f32], dp: &mut [f32], log_sum: f32, own: f32, scale: f32) {
    for at in (0..s.len()).step_by(LANES) {
        let left = s.len() - at;
        // SAFETY: slices of one length.
        unsafe {
            let p = exp(load_some::<V>(s, at, left).sub(V::splat(log_sum)));
            let ds = load_some::<V>(dp, at, left).sub(V::splat(own)).mul(p).mul(V::splat(scale));
            store_row(p, s, at);
            store_row(ds, dp, at);
        }
    }
}

/// Gradients of queries, keys or values to their places; from one token to the next, and from one block to the next, are `steps`.
#[inline(always)]
unsafe fn write<V: Lanes, T: Element>(
    shape: Attention,
    from: &[f32],
    steps: (usize, usize),
    task: usize,
    part: usize,
    tokens: std::ops::Range<usize>,
    d_all: &Shared<T>,
) {
    let (sequence, head) = (task / shape.heads, task % shape.heads);
    for (row, token) in tokens.enumerate() {
        let place = (sequence * shape.length + token) * 3 * shape.width() + part * shape.width() + head * shape.size;
        for block in 0..shape.blocks() {
            let at = block * LANES;
            // SAFETY: the caller's contract.
            unsafe {
                let value = load::<V>(from, row * steps.0 + block * steps.1);
                store_some(value, d_all, place + at, shape.size - at);
            }
        }
    }
}
