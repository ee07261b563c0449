//! `sogclr demo`: SogCLR and SimCLR at batch 32 on the embedded images, beside the untrained encoder; or SogCLR and CLIP on
//! the embedded image–text pairs.

use super::eval::measured;
use super::eval_pairs::{RETRIEVAL_HEADER, retrieval, retrieval_cells};
use super::pretrain::{Verbosity, prepare, refuse_existing, train};
use super::report::leave_report;
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::output::say;
use clap::Args;
use sogclr::comm::Group;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::Dataset;
use sogclr::eval::{
    FrozenEncoder, Measured, NEIGHBOURS, PairEncoders, colour_histograms, knn_accuracy, labelled_splits, linear_fast,
};
use sogclr::report::{accuracy_cell, table};
use sogclr::train::{Outcome, Run, open_device};
use sogclr::trained::{TrainedRun, held_out_pairs};
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
            let run = self.trained(method, &folder, &stop)?;
            let encoder = run.encoder(open_device(run.config.train.device)?)?;
            let measured = measured(&encoder, &run.data()?)?;
            Run::set_entry(&folder, "demo", &measured)?;
            rows.push(row(method, &measured));
        }
        let (config, data) = RunConfig::open(&self.overrides("sogclr")?)?;
        let compute = open_device(config.train.device)?;
        let untrained =
            FrozenEncoder::untrained(&config.model(), config.seed, &config.augment, config.eval_size(), compute);
        rows.push(row("untrained", &measured(&untrained, &data)?));
        rows.push(histogram_row(&data)?);
        say!(
            "\nFashion-MNIST subset, {} images, batch {}, {} epochs, seed {}, {:.0} s in all:\n",
            config.data.limit.unwrap_or_default(),
            config.train.batch,
            config.train.epochs,
            self.seed,
            began.elapsed().as_secs_f64()
        );
        say!("{}", table(&["encoder", "linear top-1 % (95 % interval)", "kNN top-1 % (95 % interval)"], &rows));
        say!("\nruns: {}/sogclr and {}/simclr", out.display(), out.display());
        leave_report(&out, &["sogclr", "simclr"].map(|method| out.join(method)));
        say!("\nnext, with a folder of your own images:");
        say!("  sogclr plan YOUR_IMAGES --hours 1               # what this machine can do in an hour");
        say!("  sogclr pretrain YOUR_IMAGES --hours 1 --out runs/mine");
        say!("  sogclr eval all runs/mine LABELLED_IMAGES       # is it better than no training?");
        Ok(())
    }

    fn run_pairs(&self, out: &Path, stop: &AtomicBool, began: Instant) -> Result<(), CliError> {
        let mut rows = Vec::new();
        let mut budget = None;
        for method in ["sogclr", "clip"] {
            let folder = out.join(method);
            let run = self.trained(method, &folder, stop)?;
            let test = held_out_pairs(run.data()?)?;
            let encoders = run.pair_encoders(open_device(run.config.train.device)?)?;
            let result = retrieval(&encoders, &test)?;
            Run::set_entry(&folder, "demo", &result)?;
            rows.push(retrieval_cells(method, &result));
            budget = Some((run.config.train.batch, run.config.train.epochs, PairEncoders::chance(&test)));
        }
        let Some((batch, epochs, chance)) = budget else { return Ok(()) };
        rows.push(retrieval_cells("chance", &chance));
        say!(
            "\nemoji: trained on {} pictures of one vendor, tested on {} of another, batch {batch}, {epochs} epochs, \
             seed {}, {:.0} s in all:\n",
            chance.images,
            chance.images,
            self.seed,
            began.elapsed().as_secs_f64()
        );
        say!("{}\n", table(&RETRIEVAL_HEADER, &rows));
        leave_report(out, &["sogclr", "clip"].map(|method| out.join(method)));
        let out = out.display();
        say!("\nruns: {out}/sogclr and {out}/clip");
        say!("next: sogclr search {out}/sogclr \"red heart\"");
        say!("      sogclr pretrain --pairs captions.tsv --images YOUR_IMAGES --out runs/mine");
        Ok(())
    }

    /// A finished run in `folder`.
    fn trained(&self, method: &str, folder: &Path, stop: &AtomicBool) -> Result<TrainedRun, CliError> {
        let mut pretraining = prepare(&self.overrides(method)?, folder, &Group::solo(), Verbosity::Quiet)?;
        if train(&mut pretraining, stop, method)? == Outcome::Stopped {
            let message = format!("stopped; continue with: sogclr resume {}", folder.display());
            return Err(CliError::Stopped(message));
        }
        Ok(TrainedRun::open(folder)?)
    }

    fn overrides(&self, method: &str) -> Result<Overrides, CliError> {
        let recipe = if self.pairs { PAIR_RECIPE } else { RECIPE };
        let mut overrides = Overrides::from(recipe.parse::<toml::Table>().expect("the recipe is TOML"));
        overrides.set(&format!("seed={}", self.seed))?;
        overrides.set(&format!("method.kind={method}"))?;
        Ok(overrides)
    }
}

/// What a histogram of grey levels reaches with the same classifiers.
fn histogram_row(data: &Dataset) -> Result<Vec<String>, CliError> {
    let (train, test) = labelled_splits(data)?;
    let (train, test) = (colour_histograms(&train, |_| {})?, colour_histograms(&test, |_| {})?);
    let classes = data.classes.len();
    let knn = knn_accuracy(&train, &test, classes, NEIGHBOURS);
    let linear = linear_fast(train, test, classes).0;
    Ok(vec!["histogram".into(), accuracy_cell(&linear), accuracy_cell(&knn)])
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
