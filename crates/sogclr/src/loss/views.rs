//! All views of a batch as one matrix of anchors, and who is whose positive and negative in it.
//!
//! Anchor a = view·B + i. Every sample is a class of its own, unless labels say otherwise. The negatives of a are all rows
//! of other classes; its positives are the large views of its class other than itself; the class's remaining rows enter
//! nothing.

use super::{LossError, LossInput, SetName};
use crate::math::{Matrix, map_rows};
use ndarray::{ArrayViewMut1, Axis, concatenate, s};
use sogclr_kernels::{Isa, SoftmaxSum, softmax_pair, softmax_sum};
use std::ops::Range;

pub(super) struct Views {
    /// z `[views·B, dim]`, view-major.
    pub z: Matrix,
    pub samples: usize,
    pub views: usize,
    large: usize,
    ours: Range<usize>,
    isa: Isa,
    /// The class of each row.
    class: Vec<usize>,
    /// The rows of each class, in order.
    members: Vec<Vec<usize>>,
    /// How many of them are large views.
    large_members: Vec<usize>,
}

impl Views {
    /// Stacks View(0), View(1), … after checking that they can be contrasted; each sample for itself.
    pub fn new(input: &LossInput) -> Result<Self, LossError> {
        Self::with_classes(input, &(0..input.ids.len()).collect::<Vec<_>>())
    }

    /// As [`Views::new`], with the labels as classes.
    pub fn by_label(input: &LossInput) -> Result<Self, LossError> {
        let labels = input.labels.ok_or(LossError::NoLabels)?;
        let mut names = labels.to_vec();
        names.sort_unstable();
        names.dedup();
        let class = |label| names.binary_search(label).expect("every label has its place");
        Self::with_classes(input, &labels.iter().map(class).collect::<Vec<_>>())
    }

    fn with_classes(input: &LossInput, class: &[usize]) -> Result<Self, LossError> {
        let samples = input.ids.len();
        if samples < 2 {
            return Err(LossError::TooFewSamples(samples));
        }
        let count = input.sets.view_count();
        if count < 2 {
            return Err(LossError::Missing(SetName::View(count)));
        }
        let sets: Vec<_> =
            (0..count).map(|view| input.checked_unit(SetName::View(view))).collect::<Result<_, LossError>>()?;
        let blocks: Vec<_> = sets.iter().map(|set| set.matrix().view()).collect();
        let z = concatenate(Axis(0), &blocks).expect("views have one shape");
        let (views, large, ours) = (sets.len(), input.large_views, input.ours.clone());
        let class = class.repeat(views);
        let mut members = vec![Vec::new(); samples];
        class.iter().enumerate().for_each(|(row, &class)| members[class].push(row));
        let count = |rows: &Vec<usize>| rows.iter().filter(|&&row| row < large * samples).count();
        let large_members = members.iter().map(count).collect();
        Ok(Self { z, samples, views, large, ours, isa: input.isa, class, members, large_members })
    }

    pub fn anchors(&self) -> usize {
        self.views * self.samples
    }

    pub fn sample(&self, anchor: usize) -> usize {
        anchor % self.samples
    }

    /// The rows of sample i, one for each view.
    pub fn rows_of(&self, sample: usize) -> impl Iterator<Item = usize> + Clone {
        let samples = self.samples;
        (0..self.views).map(move |view| view * samples + sample)
    }

    /// |B_a|, the number of negatives of anchor a: V(B−1) where each sample is its own class, 0 in a batch of one class.
    pub fn negatives(&self, a: usize) -> usize {
        self.anchors() - self.class_of(a).len()
    }

    /// Every row of anchor a's class, a itself among them, in order.
    pub fn class_of(&self, a: usize) -> &[usize] {
        &self.members[self.class[a]]
    }

    /// The positives of anchor a.
    pub fn positives(&self, a: usize) -> impl Iterator<Item = usize> + Clone {
        let large = self.large * self.samples;
        self.class_of(a).iter().copied().filter(move |&b| b != a && b < large)
    }

    /// The number of positives of anchor a.
    pub fn positive_count(&self, a: usize) -> usize {
        self.large_members[self.class[a]] - usize::from(a < self.large * self.samples)
    }

    /// ∂s⁺_a/∂s_ab, where s⁺_a is the mean over the positives of a: 1/|positives| if b is one, else 0.
    pub fn positive_weight(&self, a: usize, b: usize) -> f32 {
        let is_positive = a != b && b < self.large * self.samples && self.class[a] == self.class[b];
        if is_positive { 1.0 / self.positive_count(a) as f32 } else { 0.0 }
    }

    /// s⁺_a, the mean similarity of anchor a to its positives.
    pub fn positive_similarity(&self, a: usize, similarities: &[f32]) -> f64 {
        let sum: f64 = self.positives(a).map(|b| f64::from(similarities[b])).sum();
        sum / self.positive_count(a) as f64
    }

    /// Anchor a's share of the batch's estimate of the global objective: −s⁺ + τ·ln ĝ, from ln Σ_neg exp(s/τ).
    pub fn objective(&self, a: usize, positive: f64, log_negatives: f64, tau: f64) -> f64 {
        match self.negatives(a) {
            0 => -positive,
            count => -positive + tau * (log_negatives - (count as f64).ln()),
        }
    }

    /// Calls `f(a, s_a, sum)` for each anchor: its similarities to all rows, and their softmax sum over its negatives at
    /// the temperature `tau(a)`.
    pub fn map_anchors<T: Send>(
        &self,
        tau: impl Fn(usize) -> f64 + Sync,
        f: impl Fn(usize, &[f32], SoftmaxSum) -> T + Sync,
    ) -> Vec<T> {
        map_rows(self.isa, self.z.view(), self.z.view(), |a, mut s| {
            let s = s.as_slice_mut().expect("a row of similarities is contiguous");
            let own: Vec<f32> = self.class_of(a).iter().map(|&b| s[b]).collect();
            self.class_of(a).iter().for_each(|&b| s[b] = f32::NEG_INFINITY);
            let sum = softmax_sum(self.isa, s, (1.0 / tau(a)) as f32);
            self.class_of(a).iter().zip(own).for_each(|(&b, own)| s[b] = own);
            f(a, s, sum)
        })
    }

    /// The gradient of Σ_ab c_ab·s_ab, where c_ab = factor·exp(s_ab/τ_a + offset_a) for negatives; `own(a, b, s)` gives
    /// c_ab + c_ba within a class. `inverse_tau` and `offset` have one value for each anchor.
    pub fn softmax_gradient(
        &self,
        inverse_tau: &[f32],
        offset: &[f32],
        factor: f32,
        own: impl Fn(usize, usize, f32) -> f32 + Sync,
    ) -> Vec<(SetName, Matrix)> {
        self.backward(|a, mut s| {
            let s = s.as_slice_mut().expect("a row of similarities is contiguous");
            let within: Vec<f32> = self.class_of(a).iter().map(|&b| own(a, b, s[b])).collect();
            softmax_pair(self.isa, s, (inverse_tau[a], offset[a]), inverse_tau, offset, factor);
            self.class_of(a).iter().zip(within).for_each(|(&b, c)| s[b] = c);
        })
    }

    /// The gradient of the mean over anchors of ln Σ_neg exp(s/τ) + pull_a·s⁺_a/τ, the positive outside the sum.
    pub fn decoupled_gradient(
        &self,
        log_negatives: impl Iterator<Item = f64>,
        tau: f64,
        pull: impl Fn(usize) -> f32 + Sync,
    ) -> Vec<(SetName, Matrix)> {
        let scale = (1.0 / self.anchors() as f64 / tau) as f32;
        let offset: Vec<f32> = log_negatives.map(|log| -log as f32).collect();
        self.softmax_gradient(&vec![(1.0 / tau) as f32; self.anchors()], &offset, scale, |a, b, _| {
            scale * (pull(a) * self.positive_weight(a, b) + pull(b) * self.positive_weight(b, a))
        })
    }

    /// The gradient of Σ_ab c_ab·s_ab for the rows of `ours`, one matrix for each view. `fill(a, s_row)` turns the
    /// similarities of anchor a into c_ab + c_ba, since z_a is anchor in one and key in the other.
    pub fn backward(&self, fill: impl Fn(usize, ArrayViewMut1<f32>) + Sync) -> Vec<(SetName, Matrix)> {
        (0..self.views)
            .map(|view| {
                let first = view * self.samples + self.ours.start;
                let anchors = self.z.slice(s![first..first + self.ours.len(), ..]);
                let grad = crate::math::weighted_keys(self.isa, anchors, self.z.view(), |row, s| fill(first + row, s));
                (SetName::View(view), grad)
            })
            .collect()
    }
}
