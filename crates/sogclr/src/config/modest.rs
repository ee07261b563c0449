//! Defaults for photographs on a CPU: what is done in hours, where the paper's ResNet-50 at 224 pixels would take days. They follow
//! from the data and the kind of device alone, never from a measured speed, so the same command trains the same run anywhere.

use super::Overrides;
use crate::data::{DataConfig, Description, Modality};

/// A run whose encoder, size and length are left to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modest {
    /// Side of crops.
    pub size: usize,
    /// Passes over the data.
    pub epochs: usize,
}

impl Modest {
    pub const ENCODER: &str = "resnet18";
    /// Side of crops of photographs.
    const SIZE: usize = 128;
    /// Images of a whole run, two views each: 50 minutes at the 200 views/s that `sogclr bench step --encoder resnet18 --image-size 128
    /// --batch 64` makes on two cores of Zen 5, hours on older or busier ones.
    const VISITS: usize = 300_000;
    const EPOCHS: std::ops::RangeInclusive<usize> = 5..=200;

    /// `None` where the images are small, a GPU is there, or the user has chosen an encoder or a size.
    pub fn of(data: &Description, overrides: &Overrides, given: &DataConfig) -> Option<Self> {
        let is_given = |key: &str| overrides.get(key).is_some();
        let is_cpu = matches!(overrides.string("train.device"), None | Some("cpu" | "cpu-exact"));
        let is_chosen =
            given.image_size.is_some() || ["encoder", "augment.views", "augment.preset"].into_iter().any(is_given);
        if !is_cpu || is_chosen || data.modality == Modality::Pairs || data.size <= 64 {
            return None;
        }
        let epochs = (Self::VISITS / data.samples.max(1)).clamp(*Self::EPOCHS.start(), *Self::EPOCHS.end());
        Some(Self { size: data.size.min(Self::SIZE), epochs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;

    #[test]
    fn photographs_on_a_cpu_take_hours_and_what_is_chosen_stays() {
        let photos = |samples| Description {
            modality: Modality::Images,
            samples,
            classes: None,
            size: 224,
            channels: 3,
            measured: None,
        };
        let run = |samples: usize, settings: &[&str]| {
            let mut overrides = Overrides::default();
            settings.iter().for_each(|setting| overrides.set(setting).unwrap());
            let config = super::super::resolve::resolve(&photos(samples), &overrides).unwrap();
            let RunConfig { encoder, augment, train, data, .. } = config;
            (encoder.spec().name().to_string(), augment.views[0].size, train.epochs, data.eval_size)
        };
        let named = |name: &str, size, epochs| (name.to_owned(), size, epochs, None);
        assert_eq!(run(2640, &[]), named("resnet18", 128, 113));
        assert_eq!(run(500, &[]), named("resnet18", 128, 200));
        assert_eq!(run(1_000_000, &[]), named("resnet18", 128, 5));
        assert_eq!(run(2640, &["train.epochs=7"]), named("resnet18", 128, 7));
        for paper in
            [["train.device=cuda", ""], ["encoder.name=resnet50", ""], ["data.image_size=224", "encoder.name=resnet50"]]
        {
            let settings: Vec<&str> = paper.into_iter().filter(|setting| !setting.is_empty()).collect();
            assert_eq!(run(2640, &settings), named("resnet50", 224, 100), "{paper:?}");
        }
    }
}
