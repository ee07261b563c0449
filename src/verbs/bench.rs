//! `sogclr bench`: how fast this machine trains.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::say;
use crate::progress::Counter;
use clap::{Args, Subcommand};
use serde_json::json;
use sogclr::batch::Share;
use sogclr::bench::{self, StepBench, WARM_UP, measure_kernels, measure_loss};
use sogclr::check::Problem;
use sogclr::comm::Group;
use sogclr::config::{DeviceName, RunConfig, check_precision};
use sogclr::data::{Dataset, Modality};
use sogclr::encoder::{Compute, EncoderConfig, HeadConfig, ModelConfig, Precision};
use sogclr::math::Layout;
use sogclr::method::{MethodConfig, Setting};
use sogclr::report::table;
use sogclr::train::open_device;

#[derive(Subcommand)]
pub enum Bench {
    Step(Step),
    Kernels(Kernels),
    Loss(LossBench),
    Data(Box<DataBench>),
    Index(Box<IndexBench>),
}

#[derive(Args)]
struct Work {
    /// Any encoder that `sogclr pretrain --encoder` knows; clip-s, clip-xs and clip-vit-xs make pairs
    #[arg(long, value_name = "NAME", default_value = "resnet20")]
    encoder: String,
    /// Images in a step; each has two views
    #[arg(long, value_name = "B", default_value_t = 64)]
    batch: usize,
    /// Side of the views in pixels; up to 64 the stem is CIFAR's
    #[arg(long, value_name = "PIXELS", default_value_t = 32)]
    image_size: usize,
    /// cpu, cpu-exact (no Winograd), wgpu or cuda
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: DeviceName,
    /// What activations are stored as: f32 or bf16
    #[arg(long, value_name = "NAME", default_value = "f32")]
    precision: Precision,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Work {
    fn check(&self) -> Result<EncoderConfig, CliError> {
        if self.batch < 2 {
            return Err(CliError::Input(format!("--batch is {}: contrasting needs at least 2 images", self.batch)));
        }
        if self.image_size < 8 {
            return Err(CliError::Input(format!("--image-size is {}: use at least 8 pixels", self.image_size)));
        }
        let wrong = |problem: Problem| CliError::Input(format!("--encoder {}", problem.text));
        let encoder = EncoderConfig::named(&self.encoder, self.image_size).map_err(wrong)?;
        encoder.spec().check(self.image_size).map_err(wrong)?;
        let refused = |problem: Problem| CliError::Input(format!("--precision {}", problem.text));
        check_precision(self.precision, self.device).map_err(refused)?;
        Ok(encoder)
    }

    fn compute(&self) -> Result<Compute, CliError> {
        Ok(open_device(self.device)?.with_precision(self.precision))
    }
}

/// Time a whole training step: two views, forward, SogCLR loss, backward and SGD, on random images in memory.
///
/// With a clip encoder it is a step on image–text pairs: images and texts of 8 to 24 words, the two-way loss and AdamW.
/// `views_per_s` counts images through the network, two for each image of the batch, or one for each pair. bench/compare
/// runs the same step in PyTorch beside it.
#[derive(Args)]
pub struct Step {
    #[command(flatten)]
    work: Work,
    /// Steps to time, after three that are not counted
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: usize,
}

/// Time each convolution of a network: forward, input gradient and weight gradient.
///
/// Speeds are GFLOP/s of the direct sum, and as a share of what binds: the fastest matrix product on the same threads, or,
/// marked m, the memory. Winograd's algorithm does the same work with fewer multiplications and so can exceed 100 %.
#[derive(Args)]
pub struct Kernels {
    #[command(flatten)]
    work: Work,
}

/// Time a loss alone: normalisation, value and all gradients, on random embeddings.
///
/// No loss builds the whole matrix of similarities: memory grows with the batch, not with its square.
#[derive(Args)]
pub struct LossBench {
    /// Any method that `sogclr pretrain --method` knows
    #[arg(long, value_name = "NAME", default_value = "sogclr")]
    method: String,
    /// Image–text pairs in place of two views
    #[arg(long)]
    pairs: bool,
    /// Samples in the batch; each has two views
    #[arg(long, value_name = "B", default_value_t = 256)]
    batch: usize,
    /// Values of an embedding
    #[arg(long, value_name = "D", default_value_t = 128)]
    dim: usize,
    /// Evaluations to time, after two that are not counted
    #[arg(long, value_name = "N", default_value_t = 10)]
    repeats: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Time the making of views, as `pretrain` with the same flags makes them: decode, resize, colours, blur, normalise.
///
/// On one core, and on all threads; the images are read once before, so a disk counts only where they do not fit into
/// memory. bench/compare --only data runs torchvision and albumentations beside it.
#[derive(Args)]
pub struct DataBench {
    #[command(flatten)]
    options: RunOptions,
    /// Measure for so many seconds on one core, and as many on all
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Time and memory of the list of a run's images: to list them, to check them, and to compare them as a resumed run does.
///
/// Of DATA, with the cache of checks as `pretrain` uses it: the second time tells how long a run takes to begin. Or of so many
/// images that are nowhere. Memory is what was resident at the end and at most, less what the program had before.
#[derive(Args)]
pub struct IndexBench {
    #[command(flatten)]
    options: RunOptions,
    /// Imagine so many images in place of DATA
    #[arg(long, value_name = "N", conflicts_with = "data")]
    samples: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl IndexBench {
    fn run(self) -> Result<(), CliError> {
        if self.samples == Some(0) {
            return Err(CliError::Input("--samples is 0: imagine at least 1 image".into()));
        }
        let (config, seed) = self.options.overrides()?.data()?;
        let check = config.check;
        let open = || match self.samples {
            Some(samples) => bench::imagined(samples),
            None => Dataset::open(&config, seed),
        };
        let speed = bench::measure_index(open, check, || {})?;
        if self.json {
            say!("{}", serde_json::to_string(&speed).expect("a report is plain data"));
            return Ok(());
        }
        say!("{} images: listed in {:.1} s, checked in {:.1} s", speed.samples, speed.open_s, speed.check_s);
        say!("compared with their manifest in {:.1} s, ordered in {:.1} s", speed.verify_s, speed.order_s);
        if let (Some(stays), Some(peak)) = (speed.resident_bytes_per_sample, speed.peak_bytes_per_sample) {
            say!("{stays:.0} bytes an image in memory, {peak:.0} at most at once");
        }
        say!("{:.0} bytes an image in the manifest", speed.disk_bytes_per_sample);
        Ok(())
    }
}

impl DataBench {
    fn run(self) -> Result<(), CliError> {
        let (config, data) = RunConfig::open(&self.options.overrides()?)?;
        let (augment, split) = (&config.augment, &data.train);
        // The layout of the CPU's kernels.
        let bench = bench::DataBench { split, augment, layout: Layout::ChannelsLast, seconds: self.seconds };
        let speed = bench.run()?;
        if self.json {
            let mut line = json!({ "images": split.len(), "threads": rayon::current_num_threads() });
            let speed = serde_json::to_value(&speed).expect("a report is plain data");
            if let (Some(line), serde_json::Value::Object(speed)) = (line.as_object_mut(), speed) {
                line.extend(speed);
            }
            say!("{line}");
            return Ok(());
        }
        let cpu = |ms: Option<f64>| ms.map_or(String::new(), |ms| format!(", {ms:.3} ms of CPU time for each"));
        say!("{:.0} views/s on one core{}", speed.views_per_s_core, cpu(speed.cpu_ms_core));
        say!("{:.0} views/s on {} threads{}", speed.views_per_s, rayon::current_num_threads(), cpu(speed.cpu_ms));
        let shares = &speed.shares;
        let parts = [
            ("decode", shares.decode),
            ("resize", shares.resize),
            ("colour", shares.colour),
            ("blur", shares.blur),
            ("normalise", shares.normalise),
        ];
        let parts = parts.map(|(name, share)| format!("{name} {:.0} %", 100.0 * share));
        say!("on one core: {}", parts.join(", "));
        Ok(())
    }
}

impl Bench {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        match self {
            Self::Step(verb) => verb.run(group),
            Self::Kernels(verb) => verb.run(),
            Self::Loss(verb) => verb.run(),
            Self::Data(verb) => verb.run(),
            Self::Index(verb) => verb.run(),
        }
    }
}

impl LossBench {
    fn run(self) -> Result<(), CliError> {
        let (batch, dim) = (self.batch, self.dim);
        if batch < 2 || dim == 0 || self.repeats == 0 {
            return Err(CliError::Input("--batch must be at least 2, --dim and --repeats at least 1".into()));
        }
        let modality = if self.pairs { Modality::Pairs } else { Modality::Images };
        let setting = Setting { is_small: false, is_grey: false, modality, samples: batch, batch, epochs: 1 };
        let method = MethodConfig::named(&self.method, &setting)
            .map_err(|problem| CliError::Input(format!("--method {:?}: {problem}", self.method)))?;
        // On a thread of the pool, as in a training step.
        let report = rayon::scope(|_| measure_loss(method.spec().loss().as_ref(), batch, dim, self.repeats))
            .map_err(|error| CliError::Failed(error.to_string()))?;
        if self.json {
            say!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            return Ok(());
        }
        say!("{:.2} ms for a batch of {batch} (median of {})", report.ms_median, self.repeats);
        if let Some(cpu) = report.cpu_ms {
            say!("{cpu:.2} ms of CPU time on {} threads", rayon::current_num_threads());
        }
        if let Some(peak) = report.peak_rss_mb {
            say!("{peak:.0} MB at most in memory");
        }
        Ok(())
    }
}

impl Step {
    fn run(self, group: &Group) -> Result<(), CliError> {
        let encoder = self.work.check()?;
        if self.steps == 0 {
            return Err(CliError::Input("--steps is 0: time at least 1 step".into()));
        }
        let is_pairs = encoder.spec().is_embedding();
        let model = ModelConfig {
            head: (!is_pairs).then(|| HeadConfig::for_features(encoder.feature_dim())),
            text: is_pairs.then(|| encoder.spec().text()),
            image_size: self.work.image_size,
            channels: 3,
            encoder,
        };
        let compute = self.work.compute()?;
        let (batch, image_size) = (self.work.batch, self.work.image_size);
        let bar = Counter::new("steps", self.steps + WARM_UP);
        let share = Share::of(group, batch, 1, None).map_err(|problem| CliError::Input(problem.to_string()))?;
        let bench = StepBench { model, batch, steps: self.steps, compute };
        let report = bench.run(group, share, || bar.inc(1)).map_err(|error| CliError::Failed(error.to_string()))?;
        drop(bar);
        if self.work.json {
            let mut line = json!({
                "encoder": self.work.encoder, "batch": batch, "image_size": image_size, "steps": self.steps,
                "threads": rayon::current_num_threads(), "ranks": group.size(), "device": self.work.device,
                "precision": self.work.precision,
            });
            let report = serde_json::to_value(&report).expect("a report is plain data");
            if let (Some(line), serde_json::Value::Object(report)) = (line.as_object_mut(), report) {
                line.extend(report);
            }
            say!("{line}");
            return Ok(());
        }
        say!("{:.1} views/s, {:.1} ms per step (median of {})", report.views_per_s, report.step_ms_median, self.steps);
        if let Some(cpu) = report.cpu_s_per_step {
            say!("{:.1} ms of CPU time per step on {} threads", 1e3 * cpu, rayon::current_num_threads());
        }
        if let Some(peak) = report.peak_rss_mb {
            say!("{peak:.0} MB at most in memory");
        }
        Ok(())
    }
}

impl Kernels {
    fn run(self) -> Result<(), CliError> {
        let encoder = self.work.check()?;
        let no_kernels = "only the CPU has kernels to measure: use --device cpu or cpu-exact";
        let compute = if self.work.device.is_cpu() { Some(self.work.compute()?) } else { None };
        let Some(compute) = compute else {
            return Err(CliError::Input(no_kernels.into()));
        };
        let shapes = encoder.spec().convolutions(self.work.image_size, 3).len();
        if shapes == 0 {
            return Err(CliError::Input("kernels are measured for ResNets: use --encoder resnet50".into()));
        }
        let bar = Counter::new("layers", shapes);
        let report = measure_kernels(&encoder, &compute, 2 * self.work.batch, self.work.image_size, |_| bar.inc(1));
        drop(bar);
        if self.work.json {
            say!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            return Ok(());
        }
        let rows: Vec<Vec<String>> = report
            .layers
            .iter()
            .map(|layer| {
                let shape = format!("{}x{} stride {}", layer.kernel, layer.kernel, layer.stride);
                let channels = format!("{} -> {}", layer.input, layer.output);
                let size = format!("{} px", layer.size);
                let mark = if layer.is_memory_bound { " m" } else { "" };
                let cell = |speed: f64| format!("{speed:.0} ({:.0} %{mark})", 100.0 * speed / layer.limit);
                let speeds = [layer.forward, layer.input_grad, layer.weight_grad].map(cell);
                [vec![shape, size, channels, layer.count.to_string()], speeds.to_vec()].concat()
            })
            .collect();
        let header = ["kernel", "input", "channels", "layers", "forward", "input grad", "weight grad"];
        say!("{}\n", table(&header, &rows));
        let threads = rayon::current_num_threads();
        say!(
            "GFLOP/s of the direct sum and share of what binds on {threads} threads: the matrix-product peak, {:.0}, or (m) the \
             memory, {:.0} GB/s",
            report.peak,
            report.bandwidth
        );
        Ok(())
    }
}
