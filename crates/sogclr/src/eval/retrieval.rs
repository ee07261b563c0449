//! Retrieval between images and their captions: recall at 1, 5 and 10 in both directions.

use crate::math::Isa;
use crate::math::{Matrix, map_rows};
use serde::{Deserialize, Serialize};

/// Shares in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// What is sought stands first.
    pub at1: f64,
    /// It is among the first five.
    pub at5: f64,
    /// It is among the first ten.
    pub at10: f64,
}

/// Recall in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// One of the image's captions is among the first k of all captions.
    pub image_to_text: Recall,
    /// The caption's image is among the first k of all images.
    pub text_to_image: Recall,
    /// Mean of the six recalls.
    pub mean_recall: f64,
    /// Images that were ranked.
    pub images: usize,
    /// Captions that were ranked.
    pub captions: usize,
}

impl Retrieval {
    fn new(image_to_text: Recall, text_to_image: Recall, images: usize, captions: usize) -> Self {
        let mean_recall = (image_to_text.sum() + text_to_image.sum()) / 6.0;
        Self { image_to_text, text_to_image, mean_recall, images, captions }
    }
}

impl Recall {
    /// From how many others come before each.
    fn of(ranks: &[usize]) -> Self {
        let within = |k: usize| ranks.iter().filter(|&&rank| rank < k).count() as f64 / ranks.len() as f64;
        Self { at1: within(1), at5: within(5), at10: within(10) }
    }

    fn sum(&self) -> f64 {
        self.at1 + self.at5 + self.at10
    }
}

/// Ranks unit-norm `images` `[n, dim]` and `texts` `[m, dim]` by cosine; text k belongs to image `owners[k]`, and every image
/// has a text. An equal score counts as ahead, so that embeddings that are all alike find nothing.
pub fn retrieve(images: &Matrix, texts: &Matrix, owners: &[usize]) -> Retrieval {
    let image_ranks = map_rows(Isa::best(), images.view(), texts.view(), |image, s| {
        let own = s.iter().zip(owners).filter(|&(_, &owner)| owner == image).map(|(&s, _)| s);
        let best = own.fold(f32::NEG_INFINITY, f32::max);
        s.iter().zip(owners).filter(|&(&s, &owner)| owner != image && s >= best).count()
    });
    let text_ranks = map_rows(Isa::best(), texts.view(), images.view(), |text, s| {
        let own = owners[text];
        s.iter().enumerate().filter(|&(image, &score)| image != own && score >= s[own]).count()
    });
    Retrieval::new(Recall::of(&image_ranks), Recall::of(&text_ranks), images.nrows(), texts.nrows())
}

/// What a random order reaches, where image i has `captions[i]` captions.
pub fn retrieve_by_chance(captions: &[usize]) -> Retrieval {
    let (images, all) = (captions.len(), captions.iter().sum());
    let one_of_its = |k: usize| captions.iter().map(|&own| chance(own, all, k)).sum::<f64>() / images as f64;
    let recall = |at: &dyn Fn(usize) -> f64| Recall { at1: at(1), at5: at(5), at10: at(10) };
    Retrieval::new(recall(&one_of_its), recall(&|k| chance(1, images, k)), images, all)
}

/// Probability that one of `own` captions is among the first `k` of `all` in random order: 1 − C(all−own, k)/C(all, k).
fn chance(own: usize, all: usize, k: usize) -> f64 {
    1.0 - (0..k.min(all)).map(|j| all.saturating_sub(own + j) as f64 / (all - j) as f64).product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn an_image_with_more_names_finds_one_more_often() {
        for (own, all, k) in [(1, 6, 1), (1, 6, 5), (2, 6, 1), (2, 6, 3), (5, 6, 2), (3, 3, 1), (1, 3, 5)] {
            // Every choice of the first k places as bits; the first `own` captions are the image's.
            let firsts: Vec<u32> = (0_u32..1 << all).filter(|set| set.count_ones() as usize == k.min(all)).collect();
            let hits = firsts.iter().filter(|&set| set & ((1 << own) - 1) != 0).count();
            let want = hits as f64 / firsts.len() as f64;
            assert!((chance(own, all, k) - want).abs() < 1e-12, "{own} of {all} within {k}: {want}");
        }
    }

    #[test]
    fn ranks_are_counted_by_hand() {
        // Angles 0°, 90°, 180°; the second image has two captions, one of them beside the first image.
        let images = array![[1.0_f32, 0.0], [0.0, 1.0], [-1.0, 0.0]];
        let texts = array![[0.8_f32, 0.6], [0.96, 0.28], [0.0, 1.0], [0.28, 0.96]];
        let result = retrieve(&images, &texts, &[0, 1, 1, 2]);
        // Image 0: 0.8, but 0.96 is ahead; image 1: its second caption is first; image 2: −0.28, behind 0 of image 1's.
        let third = 1.0 / 3.0;
        assert!((result.image_to_text.at1 - third).abs() < 1e-12, "{result:?}");
        assert_eq!(result.image_to_text.at5, 1.0);
        // Text 0 → image 0; text 1 → image 0, wrong; text 2 → image 1; text 3 → image 1, then 0, its own is last.
        assert_eq!((result.text_to_image.at1, result.text_to_image.at5), (0.5, 1.0));
        assert!((result.mean_recall - (third + 2.0 + 0.5 + 2.0) / 6.0).abs() < 1e-12);
        assert_eq!((result.images, result.captions), (3, 4));
    }

    #[test]
    fn one_point_finds_nothing() {
        let one = Matrix::ones((20, 2));
        let owners: Vec<usize> = (0..20).collect();
        assert_eq!(retrieve(&one, &one, &owners).mean_recall, 0.0);
    }

    #[test]
    fn ten_of_twenty_are_within_ten() {
        // Text k is nearest to image 0, then 1, …: image k has rank k.
        let angle = |k: usize| 0.05 * k as f32;
        let images = Matrix::from_shape_fn((20, 2), |(k, axis)| [angle(k).cos(), angle(k).sin()][axis]);
        let texts = Matrix::from_shape_fn((20, 2), |(_, axis)| [1.0, 0.0][axis]);
        let owners: Vec<usize> = (0..20).collect();
        let Recall { at1, at5, at10 } = retrieve(&images, &texts, &owners).text_to_image;
        assert_eq!((at1, at5, at10), (0.05, 0.25, 0.5));
    }
}
