//! Blocked similarities: every loss is a function of rows of s = A·Kᵀ, and its gradient is a weighted sum of
//! keys. Neither needs the whole similarity matrix at once, so memory is O(block × keys).
//!
//! Blocks have a fixed size and no result is reduced across blocks: the same bytes for any number of threads.

use super::Matrix;
use ndarray::{ArrayView2, ArrayViewMut1};
use rayon::prelude::*;
use sogclr_kernels::{Buffer, Conv, Engine, Isa, conv2d, conv2d_input_grad};
use std::borrow::Cow;

/// Rows at once: enough that packing the keys costs little beside the product.
const BLOCK_ROWS: usize = 256;

/// Calls `f(row, s_row)` for each row of `anchors`, where s_row = anchor·keysᵀ `[keys]`.
pub fn map_rows<T: Send>(
    isa: Isa,
    anchors: ArrayView2<f32>,
    keys: ArrayView2<f32>,
    f: impl Fn(usize, ArrayViewMut1<f32>) -> T + Sync,
) -> Vec<T> {
    let mut out = Vec::with_capacity(anchors.nrows());
    for_blocks(isa, anchors, keys, |first, _, s| {
        let row = |(row, s)| f(first + row, ArrayViewMut1::from(s));
        out.par_extend(s.par_chunks_exact_mut(keys.nrows()).enumerate().map(row));
    });
    out
}

/// C·K `[anchors, dim]`, where `fill(row, s_row)` overwrites the similarities of one anchor with its row of C.
pub fn weighted_keys(
    isa: Isa,
    anchors: ArrayView2<f32>,
    keys: ArrayView2<f32>,
    fill: impl Fn(usize, ArrayViewMut1<f32>) + Sync,
) -> Matrix {
    let mut out = Matrix::zeros((anchors.nrows(), keys.ncols()));
    let values = out.as_slice_mut().expect("just made");
    let key_values = contiguous(&keys);
    for_blocks(isa, anchors, keys, |first, product, s| {
        let row = |(row, s)| fill(first + row, ArrayViewMut1::from(s));
        s.par_chunks_exact_mut(keys.nrows()).enumerate().for_each(row);
        let out = &mut values[first * keys.ncols()..][..product.n * keys.ncols()];
        conv2d_input_grad(engine(isa), product, s, &key_values, out);
    });
    out
}

/// Calls `f(first row, the block's product, its similarities)` for one block of anchors after the other. A product of
/// matrices is a 1×1 convolution of images of one pixel.
fn for_blocks(isa: Isa, anchors: ArrayView2<f32>, keys: ArrayView2<f32>, mut f: impl FnMut(usize, Conv, &mut [f32])) {
    let (rows, dim) = anchors.dim();
    if rows == 0 || keys.is_empty() {
        return;
    }
    let (anchor_values, key_values) = (contiguous(&anchors), contiguous(&keys));
    let mut similarities = Buffer::new(BLOCK_ROWS.min(rows) * keys.nrows());
    for first in (0..rows).step_by(BLOCK_ROWS) {
        let n = BLOCK_ROWS.min(rows - first);
        let product = Conv { n, h: 1, w: 1, ci: dim, co: keys.nrows(), k: 1, stride: 1, pad: 0 };
        let similarities = &mut similarities[..n * keys.nrows()];
        conv2d(engine(isa), product, &anchor_values[first * dim..][..n * dim], &key_values, similarities);
        f(first, product, similarities);
    }
}

/// A product of matrices has no use for Winograd's algorithm.
fn engine(isa: Isa) -> Engine {
    Engine { isa, winograd: false }
}

fn contiguous<'a>(matrix: &'a ArrayView2<f32>) -> Cow<'a, [f32]> {
    match matrix.as_slice() {
        Some(values) => Cow::Borrowed(values),
        None => Cow::Owned(matrix.iter().copied().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(rows: usize, cols: usize) -> Matrix {
        Matrix::from_shape_fn((rows, cols), |(i, j)| ((i * 7 + j * 3) % 11) as f32 - 4.5)
    }

    #[test]
    fn blocks_cover_every_row_once_for_odd_counts() {
        for rows in [1, 31, 255, 256, 257, 600] {
            let (a, k) = (pattern(rows, 3), pattern(5, 3));
            let sums = map_rows(Isa::best(), a.view(), k.view(), |row, s| (row, s.sum()));
            let whole = a.dot(&k.t());
            for (row, (index, sum)) in sums.iter().enumerate() {
                assert_eq!(*index, row);
                assert!((sum - whole.row(row).sum()).abs() < 1e-4);
            }
            let doubled = weighted_keys(Isa::best(), a.view(), k.view(), |_, mut s| s *= 2.0);
            let expected = (whole * 2.0).dot(&k);
            assert!((&doubled - &expected).iter().all(|d| d.abs() < 1e-3));
        }
    }
}
