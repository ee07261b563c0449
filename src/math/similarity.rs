//! Blocked similarities: every loss is a function of rows of s = A·Kᵀ, and its gradient is a weighted sum of
//! keys. Neither needs the whole similarity matrix at once, so memory is O(block × keys) per thread.
//!
//! Blocks have a fixed size and no result is reduced across blocks: the same bytes for any number of threads.

use super::Matrix;
use ndarray::{ArrayView2, ArrayViewMut1, Axis, linalg::general_mat_mul, s};
use rayon::prelude::*;

const BLOCK_ROWS: usize = 32;

/// Calls `f(row, s_row)` for each row of `anchors`, where s_row = anchor·keysᵀ `[keys]`.
pub fn map_rows<T: Send>(
    anchors: ArrayView2<f32>,
    keys: ArrayView2<f32>,
    f: impl Fn(usize, ArrayViewMut1<f32>) -> T + Sync,
) -> Vec<T> {
    let blocks: Vec<Vec<T>> = (0..anchors.nrows().div_ceil(BLOCK_ROWS))
        .into_par_iter()
        .map(|block| {
            let first = block * BLOCK_ROWS;
            let mut similarities = similarity_block(&anchors, &keys, first);
            similarities.axis_iter_mut(Axis(0)).enumerate().map(|(row, s)| f(first + row, s)).collect()
        })
        .collect();
    blocks.into_iter().flatten().collect()
}

/// C·K `[anchors, dim]`, where `fill(row, s_row)` overwrites the similarities of one anchor with its row of C.
pub fn weighted_keys(
    anchors: ArrayView2<f32>,
    keys: ArrayView2<f32>,
    fill: impl Fn(usize, ArrayViewMut1<f32>) + Sync,
) -> Matrix {
    let mut out = Matrix::zeros((anchors.nrows(), keys.ncols()));
    out.axis_chunks_iter_mut(Axis(0), BLOCK_ROWS).into_par_iter().enumerate().for_each(|(block, mut out)| {
        let first = block * BLOCK_ROWS;
        let mut coefficients = similarity_block(&anchors, &keys, first);
        for (row, s) in coefficients.axis_iter_mut(Axis(0)).enumerate() {
            fill(first + row, s);
        }
        general_mat_mul(1.0, &coefficients, &keys, 0.0, &mut out);
    });
    out
}

fn similarity_block(anchors: &ArrayView2<f32>, keys: &ArrayView2<f32>, first: usize) -> Matrix {
    let last = (first + BLOCK_ROWS).min(anchors.nrows());
    anchors.slice(s![first..last, ..]).dot(&keys.t())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(rows: usize, cols: usize) -> Matrix {
        Matrix::from_shape_fn((rows, cols), |(i, j)| ((i * 7 + j * 3) % 11) as f32 - 4.5)
    }

    #[test]
    fn blocks_cover_every_row_once_for_odd_counts() {
        for rows in [1, 31, 32, 33, 70] {
            let (a, k) = (pattern(rows, 3), pattern(5, 3));
            let sums = map_rows(a.view(), k.view(), |row, s| (row, s.sum()));
            let whole = a.dot(&k.t());
            for (row, (index, sum)) in sums.iter().enumerate() {
                assert_eq!(*index, row);
                assert!((sum - whole.row(row).sum()).abs() < 1e-4);
            }
            let doubled = weighted_keys(a.view(), k.view(), |_, mut s| s *= 2.0);
            let expected = (whole * 2.0).dot(&k);
            assert!((&doubled - &expected).iter().all(|d| d.abs() < 1e-3));
        }
    }
}
