//! Augmentation settings and the presets of the paper's sources.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the defaults of the other augmentation keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// SimCLR on ImageNet, the paper's: jitter strength 1 and blur.
    Imagenet,
    /// SimCLR on CIFAR: jitter strength ½, no blur.
    Cifar,
    /// Greyscale data: crop, flip, brightness and contrast.
    Grey,
    /// MoCo v2.
    Mocov2,
}

/// `count` crops of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CropGroup {
    /// Crops of each image.
    pub count: usize,
    /// Side of the square crop in pixels.
    pub size: usize,
    /// Smallest and largest share of the image's area.
    pub scale: [f64; 2],
}

/// Random brightness, contrast, saturation and hue, in random order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// Probability that an image is jittered at all.
    pub probability: f64,
    /// Factor drawn from [max(0, 1−b), 1+b].
    pub brightness: f64,
    /// As brightness, about the mean grey level.
    pub contrast: f64,
    /// As brightness, about the pixel's own grey.
    pub saturation: f64,
    /// Shift drawn from [−h, h] of the colour circle.
    pub hue: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Blur {
    /// Probability of Gaussian blur.
    pub probability: f64,
    /// σ drawn from this range; the kernel is a tenth of the crop's side.
    pub sigma: [f64; 2],
}

/// How views are made of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AugmentConfig {
    /// Gives the other keys their defaults.
    pub preset: Preset,
    /// Groups of crops; the first group holds the large ones, which serve as positives.
    pub views: Vec<CropGroup>,
    /// Probability of a horizontal flip.
    pub flip: f64,
    pub jitter: Jitter,
    /// Probability of greyscale.
    pub grey: f64,
    pub blur: Blur,
    /// Channel means subtracted after the other operations.
    pub mean: [f32; 3],
    /// Channel standard deviations divided by.
    pub std: [f32; 3],
}

impl AugmentConfig {
    /// The preset's values for two crops of `size` pixels.
    pub fn preset(preset: Preset, size: usize) -> Self {
        let jitter = |strength: f64| Jitter {
            probability: 0.8,
            brightness: 0.8 * strength,
            contrast: 0.8 * strength,
            saturation: 0.8 * strength,
            hue: 0.2 * strength,
        };
        let blur = |probability| Blur { probability, sigma: [0.1, 2.0] };
        let imagenet = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let (scale, jitter, grey, blur, (mean, std)) = match preset {
            Preset::Imagenet => ([0.08, 1.0], jitter(1.0), 0.2, blur(0.5), imagenet),
            Preset::Cifar => {
                let statistics = ([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]);
                ([0.2, 1.0], jitter(0.5), 0.2, blur(0.0), statistics)
            }
            Preset::Grey => {
                let plain = Jitter { saturation: 0.0, hue: 0.0, ..jitter(0.5) };
                ([0.2, 1.0], plain, 0.0, blur(0.0), ([0.5; 3], [0.5; 3]))
            }
            Preset::Mocov2 => {
                let strength = Jitter { probability: 0.8, brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 };
                ([0.2, 1.0], strength, 0.2, blur(0.5), imagenet)
            }
        };
        let views = vec![CropGroup { count: 2, size, scale }];
        Self { preset, views, flip: 0.5, jitter, grey, blur, mean, std }
    }

    /// Crops of each image over all groups.
    pub fn view_count(&self) -> usize {
        self.views.iter().map(|group| group.count).sum()
    }
}
