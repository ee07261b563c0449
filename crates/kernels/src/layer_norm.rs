//! Layer norm over rows, y = (x − mean)/σ·w + b with σ² = var + ε, and its gradients. x is f32, the sum of a transformer's branches; y
//! is what a branch reads, f32 or bf16, and so is its gradient.

use crate::buffer::Buffer;
use crate::conv::LANES;
use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::{Lanes, load, store};
use crate::panel::{load_some, store_row};
use crate::softmax::{load_rest, total};
use rayon::prelude::*;

/// Rows of a task.
const ROWS: usize = 32;

/// y and, for the gradient, mean and 1/σ of each row `[rows, 2]`; both are overwritten.
pub fn layer_norm<T: Element>(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    y: &mut [T],
    stats: &mut [f32],
) {
    let width = weight.len();
    assert!(width > 0 && bias.len() == width && x.len() == y.len() && x.len().is_multiple_of(width), "rows of {width}");
    assert_eq!(stats.len(), 2 * (x.len() / width), "mean and 1/σ of each row");
    let tasks = x.par_chunks(ROWS * width).zip(y.par_chunks_mut(ROWS * width)).zip(stats.par_chunks_mut(2 * ROWS));
    tasks.for_each(|((x, y), stats)| {
        // SAFETY: whole rows of one length.
        unsafe { forward(isa, x, weight, bias, epsilon, y, stats) };
    });
}

/// dx, plus the gradient that comes to x from elsewhere, if any (overwritten), and the gradients of weight and bias.
#[allow(clippy::too_many_arguments)] // the operands of one gradient
pub fn layer_norm_grad<T: Element>(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    stats: &[f32],
    dy: &[T],
    other: Option<&[f32]>,
    dx: &mut [f32],
) -> (Vec<f32>, Vec<f32>) {
    let width = weight.len();
    assert!(
        width > 0 && x.len() == dy.len() && x.len() == dx.len() && x.len().is_multiple_of(width),
        "rows of {width}"
    );
    assert!(stats.len() == 2 * (x.len() / width) && other.is_none_or(|o| o.len() == x.len()), "one for each row");
    // Σ dy·x̂ and Σ dy over the rows of each task, a block of lanes at a time
    let padded = width.next_multiple_of(LANES);
    let mut partial = Buffer::zeroed(x.len().div_ceil(ROWS * width) * 2 * padded);
    let tasks = x.par_chunks(ROWS * width).zip(dy.par_chunks(ROWS * width)).zip(dx.par_chunks_mut(ROWS * width));
    tasks.zip(partial.par_chunks_mut(2 * padded)).enumerate().for_each(|(task, (((x, dy), dx), sums))| {
        let stats = &stats[task * 2 * ROWS..];
        let other = other.map(|other| &other[task * ROWS * width..]);
        // SAFETY: whole rows of one length.
        unsafe { backward(isa, x, weight, stats, dy, other, dx, sums) };
    });
    let mut sums = vec![0.0; 2 * padded];
    for part in partial.chunks_exact(2 * padded) {
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    (sums[..width].to_vec(), sums[padded..][..width].to_vec())
}

dispatch! {
    unsafe fn forward<T> = forward_with(
        x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, y: &mut [T], stats: &mut [f32],
    )
}

#[inline(always)]
unsafe fn forward_with<V: Lanes, T: Element>(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    y: &mut [T],
    stats: &mut [f32],
) {
    let width = weight.len();
    for ((x, y), stats) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats.chunks_exact_mut(2)) {
        // SAFETY: slices of one length.
        unsafe {
            let (mean, scale) = moments::<V>(x, epsilon);
            stats.copy_from_slice(&[mean, scale]);
            let (mean, scale) = (V::splat(mean), V::splat(scale));
            for at in (0..width).step_by(LANES) {
                let left = width - at;
                let hat = load_some::<V>(x, at, left).sub(mean).mul(scale);
                store_row(hat.fma(load_some(weight, at, left), load_some(bias, at, left)), y, at);
            }
        }
    }
}

/// Mean and 1/√(var + ε) of a row.
#[inline(always)]
unsafe fn moments<V: Lanes>(x: &[f32], epsilon: f32) -> (f32, f32) {
    // SAFETY: `at` stays inside x, and what is beyond its end is filled.
    unsafe {
        let mut sum = V::zero();
        for at in (0..x.len()).step_by(LANES) {
            sum = sum.add(load_some(x, at, x.len() - at));
        }
        let mean = (total(sum) / x.len() as f64) as f32;
        let mut squares = V::zero();
        for at in (0..x.len()).step_by(LANES) {
            let value: V = if at + LANES <= x.len() { load(x, at) } else { load_rest(x, at, mean) };
            let centred = value.sub(V::splat(mean));
            squares = centred.fma(centred, squares);
        }
        let variance = total(squares) / x.len() as f64;
        (mean, (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32)
    }
}

dispatch! {
    unsafe fn backward<T> = backward_with(
        x: &[f32], weight: &[f32], stats: &[f32], dy: &[T], other: Option<&[f32]>, dx: &mut [f32], sums: &mut [f32],
    )
}

/// dx = 1/σ·(g − mean(g) − x̂·mean(g·x̂)) with g = dy·w; `sums` holds Σ dy·x̂ and Σ dy.
#[allow(clippy::too_many_arguments)] // the operands of one gradient
#[inline(always)]
unsafe fn backward_with<V: Lanes, T: Element>(
    x: &[f32],
    weight: &[f32],
    stats: &[f32],
    dy: &[T],
    other: Option<&[f32]>,
    dx: &mut [f32],
    sums: &mut [f32],
) {
    let width = weight.len();
    let (hat_sums, sums) = sums.split_at_mut(width.next_multiple_of(LANES));
    for (row, dx) in dx.chunks_exact_mut(width).enumerate() {
        let from = row * width;
        // SAFETY: slices of one length; lanes beyond a row's end have dy = 0.
        unsafe {
            let (mean, scale) = (V::splat(stats[2 * row]), V::splat(stats[2 * row + 1]));
            let (mut g_sum, mut hat_sum) = (V::zero(), V::zero());
            for at in (0..width).step_by(LANES) {
                let left = width - at;
                let hat = load_some::<V>(x, from + at, left).sub(mean).mul(scale);
                let dy = load_some::<V>(dy, from + at, left);
                let g = dy.mul(load_some(weight, at, left));
                g_sum = g_sum.add(g);
                hat_sum = g.fma(hat, hat_sum);
                store(dy.fma(hat, load(hat_sums, at)), hat_sums, at);
                store(dy.add(load(sums, at)), sums, at);
            }
            let (g_mean, hat_mean) = (mean_of(g_sum, width), mean_of(hat_sum, width));
            for at in (0..width).step_by(LANES) {
                let left = width - at;
                let hat = load_some::<V>(x, from + at, left).sub(mean).mul(scale);
                let g = load_some::<V>(dy, from + at, left).mul(load_some(weight, at, left));
                let grad = g.sub(g_mean).sub(hat.mul(hat_mean)).mul(scale);
                let grad = match other {
                    Some(other) => grad.add(load_some(other, from + at, left)),
                    None => grad,
                };
                store_row(grad, dx, at);
            }
        }
    }
}

/// The sum of the lanes over `count`, in all lanes.
#[inline(always)]
unsafe fn mean_of<V: Lanes>(sum: V, count: usize) -> V {
    // SAFETY: the caller runs on the right CPU.
    unsafe { V::splat((total(sum) / count as f64) as f32) }
}
