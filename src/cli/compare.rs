//! `sogclr compare`: a race of methods under one budget.

use super::error::CliError;
use super::eval::{linear_and_knn, load_encoder};
use super::options::RunOptions;
use super::pretrain::stop_on_ctrl_c;
use crate::config::RunConfig;
use crate::eval::{FrozenEncoder, labelled_splits};
use crate::method::MethodConfig;
use crate::report::{Contender, comparison_csv, comparison_markdown};
use crate::storage::write_atomic;
use crate::train::{Run, open_device};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Race methods against each other on the same data, encoder, batch and epochs.
///
/// Trains every method with every seed, measures the encoders on the test images (or on every fifth image, held out), and
/// writes one table: mean ± standard error over the seeds, training time and peak memory. Each method has its own
/// defaults for temperature, head, optimiser and augmentation, as its authors use them; flags and --set apply to all.
/// Needs labels, for the measurement alone.
///
/// Run the same command again after an interruption: finished runs are kept, a begun one is continued.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(
    after_help = "Example:\n  sogclr compare --methods sogclr,simclr,dcl --seeds 3 --batch 32 --epochs 20 --limit 2000\n\n\
    OUT gets compare.md, compare.csv, compare.json and a run folder for each method and seed."
)]
pub struct Compare {
    #[command(flatten)]
    options: RunOptions,
    /// Methods, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "sogclr,simclr")]
    methods: Vec<String>,
    /// Seeds for each method, from --seed on
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
    /// Folder for the table and the runs
    #[arg(long, value_name = "OUT", default_value = "runs/compare")]
    out: PathBuf,
}

/// One run of the race.
struct Cell {
    folder: PathBuf,
    config: RunConfig,
}

impl Compare {
    pub fn run(self) -> Result<(), CliError> {
        // Everything is checked before the first run begins.
        let cells = self.cells()?;
        let first = &cells[0][0].config;
        let stop = stop_on_ctrl_c()?;
        let write_error = |error: std::io::Error| {
            CliError::Input(format!("cannot write to {}: {error}; choose another --out", self.out.display()))
        };
        std::fs::create_dir_all(&self.out).map_err(write_error)?;
        let untrained: Result<Vec<_>, CliError> = cells[0].iter().map(|cell| untrained(&cell.config)).collect();
        let (linear, knn) = untrained?.into_iter().unzip();
        let untrained = Contender { method: "untrained".into(), linear, knn, ..Default::default() };

        let mut rows = Vec::new();
        let total = cells.len() * cells[0].len();
        for (index, (method, cells)) in self.methods.iter().zip(&cells).enumerate() {
            let mut row = Contender { method: method.clone(), ..Default::default() };
            for (seed, cell) in cells.iter().enumerate() {
                let number = index * cells.len() + seed + 1;
                eprintln!("[{number}/{total}] {method}, seed {}", cell.config.seed);
                if !cell.train(&stop)? {
                    println!("stopped; run the same command again to continue");
                    return Ok(());
                }
                cell.measure(&mut row)?;
            }
            rows.push(row);
            self.write(&rows, &untrained, first)?;
        }
        rows.push(untrained);
        println!(
            "\nbatch {}, {} epochs, {} training images:\n\n{}\n\ntables: {}/compare.{{md,csv,json}}",
            first.train.batch,
            first.train.epochs,
            samples(&cells[0][0]),
            comparison_markdown(&rows),
            self.out.display()
        );
        Ok(())
    }

    /// The configuration of every method and seed, and that the data can be measured on.
    fn cells(&self) -> Result<Vec<Vec<Cell>>, CliError> {
        if self.options.method.is_some() {
            return Err(CliError::Input("compare takes --methods, a list, in place of --method".into()));
        }
        if self.seeds == 0 {
            return Err(CliError::Input("--seeds is 0: use at least 1".into()));
        }
        let mut all = Vec::new();
        for (index, method) in self.methods.iter().enumerate() {
            if self.methods[..index].contains(method) {
                return Err(CliError::Input(format!("--methods names {method} twice")));
            }
            let mut cells = Vec::new();
            for seed in 0..self.seeds {
                let mut options = self.options.clone();
                options.method = Some(method.clone());
                options.seed = Some(self.options.seed.unwrap_or(0) + seed);
                let (config, data) = RunConfig::resolve(&options.overrides()?)?;
                labelled_splits(&data)?;
                let folder = self.out.join(format!("{method}-seed{}", config.seed));
                let cell = Cell { folder, config };
                cell.check()?;
                cells.push(cell);
            }
            all.push(cells);
        }
        if all.is_empty() {
            let known = MethodConfig::NAMES.join(", ");
            return Err(CliError::Input(format!("--methods is empty: choose from {known}")));
        }
        Ok(all)
    }

    /// Replaces the three tables with what is known so far.
    fn write(&self, rows: &[Contender], untrained: &Contender, config: &RunConfig) -> Result<(), CliError> {
        let rows: Vec<Contender> = rows.iter().chain([untrained]).cloned().collect();
        let document = json!({
            "batch": config.train.batch,
            "epochs": config.train.epochs,
            "encoder": config.encoder,
            "data": config.data,
            "rows": rows,
        });
        let json = serde_json::to_string_pretty(&document).expect("plain data") + "\n";
        write_atomic(&self.out.join("compare.md"), (comparison_markdown(&rows) + "\n").as_bytes())?;
        write_atomic(&self.out.join("compare.csv"), comparison_csv(&rows).as_bytes())?;
        write_atomic(&self.out.join("compare.json"), json.as_bytes())?;
        Ok(())
    }
}

impl Cell {
    /// Refuses to continue a run that had other settings.
    fn check(&self) -> Result<(), CliError> {
        if self.folder.join("config.toml").exists() && Run::read_config(&self.folder)? != self.config {
            let folder = self.folder.display();
            return Err(CliError::Input(format!("{folder} was run with other settings: choose another --out")));
        }
        Ok(())
    }

    /// Trains to the end in a process of its own, whose memory is the method's alone; false if asked to stop.
    fn train(&self, stop: &AtomicBool) -> Result<bool, CliError> {
        if Run::read_entry(&self.folder, "train").is_some() {
            return Ok(true);
        }
        let recipe = self.folder.with_extension("toml");
        write_atomic(&recipe, self.config.to_toml().as_bytes())?;
        let program =
            std::env::current_exe().map_err(|error| CliError::Failed(format!("cannot find myself: {error}")))?;
        let mut command = Command::new(program);
        if has_checkpoint(&self.folder) {
            command.arg("resume").arg(&self.folder);
        } else {
            // Begun and lost before its first checkpoint: nothing to keep.
            let _ = std::fs::remove_dir_all(&self.folder);
            command.arg("pretrain").arg("--config").arg(&recipe).arg("--out").arg(&self.folder);
        }
        command.args(["--threads", &rayon::current_num_threads().to_string()]);
        let status = command.stdout(Stdio::null()).status();
        let status = status.map_err(|error| CliError::Failed(format!("cannot start a run: {error}")))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let _ = std::fs::remove_file(recipe);
        match Run::read_entry(&self.folder, "train") {
            Some(_) if status.success() => Ok(true),
            _ => {
                let folder = self.folder.display();
                Err(CliError::Failed(format!(
                    "{folder} did not finish ({status}): see the error above, then run again"
                )))
            }
        }
    }

    /// Adds this run's accuracies and cost.
    fn measure(&self, row: &mut Contender) -> Result<(), CliError> {
        let accuracies = match Run::read_entry(&self.folder, "compare") {
            Some(known) => known,
            None => {
                let encoder = load_encoder(&self.folder, &self.config, open_device(self.config.train.device)?)?;
                let (linear, knn) = linear_and_knn(&encoder, &self.config)?;
                encoder.assert_frozen();
                let result = json!({ "linear": linear, "knn": knn });
                Run::summarise(&self.folder, "compare", result.clone())?;
                result
            }
        };
        let train = Run::read_entry(&self.folder, "train").unwrap_or_default();
        let top1 = |kind: &str| accuracies[kind]["top1"].as_f64();
        row.linear.extend(top1("linear"));
        row.knn.extend(top1("knn"));
        row.seconds.extend(train["seconds"].as_f64());
        row.peak_rss_mb.extend(train["peak_rss_mb"].as_f64());
        Ok(())
    }
}

fn samples(cell: &Cell) -> u64 {
    Run::read_entry(&cell.folder, "train").and_then(|train| train["samples"].as_u64()).unwrap_or_default()
}

fn has_checkpoint(folder: &Path) -> bool {
    folder.join("checkpoints").read_dir().is_ok_and(|entries| {
        let is_whole = |path: PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
        entries.flatten().any(|entry| is_whole(entry.path()))
    })
}

fn untrained(config: &RunConfig) -> Result<(f64, f64), CliError> {
    let device = open_device(config.train.device)?;
    let encoder = FrozenEncoder::untrained(&config.encoder, config.seed, &config.augment, device);
    let (linear, knn) = linear_and_knn(&encoder, config)?;
    Ok((linear.top1, knn.top1))
}
