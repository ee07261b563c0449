//! What a file of weights holds, as far as its names and shapes tell.

use super::{EncoderConfig, ResNetConfig};
use crate::params::NamedTensors;
use std::collections::BTreeSet;

impl EncoderConfig {
    /// The encoder in words: `resnet18 of width 0.25`.
    pub fn describe(&self) -> String {
        let width = serde_json::to_value(self).ok().and_then(|config| config.get("width")?.as_f64());
        match width.filter(|&width| width != 1.0) {
            Some(width) => format!("{} of width {width}", self.name()),
            None => self.name().to_owned(),
        }
    }
}

/// The encoder that weights belong to, in words; `None` if they are of none that is known.
pub fn recognise(weights: &NamedTensors) -> Option<String> {
    resnet(weights).or_else(|| vit(weights)).or_else(|| {
        let is_clip = weights.keys().any(|name| name.starts_with("visual."));
        is_clip.then(|| "image and text encoders with open_clip's names".to_owned())
    })
}

/// torchvision's names: blocks of each stage, whether they are bottlenecks, and the channels of the stem.
fn resnet(weights: &NamedTensors) -> Option<String> {
    let blocks = |stage: usize| {
        let prefix = format!("layer{stage}.");
        let numbers = weights.keys().filter_map(|name| name.strip_prefix(&prefix)?.split('.').next());
        numbers.collect::<BTreeSet<_>>().len()
    };
    let blocks: Vec<usize> = (1..).map(blocks).take_while(|&count| count > 0).collect();
    let is_bottleneck = weights.contains_key("layer1.0.conv3.weight");
    let stem = weights.get("conv1.weight")?;
    let (config, full) = ResNetConfig::of_blocks(&blocks, is_bottleneck)?;
    let width = *stem.shape.first()? as f64 / full as f64;
    Some(EncoderConfig::from(ResNetConfig { width, ..config }).describe())
}

/// timm's names.
fn vit(weights: &NamedTensors) -> Option<String> {
    let dim = *weights.get("patch_embed.proj.weight")?.shape.first()?;
    let name = match dim {
        192 => "vit-tiny",
        384 => "vit-small",
        768 => "vit-base",
        _ => return Some(format!("a vision transformer of {dim} channels")),
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{Compute, ResNetName};
    use super::*;
    use crate::params::export;

    #[test]
    fn every_resnet_is_recognised_at_any_width() {
        for (name, width, said) in [
            (ResNetName::Resnet8, 0.25, "resnet8 of width 0.25"),
            (ResNetName::Resnet20, 0.5, "resnet20 of width 0.5"),
            (ResNetName::Resnet18, 0.125, "resnet18 of width 0.125"),
            (ResNetName::Resnet34, 0.0625, "resnet34 of width 0.0625"),
            (ResNetName::Resnet50, 0.0625, "resnet50 of width 0.0625"),
        ] {
            let config = EncoderConfig::from(ResNetConfig { width, ..ResNetConfig::for_size(name, 32) });
            let weights = export(&config.build(32, 3, &Compute::cpu()));
            assert_eq!((recognise(&weights).as_deref(), config.describe().as_str()), (Some(said), said));
        }
        let config = EncoderConfig::named("resnet18", 32).unwrap();
        assert_eq!(config.describe(), "resnet18");
        assert_eq!(recognise(&NamedTensors::new()), None);
    }

    #[test]
    fn a_vision_transformer_is_recognised() {
        let config = EncoderConfig::named("vit-tiny", 32).unwrap();
        assert_eq!(recognise(&export(&config.build(32, 3, &Compute::cpu()))).as_deref(), Some("vit-tiny"));
    }
}
