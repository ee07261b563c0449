//! A model of image–text pairs under open_clip's names, to export and to import.

use super::config::Family;
use super::model::ModelConfig;
use super::params::{HostTensor, NamedTensors};
use serde_json::{Value, json};

/// ln(1/τ) in open_clip's state dict.
const LOGIT_SCALE: &str = "logit_scale";

/// `encoder.` becomes `visual.`, the text encoder stands at the root, and ln(1/τ) is `logit_scale`.
pub fn to_open_clip(model: &NamedTensors, log_scale: f64) -> NamedTensors {
    let renamed = model.iter().filter_map(|(name, tensor)| {
        let new = match name.strip_prefix("encoder.") {
            Some(rest) => format!("visual.{rest}"),
            None => name.strip_prefix("text.")?.to_owned(),
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
        let new = match name.strip_prefix("visual.") {
            Some(rest) => format!("encoder.{rest}"),
            None => format!("text.{name}"),
        };
        (new, tensor.clone())
    });
    renamed.collect()
}

impl ModelConfig {
    /// The arguments of open_clip's `CLIP`; `None` for models of images alone.
    pub fn open_clip(&self) -> Option<Value> {
        let text = self.text.as_ref()?;
        let vision = match self.encoder.family(self.image_size) {
            Family::ResNet => return None,
            Family::ClipResNet(net) => {
                json!({ "layers": net.layers, "width": net.width, "image_size": net.image_size })
            }
            Family::Vit(net) => json!({
                "layers": net.layers, "width": net.width, "head_width": net.width / net.heads,
                "patch_size": net.patch, "image_size": net.image_size,
            }),
        };
        let text = json!({
            "context_length": text.context, "vocab_size": text.vocabulary, "width": text.width,
            "heads": text.heads, "layers": text.layers,
        });
        Some(json!({ "embed_dim": self.encoder.feature_dim(), "vision_cfg": vision, "text_cfg": text }))
    }
}
