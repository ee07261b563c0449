//! `sogclr theory`: the paper's theory, measured on problems small enough to be exact. One file for each verb.

mod bias;
mod convergence;
mod epsilon;
mod saved;

use crate::error::CliError;
use crate::output::note;
use clap::{Args, Subcommand};
use serde_json::Value;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{DataConfig, Dataset, Split};
use sogclr::params::NamedTensors;
use sogclr::storage::write_atomic;
use sogclr::theory::{FiniteProblem, Probe};
use sogclr::train::{Run, open_device};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Theory {
    Bias(bias::Bias),
    Convergence(convergence::Convergence),
    Epsilon(epsilon::Epsilon),
}

impl Theory {
    pub fn run(self) -> Result<(), CliError> {
        match self {
            Self::Bias(verb) => verb.run(),
            Self::Convergence(verb) => verb.run(),
            Self::Epsilon(verb) => verb.run(),
        }
    }
}

/// What `sogclr theory epsilon RUN --out OUT` does.
pub fn epsilon_of_run(run: &Path, out: &Path) -> Result<(), CliError> {
    epsilon::Epsilon::of_run(run, out).run()
}

/// The images and the network of a finite problem.
#[derive(Args)]
struct World {
    /// Images, any data that `pretrain` takes; those of the run, or the embedded ones, if left out
    data: Option<PathBuf>,
    /// Run folder whose encoder and head are taken; an untrained ResNet-8 if left out
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
    /// Augmentations of each image
    #[arg(long, value_name = "M", default_value_t = 4)]
    augmentations: usize,
    /// τ; the run's unless given
    #[arg(long, value_name = "TAU")]
    temperature: Option<f64>,
    /// Seed of every random choice
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

impl World {
    /// `images` images, drawn by the seed, through all their augmentations, and the network.
    fn probe(&self, images: usize) -> Result<(Probe, f64), CliError> {
        let (config, split, weights) = self.open()?;
        self.probe_of(&config, &split, images, weights)
    }

    /// What the encoder, without its head, makes of them.
    fn features(&self, images: usize) -> Result<(FiniteProblem, f64), CliError> {
        let (mut config, split, weights) = self.open()?;
        config.head = None;
        let of_encoder = |weights: NamedTensors| weights.into_iter().filter(|(name, _)| !name.starts_with("head."));
        let (probe, tau) = self.probe_of(&config, &split, images, weights.map(|all| of_encoder(all).collect()))?;
        Ok((probe.problem(), tau))
    }

    /// The settings, the images, and the weights unless they are to be drawn.
    fn open(&self) -> Result<(RunConfig, Split, Option<NamedTensors>), CliError> {
        match &self.run {
            Some(folder) => {
                let config = Run::read_config(folder)?;
                let split = match &self.data {
                    Some(path) => open(path)?,
                    None => Run::open_data_of(folder, &config)?.train,
                };
                let (checkpoint, broken) = Run::read_latest(folder)?;
                if let Some(error) = broken {
                    note!("going back to step {}: {error}", checkpoint.step);
                }
                Ok((config, split, Some(checkpoint.model)))
            }
            None => {
                let mut overrides = Overrides::default();
                for setting in ["encoder.name=resnet8", "train.batch=2"] {
                    overrides.set(setting)?;
                }
                if let Some(path) = &self.data {
                    overrides.lay("data.path", toml::Value::String(path.to_string_lossy().into_owned()));
                }
                let (config, data) = RunConfig::open(&overrides)?;
                Ok((config, data.train, None))
            }
        }
    }

    /// As [`World::probe`], for a given network.
    fn probe_of(
        &self,
        config: &RunConfig,
        split: &Split,
        images: usize,
        weights: Option<NamedTensors>,
    ) -> Result<(Probe, f64), CliError> {
        if self.augmentations < 2 {
            return Err(CliError::Input("--augmentations must be at least 2".into()));
        }
        if config.text.is_some() {
            return Err(CliError::Input("the theory is that of images alone: name a run without texts".into()));
        }
        if split.len() < images {
            return Err(CliError::Input(format!("there are {} images, fewer than the {images} wanted", split.len())));
        }
        let tau = self.temperature.or(config.method.spec().temperature()).unwrap_or(0.1);
        if !(0.005..=10.0).contains(&tau) {
            return Err(CliError::Input(format!("--temperature {tau}: it must lie between 0.005 and 10")));
        }
        let (compute, augmentations) = (open_device(config.train.device)?, self.augmentations);
        let probe = Probe::of_run(config, split, images, augmentations, self.seed, weights.as_ref(), &compute);
        Ok((probe.map_err(|error| CliError::Input(error.to_string()))?, tau))
    }
}

fn open(path: &Path) -> Result<Split, CliError> {
    Ok(Dataset::open(&DataConfig { path: Some(path.to_owned()), ..Default::default() }, 0)?.train)
}

/// The end of a path: results belong to no machine.
fn folder_name(path: &Path) -> String {
    path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

fn make_folder(out: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(out)
        .map_err(|error| CliError::Input(format!("cannot write to {}: {error}; choose another --out", out.display())))
}

/// Replaces the files of a study, its JSON last.
fn write_results(out: &Path, document: &Value, files: &[(&str, String)], json: &str) -> Result<(), CliError> {
    for (name, content) in files {
        write_atomic(&out.join(name), content.as_bytes())?;
    }
    let text = serde_json::to_string_pretty(document).expect("plain data") + "\n";
    write_atomic(&out.join(json), text.as_bytes())?;
    Ok(())
}
