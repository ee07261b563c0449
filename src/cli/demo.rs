//! `sogclr demo`: SogCLR and SimCLR at batch 32 on the embedded images, beside the untrained encoder; or SogCLR and CLIP on
//! the embedded image–text pairs.

use super::error::CliError;
use super::eval::{Measured, linear_and_knn, load_encoder, open_run_data};
use super::eval_pairs::{Encoders, held_out_pairs, recall_cells};
use super::pretrain::{Verbosity, prepare, refuse_existing, stop_on_ctrl_c, train};
use crate::config::{Overrides, RunConfig};
use crate::eval::FrozenEncoder;
use crate::report::{accuracy_cell, table};
use crate::train::{Outcome, Run, open_device};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The demo's recipe: small enough for two CPU cores in two minutes, long enough for u to be visited 12 times.
const RECIPE: &str = include_str!("../../recipes/demo.toml");
const PAIR_RECIPE: &str = include_str!("../../recipes/demo-pairs.toml");

/// See it work: about a minute on two cores.
///
/// Trains SogCLR and SimCLR with the same seed and budget on 2,000 embedded Fashion-MNIST images at batch 32, measures
/// both and the untrained encoder on 2,000 test images, and prints one table.
///
/// With --pairs it trains SogCLR and CLIP at batch 32 on 1,860 embedded emoji of one vendor with their names, and lets them
/// find the names of another vendor's pictures.
#[derive(Args)]
pub struct Demo {
    /// Image–text pairs: emoji and their names
    #[arg(long)]
    pairs: bool,
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
        if self.pairs {
            return self.run_pairs(&out, &stop, began);
        }
        let mut rows = Vec::new();
        for method in ["sogclr", "simclr"] {
            let folder = out.join(method);
            let Some(run) = self.trained(method, &folder, &stop)? else { return Ok(()) };
            let encoder = load_encoder(&folder, &run.config, open_device(run.config.train.device)?)?;
            let measured = linear_and_knn(&encoder, &open_run_data(&folder, &run.config)?)?;
            encoder.assert_frozen();
            Run::summarise(&folder, "demo", json!(measured))?;
            rows.push(row(method, &measured));
        }
        let (config, data) = RunConfig::resolve(&self.overrides("sogclr")?)?;
        let device = open_device(config.train.device)?;
        let untrained = FrozenEncoder::untrained(&config.encoder, config.seed, &config.augment, device);
        rows.push(row("untrained", &linear_and_knn(&untrained, &data)?));
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

    fn run_pairs(&self, out: &Path, stop: &AtomicBool, began: Instant) -> Result<(), CliError> {
        let mut rows = Vec::new();
        let mut budget = None;
        for method in ["sogclr", "clip"] {
            let folder = out.join(method);
            let Some(run) = self.trained(method, &folder, stop)? else { return Ok(()) };
            let test = held_out_pairs(run.open_data()?)?;
            let encoders = Encoders::load(&folder, &run.config, open_device(run.config.train.device)?)?;
            let result = encoders.retrieval(&test)?;
            Run::summarise(&folder, "eval_retrieval", json!(result))?;
            let recalls = [recall_cells(&result.image_to_text), recall_cells(&result.text_to_image)].concat();
            rows.push([vec![method.to_owned()], recalls, vec![percent(result.mean_recall)]].concat());
            let names: Vec<usize> = (0..test.len()).map(|id| test.captions(id).len()).collect();
            budget = Some((run.config.train.batch, run.config.train.epochs, result, names));
        }
        let Some((batch, epochs, result, names)) = budget else { return Ok(()) };
        let name = |k| names.iter().map(|&own| chance(own, result.captions, k)).sum::<f64>() / names.len() as f64;
        let chances = [[1, 5, 10].map(name), [1, 5, 10].map(|k| chance(1, result.images, k))].concat();
        let mean = chances.iter().sum::<f64>() / 6.0;
        let cells = chances.into_iter().chain([mean]).map(percent);
        rows.push(std::iter::once("chance".to_owned()).chain(cells).collect());
        println!(
            "\nemoji: trained on {} pictures of one vendor, tested on {} of another, batch {batch}, {epochs} epochs, \
             seed {}, {:.0} s in all:\n",
            result.images,
            result.images,
            self.seed,
            began.elapsed().as_secs_f64()
        );
        let header = ["", "name R@1 %", "R@5 %", "R@10 %", "picture R@1 %", "R@5 %", "R@10 %", "mean %"];
        println!("{}", table(&header, &rows));
        let out = out.display();
        println!("\nruns: {out}/sogclr and {out}/clip");
        println!("next: sogclr search {out}/sogclr \"red heart\"");
        println!("      sogclr pretrain --pairs captions.tsv --images YOUR_IMAGES --out runs/mine");
        Ok(())
    }

    /// A finished run in `folder`; `None` if it was stopped.
    fn trained(&self, method: &str, folder: &Path, stop: &AtomicBool) -> Result<Option<Run>, CliError> {
        let (run, trainer, split) = prepare(&self.overrides(method)?, folder, Verbosity::Quiet)?;
        if train(&run, trainer, split, stop, method)? == Outcome::Stopped {
            println!("stopped; continue with: sogclr resume {}", folder.display());
            return Ok(None);
        }
        Ok(Some(run))
    }

    fn overrides(&self, method: &str) -> Result<Overrides, CliError> {
        let recipe = if self.pairs { PAIR_RECIPE } else { RECIPE };
        let mut overrides = Overrides(recipe.parse().expect("the recipe is TOML"));
        overrides.set(&format!("seed={}", self.seed))?;
        overrides.set(&format!("method.kind={method}"))?;
        Ok(overrides)
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// Probability that one of `own` captions is among the first `k` of `all` in random order: 1 − C(all−own, k)/C(all, k).
fn chance(own: usize, all: usize, k: usize) -> f64 {
    1.0 - (0..k.min(all)).map(|j| all.saturating_sub(own + j) as f64 / (all - j) as f64).product::<f64>()
}

fn row(name: &str, measured: &Measured) -> Vec<String> {
    vec![name.to_owned(), accuracy_cell(&measured.linear), accuracy_cell(&measured.knn)]
}

/// `out`, or `out-2`, `out-3`, … if it is taken: a demo never overwrites an earlier one.
fn free_folder(out: &Path) -> PathBuf {
    let numbered = |n: usize| PathBuf::from(format!("{}-{n}", out.display()));
    let candidates = std::iter::once(out.to_owned()).chain((2..).map(numbered));
    candidates.into_iter().find(|path| !path.exists()).expect("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_more_names_finds_one_more_often() {
        for (own, all, k) in [(1, 6, 1), (1, 6, 5), (2, 6, 1), (2, 6, 3), (5, 6, 2), (3, 3, 1), (1, 3, 5)] {
            // Every choice of the first k places as bits; the first `own` captions are the image's.
            let firsts: Vec<u32> = (0_u32..1 << all).filter(|set| set.count_ones() as usize == k.min(all)).collect();
            let hits = firsts.iter().filter(|&set| set & ((1 << own) - 1) != 0).count();
            let want = hits as f64 / firsts.len() as f64;
            assert!((chance(own, all, k) - want).abs() < 1e-12, "{own} of {all} within {k}: {want}");
        }
    }
}
