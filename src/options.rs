//! Flags that choose data and settings; each is a short name for configuration keys.

use crate::error::CliError;
use clap::Args;
use sogclr::config::Overrides;
use std::path::PathBuf;

#[derive(Args, Clone, Default)]
pub struct RunOptions {
    /// Folder of images (any depth), a .zip or .tar of one, tar shards, a .txt list, what `sogclr pack` made, CIFAR binary
    /// batches or IDX files (docs/data.md); the embedded Fashion-MNIST if left out
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
    /// What the classes are: `first` (the first folders below DATA, the default), `leaf` (each image's own folder), `path:N` (the
    /// N-th folder on the way), or a .csv file of image and class
    #[arg(long, value_name = "WHAT")]
    pub labels: Option<String>,
    /// Leave out files and folders: a pattern of their path below DATA or of their name, such as '*_mask.png' or thumbs; may be
    /// given several times
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
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
    /// Compare the content of every image with what it was at each read, also where its size and time are the same
    #[arg(long)]
    pub verify_content: bool,
    /// Leave out the images of a list: the quarantine.txt of `sogclr check`, or a file with a name on each line
    #[arg(long, value_name = "FILE")]
    pub quarantine: Option<PathBuf>,
    /// Leave photographs as they are stored, as torchvision does, whatever their EXIF data say of how the camera was held
    #[arg(long)]
    pub ignore_orientation: bool,
    /// Side of the crops in pixels, unless --views says otherwise, and of images at evaluation; follows the images unless
    /// given
    ///
    /// Beyond 64 pixels the defaults are those of photographs, up to 64 those of CIFAR: encoder and its first layer, batch,
    /// strength of the augmentation, and the learning rate follow. `sogclr config show` prints them.
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
    /// What your task needs and augmentation must not destroy: colour, orientation, scale, texture, or several with commas
    ///
    /// colour for food, flowers, stained tissue; orientation for digits, text, maps; scale for parts and cells; texture for
    /// fabrics and surfaces. docs/augmentation.md has a table; `sogclr advise DATA` tries them on your images.
    #[arg(long, value_name = "WHAT")]
    pub keep: Option<String>,
    /// sogclr, simclr, dcl, flatnce, simo, moco, nnclr, infomin, isogclr, debiased, supcon (needs labels), byol, simsiam,
    /// barlow-twins or vicreg; of image–text pairs sogclr, clip, isogclr, fastclip or siglip
    #[arg(long, value_name = "NAME")]
    pub method: Option<String>,
    /// resnet8, 14, 20, 32, 56 (small images), resnet18, 34, 50, 101 or 152; vit-tiny, vit-small or vit-base; clip-s (the
    /// paper's for image–text pairs), clip-xs or clip-vit-xs. Each takes images alone and pairs
    #[arg(long, value_name = "NAME")]
    pub encoder: Option<String>,
    /// Width of a ResNet: 2 has twice the channels, 0.5 half of them
    #[arg(long, value_name = "FACTOR")]
    pub width: Option<f64>,
    /// Temperature τ of the method's similarities
    #[arg(long, value_name = "TAU")]
    pub temperature: Option<f64>,
    /// SogCLR's γ, how much of the moving average u is replaced at each visit: a number up to 1, `cosine` or `adaptive`
    #[arg(long, value_name = "GAMMA")]
    pub gamma: Option<String>,
    /// lars, sgd, adamw or momentum (the paper's Algorithm 1); each comes with its own learning rate
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Learning rate before it is scaled by the batch (`learning_rate.scaling` says how)
    #[arg(long, value_name = "LR")]
    pub lr: Option<f64>,
    /// Weight decay of the optimiser
    #[arg(long, value_name = "DECAY")]
    pub weight_decay: Option<f64>,
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
    /// Weights to start from: a safetensors file with torchvision's names, or open_clip's for image–text pairs; or a run
    ///
    /// Of a run with the same encoder: its newest weights, its head where that is the same, and u of the images that are the
    /// same by content where method and temperature are, too.
    #[arg(long, value_name = "FILE or RUN")]
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
    ("data.labels", "--labels"),
    ("data.exclude", "--exclude"),
    ("data.limit", "--limit"),
    ("data.skip_bad", "--skip-bad"),
    ("data.verify_content", "--verify-content"),
    ("data.check", "--check"),
    ("data.quarantine", "--quarantine"),
    ("data.ignore_orientation", "--ignore-orientation"),
    ("data.image_size", "--image-size"),
    ("data.eval_size", "--eval-size"),
    ("augment.views", "--views"),
    ("augment.keep", "--keep"),
    ("method.kind", "--method"),
    ("encoder.name", "--encoder"),
    ("encoder.width", "--width"),
    ("method.temperature", "--temperature"),
    ("method.gamma", "--gamma"),
    ("optimizer.kind", "--optimizer"),
    ("optimizer.weight_decay", "--weight-decay"),
    ("learning_rate.base", "--lr"),
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
        let real = |value: Option<f64>| value.map(toml::Value::Float);
        let exclude = self.exclude.iter().cloned().map(toml::Value::String).collect::<Vec<_>>();
        // A number is γ itself, a word its schedule.
        let gamma = self.gamma.as_ref().map(|text| match text.parse() {
            Ok(value) => toml::Value::Float(value),
            Err(_) => toml::Table::from_iter([("kind".to_owned(), toml::Value::String(text.clone()))]).into(),
        });
        let flags = [
            ("data.path", path(&self.data)),
            ("data.pairs", path(&self.pairs)),
            ("data.images", path(&self.images)),
            ("data.template", word(&self.template)),
            ("data.test", path(&self.test)),
            ("data.classes", path(&self.classes)),
            ("data.labels", word(&self.labels)),
            ("data.exclude", (!exclude.is_empty()).then_some(toml::Value::Array(exclude))),
            ("data.limit", number(self.limit)),
            ("data.skip_bad", self.skip_bad.then_some(toml::Value::Boolean(true))),
            ("data.verify_content", self.verify_content.then_some(toml::Value::Boolean(true))),
            ("data.check", word(&self.check)),
            ("data.quarantine", path(&self.quarantine)),
            ("data.ignore_orientation", self.ignore_orientation.then_some(toml::Value::Boolean(true))),
            ("data.image_size", number(self.image_size)),
            ("data.eval_size", number(self.eval_size)),
            ("augment.views", word(&self.views)),
            ("augment.keep", word(&self.keep)),
            ("encoder.name", word(&self.encoder)),
            ("encoder.width", real(self.width)),
            ("method.temperature", real(self.temperature)),
            ("method.gamma", gamma),
            ("optimizer.kind", word(&self.optimizer)),
            ("optimizer.weight_decay", real(self.weight_decay)),
            ("learning_rate.base", real(self.lr)),
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
