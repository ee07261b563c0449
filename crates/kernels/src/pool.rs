//! Pooling on channel-last activations `[n, h, w, c]`, one task for each image.

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
pub fn max_pool(pool: MaxPool, x: &[f32], y: &mut [f32]) {
    pool.check(x.len(), y.len());
    let (_, wo) = pool.out();
    let images = x.par_chunks(pool.x_len() / pool.n).zip(y.par_chunks_mut(pool.y_len() / pool.n));
    images.for_each(|(x, y)| {
        for (index, y) in y.chunks_exact_mut(pool.c).enumerate() {
            y.fill(f32::NEG_INFINITY);
            for at in pool.window(index / wo, index % wo) {
                y.iter_mut().zip(&x[at..]).for_each(|(y, &x)| *y = if x > *y || x.is_nan() { x } else { *y });
            }
        }
    });
}

/// dx = dy at the first place of each window that holds its maximum `y`. `dx` is overwritten.
pub fn max_pool_grad(pool: MaxPool, x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
    pool.check(x.len(), y.len());
    pool.check(dx.len(), dy.len());
    let (_, wo) = pool.out();
    let (x_image, y_image) = (pool.x_len() / pool.n, pool.y_len() / pool.n);
    let outputs = y.par_chunks(y_image).zip(dy.par_chunks(y_image));
    x.par_chunks(x_image).zip(dx.par_chunks_mut(x_image)).zip(outputs).for_each(|((x, dx), (y, dy))| {
        dx.fill(0.0);
        let mut left = vec![0.0; pool.c];
        for (index, (y, dy)) in y.chunks_exact(pool.c).zip(dy.chunks_exact(pool.c)).enumerate() {
            left.copy_from_slice(dy);
            for at in pool.window(index / wo, index % wo) {
                let pixel = dx[at..].iter_mut().zip(&x[at..]);
                for ((left, y), (dx, x)) in left.iter_mut().zip(y).zip(pixel) {
                    let grad = if x == y { *left } else { 0.0 };
                    *dx += grad;
                    *left = if x == y { 0.0 } else { *left };
                }
            }
        }
    });
}

/// y `[n, c]` = the mean over the pixels of x `[n, pixels, c]`. `y` is overwritten.
pub fn mean_pool(channels: usize, x: &[f32], y: &mut [f32]) {
    let pixels = pixels(channels, x.len(), y.len());
    x.par_chunks(pixels * channels).zip(y.par_chunks_mut(channels)).for_each(|(x, y)| {
        y.fill(0.0);
        for pixel in x.chunks_exact(channels) {
            y.iter_mut().zip(pixel).for_each(|(y, x)| *y += x);
        }
        y.iter_mut().for_each(|y| *y /= pixels as f32);
    });
}

/// dx `[n, pixels, c]` = dy `[n, c]` / pixels. `dx` is overwritten.
pub fn mean_pool_grad(channels: usize, dy: &[f32], dx: &mut [f32]) {
    let pixels = pixels(channels, dx.len(), dy.len());
    dx.par_chunks_mut(pixels * channels).zip(dy.par_chunks(channels)).for_each(|(dx, dy)| {
        for pixel in dx.chunks_exact_mut(channels) {
            pixel.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = dy / pixels as f32);
        }
    });
}

fn pixels(channels: usize, many: usize, one: usize) -> usize {
    let is_whole = channels > 0 && one > 0 && one.is_multiple_of(channels) && many.is_multiple_of(one) && many > 0;
    assert!(is_whole, "{many} values are not whole images for {one} means of {channels} channels");
    many / one
}
