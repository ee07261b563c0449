//! All views of a batch as one matrix of anchors, and who is whose positive and negative in it.
//!
//! Anchor a = view·B + i. Every sample is a class of its own, unless labels say otherwise. The negatives of a are all rows
//! of other classes; its positives are the large views of its class other than itself; the class's remaining rows enter
//! nothing.

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
    /// The class of each row.
    class: Vec<usize>,
    /// How many samples share each sample's class.
    class_size: Vec<usize>,
}

impl Views {
    /// Stacks View(0), View(1), … after checking that they can be contrasted; each sample for itself.
    pub fn new(input: &LossInput) -> Result<Self, LossError> {
        Self::with_classes(input, (0..input.ids.len()).collect())
    }

    /// As [`Views::new`], with the labels as classes.
    pub fn by_label(input: &LossInput) -> Result<Self, LossError> {
        let labels = input.labels.ok_or(LossError::NoLabels)?;
        let views = Self::with_classes(input, labels.iter().map(|&label| label as usize).collect())?;
        if views.class_size.contains(&views.samples) {
            return Err(LossError::OneClass);
        }
        Ok(views)
    }

    fn with_classes(input: &LossInput, class: Vec<usize>) -> Result<Self, LossError> {
        let samples = input.ids.len();
        if samples < 2 {
            return Err(LossError::TooFewSamples(samples));
        }
        let sets = input.sets.views();
        if sets.len() < 2 {
            return Err(LossError::Missing(SetName::View(sets.len())));
        }
        for view in 0..sets.len() {
            input.checked(SetName::View(view))?;
        }
        let blocks: Vec<_> = sets.iter().map(|set| set.matrix().view()).collect();
        let z = concatenate(Axis(0), &blocks).expect("views have one shape");
        let class_size = class.iter().map(|c| class.iter().filter(|other| *other == c).count()).collect();
        let (views, large, ours) = (sets.len(), input.large_views, input.ours.clone());
        let class = class.repeat(views);
        Ok(Self { z, samples, views, large, ours, class, class_size })
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

    fn is_same_class(&self, a: usize, b: usize) -> bool {
        self.class[a] == self.class[b]
    }

    pub fn is_negative(&self, a: usize, b: usize) -> bool {
        !self.is_same_class(a, b)
    }

    /// |B_a|, the number of negatives of anchor a: V(B−1) where each sample is its own class.
    pub fn negatives(&self, a: usize) -> usize {
        self.views * (self.samples - self.class_size[self.sample(a)])
    }

    /// Every row of another class than anchor a's.
    pub fn negatives_of(&self, a: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.anchors()).filter(move |&b| !self.is_same_class(a, b))
    }

    /// Every row of anchor a's class, a itself among them.
    pub fn class_of(&self, a: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.anchors()).filter(move |&b| self.is_same_class(a, b))
    }

    /// The positives of anchor a.
    pub fn positives(&self, a: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.large * self.samples).filter(move |&b| b != a && self.is_same_class(a, b))
    }

    /// The number of positives of anchor a.
    pub fn positive_count(&self, a: usize) -> usize {
        let all = self.large * self.class_size[self.sample(a)];
        if a < self.large * self.samples { all - 1 } else { all }
    }

    /// ∂s⁺_a/∂s_ab, where s⁺_a is the mean over the positives of a: 1/|positives| if b is one, else 0.
    pub fn positive_weight(&self, a: usize, b: usize) -> f32 {
        let is_positive = a != b && b < self.large * self.samples && self.is_same_class(a, b);
        if is_positive { 1.0 / self.positive_count(a) as f32 } else { 0.0 }
    }

    /// s⁺_a, the mean similarity of anchor a to its positives.
    pub fn positive_similarity(&self, a: usize, similarities: &ArrayViewMut1<f32>) -> f64 {
        let sum: f64 = self.positives(a).map(|b| f64::from(similarities[b])).sum();
        sum / self.positive_count(a) as f64
    }

    /// Anchor a's share of the batch's estimate of the global objective: −s⁺ + τ·ln ĝ, from ln Σ_neg exp(s/τ).
    pub fn objective(&self, a: usize, positive: f64, log_negatives: f64, tau: f64) -> f64 {
        -positive + tau * (log_negatives - (self.negatives(a) as f64).ln())
    }

    /// The gradient of the mean over anchors of ln Σ_neg exp(s/τ) + pull_a·s⁺_a/τ, the positive outside the sum.
    pub fn decoupled_gradient(
        &self,
        log_negatives: &[f32],
        tau: f64,
        pull: impl Fn(usize) -> f32 + Sync,
    ) -> Vec<(SetName, Matrix)> {
        let (tau32, scale) = (tau as f32, (1.0 / self.anchors() as f64 / tau) as f32);
        self.backward(|a, mut s| {
            for b in self.negatives_of(a) {
                let logit = s[b] / tau32;
                s[b] = scale * ((logit - log_negatives[a]).exp() + (logit - log_negatives[b]).exp());
            }
            for b in self.class_of(a) {
                s[b] = scale * (pull(a) * self.positive_weight(a, b) + pull(b) * self.positive_weight(b, a));
            }
        })
    }

    /// The gradient of Σ_ab c_ab·s_ab for the rows of `ours`, one matrix for each view. `fill(a, s_row)` turns the
    /// similarities of anchor a into c_ab + c_ba, since z_a is anchor in one and key in the other.
    pub fn backward(&self, fill: impl Fn(usize, ArrayViewMut1<f32>) + Sync) -> Vec<(SetName, Matrix)> {
        (0..self.views)
            .map(|view| {
                let first = view * self.samples + self.ours.start;
                let anchors = self.z.slice(s![first..first + self.ours.len(), ..]);
                let grad = crate::math::weighted_keys(anchors, self.z.view(), |row, s| fill(first + row, s));
                (SetName::View(view), grad)
            })
            .collect()
    }

    /// [`Views::backward`] for a c_ab that depends on anchor, key and their similarity.
    pub fn gradient(&self, c: impl Fn(usize, usize, f32) -> f32 + Sync) -> Vec<(SetName, Matrix)> {
        self.backward(|a, mut s| {
            for (b, s) in s.iter_mut().enumerate() {
                *s = c(a, b, *s) + c(b, a, *s);
            }
        })
    }
}
