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
