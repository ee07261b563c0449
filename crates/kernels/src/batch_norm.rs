//! Batch norm over `[pixels, channels]`, fused with ReLU and with the addition of a residual.
//!
//! Sums run in f32 over 64 pixels and in f64 over those; chunks of pixels have a fixed size and are added in order.
//! Activations are f32 or bf16, statistics and parameters always f32: a bf16 is read exactly and rounded when it is written.

use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{self, Lanes};
use rayon::prelude::*;
use std::ops::Range;

/// Pixels of one task.
const CHUNK: usize = 512;
/// Pixels summed in f32.
const SHORT: usize = 64;

/// Mean and biased variance of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct NormStats {
    /// μ = Σx/M over the M pixels.
    pub mean: Vec<f32>,
    /// Σ(x−μ)²/M.
    pub var: Vec<f32>,
}

/// Where a batch is shared: every process holds as many pixels of it as the others.
#[derive(Clone, Copy)]
pub struct Ranks<'a> {
    /// Number of processes.
    pub count: usize,
    /// Adds values over the processes, in place.
    pub sum: &'a (dyn Fn(&mut [f64]) + Sync),
}

impl Ranks<'_> {
    /// One process has the whole batch.
    pub const ALONE: Self = Self { count: 1, sum: &|_| {} };

    fn mean(&self, values: &mut [f64]) {
        (self.sum)(values);
        values.iter_mut().for_each(|v| *v /= self.count as f64);
    }
}

/// What batch norm and ReLU make of a value of their input: max(0, x·scale + shift), channel by channel.
#[derive(Clone, Copy)]
pub struct NormRelu<'a> {
    /// γ/√(var+ε)
    pub scale: &'a [f32],
    /// β − μ·scale
    pub shift: &'a [f32],
}

/// Where ReLU let a gradient through.
#[derive(Clone, Copy)]
pub enum Gate<'a, T = f32> {
    /// Everywhere: there was no ReLU.
    Open,
    /// Where this output is positive.
    Output(&'a [T]),
    /// Where the output that was made of the input was positive; it was not kept.
    Input(NormRelu<'a>),
}

impl<T> Gate<'_, T> {
    fn of(&self, values: Range<usize>) -> Self {
        match *self {
            Self::Open => Self::Open,
            Self::Output(y) => Self::Output(&y[values]),
            Self::Input(norm) => Self::Input(norm),
        }
    }
}

/// Gradients of batch norm's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct NormGrad {
    /// dγ = Σg(x−μ)/√(var+ε) with g = dy where ReLU is open.
    pub weight: Vec<f32>,
    /// dβ = Σg.
    pub bias: Vec<f32>,
}

/// Statistics of the batch of which x `[pixels, channels]` is this process's part: the mean of the means, then the mean of
/// varᵣ + (μᵣ − μ)².
pub fn norm_stats<T: Element>(isa: Isa, x: &[T], channels: usize, ranks: Ranks) -> NormStats {
    let pixels = count(x, channels);
    // Differences to the first pixel: no cancellation where the mean is far from zero.
    let origin = &x[..channels];
    let (sum, square) = reduce(x.par_chunks(CHUNK * channels), channels, |chunk, sums| {
        // SAFETY: `sums` holds two rows of whole lanes.
        unsafe { stats_chunk(isa, chunk, origin, channels, sums) }
    });
    let per = |v: f64| v / pixels as f64;
    let ours: Vec<f64> = (0..channels).map(|c| f64::from(origin[c].to_f32()) + per(sum[c])).collect();
    let mut mean = ours.clone();
    ranks.mean(&mut mean);
    let spread = |c: usize| (per(square[c]) - per(sum[c]).powi(2)).max(0.0) + (ours[c] - mean[c]).powi(2);
    let mut var: Vec<f64> = (0..channels).map(spread).collect();
    ranks.mean(&mut var);
    let round = |values: Vec<f64>| values.into_iter().map(|v| v as f32).collect();
    NormStats { mean: round(mean), var: round(var) }
}

/// y = x·scale + shift (+ residual), then ReLU if asked.
pub fn norm_apply<T: Element>(
    isa: Isa,
    x: &[T],
    residual: Option<&[T]>,
    scale: &[f32],
    shift: &[f32],
    relu: bool,
    y: &mut [T],
) {
    let channels = scale.len();
    count(x, channels);
    assert_eq!((x.len(), shift.len()), (y.len(), channels));
    assert!(residual.is_none_or(|r| r.len() == x.len()));
    y.par_chunks_mut(CHUNK * channels).enumerate().for_each(|(index, y)| {
        let range = index * CHUNK * channels..index * CHUNK * channels + y.len();
        let (x, residual) = (&x[range.clone()], residual.map(|all| &all[range]));
        // SAFETY: x, residual (if any) and y have one length; scale and shift one value for each channel.
        unsafe { apply_chunk(isa, x, residual, scale, shift, relu, y) };
    });
}

/// Gradients of `norm_apply` after `norm_stats`. [`NormInput`] says
/// where dx goes; the residual's gradient is dy where the gate is open. The parameters' gradients are of this process's part.
#[expect(clippy::too_many_arguments, reason = "the inputs of one formula")]
pub fn norm_backward<T: Element>(
    isa: Isa,
    mut x: NormInput<T>,
    gate: Gate<T>,
    dy: &mut [T],
    stats: &NormStats,
    weight: &[f32],
    epsilon: f32,
    ranks: Ranks,
) -> NormGrad {
    let channels = weight.len();
    let pixels = (ranks.count * count(x.values(), channels)) as f64;
    assert_eq!(dy.len(), x.values().len());
    match gate {
        Gate::Open => {}
        Gate::Output(y) => assert_eq!(y.len(), dy.len()),
        Gate::Input(norm) => assert_eq!((norm.scale.len(), norm.shift.len()), (channels, channels)),
    }
    let width = CHUNK * channels;
    let gate = |index: usize, len: usize| gate.of(index * width..index * width + len);
    let chunks = x.values().par_chunks(width).zip(dy.par_chunks(width)).enumerate();
    let (sum, product) = reduce(chunks, channels, |(index, (x, dy)), sums| {
        // SAFETY: the chunks have one length, `sums` two rows of whole lanes.
        unsafe { backward_sums(isa, x, dy, gate(index, dy.len()), &stats.mean, sums) }
    });
    let mut whole = [sum.as_slice(), &product].concat();
    (ranks.sum)(&mut whole);
    let (whole_sum, whole_product) = whole.split_at(channels);
    let inverse: Vec<f64> = stats.var.iter().map(|&v| 1.0 / f64::from(v + epsilon).sqrt()).collect();
    // dx = γ/σ·(g − Σg/M − (x−μ)/σ²·Σg(x−μ)/M) = k1·g + k2·(x−μ) + k3
    let k1: Vec<f32> = (0..channels).map(|c| (f64::from(weight[c]) * inverse[c]) as f32).collect();
    let slope = |c: usize| -f64::from(k1[c]) * inverse[c].powi(2) * whole_product[c] / pixels;
    let k2: Vec<f32> = (0..channels).map(|c| slope(c) as f32).collect();
    let k3: Vec<f32> = (0..channels).map(|c| (-f64::from(k1[c]) * whole_sum[c] / pixels) as f32).collect();
    let k = [k1.as_slice(), &k2, &k3, &stats.mean];
    match &mut x {
        NormInput::Keep(x) => {
            dy.par_chunks_mut(width).zip(x.par_chunks(width)).enumerate().for_each(|(index, (dy, x))| {
                // SAFETY: all chunks have one length, the coefficients one value for each channel.
                unsafe { backward_apply(isa, NormInput::Keep(x), gate(index, dy.len()), dy, k) };
            });
        }
        NormInput::BecomesGradient(x) => {
            dy.par_chunks_mut(width).zip(x.par_chunks_mut(width)).enumerate().for_each(|(index, (dy, x))| {
                // SAFETY: as above.
                unsafe { backward_apply(isa, NormInput::BecomesGradient(x), gate(index, dy.len()), dy, k) };
            });
        }
    }
    NormGrad {
        weight: (0..channels).map(|c| (product[c] * inverse[c]) as f32).collect(),
        bias: sum.iter().map(|&v| v as f32).collect(),
    }
}

/// The input of a batch norm, going backward.
pub enum NormInput<'a, T = f32> {
    /// It stays; `dy` becomes dx.
    Keep(&'a [T]),
    /// It becomes dx; `dy` becomes the residual's gradient.
    BecomesGradient(&'a mut [T]),
}

impl<T> NormInput<'_, T> {
    #[inline(always)]
    fn values(&self) -> &[T] {
        match self {
            Self::Keep(x) => x,
            Self::BecomesGradient(x) => x,
        }
    }
}

fn count<T>(x: &[T], channels: usize) -> usize {
    assert!(channels > 0 && !x.is_empty() && x.len().is_multiple_of(channels), "whole pixels, at least one");
    x.len() / channels
}

/// Adds what `f` gives for each chunk, in order: two sums for each channel.
fn reduce<T: Send>(
    chunks: impl IndexedParallelIterator<Item = T>,
    channels: usize,
    f: impl Fn(T, &mut [f64]) + Sync,
) -> (Vec<f64>, Vec<f64>) {
    let padded = channels.next_multiple_of(LANES);
    let parts: Vec<Vec<f64>> = chunks
        .map(|chunk| {
            let mut sums = vec![0.0; 2 * padded];
            f(chunk, &mut sums);
            sums
        })
        .collect();
    let mut total = vec![0.0; 2 * padded];
    for part in parts {
        total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
    }
    let second = total.split_off(padded);
    total.truncate(channels);
    (total, second[..channels].to_vec())
}

/// Sixteen values from `at`, or the `lanes` that are left and zeros.
#[inline(always)]
unsafe fn load<V: Lanes>(from: &[impl Element], at: usize, lanes: usize) -> V {
    // SAFETY: the caller has `lanes` values.
    unsafe {
        if lanes == LANES {
            return lanes::load(from, at);
        }
        let mut buffer = [0.0_f32; LANES];
        buffer.iter_mut().zip(&from[at..at + lanes]).for_each(|(lane, value)| *lane = value.to_f32());
        V::load(buffer.as_ptr())
    }
}

#[inline(always)]
unsafe fn store<V: Lanes, T: Element>(value: V, to: &mut [T], at: usize, lanes: usize) {
    // SAFETY: the caller has room for `lanes` values.
    unsafe {
        if lanes == LANES {
            return lanes::store(value, to, at);
        }
        let mut buffer = [0.0_f32; LANES];
        value.store(buffer.as_mut_ptr());
        to[at..at + lanes].iter_mut().zip(buffer).for_each(|(to, lane)| *to = T::from_f32(lane));
    }
}

/// Adds sixteen f32 sums to f64 ones.
#[inline(always)]
unsafe fn fold<V: Lanes>(value: V, into: &mut [f64]) {
    let mut buffer = [0.0_f32; LANES];
    // SAFETY: the buffer has sixteen values.
    unsafe { value.store(buffer.as_mut_ptr()) };
    into.iter_mut().zip(buffer).for_each(|(sum, v)| *sum += f64::from(v));
}

dispatch! {
    unsafe fn stats_chunk<T> = stats_chunk_with(x: &[T], origin: &[T], channels: usize, sums: &mut [f64])
}

/// Σ(x−o) and Σ(x−o)².
#[inline(always)]
unsafe fn stats_chunk_with<V: Lanes, T: Element>(x: &[T], origin: &[T], channels: usize, sums: &mut [f64]) {
    let half = sums.len() / 2;
    for short in x.chunks(SHORT * channels) {
        for first in (0..channels).step_by(LANES) {
            let lanes = (channels - first).min(LANES);
            // SAFETY: `lanes` channels from `first` are inside every pixel.
            unsafe {
                let o = load::<V>(origin, first, lanes);
                let (mut sum, mut square) = (V::zero(), V::zero());
                for pixel in 0..short.len() / channels {
                    let d = load::<V>(short, pixel * channels + first, lanes).sub(o);
                    sum = sum.add(d);
                    square = d.fma(d, square);
                }
                fold(sum, &mut sums[first..first + LANES]);
                fold(square, &mut sums[half + first..half + first + LANES]);
            }
        }
    }
}

dispatch! {
    pub(crate) unsafe fn apply_chunk<T> = apply_chunk_with(
        x: &[T], residual: Option<&[T]>, scale: &[f32], shift: &[f32], relu: bool, y: &mut [T],
    )
}

#[inline(always)]
unsafe fn apply_chunk_with<V: Lanes, T: Element>(
    x: &[T],
    residual: Option<&[T]>,
    scale: &[f32],
    shift: &[f32],
    relu: bool,
    y: &mut [T],
) {
    let channels = scale.len();
    let pixels = x.len() / channels;
    for short in (0..pixels).step_by(SHORT) {
        for first in (0..channels).step_by(LANES) {
            let lanes = (channels - first).min(LANES);
            // SAFETY: `lanes` channels from `first` are inside every pixel of x, residual and y.
            unsafe {
                let (a, b) = (load::<V>(scale, first, lanes), load::<V>(shift, first, lanes));
                let zero = V::zero();
                for pixel in short..(short + SHORT).min(pixels) {
                    let at = pixel * channels + first;
                    let mut value = load::<V>(x, at, lanes).fma(a, b);
                    if let Some(residual) = residual {
                        value = value.add(load::<V>(residual, at, lanes));
                    }
                    if relu {
                        // In this order a NaN stays one, and the loss will see it.
                        value = zero.max(value);
                    }
                    store(value, y, at, lanes);
                }
            }
        }
    }
}

/// Scale and shift of the channels from `first`, for a gate that is computed.
#[inline(always)]
unsafe fn gate_line<V: Lanes, T>(gate: Gate<T>, first: usize, lanes: usize) -> (V, V) {
    // SAFETY: the caller has `lanes` channels from `first`.
    unsafe {
        match gate {
            Gate::Input(norm) => (load(norm.scale, first, lanes), load(norm.shift, first, lanes)),
            Gate::Open | Gate::Output(_) => (V::zero(), V::zero()),
        }
    }
}

/// dy where the gate is open, else 0.
#[inline(always)]
unsafe fn gated<V: Lanes, T: Element>(dy: V, gate: Gate<T>, x: V, line: (V, V), at: usize, lanes: usize) -> V {
    // SAFETY: the caller has `lanes` outputs from `at`.
    unsafe {
        match gate {
            Gate::Open => dy,
            Gate::Output(y) => dy.where_positive(load(y, at, lanes)),
            Gate::Input(_) => dy.where_positive(x.fma(line.0, line.1)),
        }
    }
}

dispatch! {
    unsafe fn backward_sums<T> = backward_sums_with(
        x: &[T], dy: &[T], gate: Gate<T>, mean: &[f32], sums: &mut [f64],
    )
}

/// Σg and Σg(x−μ), g = dy where the gate is open.
#[inline(always)]
unsafe fn backward_sums_with<V: Lanes, T: Element>(x: &[T], dy: &[T], gate: Gate<T>, mean: &[f32], sums: &mut [f64]) {
    let (channels, half) = (mean.len(), sums.len() / 2);
    let pixels = x.len() / channels;
    for short in (0..pixels).step_by(SHORT) {
        for first in (0..channels).step_by(LANES) {
            let lanes = (channels - first).min(LANES);
            // SAFETY: `lanes` channels from `first` are inside every pixel of x, dy and gate.
            unsafe {
                let mu = load::<V>(mean, first, lanes);
                let line = gate_line(gate, first, lanes);
                let (mut sum, mut product) = (V::zero(), V::zero());
                for pixel in short..(short + SHORT).min(pixels) {
                    let at = pixel * channels + first;
                    let x = load::<V>(x, at, lanes);
                    let g = gated(load::<V>(dy, at, lanes), gate, x, line, at, lanes);
                    sum = sum.add(g);
                    product = g.fma(x.sub(mu), product);
                }
                fold(sum, &mut sums[first..first + LANES]);
                fold(product, &mut sums[half + first..half + first + LANES]);
            }
        }
    }
}

dispatch! {
    unsafe fn backward_apply<T> = backward_apply_with(
        x: NormInput<T>, gate: Gate<T>, dy: &mut [T], k: [&[f32]; 4],
    )
}

/// dx = k1·g + k2·(x−μ) + k3 with k = [k1, k2, k3, μ].
#[inline(always)]
unsafe fn backward_apply_with<V: Lanes, T: Element>(mut x: NormInput<T>, gate: Gate<T>, dy: &mut [T], k: [&[f32]; 4]) {
    let channels = k[0].len();
    let pixels = dy.len() / channels;
    for short in (0..pixels).step_by(SHORT) {
        for first in (0..channels).step_by(LANES) {
            let lanes = (channels - first).min(LANES);
            // SAFETY: `lanes` channels from `first` are inside every pixel of all slices.
            unsafe {
                let [k1, k2, k3, mu] = k;
                let (k1, k2) = (load::<V>(k1, first, lanes), load::<V>(k2, first, lanes));
                let (k3, mu) = (load::<V>(k3, first, lanes), load::<V>(mu, first, lanes));
                let line = gate_line(gate, first, lanes);
                for pixel in short..(short + SHORT).min(pixels) {
                    let at = pixel * channels + first;
                    let value = load::<V>(x.values(), at, lanes);
                    let g = gated(load::<V>(dy, at, lanes), gate, value, line, at, lanes);
                    let dx = value.sub(mu).fma(k2, g.fma(k1, k3));
                    match &mut x {
                        NormInput::Keep(_) => store(dx, dy, at, lanes),
                        NormInput::BecomesGradient(x) => {
                            store(g, dy, at, lanes);
                            store(dx, x, at, lanes);
                        }
                    }
                }
            }
        }
    }
}
