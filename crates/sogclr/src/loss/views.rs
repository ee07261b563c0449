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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::EmbeddingSets;
    use crate::state::SampleState;

    /// `count` views of three samples, the row of each pointing another way.
    fn sets(count: usize) -> EmbeddingSets {
        let angle = |v: usize, i: usize| 1.3 * (3 * v + i) as f32;
        let view = |v: usize| {
            Matrix::from_shape_fn((3, 2), |(i, k)| 2.0 * if k == 0 { angle(v, i).cos() } else { angle(v, i).sin() })
        };
        EmbeddingSets::new((0..count).map(|v| (SetName::View(v), view(v))).collect())
    }

    fn views(count: usize, large_views: usize, labels: Option<&[u32]>) -> Views {
        let (sets, state) = (sets(count), SampleState::new(3, &[]));
        let input = LossInput { large_views, labels, ..LossInput::new(&sets, &[0, 1, 2], &state) };
        if labels.is_some() { Views::by_label(&input).unwrap() } else { Views::new(&input).unwrap() }
    }

    fn positives(views: &Views, a: usize) -> Vec<usize> {
        assert_eq!(views.positive_count(a), views.positives(a).count());
        views.positives(a).collect()
    }

    #[test]
    fn of_two_views_the_other_is_positive_and_every_other_sample_negative() {
        let views = views(2, 2, None);
        assert_eq!((positives(&views, 1), positives(&views, 4)), (vec![4], vec![1]));
        assert_eq!((views.anchors(), views.negatives(1), views.sample(4)), (6, 4, 1));
        assert_eq!(views.rows_of(2).collect::<Vec<_>>(), [2, 5]);
        assert_eq!([(1, 4), (1, 1), (1, 2)].map(|(a, b)| views.positive_weight(a, b)), [1.0, 0.0, 0.0]);
    }

    /// Rows 6, 7, 8 are the small crops of three samples.
    #[test]
    fn a_small_crop_has_positives_and_is_none() {
        let views = views(3, 2, None);
        assert_eq!((positives(&views, 0), positives(&views, 6)), (vec![3], vec![0, 3]));
        assert_eq!((views.negatives(0), views.class_of(0)), (6, &[0, 3, 6][..]));
        assert_eq!((views.positive_weight(6, 3), views.positive_weight(3, 6)), (0.5, 0.0));
        let s = [0.9, 0.0, 0.0, 0.5, 0.0, 0.0, -1.0, 0.0, 0.0];
        assert!((views.positive_similarity(6, &s) - 0.7).abs() < 1e-7);
        assert!((views.positive_similarity(0, &s) - 0.5).abs() < 1e-7);
    }

    #[test]
    fn samples_of_one_label_are_positives() {
        let views = views(2, 2, Some(&[7, 3, 7]));
        assert_eq!((positives(&views, 0), positives(&views, 1)), (vec![2, 3, 5], vec![4]));
        assert_eq!((views.negatives(0), views.negatives(1)), (2, 4));
        assert_eq!((views.positive_weight(0, 5), views.positive_weight(0, 1)), (1.0 / 3.0, 0.0));
    }

    #[test]
    fn a_batch_of_one_label_has_no_negatives_and_its_objective_is_the_pull() {
        let views = views(2, 2, Some(&[4, 4, 4]));
        assert_eq!((views.negatives(2), positives(&views, 2)), (0, vec![0, 1, 3, 4, 5]));
        assert!(views.map_anchors(|_| 0.5, |_, _, sum| sum.log_sum).iter().all(|&log| log == f64::NEG_INFINITY));
        assert_eq!(views.objective(2, 0.25, f64::NEG_INFINITY, 0.5), -0.25);
    }

    /// Anchor a looks at 6 rows, of which a and a ± 3 are its own.
    #[test]
    fn an_anchor_sees_all_similarities_and_sums_over_its_negatives() {
        let views = views(2, 2, None);
        let tau = |a: usize| 0.5 + a as f64;
        let z: Vec<[f64; 2]> = (0..6).map(|k| 1.3 * f64::from(k)).map(|angle| [angle.cos(), angle.sin()]).collect();
        views.map_anchors(tau, |a, s, sum| {
            let want: Vec<f64> = z.iter().map(|b| z[a][0] * b[0] + z[a][1] * b[1]).collect();
            assert!(s.iter().zip(&want).all(|(s, want)| (f64::from(*s) - want).abs() < 1e-6), "{s:?} {want:?}");
            let negatives = want.iter().enumerate().filter(|(b, _)| b % 3 != a % 3);
            let log_sum = negatives.map(|(_, s)| (s / tau(a)).exp()).sum::<f64>().ln();
            assert!((sum.log_sum - log_sum).abs() < 1e-6, "{a}: {} {log_sum}", sum.log_sum);
        });
    }

    #[test]
    fn a_share_of_the_batch_has_its_rows_of_the_whole_gradient() {
        let (sets, state) = (sets(2), SampleState::new(3, &[]));
        let input = LossInput::new(&sets, &[0, 1, 2], &state);
        let grads = |input: &LossInput| {
            let log_negatives = (0..6).map(|a| 1.0 + 0.1 * f64::from(a));
            Views::new(input).unwrap().decoupled_gradient(log_negatives, 0.5, |a| -1.0 - a as f32)
        };
        let (whole, share) = (grads(&input), grads(&LossInput { ours: 1..3, ..input.clone() }));
        for ((name, whole), (same, share)) in whole.iter().zip(&share) {
            assert_eq!(name, same);
            assert_eq!(share.dim(), (2, 2));
            assert!((share - &whole.slice(s![1..3, ..])).iter().all(|d| d.abs() < 1e-6));
        }
    }

    #[test]
    fn one_view_one_sample_and_missing_labels_are_refused() {
        let (one, two, state) = (sets(1), sets(2), SampleState::new(3, &[]));
        let refused = |sets, ids| Views::new(&LossInput::new(sets, ids, &state)).err();
        assert_eq!(refused(&one, &[0, 1, 2]), Some(LossError::Missing(SetName::View(1))));
        assert_eq!(refused(&two, &[0]), Some(LossError::TooFewSamples(1)));
        assert_eq!(Views::by_label(&LossInput::new(&two, &[0, 1, 2], &state)).err(), Some(LossError::NoLabels));
    }
}
