//! Top-1 and top-5 accuracy with a confidence interval.

use serde::{Deserialize, Serialize};

/// Shares in [0, 1] over `images` test images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Share of images whose class has the highest score.
    pub top1: f64,
    /// Share of images whose class has one of the five highest scores.
    pub top5: f64,
    /// Wilson's 95 % interval of top-1.
    pub interval: [f64; 2],
    /// Test images.
    pub images: usize,
}

impl Accuracy {
    /// From the class scores of each test image. Classes with the same score are ordered by their number.
    pub fn from_scores<'a>(scores: impl Iterator<Item = &'a [f64]>, labels: &[u32]) -> Self {
        let (mut first, mut fifth) = (0, 0);
        for (scores, &label) in scores.zip(labels) {
            let own = scores[label as usize];
            let better = |(class, &score): (usize, &f64)| score > own || (score == own && class < label as usize);
            let rank = scores.iter().enumerate().filter(|&entry| better(entry)).count();
            first += usize::from(rank < 1);
            fifth += usize::from(rank < 5);
        }
        let images = labels.len();
        let share = |count: usize| count as f64 / images as f64;
        Self { top1: share(first), top5: share(fifth), interval: wilson(share(first), images as f64), images }
    }
}

/// How one accuracy stands to another, on test images of which chance makes the smaller differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Higher by more than chance.
    Better,
    /// Within chance.
    Alike,
    /// Lower by more than chance.
    Worse,
}

impl Accuracy {
    /// |p − q| against 1.96·√(p(1−p)/n + q(1−q)/m).
    pub fn against(&self, other: &Self) -> Comparison {
        let variance = |it: &Self| it.top1 * (1.0 - it.top1) / it.images as f64;
        let (difference, chance) = (self.top1 - other.top1, 1.96 * (variance(self) + variance(other)).sqrt());
        match difference {
            d if d > chance => Comparison::Better,
            d if d < -chance => Comparison::Worse,
            _ => Comparison::Alike,
        }
    }
}

/// (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.96
fn wilson(p: f64, n: f64) -> [f64; 2] {
    let z2 = 1.96_f64.powi(2);
    let centre = p + z2 / (2.0 * n);
    let half = 1.96 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    [((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_by_hand() {
        let scores: [&[f64]; 3] =
            [&[0.9, 0.1, 0.0, 0.0, 0.0, 0.0], &[0.5, 0.5, 0.0, 0.0, 0.0, 0.0], &[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]];
        let accuracy = Accuracy::from_scores(scores.into_iter(), &[0, 1, 5]);
        assert!((accuracy.top1 - 1.0 / 3.0).abs() < 1e-12, "the tie goes to class 0");
        assert!((accuracy.top5 - 2.0 / 3.0).abs() < 1e-12, "the sixth of six is not among five");
    }

    #[test]
    fn differences_are_held_against_chance() {
        let of = |top1: f64, images: usize| Accuracy { top1, top5: 1.0, interval: [0.0, 1.0], images };
        // 1.96·√(0.24/400 + 0.25/400) = 0.0686
        assert_eq!(of(0.6, 400).against(&of(0.5, 400)), Comparison::Better);
        assert_eq!(of(0.6, 400).against(&of(0.54, 400)), Comparison::Alike);
        assert_eq!(of(0.5, 400).against(&of(0.6, 400)), Comparison::Worse);
        assert_eq!(of(0.6, 50).against(&of(0.5, 50)), Comparison::Alike, "few images");
    }

    #[test]
    fn wilson_interval_of_a_known_case() {
        // 81 of 263 right: 0.2553–0.3662 (Newcombe 1998, method 3).
        let [low, high] = wilson(81.0 / 263.0, 263.0);
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
    }
}
