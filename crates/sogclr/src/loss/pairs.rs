//! Images and texts of one batch: row i of the one belongs to row i of the other. Every image is an anchor against all
//! texts, and every text against all images; 2B anchors, a side's own in the order of the batch.

use super::{LossError, LossInput, SetName};
use crate::math::{Matrix, UnitRows, map_rows, weighted_keys};
use ndarray::s;
use sogclr_kernels::{Isa, SoftmaxSum, softmax_pair, softmax_sum};
use std::ops::Range;

const IMAGES: SetName = SetName::View(0);
const TEXTS: SetName = SetName::Text;

/// Which side an anchor is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Image,
    Text,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Image, Self::Text];
}

/// What one anchor's row gives.
pub(super) struct PairAnchor {
    /// s_ii
    pub positive: f64,
    /// Over the other side's rows j ≠ i.
    pub negatives: SoftmaxSum,
}

pub(super) struct Pairs<'a> {
    images: &'a UnitRows,
    texts: &'a UnitRows,
    ours: Range<usize>,
    isa: Isa,
}

impl<'a> Pairs<'a> {
    pub fn new(input: &LossInput<'a>) -> Result<Self, LossError> {
        Ok(Self {
            images: input.checked_unit(IMAGES)?,
            texts: input.checked_unit(TEXTS)?,
            ours: input.ours.clone(),
            isa: input.isa,
        })
    }

    /// B
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// A side's rows, and those it is contrasted with.
    pub fn rows(&self, side: Side) -> (&'a Matrix, &'a Matrix) {
        match side {
            Side::Image => (self.images.matrix(), self.texts.matrix()),
            Side::Text => (self.texts.matrix(), self.images.matrix()),
        }
    }

    /// The anchors of one side, anchor i at the temperature `tau(i)`.
    pub fn anchors(&self, side: Side, tau: impl Fn(usize) -> f64 + Sync) -> Vec<PairAnchor> {
        let (rows, others) = self.rows(side);
        map_rows(self.isa, rows.view(), others.view(), |i, mut s| {
            let s = s.as_slice_mut().expect("a row of similarities is contiguous");
            let positive = f64::from(s[i]);
            s[i] = f32::NEG_INFINITY;
            PairAnchor { positive, negatives: softmax_sum(self.isa, s, (1.0 / tau(i)) as f32) }
        })
    }

    /// The gradients of Σ_ij c_ij·s_ij for the rows `ours` of both sides, where
    /// c_ij = factor·(exp(s_ij/τ_i + offset_i) + exp(s_ij/τ′_j + offset′_j)) for i ≠ j, primes for texts, and
    /// c_ii = `own(i, s_ii)`. `inverse_tau` and `offset` are those of images and texts.
    pub fn softmax_gradient(
        &self,
        inverse_tau: [&[f32]; 2],
        offset: [&[f32]; 2],
        factor: f32,
        own: impl Fn(usize, f32) -> f32 + Sync,
    ) -> Vec<(SetName, Matrix)> {
        let gradient = |side: Side, a: usize, b: usize| {
            let (rows, others) = self.rows(side);
            let first = self.ours.start;
            weighted_keys(self.isa, rows.slice(s![self.ours.clone(), ..]), others.view(), |row, mut s| {
                let i = first + row;
                let s = s.as_slice_mut().expect("a row of similarities is contiguous");
                let own = own(i, s[i]);
                softmax_pair(self.isa, s, (inverse_tau[a][i], offset[a][i]), inverse_tau[b], offset[b], factor);
                s[i] = own;
            })
        };
        vec![(IMAGES, gradient(Side::Image, 0, 1)), (TEXTS, gradient(Side::Text, 1, 0))]
    }

    /// The gradients of Σ_ij c_ij·s_ij, where `c(i, j, s_ij)` with i an image and j a text.
    pub fn gradient(&self, c: impl Fn(usize, usize, f32) -> f32 + Sync) -> Vec<(SetName, Matrix)> {
        let first = self.ours.start;
        let side = |side: Side| {
            let (rows, others) = self.rows(side);
            weighted_keys(self.isa, rows.slice(s![self.ours.clone(), ..]), others.view(), |row, mut s| {
                for (other, s) in s.iter_mut().enumerate() {
                    *s = match side {
                        Side::Image => c(first + row, other, *s),
                        Side::Text => c(other, first + row, *s),
                    };
                }
            })
        };
        vec![(IMAGES, side(Side::Image)), (TEXTS, side(Side::Text))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;
    use ndarray::{arr2, array};

    /// Images are the axes, so texts are the columns of s = [[0.6, 0, 0.8], [0.8, 0, −0.6], [0, 1, 0]].
    fn sets() -> EmbeddingSets {
        EmbeddingSets::new(vec![
            (IMAGES, array![[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0]]),
            (TEXTS, array![[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [4.0, -3.0, 0.0]]),
        ])
    }

    #[test]
    fn images_are_contrasted_with_texts_and_texts_with_images() {
        let (sets, state) = (sets(), SampleState::new(3, &[]));
        let pairs = Pairs::new(&LossInput::new(&sets, &[0, 1, 2], &state)).unwrap();
        let tau = |i: usize| [0.5, 1.0, 2.0][i];
        // s_ii, and the row's or column's other two.
        let sides = [
            (Side::Image, [0.6, 0.0, 0.0], [[0.0, 0.8], [0.8, -0.6], [0.0, 1.0]]),
            (Side::Text, [0.6, 0.0, 0.0], [[0.8, 0.0], [0.0, 1.0], [0.8, -0.6]]),
        ];
        for (side, positives, negatives) in sides {
            for (i, anchor) in pairs.anchors(side, tau).iter().enumerate() {
                let weights = negatives[i].map(|s: f64| (s / tau(i)).exp());
                let sum: f64 = weights.iter().sum();
                let mean = (weights[0] * negatives[i][0] + weights[1] * negatives[i][1]) / sum;
                assert!((anchor.positive - positives[i]).abs() < 1e-6, "{side:?} {i}");
                assert!((anchor.negatives.log_sum - sum.ln()).abs() < 1e-6, "{side:?} {i}");
                assert!((anchor.negatives.mean - mean).abs() < 1e-6, "{side:?} {i}");
            }
        }
    }

    /// Σ c·s with one c ≠ 0, that of image 0 and text 2: each gets the other.
    #[test]
    fn the_gradient_of_a_similarity_is_the_other_sides_row() {
        let (sets, state) = (sets(), SampleState::new(3, &[]));
        let input = LossInput::new(&sets, &[0, 1, 2], &state);
        let only = |i: usize, j: usize, s: f32| if (i, j) == (0, 2) { s } else { 0.0 };
        let grads = Pairs::new(&input).unwrap().gradient(only);
        let close = |a: &Matrix, b: Matrix| (a - &b).iter().all(|d| d.abs() < 1e-6);
        assert_eq!((grads[0].0, grads[1].0), (IMAGES, TEXTS));
        assert!(close(&grads[0].1, arr2(&[[0.64, -0.48, 0.0], [0.0; 3], [0.0; 3]])), "{}", grads[0].1);
        assert!(close(&grads[1].1, arr2(&[[0.0; 3], [0.0; 3], [0.8, 0.0, 0.0]])), "{}", grads[1].1);
        // Another process has the last two.
        let share = Pairs::new(&LossInput { ours: 1..3, ..input }).unwrap().gradient(only);
        assert!(close(&share[1].1, arr2(&[[0.0; 3], [0.8, 0.0, 0.0]])), "{}", share[1].1);
    }

    /// c_02 has image 0's τ and offset and text 2's: 0.1·(e^{0.8·2 + 0.5} + e^{0.8·3 − 1}); c_20 those of image 2 and text 0.
    #[test]
    fn a_pair_is_weighed_from_both_ends() {
        let (sets, state) = (sets(), SampleState::new(3, &[]));
        let pairs = Pairs::new(&LossInput::new(&sets, &[0, 1, 2], &state)).unwrap();
        let (image, text) = ([2.0, 1.0, 0.5], [1.0, 2.0, 3.0]);
        let (image_offset, text_offset) = ([0.5, 0.0, -2.0], [0.25, 0.0, -1.0]);
        let grads = pairs.softmax_gradient([&image, &text], [&image_offset, &text_offset], 0.1, |_, _| 0.0);
        let c = |s: f32, i: usize, j: usize| {
            0.1 * ((s * image[i] + image_offset[i]).exp() + (s * text[j] + text_offset[j]).exp())
        };
        // Image 0: c_01·text 1 + c_02·text 2; text 0: c_10·image 1 + c_20·image 2.
        let want = [0.8 * c(0.8, 0, 2), -0.6 * c(0.8, 0, 2), c(0.0, 0, 1)];
        assert!(grads[0].1.row(0).iter().zip(want).all(|(g, want)| (g - want).abs() < 1e-5), "{} {want:?}", grads[0].1);
        let want = [0.0, c(0.8, 1, 0), c(0.0, 2, 0)];
        assert!(grads[1].1.row(0).iter().zip(want).all(|(g, want)| (g - want).abs() < 1e-5), "{} {want:?}", grads[1].1);
    }
}
