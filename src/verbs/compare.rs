//! `sogclr compare`: a race of methods under one budget.

use super::report::leave_report;
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::launch::{stopped, train};
use crate::options::RunOptions;
use crate::output::{is_quiet, note, say};
use crate::summary::about;
use clap::Args;
use serde_json::json;
use sogclr::comm::Group;
use sogclr::config::RunConfig;
use sogclr::data::Dataset;
use sogclr::estimate::Forecast;
use sogclr::eval::labelled_splits;
use sogclr::race::{Cell, Trained};
use sogclr::report::{Contender, comparison_csv, comparison_markdown};
use sogclr::storage::write_atomic;
use sogclr::study::Measure;
use sogclr::trained::held_out_pairs;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

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
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = trimmed, default_value = "sogclr,simclr")]
    methods: Vec<String>,
    /// Seeds for each method, from --seed on
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
    /// Folder for the table and the runs
    #[arg(long, value_name = "OUT", default_value = "runs/compare")]
    out: PathBuf,
}

fn trimmed(name: &str) -> Result<String, Infallible> {
    Ok(name.trim().to_owned())
}

impl Compare {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        // Everything is checked before the first run begins.
        let cells = self.cells()?;
        let config = &cells[0][0].config;
        let stop = stop_on_ctrl_c()?;
        let unwritable = |error: std::io::Error| {
            CliError::Input(format!("cannot write to {}: {error}; choose another --out", self.out.display()))
        };
        std::fs::create_dir_all(&self.out).map_err(unwritable)?;
        if group.size() > 1 {
            // Every process takes each so many-th run; the first makes the tables of all.
            let ours = cells.iter().flatten().skip(group.rank()).step_by(group.size());
            let trained = ours.map(|cell| match train(cell, &stop)? {
                Trained::Finished => cell.result(|_| {}).map(drop).map_err(CliError::from),
                _ => Ok(()),
            });
            group.together(trained.collect::<Result<(), _>>())?;
            if group.any(stop.load(Ordering::Relaxed)) {
                return Err(stopped());
            }
            if !group.is_first() {
                return Ok(());
            }
        }

        let mut untrained = Contender { method: "untrained".into(), ..Default::default() };
        let mut rows = Vec::new();
        let total = cells.len() * cells[0].len();
        let (race, mut time) = (&cells, TimeLeft::of(&cells));
        for (index, (method, cells)) in self.methods.iter().zip(&cells).enumerate() {
            let mut row = Contender { method: method.clone(), ..Default::default() };
            for (seed, cell) in cells.iter().enumerate() {
                let left =
                    time.left(race).map_or(String::new(), |left| format!(" · about {} left in all", about(left)));
                note!("[{}/{total}] {method}, seed {}{left}", index * cells.len() + seed + 1, cell.config.seed);
                match train(cell, &stop)? {
                    Trained::Finished => {
                        row.add(&cell.result(|_| {})?);
                        cell.cost().iter().for_each(|cost| row.add_cost(cost));
                    }
                    Trained::Failed(problem) => {
                        note!("{problem}");
                        row.failures.push(problem);
                    }
                    Trained::Stopped => {}
                }
                if index == 0
                    && let Some(result) = cell.untrained_result(|_| {})?
                {
                    untrained.add(&result);
                }
                time.learn(index, cell);
                if stop.load(Ordering::Relaxed) {
                    return Err(stopped());
                }
            }
            rows.push(row);
            self.write(&rows, &untrained, config)?;
        }
        let failed = rows.iter().flat_map(|row| &row.failures).next().cloned();
        rows.push(untrained);
        say!("\n{}\n\ntables: {}/compare.{{md,csv,json}}", markdown(&rows, config), self.out.display());
        // Those of the first seed: the others differ by chance alone.
        let first = cells.iter().map(|cells| &cells[0]).filter(|cell| cell.cost().is_some());
        leave_report(&self.out, &first.map(|cell| cell.folder.clone()).collect::<Vec<_>>());
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
            let (first, data) = RunConfig::open(&options.overrides()?)?;
            if first.method.name().trim_end_matches("-pairs") != method.trim_end_matches("-pairs") {
                return Err(CliError::Input(
                    "--set method.kind would change every method of the race: leave it out".into(),
                ));
            }
            if first.method.spec().needs_labels() && data.test.is_none() {
                return Err(CliError::Input(format!(
                    "{method} trains with the labels of the images that would measure it: name test images with --test"
                )));
            }
            let mut cells = Vec::new();
            for seed in first.seed..first.seed + self.seeds {
                options.seed = Some(seed);
                // A seed draws its own share of limited data.
                let (config, data) = RunConfig::open(&options.overrides()?)?;
                let images = data.train.len();
                match config.text {
                    Some(_) => drop(held_out_pairs(data)?),
                    None => drop(labelled_splits(&data)?),
                }
                let cell = Cell::new(self.out.join(format!("{method}-seed{seed}")), config);
                cell.check(images)?;
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
        write_atomic(&self.out.join("compare.md"), (markdown(&rows, config) + "\n").as_bytes())?;
        write_atomic(&self.out.join("compare.csv"), comparison_csv(&rows, Measure::of(config)).as_bytes())?;
        write_atomic(&self.out.join("compare.json"), json.as_bytes())?;
        Ok(())
    }
}

/// What the runs that are not trained yet will take.
struct TimeLeft {
    /// Seconds of a run of each method, measured before the race; none where that failed.
    expected: Vec<Option<f64>>,
    /// How much longer the runs so far took than expected.
    factor: f64,
}

impl TimeLeft {
    fn of(cells: &[Vec<Cell>]) -> Self {
        let expected = cells.iter().map(|of| {
            let first = of.iter().find(|cell| cell.cost().is_none()).filter(|_| !is_quiet())?;
            let data = Dataset::open(&first.config.data, first.config.seed).ok()?;
            Some(Forecast::measure(&first.config, &data.train).ok()?.seconds())
        });
        Self { expected: expected.collect(), factor: 1.0 }
    }

    /// Takes what a run of a method took for the others.
    fn learn(&mut self, method: usize, cell: &Cell) {
        if let (Some(expected), Some(cost)) = (self.expected[method], cell.cost()) {
            self.factor = cost.seconds / expected.max(1e-9);
        }
    }

    fn left(&self, cells: &[Vec<Cell>]) -> Option<f64> {
        let open = |of: &Vec<Cell>| of.iter().filter(|cell| cell.cost().is_none()).count() as f64;
        let all = cells.iter().zip(&self.expected).filter(|(of, _)| open(of) > 0.0);
        let seconds: Option<Vec<f64>> = all.map(|(of, expected)| Some((*expected)? * open(of))).collect();
        seconds.filter(|all| !all.is_empty()).map(|all| self.factor * all.iter().sum::<f64>())
    }
}

/// The table below what all its runs share.
fn markdown(rows: &[Contender], config: &RunConfig) -> String {
    let table = comparison_markdown(rows, Measure::of(config));
    format!("batch {}, {} epochs:\n\n{table}", config.train.batch, config.train.epochs)
}
