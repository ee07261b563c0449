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
