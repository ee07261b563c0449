//! Augmentation settings and the presets of the paper's sources.

use super::RandAugment;
use crate::check::{Problem, require};
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
    /// InfoMin: jitter strength 1, blur and RandAugment.
    Infomin,
    /// CLIP, for image–text pairs: one crop of nearly the whole image.
    Clip,
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

/// Gaussian blur of some of the views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Blur {
    /// Probability of Gaussian blur.
    pub probability: f64,
    /// σ drawn from this range; the kernel is a tenth of the crop's side.
    pub sigma: [f64; 2],
}

/// A grid of tiles, cut from one large crop and shuffled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jigsaw {
    /// Tiles on each side.
    pub grid: usize,
    /// Smallest and largest share of the image's area that is cut up.
    pub scale: [f64; 2],
}

impl Jigsaw {
    /// Number of tiles: grid².
    pub fn tiles(&self) -> usize {
        self.grid * self.grid
    }

    /// Side of a cell: InfoMin's 255 pixels for views of 224, in the same proportion for other views.
    pub fn cell_size(&self, view: usize) -> usize {
        (view * 255).div_ceil(224 * self.grid)
    }

    /// Side of the tile drawn inside a cell: InfoMin's 64 of 85 pixels.
    pub fn tile_size(&self, view: usize) -> usize {
        (self.cell_size(view) * 64).div_ceil(85)
    }
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
    /// Random colours.
    pub jitter: Jitter,
    /// Probability of greyscale.
    pub grey: f64,
    /// Gaussian blur.
    pub blur: Blur,
    /// Random operations after blur; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment: Option<RandAugment>,
    /// Tiles for InfoMin's jigsaw; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jigsaw: Option<Jigsaw>,
    /// Channel means subtracted after the other operations.
    pub mean: Vec<f32>,
    /// Channel standard deviations divided by; as many as the network sees channels.
    pub std: Vec<f32>,
}

impl AugmentConfig {
    /// Shortest side of an image before its centre of `size` pixels is cut out. Large images get the usual margin of 1/7
    /// (256 for 224), those of image–text pairs none, as in CLIP.
    pub fn centre_resize(&self, size: usize) -> usize {
        if size > 64 && self.preset != Preset::Clip { size * 8 / 7 } else { size }
    }

    /// The preset's values for two crops of `size` pixels, or one of image–text pairs.
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
            Preset::Infomin => ([0.2, 1.0], jitter(1.0), 0.2, blur(0.5), imagenet),
            Preset::Clip => {
                let none = Jitter { probability: 0.0, ..jitter(0.5) };
                let statistics = ([0.481_454_7, 0.457_827_5, 0.408_210_7], [0.268_629_5, 0.261_302_6, 0.275_777_1]);
                ([0.9, 1.0], none, 0.0, blur(0.0), statistics)
            }
        };
        let is_pairs = preset == Preset::Clip;
        let views = vec![CropGroup { count: if is_pairs { 1 } else { 2 }, size, scale }];
        let flip = if is_pairs { 0.0 } else { 0.5 };
        let rand_augment = (preset == Preset::Infomin).then(RandAugment::infomin);
        let (mean, std) = (mean.to_vec(), std.to_vec());
        Self { preset, views, flip, jitter, grey, blur, rand_augment, jigsaw: None, mean, std }
    }

    /// The preset for images of any number of channels: what is not grey or colour is centred at a half.
    pub fn for_channels(preset: Preset, size: usize, channels: usize) -> Self {
        let colour = Self::preset(preset, size);
        match channels {
            1 | 3 => colour,
            _ => Self { mean: vec![0.5; channels], std: vec![0.25; channels], ..colour },
        }
    }

    /// Without what is for red, green and blue alone.
    pub fn without_colours(self) -> Self {
        let jitter = Jitter { saturation: 0.0, hue: 0.0, ..self.jitter };
        Self { jitter, grey: 0.0, rand_augment: None, ..self }
    }

    /// Channels that the network sees; a single one of the images is repeated three times.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Crops of these counts and sizes. A single size keeps the preset's share of the area; several take multi-crop's.
    pub fn set_views(&mut self, groups: &[(usize, usize)]) {
        const LARGE: [f64; 2] = [0.14, 1.0];
        const SMALL: [f64; 2] = [0.05, 0.14];
        let single = self.views[0].scale;
        let scale = |index: usize| match (groups.len(), index) {
            (1, _) => single,
            (_, 0) => LARGE,
            _ => SMALL,
        };
        let groups = groups.iter().enumerate();
        self.views = groups.map(|(index, &(count, size))| CropGroup { count, size, scale: scale(index) }).collect();
    }

    /// Crops of each image over all groups.
    pub fn view_count(&self) -> usize {
        self.views.iter().map(|group| group.count).sum()
    }
}

/// Counts and sizes of crops from a text such as `2x224` or `4x160+2x96`.
pub fn parse_views(text: &str) -> Result<Vec<(usize, usize)>, String> {
    let group = |part: &str| {
        let (count, size) = part.trim().split_once('x')?;
        Some((count.parse().ok().filter(|count| *count > 0)?, size.parse().ok()?))
    };
    let groups: Option<Vec<(usize, usize)>> = text.split('+').map(group).collect();
    match groups {
        Some(groups) if groups.is_sorted_by(|a, b| a.1 > b.1) => Ok(groups),
        Some(_) => Err(format!("is {text:?}; the sizes must fall, large crops first: 4x160+2x96")),
        None => Err(format!("is {text:?}; write counts and sizes of crops, large ones first: 2x224 or 4x160+2x96")),
    }
}

impl AugmentConfig {
    /// Refuses impossible values, and what does not fit images of `channels`.
    pub fn check(&self, channels: usize) -> Result<(), Problem> {
        self.check_views()?;
        let (jitter, blur) = (&self.jitter, &self.blur);
        for (key, p) in [
            ("augment.flip", self.flip),
            ("augment.grey", self.grey),
            ("augment.jitter.probability", jitter.probability),
            ("augment.blur.probability", blur.probability),
        ] {
            require((0.0..=1.0).contains(&p), key, || format!("is {p}; a probability lies between 0 and 1"))?;
        }
        let positive_sigma = blur.sigma[0] > 0.0 && blur.sigma[0] <= blur.sigma[1];
        require(positive_sigma, "augment.blur.sigma", || format!("is {:?}; it must be positive and rise", blur.sigma))?;
        let strengths = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue];
        let possible = strengths.iter().all(|s| (0.0..=10.0).contains(s));
        require(possible, "augment.jitter", || "has a strength outside 0–10".into())?;
        require(jitter.hue <= 0.5, "augment.jitter.hue", || {
            format!("is {}; half of the circle of hues, 0.5, is the most", jitter.hue)
        })?;
        if let Some(operations) = &self.rand_augment {
            require((0.0..=10.0).contains(&operations.magnitude), "augment.rand_augment.magnitude", || {
                format!("is {}; it must lie between 0 and 10", operations.magnitude)
            })?;
            require(operations.count <= 15, "augment.rand_augment.count", || {
                format!("is {}; at most 15", operations.count)
            })?;
        }
        if let Some(jigsaw) = &self.jigsaw {
            require(jigsaw.grid == 3, "augment.jigsaw.grid", || format!("is {}; it must be 3", jigsaw.grid))?;
            check_scale("augment.jigsaw.scale", "is", jigsaw.scale)?;
        }
        self.check_statistics(channels)
    }

    fn check_views(&self) -> Result<(), Problem> {
        let (key, views) = ("augment.views", self.view_count());
        require(views >= 1, key, || "has no crops".into())?;
        let falls = self.views.is_sorted_by(|a, b| a.size > b.size);
        require(falls, key, || "must list large crops first, each group smaller than the one before".into())?;
        require(views <= 100, key, || format!("has {views} crops of each image; at most 100"))?;
        for group in &self.views {
            check_scale(key, "has scale", group.scale)?;
            require(group.count >= 1, key, || "has a group without crops".into())?;
            require((4..=4096).contains(&group.size), key, || {
                format!("has size {}; it must lie between 4 and 4096 pixels", group.size)
            })?;
        }
        Ok(())
    }

    fn check_statistics(&self, channels: usize) -> Result<(), Problem> {
        let (mean, std) = (self.mean.len(), self.std.len());
        let fits = mean == std && (mean == channels || (channels == 1 && mean == 3));
        require(fits, "augment.mean", || {
            format!(
                "has {mean} values and augment.std {std}; the images have {channels} channels, which both must have"
            )
        })?;
        require(self.mean.iter().all(|m| m.is_finite()), "augment.mean", || "must be finite".into())?;
        let positive = self.std.iter().all(|&s| s > 0.0 && s.is_finite());
        require(positive, "augment.std", || "must be positive".into())
    }
}

fn check_scale(key: &str, verb: &str, [low, high]: [f64; 2]) -> Result<(), Problem> {
    require(0.0 < low && low <= high && high <= 1.0, key, || {
        format!("{verb} {low}–{high}; it must lie within 0–1 and rise")
    })
}
