//! Pooling on channel-last activations `[n, h, w, c]`, one task for each image. Nothing rounds but the storing of bf16, so the
//! instruction set, always the best, changes no byte.

use crate::element::Element;
use crate::isa::{Isa, dispatch};
use crate::lanes::Lanes;
use rayon::prelude::*;

/// A 3×3 maximum with stride 2 and a border of one, as in the stem of a ResNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// Images.
    pub n: usize,
    /// Height of the input.
    pub h: usize,
    /// Width of the input.
    pub w: usize,
    /// Channels.
    pub c: usize,
}

impl MaxPool {
    /// Height and width of the output.
    pub fn out(&self) -> (usize, usize) {
        (self.h.div_ceil(2), self.w.div_ceil(2))
    }

    /// Values of the input: n·h·w·c.
    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.c
    }

    /// Values of the output: n·h'·w'·c with (h', w') = [`MaxPool::out`].
    pub fn y_len(&self) -> usize {
        let (ho, wo) = self.out();
        self.n * ho * wo * self.c
    }

    /// Places in an image of the pixels under the window of output (r, q), row by row.
    fn window(&self, r: usize, q: usize) -> impl Iterator<Item = usize> {
        let Self { h, w, c, .. } = *self;
        let side = |at: usize, end: usize| (2 * at).saturating_sub(1)..(2 * at + 2).min(end);
        side(r, h).flat_map(move |u| side(q, w).map(move |v| (u * w + v) * c))
    }

    fn check(&self, x: usize, y: usize) {
        assert!(self.n > 0, "a pooling needs at least one image");
        assert_eq!((x, y), (self.x_len(), self.y_len()), "buffer lengths of {self:?}");
    }
}

/// y = the largest value under each window. `y` is overwritten.
pub fn max_pool<T: Element>(pool: MaxPool, x: &[T], y: &mut [T]) {
    pool.check(x.len(), y.len());
    let (_, wo) = pool.out();
    let images = x.par_chunks(pool.x_len() / pool.n).zip(y.par_chunks_mut(pool.y_len() / pool.n));
    let isa = Isa::best();
    // SAFETY: bounds are checked inside.
    images.for_each(|(x, y)| unsafe { max_image(isa, &pool, wo, x, y) });
}

dispatch! {
    unsafe fn max_image<T> = max_image_with(pool: &MaxPool, wo: usize, x: &[T], y: &mut [T])
}

/// Plain loops, which the compiler turns into lanes.
#[inline(always)]
unsafe fn max_image_with<V: Lanes, T: Element>(pool: &MaxPool, wo: usize, x: &[T], y: &mut [T]) {
    for (index, y) in y.chunks_exact_mut(pool.c).enumerate() {
        y.fill(T::from_f32(f32::NEG_INFINITY));
        for at in pool.window(index / wo, index % wo) {
            for (y, &value) in y.iter_mut().zip(&x[at..]) {
                let x = value.to_f32();
                *y = if x > y.to_f32() || x.is_nan() { value } else { *y };
            }
        }
    }
}

/// dx = dy at the first place of each window that holds its maximum `y`. `dx` is overwritten.
pub fn max_pool_grad<T: Element>(pool: MaxPool, x: &[T], y: &[T], dy: &[T], dx: &mut [T]) {
    pool.check(x.len(), y.len());
    pool.check(dx.len(), dy.len());
    let (ho, wo) = pool.out();
    let (x_image, y_image) = (pool.x_len() / pool.n, pool.y_len() / pool.n);
    let outputs = y.par_chunks(y_image).zip(dy.par_chunks(y_image));
    let isa = Isa::best();
    x.par_chunks(x_image).zip(dx.par_chunks_mut(x_image)).zip(outputs).for_each(|((x, dx), (y, dy))| {
        // SAFETY: bounds are checked inside.
        unsafe { max_grad_image(isa, &pool, (ho, wo), x, y, dy, dx) };
    });
}

dispatch! {
    unsafe fn max_grad_image<T> = max_grad_image_with(
        pool: &MaxPool, out: (usize, usize), x: &[T], y: &[T], dy: &[T], dx: &mut [T],
    )
}

/// As above.
#[inline(always)]
unsafe fn max_grad_image_with<V: Lanes, T: Element>(
    pool: &MaxPool,
    (ho, wo): (usize, usize),
    x: &[T],
    y: &[T],
    dy: &[T],
    dx: &mut [T],
) {
    let row = pool.w * pool.c;
    // Sums in f32 of the rows 2r−1, 2r and 2r+1 that the windows of output row r cover; the last is the next one's first.
    let mut sums = vec![0.0_f32; 3 * row];
    let mut left = vec![0.0_f32; pool.c];
    for r in 0..ho {
        for q in 0..wo {
            let output = (r * wo + q) * pool.c;
            let (y, dy) = (&y[output..][..pool.c], &dy[output..][..pool.c]);
            left.iter_mut().zip(dy).for_each(|(left, dy)| *left = dy.to_f32());
            for at in pool.window(r, q) {
                let pixel = sums[at + row - 2 * r * row..].iter_mut().zip(&x[at..]);
                for ((left, y), (dx, x)) in left.iter_mut().zip(y).zip(pixel) {
                    let is_first = x.to_f32() == y.to_f32();
                    let grad = if is_first { *left } else { 0.0 };
                    *dx += grad;
                    *left = if is_first { 0.0 } else { *left };
                }
            }
        }
        let done = (2 * r).saturating_sub(1)..if r + 1 == ho { pool.h } else { 2 * r + 1 };
        let from = done.start * row + row - 2 * r * row;
        let (dx, sums_done) = (&mut dx[done.start * row..done.end * row], &sums[from..]);
        dx.iter_mut().zip(sums_done).for_each(|(dx, sum)| *dx = T::from_f32(*sum));
        sums.copy_within(2 * row.., 0);
        sums[row..].fill(0.0);
    }
}

/// y `[n, h/2, w/2, c]` = the mean over 2×2 pixels of x `[n, h, w, c]`; sides are even. `y` is overwritten.
pub fn average_pool<T: Element>([h, w, c]: [usize; 3], x: &[T], y: &mut [T]) {
    check_halves([h, w, c], x.len(), y.len());
    y.par_chunks_mut(w / 2 * c).zip(x.par_chunks(2 * w * c)).for_each(|(y, rows)| {
        let (above, below) = rows.split_at(w * c);
        let pairs = above.chunks_exact(2 * c).zip(below.chunks_exact(2 * c));
        for (y, (above, below)) in y.chunks_exact_mut(c).zip(pairs) {
            for k in 0..c {
                let column = |at: usize| above[at].to_f32() + below[at].to_f32();
                y[k] = T::from_f32((column(k) + column(c + k)) * 0.25);
            }
        }
    });
}

/// dx = dy/4 at each of the four pixels. `dx` is overwritten.
pub fn average_pool_grad<T: Element>([h, w, c]: [usize; 3], dy: &[T], dx: &mut [T]) {
    check_halves([h, w, c], dx.len(), dy.len());
    dx.par_chunks_mut(2 * w * c).zip(dy.par_chunks(w / 2 * c)).for_each(|(rows, dy)| {
        for row in rows.chunks_exact_mut(w * c) {
            for (pixels, dy) in row.chunks_exact_mut(2 * c).zip(dy.chunks_exact(c)) {
                for pixel in pixels.chunks_exact_mut(c) {
                    // 0 + x is never −0.
                    pixel.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = T::from_f32(0.0 + dy.to_f32() * 0.25));
                }
            }
        }
    });
}

fn check_halves([h, w, c]: [usize; 3], x: usize, y: usize) {
    assert!(h.is_multiple_of(2) && w.is_multiple_of(2) && h * w * c > 0, "{h}×{w} pixels have no halves");
    assert!(x.is_multiple_of(h * w * c) && x == 4 * y, "{x} values of {h}×{w}×{c} give {} means, not {y}", x / 4);
}

/// y `[n, c]` = the mean over the pixels of x `[n, pixels, c]`. `y` is overwritten.
pub fn mean_pool<T: Element>(channels: usize, x: &[T], y: &mut [f32]) {
    let pixels = pixels(channels, x.len(), y.len());
    x.par_chunks(pixels * channels).zip(y.par_chunks_mut(channels)).for_each(|(x, y)| {
        y.fill(0.0);
        for pixel in x.chunks_exact(channels) {
            y.iter_mut().zip(pixel).for_each(|(y, x)| *y += x.to_f32());
        }
        y.iter_mut().for_each(|y| *y /= pixels as f32);
    });
}

/// dx `[n, pixels, c]` = dy `[n, c]` / pixels. `dx` is overwritten.
pub fn mean_pool_grad<T: Element>(channels: usize, dy: &[f32], dx: &mut [T]) {
    let pixels = pixels(channels, dx.len(), dy.len());
    dx.par_chunks_mut(pixels * channels).zip(dy.par_chunks(channels)).for_each(|(dx, dy)| {
        for pixel in dx.chunks_exact_mut(channels) {
            pixel.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = T::from_f32(dy / pixels as f32));
        }
    });
}

fn pixels(channels: usize, many: usize, one: usize) -> usize {
    let is_whole = channels > 0 && one > 0 && one.is_multiple_of(channels) && many.is_multiple_of(one) && many > 0;
    assert!(is_whole, "{many} values are not whole images for {one} means of {channels} channels");
    many / one
}
