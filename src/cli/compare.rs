//! `sogclr compare`: a race of methods under one budget.

use super::error::CliError;
use super::eval::{linear_and_knn, load_encoder, open_run_data};
use super::eval_pairs::{Encoders, held_out_pairs};
use super::options::RunOptions;
use super::pretrain::stop_on_ctrl_c;
use crate::config::RunConfig;
use crate::eval::{FrozenEncoder, labelled_splits};
use crate::report::{Contender, IMAGE_MEASURES, Measure, PAIR_MEASURES, comparison_csv, comparison_markdown};
use crate::storage::write_atomic;
use crate::train::{Run, open_device, refuse_existing};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Race methods against each other on the same data, encoder, batch and epochs.
///
/// Trains every method with every seed, measures the encoders on the test images (or on every fifth image, which training
/// sees without its label), and writes one table: mean ± standard error over the seeds, training time and peak memory.
/// Each method has its own defaults for temperature, head, optimiser and augmentation, as its authors use them; flags and
/// --set apply to all. The data needs labels for the measurement; image–text pairs (--pairs) are measured by retrieval and
/// need held-out pairs.
///
/// Run the same command again after an interruption: finished runs are kept, a begun one is continued.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(
    after_help = "Example:\n  sogclr compare --methods sogclr,simclr,dcl --seeds 3 --batch 32 --epochs 20 --limit 2000\n  \
    sogclr compare --pairs captions.tsv --images photos/ --test held-out.tsv --methods sogclr,clip --batch 32\n\n\
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

/// How a run ended.
enum Trained {
    Finished,
    Stopped,
    Failed(String),
}

impl Compare {
    pub fn run(self) -> Result<(), CliError> {
        // Everything is checked before the first run begins.
        let cells = self.cells()?;
        let config = &cells[0][0].config;
        let stop = stop_on_ctrl_c()?;
        let unwritable = |error: std::io::Error| {
            CliError::Input(format!("cannot write to {}: {error}; choose another --out", self.out.display()))
        };
        std::fs::create_dir_all(&self.out).map_err(unwritable)?;

        let mut untrained = Contender { method: "untrained".into(), ..Default::default() };
        let mut rows = Vec::new();
        let total = cells.len() * cells[0].len();
        for (index, (method, cells)) in self.methods.iter().zip(&cells).enumerate() {
            let mut row = Contender { method: method.clone(), ..Default::default() };
            for (seed, cell) in cells.iter().enumerate() {
                eprintln!("[{}/{total}] {method}, seed {}", index * cells.len() + seed + 1, cell.config.seed);
                match cell.train(&stop)? {
                    Trained::Finished => cell.measure(&mut row)?,
                    Trained::Failed(problem) => {
                        eprintln!("{problem}");
                        row.failures.push(problem);
                    }
                    Trained::Stopped => {}
                }
                if index == 0 {
                    cell.measure_untrained(&mut untrained)?;
                }
                if stop.load(Ordering::Relaxed) {
                    println!("stopped; run the same command again to continue");
                    return Ok(());
                }
            }
            rows.push(row);
            self.write(&rows, &untrained, config)?;
        }
        let failed = rows.iter().flat_map(|row| &row.failures).next().cloned();
        rows.push(untrained);
        println!(
            "\nbatch {}, {} epochs:\n\n{}\n\ntables: {}/compare.{{md,csv,json}}",
            config.train.batch,
            config.train.epochs,
            comparison_markdown(&rows, measures(config)),
            self.out.display()
        );
        match failed {
            Some(problem) => Err(CliError::Failed(format!("not every run finished: {problem}"))),
            None => Ok(()),
        }
    }

    /// The configuration of every method and seed; refuses what cannot be run or measured.
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
            let mut options = RunOptions { method: Some(method.clone()), ..self.options.clone() };
            let (first, data) = RunConfig::resolve(&options.overrides()?)?;
            if first.method.name().trim_end_matches("-pairs") != method.trim_end_matches("-pairs") {
                return Err(CliError::Input(
                    "--set method.kind would change every method of the race: leave it out".into(),
                ));
            }
            let has_test = data.test.is_some();
            match first.text {
                Some(_) => drop(held_out_pairs(data)?),
                None => drop(labelled_splits(&data)?),
            }
            if first.method.spec().needs_labels() && !has_test {
                return Err(CliError::Input(format!(
                    "{method} trains with the labels of the images that would measure it: name test images with --test"
                )));
            }
            let mut cells = Vec::new();
            for seed in first.seed..first.seed + self.seeds {
                options.seed = Some(seed);
                let config =
                    if seed == first.seed { first.clone() } else { RunConfig::resolve(&options.overrides()?)?.0 };
                let cell = Cell { folder: self.out.join(format!("{method}-seed{seed}")), config };
                cell.check()?;
                cells.push(cell);
            }
            all.push(cells);
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
        let measures = measures(config);
        write_atomic(&self.out.join("compare.md"), (comparison_markdown(&rows, measures) + "\n").as_bytes())?;
        write_atomic(&self.out.join("compare.csv"), comparison_csv(&rows, measures).as_bytes())?;
        write_atomic(&self.out.join("compare.json"), json.as_bytes())?;
        Ok(())
    }
}

impl Cell {
    /// Refuses a folder that holds something else, or a run with other settings.
    fn check(&self) -> Result<(), CliError> {
        if !self.folder.join("config.toml").exists() {
            return Ok(refuse_existing(&self.folder)?);
        }
        if Run::read_config(&self.folder)? != self.config {
            let folder = self.folder.display();
            return Err(CliError::Input(format!("{folder} was run with other settings: choose another --out")));
        }
        Ok(())
    }

    fn is_trained(&self) -> bool {
        Run::read_entry(&self.folder, "train").is_some()
    }

    /// Trains to the end in a process of its own, whose memory is the method's alone.
    fn train(&self, stop: &AtomicBool) -> Result<Trained, CliError> {
        if stop.load(Ordering::Relaxed) {
            return Ok(Trained::Stopped);
        }
        if self.is_trained() {
            return Ok(Trained::Finished);
        }
        let failed = |error: std::io::Error| CliError::Failed(format!("{}: {error}", self.folder.display()));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        let recipe = self.folder.with_extension("toml");
        write_atomic(&recipe, self.config.to_toml().as_bytes())?;
        if self.folder.join("config.toml").exists() && Run::open(&self.folder)?.latest().is_ok() {
            command.arg("resume").arg(&self.folder);
        } else {
            if self.folder.exists() {
                // Begun, and lost before its first checkpoint.
                std::fs::remove_dir_all(&self.folder).map_err(failed)?;
            }
            command.arg("pretrain").arg("--config").arg(&recipe).arg("--out").arg(&self.folder);
        }
        command.args(["--threads", &rayon::current_num_threads().to_string()]).stdout(Stdio::null());
        let status = wait(own_group(&mut command).spawn().map_err(failed)?, stop).map_err(failed)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(Trained::Stopped);
        }
        std::fs::remove_file(recipe).map_err(failed)?;
        Ok(if status.success() && self.is_trained() {
            Trained::Finished
        } else {
            Trained::Failed(format!("{} did not finish ({status}), see its error above", self.folder.display()))
        })
    }

    /// Adds this run's result and cost.
    fn measure(&self, row: &mut Contender) -> Result<(), CliError> {
        let device = open_device(self.config.train.device)?;
        let result = self.remembered("compare", || match self.config.text {
            Some(_) => Ok(Encoder::Pair(Encoders::load(&self.folder, &self.config, device)?)),
            None => Ok(Encoder::Image(load_encoder(&self.folder, &self.config, device)?)),
        })?;
        let train = Run::read_entry(&self.folder, "train").unwrap_or_default();
        row.add(&result, measures(&self.config));
        row.seconds.extend(train["seconds"].as_f64());
        row.peak_rss_mb.extend(train["peak_rss_mb"].as_f64());
        Ok(())
    }

    /// Adds the result of the encoder that this run starts from.
    fn measure_untrained(&self, row: &mut Contender) -> Result<(), CliError> {
        if !self.is_trained() {
            return Ok(());
        }
        let device = open_device(self.config.train.device)?;
        let RunConfig { encoder, augment, seed, .. } = &self.config;
        let result = self.remembered("compare_untrained", || match self.config.text {
            Some(_) => Ok(Encoder::Pair(Encoders::untrained(&self.config, device)?)),
            None => Ok(Encoder::Image(FrozenEncoder::untrained(encoder, *seed, augment, device))),
        })?;
        row.add(&result, measures(&self.config));
        Ok(())
    }

    /// The result under `key` of the run's summary, measured if it is not there yet.
    fn remembered(&self, key: &str, encoder: impl FnOnce() -> Result<Encoder, CliError>) -> Result<Value, CliError> {
        if let Some(known) = Run::read_entry(&self.folder, key) {
            return Ok(known);
        }
        let data = open_run_data(&self.folder, &self.config)?;
        let result = match encoder()? {
            Encoder::Image(encoder) => {
                let (linear, knn) = linear_and_knn(&encoder, &data)?;
                encoder.assert_frozen();
                json!({ "linear": linear, "knn": knn })
            }
            Encoder::Pair(encoders) => json!(encoders.retrieval(&held_out_pairs(data)?)?),
        };
        Run::summarise(&self.folder, key, result.clone())?;
        Ok(result)
    }
}

/// What is measured.
enum Encoder {
    Image(FrozenEncoder),
    Pair(Encoders),
}

fn measures(config: &RunConfig) -> &'static [Measure] {
    if config.text.is_some() { PAIR_MEASURES } else { IMAGE_MEASURES }
}

/// A terminal's Ctrl-C goes to a whole group; the run is told once, by us.
fn own_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command
}

/// Waits for the run, and asks it to stop once `stop` is set.
fn wait(mut child: Child, stop: &AtomicBool) -> std::io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            if cfg!(unix) {
                Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
