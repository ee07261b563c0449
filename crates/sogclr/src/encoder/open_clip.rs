//! A model of image–text pairs under open_clip's names, to export and to import.

use super::model::ModelConfig;
use super::text::TextConfig;
use crate::params::{HostTensor, NamedTensors};
use serde_json::{Value, json};

/// ln(1/τ) in open_clip's state dict.
const LOGIT_SCALE: &str = "logit_scale";

/// The projection of features, and the encoder below it, where open_clip takes the encoder from timm.
const PROJECTION: &str = "visual.head.proj.";
const TRUNK: &str = "visual.trunk.";

/// `encoder.` becomes `visual.`, or `visual.trunk.` where a projection follows it, which becomes `visual.head.proj.`; the text
/// encoder stands at the root, and ln(1/τ) is `logit_scale`.
pub fn to_open_clip(model: &NamedTensors, log_scale: f64) -> NamedTensors {
    let encoder = if model.keys().any(|name| name.starts_with("projection.")) { TRUNK } else { "visual." };
    let renamed = model.iter().filter_map(|(name, tensor)| {
        let (part, rest) = name.split_once('.')?;
        let new = match part {
            "encoder" => format!("{encoder}{rest}"),
            "projection" => format!("{PROJECTION}{rest}"),
            "text" => rest.to_owned(),
            _ => return None,
        };
        Some((new, tensor.clone()))
    });
    let mut tensors: NamedTensors = renamed.collect();
    tensors.insert(LOGIT_SCALE.into(), HostTensor { shape: Vec::new(), values: vec![log_scale as f32] });
    tensors
}

/// The names of our model; `logit_scale` and buffers of other programs are left out.
pub fn from_open_clip(tensors: &NamedTensors) -> NamedTensors {
    let is_ours = |name: &str| name != LOGIT_SCALE && name != "attn_mask" && !name.ends_with("num_batches_tracked");
    let renamed = tensors.iter().filter(|(name, _)| is_ours(name)).map(|(name, tensor)| {
        let parts = [(TRUNK, "encoder."), (PROJECTION, "projection."), ("visual.", "encoder.")];
        let image = parts.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        (image.unwrap_or_else(|| format!("text.{name}")), tensor.clone())
    });
    renamed.collect()
}

impl ModelConfig {
    /// The arguments of open_clip's `CLIP`; `None` for models of images alone, and for encoders that open_clip does not have.
    pub fn open_clip(&self) -> Option<Value> {
        let text = self.text.as_ref()?;
        let vision = self.encoder.spec().open_clip(self.image_size)?;
        Some(json!({ "embed_dim": self.output(), "vision_cfg": vision, "text_cfg": text.open_clip() }))
    }
}

impl TextConfig {
    /// `text_cfg` of open_clip.
    pub(super) fn open_clip(&self) -> Value {
        json!({
            "context_length": self.context, "vocab_size": self.vocabulary, "width": self.width,
            "heads": self.heads, "layers": self.layers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tensors whose values tell them apart.
    fn named(names: &[&str]) -> NamedTensors {
        let tensor = |k: usize| HostTensor { shape: vec![1], values: vec![k as f32] };
        names.iter().enumerate().map(|(k, name)| ((*name).to_owned(), tensor(k))).collect()
    }

    fn names(tensors: &NamedTensors) -> Vec<&str> {
        tensors.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_clip_encoder_goes_to_open_clip_and_comes_back() {
        let ours = named(&["encoder.conv1.weight", "text.ln_final.bias", "text.text_projection"]);
        let theirs = to_open_clip(&ours, 4.5);
        assert_eq!(names(&theirs), ["ln_final.bias", "logit_scale", "text_projection", "visual.conv1.weight"]);
        assert_eq!(theirs["visual.conv1.weight"], ours["encoder.conv1.weight"]);
        assert_eq!(theirs["logit_scale"], HostTensor { shape: Vec::new(), values: vec![4.5] });
        assert_eq!(from_open_clip(&theirs), ours);
    }

    #[test]
    fn an_encoder_below_a_projection_is_open_clips_trunk() {
        let ours = named(&["encoder.head.weight", "encoder.norm.bias", "projection.weight", "text.ln_final.bias"]);
        let theirs = to_open_clip(&ours, 0.0);
        let want = [
            "ln_final.bias",
            "logit_scale",
            "visual.head.proj.weight",
            "visual.trunk.head.weight",
            "visual.trunk.norm.bias",
        ];
        assert_eq!(names(&theirs), want);
        assert_eq!(theirs["visual.head.proj.weight"], ours["projection.weight"]);
        assert_eq!(from_open_clip(&theirs), ours);
    }

    #[test]
    fn heads_stay_behind_and_other_programs_buffers_are_left_out() {
        let ours = named(&["encoder.conv1.weight", "head.layers.0.linear.weight"]);
        assert_eq!(names(&to_open_clip(&ours, 0.0)), ["logit_scale", "visual.conv1.weight"]);
        let theirs = named(&[
            "attn_mask",
            "logit_scale",
            "positional_embedding",
            "visual.bn1.num_batches_tracked",
            "visual.proj",
        ]);
        assert_eq!(names(&from_open_clip(&theirs)), ["encoder.proj", "text.positional_embedding"]);
    }

    #[test]
    fn open_clips_arguments_exist_for_pairs_with_its_own_encoders() {
        let config = |encoder: &str, text: bool| ModelConfig {
            encoder: toml::from_str(encoder).unwrap(),
            head: None,
            text: text.then(|| TextConfig { layers: 3, heads: 2, output: Some(9), ..TextConfig::clip_s() }),
            image_size: 64,
            channels: 3,
        };
        let (clip, resnet) = ("name = 'clip-xs'\nwidth = 0.5", "name = 'resnet8'\nwidth = 1.0\nstem = 'cifar'");
        let want = json!({
            "embed_dim": 256,
            "vision_cfg": { "layers": [1, 1, 1, 1], "width": 12, "image_size": 64 },
            "text_cfg": { "context_length": 77, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 3 },
        });
        assert_eq!(config(clip, true).open_clip(), Some(want));
        assert_eq!(config(clip, false).open_clip(), None);
        assert_eq!(config(resnet, true).open_clip(), None);
    }
}
