//! The mean over 2×2 pixels of channel-last activations `[n, h, w, c]` of even sides, one task for each row of the output.

use rayon::prelude::*;

/// y `[n, h/2, w/2, c]` = the mean of each four pixels of x `[n, h, w, c]`. `y` is overwritten.
pub fn average_pool(width: usize, channels: usize, x: &[f32], y: &mut [f32]) {
    let rows = rows(width, channels, x.len(), y.len());
    x.par_chunks(2 * rows).zip(y.par_chunks_mut(rows / 2)).for_each(|(x, y)| {
        let (upper, lower) = x.split_at(rows);
        let pairs = upper.chunks_exact(2 * channels).zip(lower.chunks_exact(2 * channels));
        for (y, (upper, lower)) in y.chunks_exact_mut(channels).zip(pairs) {
            let ((a, b), (c, d)) = (upper.split_at(channels), lower.split_at(channels));
            for (k, y) in y.iter_mut().enumerate() {
                *y = ((a[k] + c[k]) + (b[k] + d[k])) * 0.25;
            }
        }
    });
}

/// dx = dy/4 at each of its four pixels. `dx` is overwritten.
pub fn average_pool_grad(width: usize, channels: usize, dy: &[f32], dx: &mut [f32]) {
    let rows = rows(width, channels, dx.len(), dy.len());
    dx.par_chunks_mut(2 * rows).zip(dy.par_chunks(rows / 2)).for_each(|(dx, dy)| {
        for row in dx.chunks_exact_mut(rows) {
            for (pair, dy) in row.chunks_exact_mut(2 * channels).zip(dy.chunks_exact(channels)) {
                let (left, right) = pair.split_at_mut(channels);
                for ((left, right), dy) in left.iter_mut().zip(right).zip(dy) {
                    (*left, *right) = (dy * 0.25, dy * 0.25);
                }
            }
        }
    });
}

/// Values of a row of the larger of the two.
fn rows(width: usize, channels: usize, many: usize, one: usize) -> usize {
    let row = width * channels;
    let is_whole = row > 0 && width.is_multiple_of(2) && many.is_multiple_of(2 * row) && many == 4 * one;
    assert!(is_whole, "{many} values are not rows of {width} pixels of {channels} channels, two for each of {one}");
    row
}
