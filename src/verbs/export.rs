//! `sogclr export`: the encoder for other programs.

use super::eval::{open_run, readable_images, say_if_unfinished};
use crate::error::CliError;
use crate::output::{refuse_existing_file, say};
use clap::{Args, ValueEnum};
use sogclr::onnx::{Difference, Exported, Pixels, ProofError};
use sogclr::storage::write_atomic;
use std::path::PathBuf;

/// Write the encoder as a file that other programs run.
///
/// ONNX (opset 17, any number of images at once): every encoder, and the text encoder of image–text pairs beside it. How images are
/// prepared stands in its metadata. Another engine then runs the file on images of the run, and the largest difference from
/// our own features is printed. For torchvision, timm and open_clip RUN/encoder.safetensors already has their names, and
/// RUN/load.py loads it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sogclr export runs/photos --to onnx                    # writes runs/photos/encoder.onnx\n  \
    sogclr export runs/photos --to onnx --unit-pixels --out photos.onnx"
)]
pub struct Export {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
    /// What to write
    #[arg(long, value_enum)]
    to: Target,
    /// File to write; encoder.onnx in the run's folder unless given. The text encoder is FILE-text.onnx
    #[arg(long, value_name = "FILE.onnx")]
    out: Option<PathBuf>,
    /// Have the file take pixels from 0 to 1, and subtract means and divide by deviations itself
    #[arg(long)]
    unit_pixels: bool,
    /// Folder or .zip of images to compare on; the run's training images unless given
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Side of the images in pixels; the run's own size of evaluation unless given
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// One .onnx file for each encoder
    Onnx,
}

impl Export {
    pub fn run(self) -> Result<(), CliError> {
        let Target::Onnx = self.to;
        let out = self.out.clone().unwrap_or_else(|| self.run.join("encoder.onnx"));
        let run = open_run(&self.run, self.image_size)?;
        let text_out =
            out.with_file_name(format!("{}-text.onnx", out.file_stem().unwrap_or_default().to_string_lossy()));
        for file in [Some(&out), run.config.text.is_some().then_some(&text_out)].into_iter().flatten() {
            if !self.force {
                refuse_existing_file(file, "--out, or --force")?;
            }
        }
        say_if_unfinished(&run);
        let (split, _) = readable_images(&run, self.images.as_deref())?;
        let exported = Exported::of(&run, if self.unit_pixels { Pixels::Unit } else { Pixels::Normalised })?;
        let found = exported.differs_by(&run, &split).map_err(failed)?;
        let of_texts = exported.texts_differ_by(&run).map_err(failed)?;
        // What does not compute the same is not left lying about.
        for (what, found) in [("images", Some(found)), ("texts", of_texts)] {
            let Some(Difference { compared, absolute, relative }) = found else { continue };
            if relative > Difference::MOST {
                let text = format!(
                    "rten's features of {compared} {what} differ from ours by {relative:.1e} of their length: nothing is written"
                );
                return Err(CliError::Failed(text));
            }
            say!("{compared} {what} in rten: largest difference {absolute:.1e}, {relative:.1e} of a feature's length");
        }
        write_atomic(&out, &exported.image)?;
        say!("{}: {:.1} MB", out.display(), exported.image.len() as f64 / 1e6);
        if let Some(text) = &exported.text {
            write_atomic(&text_out, text)?;
            say!("{}: {:.1} MB, ids of CLIP's tokens → embeddings", text_out.display(), text.len() as f64 / 1e6);
        }
        let imports = if self.unit_pixels { "MEAN, STD, preprocess" } else { "preprocess" };
        let unit = "numpy.array([STD, MEAN], numpy.float32)[:, None, :, None, None]";
        let then = if self.unit_pixels {
            format!("; std, mean = {unit}; pixels = pixels * std + mean")
        } else {
            String::new()
        };
        say!(
            "\nimport sys, numpy, onnxruntime, PIL.Image; sys.path.insert(0, {:?})\nfrom load import {imports}\n\
             pixels = preprocess(PIL.Image.open(\"photo.jpg\"))[None].numpy(){then}\n\
             features = onnxruntime.InferenceSession({:?}).run(None, {{\"pixels\": pixels}})[0]",
            self.run.display().to_string(),
            out.display().to_string()
        );
        Ok(())
    }
}

fn failed(error: ProofError) -> CliError {
    match error {
        ProofError::Run(error) => error.into(),
        error => CliError::Failed(format!("{error}; nothing is written")),
    }
}
