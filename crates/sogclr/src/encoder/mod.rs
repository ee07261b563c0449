//! Encoders and projection heads as burn modules. Module paths are torchvision's state-dict names, so a
//! parameter has one name everywhere: in the module, the optimiser, the checkpoint and the exported file. Models of
//! image–text pairs are exported under open_clip's names.
//!
//! Adding an encoder: a new file here, and its name in [`EncoderName`].

mod batch_norm;
mod clip_resnet;
mod config;
mod cpu;
mod head;
mod image;
mod layers;
mod load_script;
mod model;
mod open_clip;
mod params;
mod resnet;
mod text;
mod transformer;
mod vit;

pub use batch_norm::{BatchNorm, BufferUpdates, Pass};
pub use clip_resnet::{ClipResNet, ClipResNetConfig};
pub use config::{EncoderConfig, EncoderName, HeadConfig, Stem};
pub(crate) use cpu::in_place;
pub use cpu::use_plain_operations;
pub use head::Head;
pub use image::ImageEncoder;
pub use layers::Linear;
pub use model::{Model, ModelConfig};
pub use open_clip::{from_open_clip, to_open_clip};
pub use params::{HostTensor, NamedTensors, ParamError, apply_buffers, export, import, initialise};
pub(crate) use params::{NamedMapper, NamedVisitor, map_named, visit_named};
pub use resnet::ResNet;
pub use text::{TextConfig, TextEncoder};
pub use vit::{VisionTransformer, VitConfig};
