//! Encoders as ONNX files, which other programs run without ours or Python: opset 17, any number of images at once, in the metadata
//! how images are prepared. Written by hand with `prost`: a graph of a few kinds of nodes whose initialisers keep the names of the
//! parameters. [`Exported::differs_by`] lets another engine run the file.
//!
//! Adding an encoder: a function from images to features here, and its line in `features`.

mod graph;
mod proof;
mod proto;
mod resnet;
mod transformer;

pub use proof::{Difference, ProofError};

use crate::config::RunConfig;
use crate::encoder::{Compute, EncoderConfig, from_open_clip};
use crate::trained::{TrainedError, TrainedRun};
use graph::{Graph, Value};
use proto::{FLOAT, INT64, ValueInfo};

/// Where the normalisation of pixels takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Whoever runs the file subtracts the means and divides by the deviations.
    Normalised,
    /// The file does; it takes values from 0 to 1.
    Unit,
}

/// The encoders of a run as ONNX files.
pub struct Exported {
    /// From images `[batch, channels, side, side]` to features, or to embeddings that texts share.
    pub image: Vec<u8>,
    /// From ids of tokens `[batch, context]` to embeddings; of image–text pairs.
    pub text: Option<Vec<u8>>,
    /// What images are given as.
    pub pixels: Pixels,
}

impl Exported {
    /// The newest encoder of `run`.
    pub fn of(run: &TrainedRun, pixels: Pixels) -> Result<Self, TrainedError> {
        // Checks the weights, whose names and shapes the graphs are made of.
        run.encoder(Compute::cpu())?;
        let weights = run.exported_weights()?;
        let config = &run.config;
        let weights = match config.text {
            Some(_) => from_open_clip(&weights),
            None => weights.into_iter().map(|(name, tensor)| (format!("encoder.{name}"), tensor)).collect(),
        };
        let (size, channels) = (config.eval_size(), config.augment.channels());
        let mut graph = Graph::new(&weights);
        let input = ValueInfo::batch_of("pixels", FLOAT, &[channels, size, size]);
        let x = match pixels {
            Pixels::Normalised => "pixels".to_owned(),
            Pixels::Unit => normalised(&mut graph, config),
        };
        let mut y = features(&mut graph, &x, config);
        let mut dimension = config.encoder.feature_dim();
        if graph.has("projection.weight") {
            y = graph.linear(&y, "projection.weight", None);
            dimension = graph.shape("projection.weight")[0];
        }
        let image = graph.finish(input, &y, dimension, metadata(run, pixels));
        let text = config.text.as_ref().map(|text| {
            let mut graph = Graph::new(&weights);
            let y = transformer::text(&mut graph, "ids", text.heads);
            let dimension = graph.shape("text.text_projection")[1];
            let tokens = ("tokens".to_owned(), "CLIP's, zeros behind the end".to_owned());
            graph.finish(ValueInfo::batch_of("ids", INT64, &[text.context]), &y, dimension, vec![tokens])
        });
        Ok(Self { image, text, pixels })
    }
}

/// The operations of an encoder.
fn features(graph: &mut Graph, x: &str, config: &RunConfig) -> Value {
    match &config.encoder {
        EncoderConfig::ResNet(_) => resnet::resnet(graph, x),
        EncoderConfig::ClipResNet(_) => resnet::clip_resnet(graph, x),
        EncoderConfig::Vit(_) => transformer::vit(graph, x),
        EncoderConfig::ClipVit(_) => {
            let arguments = config.encoder.spec().open_clip(config.eval_size());
            let head = arguments.and_then(|vision| vision["head_width"].as_u64()).expect("CLIP's ViT is open_clip's");
            transformer::clip_vit(graph, x, head as usize)
        }
    }
}

/// (x − mean)/std of each channel.
fn normalised(graph: &mut Graph, config: &RunConfig) -> Value {
    let channels = config.augment.channels();
    let mean = graph.constant(&[1, channels, 1, 1], &config.augment.mean);
    let std = graph.constant(&[1, channels, 1, 1], &config.augment.std);
    let x = graph.node("Sub", &["pixels", &mean], Vec::new());
    graph.node("Div", &[&x, &std], Vec::new())
}

/// How images are prepared, for whoever runs the file.
fn metadata(run: &TrainedRun, pixels: Pixels) -> Vec<(String, String)> {
    let augment = &run.config.augment;
    let size = run.config.eval_size();
    let list = |values: &[f32]| values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    let input = match pixels {
        Pixels::Normalised => "(x - mean) / std, x from 0 to 1",
        Pixels::Unit => "x from 0 to 1; the graph normalises",
    };
    let entries = [
        ("encoder", run.config.encoder.name().to_owned()),
        ("step", run.step().unwrap_or_default().to_string()),
        ("resize", format!("shortest side to {}, bicubic, antialiased", augment.centre_resize(size))),
        ("crop", format!("centre, {size}")),
        ("layout", "NCHW, RGB".into()),
        ("mean", list(&augment.mean)),
        ("std", list(&augment.std)),
        ("input", input.into()),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}
