//! Zero-shot classification: every class is the mean of its prompts' embeddings, and an image belongs to the nearest.

use super::{Accuracy, EvalError, FrozenText};
use crate::data::pairs::fill_template;
use crate::math::Isa;
use crate::math::{Matrix, UnitRows, map_rows};
use ndarray::Axis;
use serde::{Deserialize, Serialize};

/// CLIP's 80 for ImageNet, which the paper uses.
pub fn clip_templates() -> Vec<String> {
    include_str!("../../assets/clip/imagenet-templates.txt").lines().map(str::to_owned).collect()
}

/// Prompts that suit most pictures.
pub const TEMPLATES: &[&str] = &[
    "a photo of a [CLASS]",
    "a picture of the [CLASS]",
    "a close-up of a [CLASS]",
    "a small [CLASS]",
    "a large [CLASS]",
    "a drawing of a [CLASS]",
    "this is a [CLASS]",
];

/// One unit-norm row for each class: its prompts' embeddings, normalised, averaged and normalised again.
pub fn class_weights(
    text: &FrozenText,
    classes: &[String],
    templates: &[String],
    progress: impl Fn(usize),
) -> Result<UnitRows, EvalError> {
    let prompts: Vec<String> =
        classes.iter().flat_map(|class| templates.iter().map(|template| fill_template(template, class))).collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    Ok(ensemble(&text.embed(&prompts, progress)?, templates.len()))
}

/// The normalised mean of every `size` rows.
fn ensemble(prompts: &UnitRows, size: usize) -> UnitRows {
    let (rows, dim) = prompts.matrix().dim();
    let mut means = Matrix::zeros((rows / size, dim));
    for (mut mean, group) in means.outer_iter_mut().zip(prompts.matrix().axis_chunks_iter(Axis(0), size)) {
        mean.assign(&group.mean_axis(Axis(0)).expect("a class has prompts"));
    }
    UnitRows::new(means)
}

/// What a model of image–text pairs reaches on labelled images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroShot {
    /// Accuracy of the class with the nearest prompts.
    pub zero_shot: Accuracy,
}

/// Accuracy of the nearest class by cosine.
pub fn zero_shot(images: &UnitRows, classes: &UnitRows, labels: &[u32]) -> Accuracy {
    let scores =
        map_rows(Isa::best(), images.matrix().view(), classes.matrix().view(), |_, s| s.mapv(f64::from).to_vec());
    Accuracy::from_scores(scores.iter().map(Vec::as_slice), labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn a_class_is_the_direction_between_its_prompts() {
        // The second prompt of class 0 is long, but counts no more than the first.
        let prompts = UnitRows::new(array![[1.0, 0.0], [0.0, 9.0], [-1.0, 0.0], [-2.0, 0.0]]);
        let classes = ensemble(&prompts, 2);
        let half = 0.5_f32.sqrt();
        let want = array![[half, half], [-1.0, 0.0]];
        assert!(classes.matrix().iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", classes.matrix());
        let images = UnitRows::new(array![[3.0, 3.0], [-1.0, 0.1], [-0.5, 0.6]]);
        let accuracy = zero_shot(&images, &classes, &[0, 1, 0]);
        assert!((accuracy.top1 - 2.0 / 3.0).abs() < 1e-12, "the third is nearer to class 1");
    }
}
