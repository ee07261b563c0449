//! `load.py`: a run's encoder in PyTorch, as a program that a user can import.

use super::{EncoderConfig, Stem};
use crate::augment::AugmentConfig;

const RESNET: &str = include_str!("load_resnet.py");
const CLIP: &str = include_str!("load_clip.py");
const IMAGE: &str = include_str!("load_image.py");

impl EncoderConfig {
    /// Builds the model that the exported weights fit into, loads them, and prepares images as `augment` does for
    /// evaluation. `context`: tokens of a text, where the run has texts.
    pub fn load_script(&self, augment: &AugmentConfig, context: Option<usize>) -> String {
        let size = augment.views[0].size;
        let mut settings = format!(
            "RESIZE, SIZE = {}, {size}\nMEAN, STD = {:?}, {:?}",
            augment.centre_resize(size),
            augment.mean,
            augment.std
        );
        let program = match context {
            Some(context) => {
                settings += &format!("\nCONTEXT = {context}");
                CLIP
            }
            None => {
                let plan = self.plan();
                let is_small = if self.stem == Stem::Cifar { "True" } else { "False" };
                settings += &format!(
                    "\nSTEM, SMALL_STEM = {}, {is_small}\n# Blocks, channels and first stride of each stage.\nSTAGES = {:?}\nEXPANSION = {}",
                    plan.stem_channels,
                    plan.stages,
                    if plan.bottleneck { 4 } else { 1 }
                );
                RESNET
            }
        };
        program.replace("SETTINGS\n", &(settings + "\n")) + IMAGE
    }
}
