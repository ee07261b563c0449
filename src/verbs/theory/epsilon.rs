//! `sogclr theory epsilon`.

use super::{World, folder_name, make_folder, open, write_results};
use crate::charts::{Chart, Series};
use crate::error::CliError;
use crate::output::say;
use crate::progress::Counter;
use clap::Args;
use serde_json::json;
use sogclr::report::table;
use sogclr::theory::{epsilon_squares, similarity_variance};
use sogclr::train::Run;
use std::path::{Path, PathBuf};

/// Measure Theorem 2's epsilon: how far apart the augmentations of one image are, seen from the other images.
///
/// For each image the mean over pairs of its augmentations and over the other images z of |E(A(x))·E(z) − E(A′(x))·E(z)|², at
/// every checkpoint that the run kept (train with --keep-every), as a histogram (the paper's Figure 3) and CSV; beside it the
/// variance of the similarity of different images.
#[derive(Args)]
pub struct Epsilon {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
    /// Images; the run's own training images if left out
    data: Option<PathBuf>,
    /// Images to look at
    #[arg(long, value_name = "N", default_value_t = IMAGES)]
    images: usize,
    /// Augmentations of each image
    #[arg(long, value_name = "M", default_value_t = AUGMENTATIONS)]
    augmentations: usize,
    /// Seed of the augmentations
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Folder for the results; RUN/epsilon if left out
    #[arg(long, value_name = "OUT")]
    out: Option<PathBuf>,
}

const IMAGES: usize = 1000;
const AUGMENTATIONS: usize = 4;
const BINS: usize = 40;

impl Epsilon {
    /// With the defaults.
    pub fn of_run(run: &Path, out: &Path) -> Self {
        let (run, out) = (run.to_owned(), Some(out.to_owned()));
        Self { run, data: None, images: IMAGES, augmentations: AUGMENTATIONS, seed: 0, out }
    }

    pub fn run(self) -> Result<(), CliError> {
        let config = Run::read_config(&self.run)?;
        let split = match &self.data {
            Some(path) => open(path)?,
            None => Run::open_data_of(&self.run, &config)?.train,
        };
        let images = self.images.min(split.len());
        if images < 2 {
            return Err(CliError::Input(format!("{images} images are too few: at least 2")));
        }
        let out = self.out.clone().unwrap_or_else(|| self.run.join("epsilon"));
        make_folder(&out)?;
        let checkpoints = Run::read_all(&self.run)?;
        let world =
            World { data: None, run: None, augmentations: self.augmentations, temperature: None, seed: self.seed };
        let bar = Counter::new("checkpoints", checkpoints.len());
        let (mut all, mut variances) = (Vec::new(), Vec::new());
        let mut steps_per_epoch = 1;
        for checkpoint in checkpoints {
            let checkpoint = checkpoint?;
            steps_per_epoch = (checkpoint.state.samples() / config.train.batch).max(1);
            let (probe, _) = world.probe_of(&config, &split, images, Some(checkpoint.model))?;
            let problem = probe.problem();
            variances.push(similarity_variance(&problem));
            all.push((checkpoint.step, epsilon_squares(&problem)));
            bar.inc(1);
        }
        drop(bar);
        let largest = all.iter().flat_map(|(_, values)| values).fold(0.0_f64, |max, v| max.max(*v)).max(1e-12);
        let histogram = |values: &[f64]| -> Vec<(f64, f64)> {
            let mut counts = [0_usize; BINS];
            values.iter().for_each(|v| counts[((v / largest * BINS as f64) as usize).min(BINS - 1)] += 1);
            let centre = |bin: usize| (bin as f64 + 0.5) / BINS as f64 * largest;
            counts.iter().enumerate().map(|(bin, &count)| (centre(bin), count as f64)).collect()
        };
        let epoch = |step: usize| format!("{:.1}", step as f64 / steps_per_epoch as f64);
        let series = all
            .iter()
            .map(|(step, values)| Series::new(format!("epoch {}", epoch(*step)), histogram(values)))
            .collect();
        let (title, x, y) = ("Squared difference between augmentations, by image", "ε²", "images");
        let chart = Chart { title, x, y, is_log_x: false, is_log_y: false, series };
        let rows: Vec<Vec<String>> = all
            .iter()
            .zip(&variances)
            .map(|((step, values), variance)| {
                let mut sorted = values.clone();
                sorted.sort_by(f64::total_cmp);
                let at = |share: f64| format!("{:.5}", sorted[(share * (sorted.len() - 1) as f64).round() as usize]);
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                vec![epoch(*step), format!("{mean:.5}"), at(0.5), at(0.95), at(1.0), format!("{variance:.5}")]
            })
            .collect();
        let text = table(&["epoch", "mean ε²", "median", "95 %", "largest", "variance of s"], &rows);
        say!("{text}");
        let csv: String = std::iter::once("step,image,epsilon_squared\n".to_owned())
            .chain(all.iter().flat_map(|(step, values)| {
                values.iter().enumerate().map(move |(id, value)| format!("{step},{id},{value:e}\n"))
            }))
            .collect();
        let document = json!({
            "run": folder_name(&self.run), "images": images, "augmentations": self.augmentations, "seed": self.seed,
            "checkpoints": all.iter().zip(&variances).map(|((step, values), variance)| {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                json!({ "step": step, "mean": mean, "similarity_variance": variance })
            }).collect::<Vec<_>>(),
        });
        let files = [("epsilon.md", text + "\n"), ("epsilon.csv", csv), ("epsilon.svg", chart.svg())];
        write_results(&out, &document, &files, "epsilon.json")?;
        say!("results: {}/epsilon.{{md,csv,json,svg}}", out.display());
        Ok(())
    }
}
