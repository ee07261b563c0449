//! `load.py`: a run's encoder in PyTorch, as a program that a user can import.

use super::ModelConfig;
use serde_json::Value;

const PREAMBLE: &str = include_str!("load/images.py");
const PAIRS: &str = include_str!("load/pairs.py");
const CLIP: &str = include_str!("load/clip.py");
const PREPROCESS: &str = include_str!("load/preprocess.py");
/// For images that Pillow does not know.
const NORMALISE: &str = include_str!("load/normalise.py");

/// How an encoder is built in Python.
pub struct PythonLoader {
    /// Packages beside torch, safetensors and pillow.
    pub needs: &'static [&'static str],
    /// Constants that `program` uses.
    pub settings: String,
    /// Defines `trunk()`, the encoder without weights.
    pub program: &'static str,
}

impl PythonLoader {
    /// A vision tower of open_clip.
    pub(super) fn of_open_clip(vision: Option<Value>, output: usize) -> Self {
        let settings = format!("OUTPUT, VISION = {output}, {}", vision.unwrap_or_default());
        Self { needs: &["open_clip_torch"], settings, program: include_str!("load/open_clip.py") }
    }
}

/// A program that builds the model, loads the exported weights, and prepares images as evaluation does: shortest side to
/// `resize`, the centre of the model's size, normalised by `mean` and `std`.
pub fn load_script(model: &ModelConfig, resize: usize, mean: &[f32], std: &[f32]) -> String {
    let (size, spec) = (model.image_size, model.encoder.spec());
    let mut settings = format!("RESIZE, SIZE = {resize}, {size}\nMEAN, STD = {mean:?}, {std:?}\n");
    let loader = spec.python(size, model.channels);
    let preprocess = if model.channels == 3 { PREPROCESS } else { NORMALISE };
    let (text, program) = match &model.text {
        None => (PREAMBLE, loader.program),
        Some(text) if model.open_clip().is_some() => {
            settings += &format!("CONTEXT = {}\n", text.context);
            return CLIP.replace("SETTINGS\n", &settings) + preprocess;
        }
        Some(text) => {
            let (dim, features) = (model.output(), spec.feature_dim());
            settings += &format!(
                "CONTEXT, SHARED, FEATURES = {}, {dim}, {features}\nTEXT = {}\n",
                text.context,
                text.open_clip()
            );
            (PAIRS, loader.program)
        }
    };
    let needs: String = loader.needs.iter().map(|package| format!(" {package},")).collect();
    settings += &(loader.settings + "\n");
    text.replace("TRUNK\n", program).replace("NEEDS", &needs).replace("SETTINGS\n", &settings) + preprocess
}
