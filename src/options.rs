//! Flags that choose data and settings; each is a short name for configuration keys.

use crate::error::CliError;
use clap::Args;
use sogclr::config::Overrides;
use std::path::PathBuf;

#[derive(Args, Clone, Default)]
pub struct RunOptions {
    /// Folder of images (any depth), a .zip or .tar of one, tar shards, a .txt list, CIFAR binary batches or IDX files
    /// (docs/data.md); the embedded Fashion-MNIST if left out
    pub data: Option<PathBuf>,
    /// Image–text pairs instead: a .tsv, .csv or .jsonl of image and caption, Flickr8k.token.txt, or tar shards
    ///
    /// Tables have the columns `image` and `caption` (or exactly two); an image may have several captions, of which each
    /// epoch draws one. Shards are .tar files of jpg + txt or json, or a folder of them. `emoji` is the embedded set.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub pairs: Option<PathBuf>,
    /// Folder or .zip with the images of --pairs; beside the table unless given
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Make pairs of labelled images: a caption with [CLASS] in it, such as "This is a photo of [CLASS]"
    #[arg(long, value_name = "TEXT")]
    pub template: Option<String>,
    /// Test images, in any form of DATA, if DATA has no val/ or test/ of its own; with --pairs, a file of held-out pairs
    #[arg(long, value_name = "DIR")]
    pub test: Option<PathBuf>,
    /// File with one class name on each line: use only these
    #[arg(long, value_name = "FILE")]
    pub classes: Option<PathBuf>,
    /// Use only N training images, the same share of each class
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Leave out images and captions that cannot be used; RUN/problems.txt names them
    #[arg(long)]
    pub skip_bad: bool,
    /// Images to read and decode before the run begins: all, sample (a thousand) or none
    ///
    /// What was checked before is remembered, in the user's cache folder, and not read again. A broken image that nobody
    /// looked at stops the run, after a checkpoint, when it is met.
    #[arg(long, value_name = "WHICH")]
    pub check: Option<String>,
    /// Leave photographs as they are stored, as torchvision does, whatever their EXIF data say of how the camera was held
    #[arg(long)]
    pub ignore_orientation: bool,
    /// Side of the crops in pixels, unless --views says otherwise, and of images at evaluation; follows the images unless
    /// given
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,
    /// Side of images at evaluation, in `embed` and in load.py, where it is not that of the crops
    ///
    /// The images' own, 224 for large ones, unless given: an encoder trained on the small crops of --views is used on
    /// whole images.
    #[arg(long, value_name = "PIXELS")]
    pub eval_size: Option<usize>,
    /// Crops of each image, large ones first: 2x224, or 4x160+2x96 for multi-crop
    #[arg(long, value_name = "CROPS")]
    pub views: Option<String>,
    /// sogclr, simclr, dcl, flatnce, simo, moco, nnclr, infomin, isogclr, debiased, supcon (needs labels), byol, simsiam,
    /// barlow-twins or vicreg; of image–text pairs sogclr, clip, isogclr, fastclip or siglip
    #[arg(long, value_name = "NAME")]
    pub method: Option<String>,
    /// resnet8, 14, 20, 32, 56 (small images), resnet18, 34, 50, 101 or 152; vit-tiny, vit-small or vit-base; clip-s (the
    /// paper's for image–text pairs), clip-xs or clip-vit-xs. Each takes images alone and pairs
    #[arg(long, value_name = "NAME")]
    pub encoder: Option<String>,
    /// Images in each step; small ones are what SogCLR is for
    #[arg(long, value_name = "B")]
    pub batch: Option<usize>,
    /// Images that go through the network at once, for batches that do not fit into memory
    ///
    /// The embeddings of the whole batch are computed in chunks of M, the loss contrasts all of them, and the gradient
    /// goes back chunk by chunk (gradient caching): every image has the whole batch as negatives, at the price of a
    /// second forward pass. Ordinary gradient accumulation would not add negatives. Batch norm sees M images at a time.
    #[arg(long, value_name = "M")]
    pub micro_batch: Option<usize>,
    /// Passes over the data
    #[arg(long, value_name = "E")]
    pub epochs: Option<usize>,
    /// Seed of every random choice
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(..1 << 63))]
    pub seed: Option<u64>,
    /// cpu, cpu-exact (no Winograd: rounds less, slower), wgpu or cuda
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// What activations are stored as on the CPU: f32, or bf16 for half the memory, and faster
    #[arg(long, value_name = "NAME")]
    pub precision: Option<String>,
    /// Safetensors file with weights to start from: torchvision's names, or open_clip's for image–text pairs
    #[arg(long, value_name = "FILE")]
    pub init: Option<PathBuf>,
    /// Keep the checkpoint of every E-th epoch
    #[arg(long, value_name = "E")]
    pub keep_every: Option<usize>,
    /// Recipe to start from; the other flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set any configuration key, e.g. method.temperature=0.2 (`sogclr config reference` lists them); where a flag of its own says
    /// otherwise, that flag wins
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

/// Keys of the configuration that have a flag of their own.
pub const FLAGS: &[(&str, &str)] = &[
    ("data.pairs", "--pairs"),
    ("data.images", "--images"),
    ("data.template", "--template"),
    ("data.test", "--test"),
    ("data.classes", "--classes"),
    ("data.class_names", "--set data.class_names=FILE, or --class-names FILE to eval zeroshot"),
    ("data.limit", "--limit"),
    ("data.skip_bad", "--skip-bad"),
    ("data.check", "--check"),
    ("data.ignore_orientation", "--ignore-orientation"),
    ("data.image_size", "--image-size"),
    ("data.eval_size", "--eval-size"),
    ("augment.views", "--views"),
    ("method.kind", "--method"),
    ("encoder.name", "--encoder"),
    ("train.batch", "--batch"),
    ("train.micro_batch", "--micro-batch"),
    ("train.epochs", "--epochs"),
    ("train.device", "--device"),
    ("train.precision", "--precision"),
    ("train.init", "--init"),
    ("train.keep_every", "--keep-every"),
];

impl RunOptions {
    /// Recipe, then `--method`, then `--set`, whose keys are that method's, then the other flags.
    pub fn overrides(&self) -> Result<Overrides, CliError> {
        let mut overrides = match &self.config {
            Some(path) => Overrides::from_file(path)?,
            None => Overrides::default(),
        };
        if let Some(method) = &self.method {
            overrides.lay("method.kind", toml::Value::String(method.clone()));
        }
        for assignment in &self.sets {
            overrides.set(assignment)?;
        }
        let path = |path: &Option<PathBuf>| Some(toml::Value::String(path.as_ref()?.to_string_lossy().into_owned()));
        let number = |value: Option<usize>| value.map(|v| toml::Value::Integer(v as i64));
        let word = |value: &Option<String>| value.clone().map(toml::Value::String);
        let flags = [
            ("data.path", path(&self.data)),
            ("data.pairs", path(&self.pairs)),
            ("data.images", path(&self.images)),
            ("data.template", word(&self.template)),
            ("data.test", path(&self.test)),
            ("data.classes", path(&self.classes)),
            ("data.limit", number(self.limit)),
            ("data.skip_bad", self.skip_bad.then_some(toml::Value::Boolean(true))),
            ("data.check", word(&self.check)),
            ("data.ignore_orientation", self.ignore_orientation.then_some(toml::Value::Boolean(true))),
            ("data.image_size", number(self.image_size)),
            ("data.eval_size", number(self.eval_size)),
            ("augment.views", word(&self.views)),
            ("encoder.name", word(&self.encoder)),
            ("train.batch", number(self.batch)),
            ("train.micro_batch", number(self.micro_batch)),
            ("train.epochs", number(self.epochs)),
            ("train.device", word(&self.device)),
            ("train.precision", word(&self.precision)),
            ("train.init", path(&self.init)),
            ("train.keep_every", number(self.keep_every)),
            ("seed", self.seed.map(|seed| toml::Value::Integer(seed as i64))),
        ];
        for (key, value) in flags {
            if let Some(value) = value {
                overrides.lay(key, value);
            }
        }
        Ok(overrides)
    }
}
