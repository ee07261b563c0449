//! All views of a batch as one matrix of anchors, and who is whose positive and negative in it.
//!
//! Anchor a = view·B + i. The negatives of a are all rows of other samples; its positives are the large views
//! of the same sample other than itself; the sample's remaining rows enter nothing.

use super::{LossError, LossInput, SetName};
use crate::math::Matrix;
use ndarray::{ArrayViewMut1, Axis, concatenate, s};
use std::ops::Range;

pub(super) struct Views {
    /// z `[views·B, dim]`, view-major.
    pub z: Matrix,
    pub samples: usize,
    pub views: usize,
    large: usize,
    ours: Range<usize>,
}

impl Views {
    /// Stacks View(0), View(1), … after checking that they can be contrasted.
    pub fn new(input: &LossInput) -> Result<Self, LossError> {
        let samples = input.ids.len();
        if samples < 2 {
            return Err(LossError::TooFewSamples(samples));
        }
        let sets = input.sets.views();
        if sets.len() < 2 {
            return Err(LossError::Missing(SetName::View(sets.len())));
        }
        for (k, set) in sets.iter().enumerate() {
            let (rows, dim) = set.matrix().dim();
            if rows != samples || dim != sets[0].dim() {
                let (want_rows, want_dim) = (samples, sets[0].dim());
                return Err(LossError::Shape { set: SetName::View(k), rows, dim, want_rows, want_dim });
            }
            if let Some(row) = set.first_non_finite() {
                return Err(LossError::NonFinite { set: SetName::View(k), sample: input.ids[row] });
            }
        }
        let blocks: Vec<_> = sets.iter().map(|set| set.matrix().view()).collect();
        let z = concatenate(Axis(0), &blocks).expect("views have one shape");
        Ok(Self { z, samples, views: sets.len(), large: input.large_views, ours: input.ours.clone() })
    }

    pub fn anchors(&self) -> usize {
        self.views * self.samples
    }

    pub fn sample(&self, anchor: usize) -> usize {
        anchor % self.samples
    }

    /// |B_a| = V(B−1), the number of negatives of every anchor.
    pub fn negatives(&self) -> usize {
        self.views * (self.samples - 1)
    }

    /// The rows of sample i, one for each view.
    pub fn rows_of(&self, sample: usize) -> impl Iterator<Item = usize> + Clone {
        let samples = self.samples;
        (0..self.views).map(move |view| view * samples + sample)
    }

    /// The positives of anchor a.
    pub fn positives(&self, anchor: usize) -> impl Iterator<Item = usize> + Clone {
        let large = self.large * self.samples;
        self.rows_of(self.sample(anchor)).filter(move |&row| row < large && row != anchor)
    }

    /// ∂s⁺_a/∂s_ab, where s⁺_a is the mean over the positives of a: 1/|positives| if b is one, else 0.
    pub fn positive_weight(&self, a: usize, b: usize) -> f32 {
        let is_positive = a != b && self.sample(a) == self.sample(b) && b < self.large * self.samples;
        if is_positive { 1.0 / self.positives(a).count() as f32 } else { 0.0 }
    }

    /// s⁺_a, the mean similarity of anchor a to its positives.
    pub fn positive_similarity(&self, a: usize, similarities: &ArrayViewMut1<f32>) -> f64 {
        let (sum, count) =
            self.positives(a).fold((0.0, 0.0), |(sum, count), b| (sum + f64::from(similarities[b]), count + 1.0));
        sum / count
    }

    /// Every row b that belongs to another sample than anchor a.
    pub fn negatives_of(&self, a: usize) -> impl Iterator<Item = usize> + Clone {
        let (i, samples) = (self.sample(a), self.samples);
        (0..self.views).flat_map(move |view| {
            let first = view * samples;
            (first..first + i).chain(first + i + 1..first + samples)
        })
    }

    /// The gradient of Σ_ab c_ab·s_ab for the rows of `ours`, one matrix for each view. `fill(a, s_row)` turns the
    /// similarities of anchor a into c_ab + c_ba, since z_a is anchor in one and key in the other.
    pub fn backward(&self, fill: impl Fn(usize, ArrayViewMut1<f32>) + Sync) -> Vec<(SetName, Matrix)> {
        (0..self.views)
            .map(|view| {
                let first = view * self.samples + self.ours.start;
                let anchors = self.z.slice(s![first..first + self.ours.len(), ..]);
                let grad = crate::math::weighted_keys(anchors, &self.z, |row, s| fill(first + row, s));
                (SetName::View(view), grad)
            })
            .collect()
    }
}
