//! `load.py`: a run's encoder in PyTorch, as a program that a user can import.

use super::ModelConfig;
use serde_json::Value;

const PREAMBLE: &str = include_str!("load/images.py");
const PAIRS: &str = include_str!("load/pairs.py");
const CLIP: &str = include_str!("load/clip.py");
const PREPROCESS: &str = include_str!("load/preprocess.py");
/// For images that Pillow does not know.
const ARRAYS: &str = include_str!("load/arrays.py");

/// What the program prepares for the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pictures {
    /// Pillow's images, turned first as EXIF data say if they are `upright`.
    Pillow {
        /// As the camera was held.
        upright: bool,
    },
    /// NumPy's arrays, of any depth and number of channels.
    Arrays,
}

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
/// `resize`, the centre of `size`, normalised by `mean` and `std`.
pub fn load_script(
    model: &ModelConfig,
    [resize, size]: [usize; 2],
    mean: &[f32],
    std: &[f32],
    pictures: Pictures,
) -> String {
    let spec = model.encoder.spec();
    let mut settings = format!("RESIZE, SIZE = {resize}, {size}\nMEAN, STD = {mean:?}, {std:?}\n");
    let loader = spec.python(model.image_size, model.channels);
    let preprocess = match pictures {
        Pictures::Pillow { upright } if model.channels == 3 => {
            settings += if upright { "UPRIGHT = True\n" } else { "UPRIGHT = False\n" };
            PREPROCESS
        }
        _ => ARRAYS,
    };
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
    let text = match pictures {
        Pictures::Arrays => text.replace("PIL.Image.open(\"photo.jpg\")", "numpy.load(\"image.npy\")"),
        Pictures::Pillow { .. } => text.to_owned(),
    };
    let needs: String = loader.needs.iter().map(|package| format!(" {package},")).collect();
    settings += &(loader.settings + "\n");
    text.replace("TRUNK\n", program).replace("NEEDS", &needs).replace("SETTINGS\n", &settings) + preprocess
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::TextConfig;

    fn script(encoder: &str, size: usize, text: Option<TextConfig>) -> String {
        let encoder = toml::from_str(encoder).unwrap();
        let model = ModelConfig { encoder, head: None, text, image_size: size, channels: 3 };
        load_script(&model, [size + 4, size], &[0.5, 0.25, 0.125], &[1.0, 2.0, 0.1], Pictures::Pillow { upright: true })
    }

    const RESNET: &str = "name = 'resnet18'\nwidth = 0.5\nstem = 'imagenet'";
    const BOTTLENECK: &str = "name = 'resnet50'\nwidth = 1.0\nstem = 'cifar'";
    const VIT: &str = "name = 'vit-tiny'\npatch = 4\npool = 'mean'\nfreeze_patches = false";
    const CLIP_RESNET: &str = "name = 'clip-xs'\nwidth = 1.0";
    const CLIP_VIT: &str = "name = 'clip-vit-xs'\nwidth = 1.0";

    fn text() -> Option<TextConfig> {
        Some(TextConfig { context: 20, output: Some(40), ..TextConfig::clip_s() })
    }

    fn assert_lines(script: &str, lines: &[&str]) {
        for line in lines {
            assert!(script.lines().any(|other| other == *line), "no line {line:?} in\n{script}");
        }
    }

    #[test]
    fn a_resnets_program_has_its_stages() {
        let lines = [
            "RESIZE, SIZE = 228, 224",
            "UPRIGHT = True",
            "MEAN, STD = [0.5, 0.25, 0.125], [1.0, 2.0, 0.1]",
            "CHANNELS, STEM, SMALL_STEM = 3, 32, False",
            "STAGES = [(2, 32, 1), (2, 64, 2), (2, 128, 2), (2, 256, 2)]",
            "EXPANSION = 1",
        ];
        assert_lines(&script(RESNET, 224, None), &lines);
        let lines = ["CHANNELS, STEM, SMALL_STEM = 3, 64, True", "EXPANSION = 4"];
        assert_lines(&script(BOTTLENECK, 32, None), &lines);
    }

    #[test]
    fn what_pillow_does_not_know_comes_as_an_array() {
        let encoder = toml::from_str(RESNET).unwrap();
        let model = ModelConfig { encoder, head: None, text: None, image_size: 64, channels: 3 };
        let of = |pictures| load_script(&model, [68, 64], &[0.5; 3], &[1.0; 3], pictures);
        let [photos, arrays] = [Pictures::Pillow { upright: false }, Pictures::Arrays].map(of);
        assert!(
            photos.contains("exif_transpose(") && !arrays.contains("photo.jpg") && !arrays.contains("exif_transpose(")
        );
        assert_lines(&arrays, &["RESIZE, SIZE = 68, 64", "def preprocess(pixels):"]);
    }

    #[test]
    fn a_transformers_program_has_its_sizes_and_names_timm() {
        let script = script(VIT, 32, None);
        let line = "CHANNELS, WIDTH, DEPTH, HEADS, PATCH, POOL, IMAGE = 3, 192, 12, 3, 4, \"avg\", 32";
        assert_lines(&script, &[line]);
        assert!(script.contains("Needs torch, timm, safetensors and pillow."), "{script}");
    }

    #[test]
    fn a_pair_runs_program_puts_its_encoder_into_open_clips_place() {
        let script = script(RESNET, 224, text());
        let lines = [
            "CONTEXT, SHARED, FEATURES = 20, 40, 256",
            r#"TEXT = {"context_length":20,"vocab_size":49408,"width":128,"heads":8,"layers":8}"#,
            "STAGES = [(2, 32, 1), (2, 64, 2), (2, 128, 2), (2, 256, 2)]",
            "def trunk():",
            "class Visual(nn.Module):",
            "def preprocess(image):",
        ];
        assert_lines(&script, &lines);
    }

    #[test]
    fn a_clip_pairs_program_is_open_clips_alone() {
        let script = script(CLIP_RESNET, 64, text());
        assert_lines(&script, &["CONTEXT = 20", "RESIZE, SIZE = 68, 64", "def preprocess(image):"]);
        assert!(!script.contains("trunk"), "{script}");
    }

    #[test]
    fn an_image_run_of_a_clip_encoder_builds_open_clips_tower() {
        let line = r#"OUTPUT, VISION = 256, {"layers":[1,1,1,1],"width":24,"image_size":64}"#;
        assert_lines(&script(CLIP_RESNET, 64, None), &[line]);
    }

    /// A name in capitals is a setting, or a placeholder that was not filled.
    #[test]
    fn every_setting_that_a_program_uses_is_set() {
        let capitals = regex::Regex::new(r"\b[A-Z][A-Z_]+\b").unwrap();
        let assignment = regex::Regex::new(r"(?m)^([A-Z_, ]+) = ").unwrap();
        for (encoder, size) in [(RESNET, 224), (BOTTLENECK, 32), (VIT, 32), (CLIP_RESNET, 64), (CLIP_VIT, 64)] {
            for text in [None, text()] {
                let script = script(encoder, size, text);
                let names = |line: regex::Captures| line[1].split(", ").map(str::to_owned).collect::<Vec<_>>();
                let mut known: Vec<String> = assignment.captures_iter(&script).flat_map(names).collect();
                known.extend(["PIL", "RGB", "BICUBIC", "CLIP"].map(str::to_owned));
                let unset = capitals.find_iter(&script).find(|name| known.iter().all(|other| other != name.as_str()));
                assert!(unset.is_none(), "{unset:?} in\n{script}");
            }
        }
    }
}
