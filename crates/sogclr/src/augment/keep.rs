//! What a task needs and the augmentation must not destroy, in words of the task.

use super::AugmentConfig;
use std::str::FromStr;

/// Something that views of one image may not differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Hue and saturation: food, flowers, stained tissue.
    Colour,
    /// Which way round things are: digits, text, maps.
    Orientation,
    /// How large things are in the image: parts, cells, distances.
    Scale,
    /// Fine detail: fabrics, surfaces.
    Texture,
}

/// Smallest share of the image's area in a crop that keeps the scale, and one that keeps texture.
const WHOLE: f64 = 0.5;
const CLOSE: f64 = 0.2;
/// Brightness and contrast where colours are kept.
const GENTLE: f64 = 0.2;

impl Keep {
    /// All of them, by name.
    pub const NAMES: [(&str, Self); 4] = [
        ("colour", Self::Colour),
        ("orientation", Self::Orientation),
        ("scale", Self::Scale),
        ("texture", Self::Texture),
    ];
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = if text == "color" { "colour" } else { text };
        let found = Self::NAMES.iter().find(|(own, _)| *own == name);
        found.map(|(_, keep)| *keep).ok_or_else(|| format!("has {text:?}; use colour, orientation, scale or texture"))
    }
}

impl AugmentConfig {
    /// Takes back what would destroy it; several add up.
    pub fn keep(&mut self, keep: Keep) {
        let at_least = |augment: &mut Self, share: f64| {
            // Small crops of multi-crop stay small: they are there to be parts.
            if let Some(large) = augment.views.first_mut() {
                large.scale = [large.scale[0].max(share), large.scale[1].max(share)];
            }
        };
        match keep {
            Keep::Colour => {
                (self.jitter.hue, self.jitter.saturation, self.grey) = (0.0, 0.0, 0.0);
                self.jitter.brightness = self.jitter.brightness.min(GENTLE);
                self.jitter.contrast = self.jitter.contrast.min(GENTLE);
                self.rand_augment = None;
            }
            Keep::Orientation => {
                self.flip = 0.0;
                self.rand_augment = None;
            }
            Keep::Scale => at_least(self, WHOLE),
            Keep::Texture => {
                self.blur.probability = 0.0;
                at_least(self, CLOSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Preset;

    #[test]
    fn each_takes_back_its_own_and_they_add_up() {
        let usual = AugmentConfig::preset(Preset::Imagenet, 96);
        let kept = |all: &[&str]| {
            let mut augment = usual.clone();
            all.iter().for_each(|name| augment.keep(name.parse().unwrap()));
            augment
        };
        let colour = kept(&["color"]);
        assert_eq!(
            (colour.jitter.hue, colour.jitter.saturation, colour.grey, colour.jitter.contrast),
            (0.0, 0.0, 0.0, 0.2)
        );
        assert_eq!((colour.flip, &colour.blur, &colour.views), (usual.flip, &usual.blur, &usual.views));
        assert_eq!((kept(&["orientation"]).flip, kept(&["scale"]).views[0].scale), (0.0, [0.5, 1.0]));
        let all = kept(&["texture", "scale", "orientation", "colour"]);
        assert_eq!((all.blur.probability, all.views[0].scale, all.flip, all.grey), (0.0, [0.5, 1.0], 0.0, 0.0));
        assert!("flavour".parse::<Keep>().is_err());
    }
}
