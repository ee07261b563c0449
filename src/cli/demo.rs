//! `sogclr demo`: SogCLR and SimCLR at batch 32 on the embedded images, beside the untrained encoder.

use super::error::CliError;
use super::eval::{linear_and_knn, load_encoder, open_run_data};
use super::pretrain::{Verbosity, prepare, refuse_existing, stop_on_ctrl_c, train};
use crate::config::{Overrides, RunConfig};
use crate::eval::{Accuracy, FrozenEncoder};
use crate::report::{accuracy_cell, table};
use crate::train::{Outcome, Run, open_device};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The demo's recipe: small enough for two CPU cores in two minutes, long enough for u to be visited 12 times.
const RECIPE: &str = include_str!("../../recipes/demo.toml");

/// See it work: about a minute on two cores.
///
/// Trains SogCLR and SimCLR with the same seed and budget on 2,000 embedded Fashion-MNIST images at batch 32, measures
/// both and the untrained encoder on 2,000 test images, and prints one table.
#[derive(Args)]
pub struct Demo {
    /// New folder for the two runs
    #[arg(long, value_name = "DIR", default_value = "runs/demo")]
    out: PathBuf,
    /// Seed of every random choice
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

impl Demo {
    pub fn run(self) -> Result<(), CliError> {
        let (began, out) = (Instant::now(), free_folder(&self.out));
        refuse_existing(&out)?;
        let stop = stop_on_ctrl_c()?;
        let mut rows = Vec::new();
        for method in ["sogclr", "simclr"] {
            let folder = out.join(method);
            let overrides = self.overrides(method)?;
            let (run, trainer, split) = prepare(&overrides, &folder, Verbosity::Quiet)?;
            if train(&run, trainer, split, &stop, method)? == Outcome::Stopped {
                println!("stopped; continue with: sogclr resume {}", folder.display());
                return Ok(());
            }
            let encoder = load_encoder(&folder, &run.config, open_device(run.config.train.device)?)?;
            let accuracies = linear_and_knn(&encoder, &open_run_data(&folder, &run.config)?)?;
            encoder.assert_frozen();
            let summary = json!({ "linear": accuracies.0, "knn": accuracies.1 });
            Run::summarise(&folder, "demo", summary)?;
            rows.push(row(method, accuracies));
        }
        let (config, data) = RunConfig::resolve(&self.overrides("sogclr")?)?;
        let device = open_device(config.train.device)?;
        let untrained = FrozenEncoder::untrained(&config.encoder, config.seed, &config.augment, device);
        rows.push(row("untrained", linear_and_knn(&untrained, &data)?));
        println!(
            "\nFashion-MNIST subset, {} images, batch {}, {} epochs, seed {}, {:.0} s in all:\n",
            config.data.limit.unwrap_or_default(),
            config.train.batch,
            config.train.epochs,
            self.seed,
            began.elapsed().as_secs_f64()
        );
        println!("{}", table(&["encoder", "linear top-1 % (95 % interval)", "kNN top-1 % (95 % interval)"], &rows));
        println!("\nruns: {}/sogclr and {}/simclr", out.display(), out.display());
        println!("next: sogclr pretrain YOUR_IMAGES --out runs/mine");
        Ok(())
    }

    fn overrides(&self, method: &str) -> Result<Overrides, CliError> {
        let mut overrides = Overrides(RECIPE.parse().expect("the recipe is TOML"));
        overrides.set(&format!("seed={}", self.seed))?;
        overrides.set(&format!("method.kind={method}"))?;
        Ok(overrides)
    }
}

fn row(name: &str, (linear, knn): (Accuracy, Accuracy)) -> Vec<String> {
    vec![name.to_owned(), accuracy_cell(&linear), accuracy_cell(&knn)]
}

/// `out`, or `out-2`, `out-3`, … if it is taken: a demo never overwrites an earlier one.
fn free_folder(out: &Path) -> PathBuf {
    let numbered = |n: usize| PathBuf::from(format!("{}-{n}", out.display()));
    let candidates = std::iter::once(out.to_owned()).chain((2..).map(numbered));
    candidates.into_iter().find(|path| !path.exists()).expect("some number is free")
}
