//! `sogclr reproduce`: the paper's tables and figures at a budget of minutes or hours.

use super::theory::epsilon_of_run;
use crate::charts::study_charts;
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::launch::{stopped, train};
use crate::output::{note, say};
use clap::Args;
use sogclr::config::{Overrides, RunConfig};
use sogclr::race::{Cell, Trained, portable_title};
use sogclr::report::{Results, table};
use sogclr::storage::write_atomic;
use sogclr::study::{Budget, Kind, Record, Show, Study};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Where `scripts/get-cifar10` puts its files.
const CIFAR10: &str = "data/cifar-10-batches-bin";

/// Re-run a table or figure of the paper on a budget anyone has.
///
/// Trains every run of the study that is not done yet, measures it, and writes the study's table with the paper's figures beside
/// ours, its chart and a CSV of all runs. Studies of images use CIFAR-10 (fetch it with scripts/get-cifar10) and a small
/// ResNet, that of image–text pairs the embedded emoji or --pairs. Without a NAME it lists the studies.
///
/// Every finished run is a small file in OUT/cells, shared by all studies, so a study can be stopped and grow over days: run
/// the same command again. The settings are in the folder crates/sogclr/studies of the source; full-size ones are in recipes/.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sogclr reproduce\n  scripts/get-cifar10 && sogclr reproduce batch-epochs --budget minutes\n  \
    sogclr reproduce bimodal --budget hours --pairs Flickr8k.token.txt --images Flicker8k_Dataset\n\n\
    OUT gets NAME-BUDGET.md, .csv and .svg."
)]
pub struct Reproduce {
    /// The study; left out, all of them are listed
    name: Option<String>,
    /// Images in place of CIFAR-10, any labelled data that `pretrain` takes, 2,000 training images or more; give other data an
    /// --out of its own
    data: Option<PathBuf>,
    /// Image–text pairs for the study of pairs
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Folder or .zip with the images of --pairs
    #[arg(long, value_name = "DIR", requires = "pairs")]
    images: Option<PathBuf>,
    /// What each run may cost: minutes (every run takes seconds: shows that it works, too short for differences) or hours (every
    /// run takes minutes on two cores)
    #[arg(long, default_value = "minutes")]
    budget: Budget,
    /// Train only the row or column TEXT, or cells whose row and column, as in "SogCLR, batch 32, 10 epochs", contain it; the
    /// table shows all that is known
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seeds of each cell; the study's own number unless given
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Folder for tables, charts and the records of finished runs
    #[arg(long, value_name = "OUT", default_value = "evidence")]
    out: PathBuf,
    /// Folder for the runs themselves
    #[arg(long, value_name = "DIR", default_value = "runs/reproduce")]
    runs: PathBuf,
}

/// One run that the study wants: where it stands in the table, and what it is.
struct Wanted {
    row: usize,
    column: usize,
    seed: u64,
    key: String,
    settings: Overrides,
    record: Option<Record>,
}

impl Reproduce {
    pub fn run(self) -> Result<(), CliError> {
        let Some(name) = &self.name else { return self.list() };
        let study = Study::named(name, self.budget).ok_or_else(|| {
            let known: Vec<&str> = Study::names().collect();
            CliError::Input(format!("there is no study {name:?}; known ones are {}", known.join(", ")))
        })?;
        let mut wanted = self.wanted(&study)?;
        let only = self.only.as_deref().unwrap_or_default();
        let title = |run: &Wanted| study.title_of(run.row, run.column);
        let is_named = |run: &Wanted| study.is_named(run.row, run.column, only);
        if !wanted.iter().any(is_named) {
            let cells: Vec<String> = wanted.iter().filter(|run| run.seed == 0).map(title).collect();
            return Err(CliError::Input(format!("no cell is called {only:?}; there are {}", cells.join("; "))));
        }
        let is_asked = |run: &Wanted| run.seed < self.seeds(&study) && is_named(run);
        let is_missing = |run: &Wanted| run.record.is_none() && is_asked(run);
        let missing = wanted.iter().filter(|run| is_missing(run)).count();
        let source = self.source(&study)?;
        if let (None, true) = (&source, missing > 0) {
            return Err(CliError::Input(format!(
                "{missing} of {} runs are not done, and there is no {CIFAR10} to run them on: fetch it with \
                 scripts/get-cifar10, or name DATA",
                wanted.iter().filter(|run| is_asked(run)).count()
            )));
        }
        let cells = match &source {
            Some(source) => self.check(&wanted, source)?,
            None => Vec::new(),
        };
        let stop = stop_on_ctrl_c()?;
        let unwritable = |folder: &Path, error: std::io::Error| {
            CliError::Input(format!("cannot write to {}: {error}; choose another folder", folder.display()))
        };
        for folder in [&self.records(), &self.runs] {
            std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, error))?;
        }
        let mut failed = None;
        let mut begun = 0;
        for index in 0..wanted.len() {
            let run = &wanted[index];
            if !is_missing(run) {
                continue;
            }
            begun += 1;
            note!("[{begun}/{missing}] {}, seed {}", title(run), run.seed);
            // There is data, and so a cell, for what is missing.
            let (cell, data) = &cells[index];
            match train_and_measure(cell, data, &stop)? {
                Ok(record) => {
                    record.save(&self.records(), &run.key)?;
                    wanted[index].record = Some(record);
                    self.write(&study, &wanted)?;
                }
                Err(Trained::Failed(problem)) => {
                    note!("{problem}");
                    failed = Some(problem);
                }
                Err(_) => return Err(stopped()),
            }
        }
        if study.show == Show::Epsilon {
            self.epsilon(&study, &wanted, &cells, &stop)?;
        }
        let text = self.write(&study, &wanted)?;
        let stem = self.stem(&study);
        say!("{} ({}, budget {}):\n\n{text}\n", study.title, study.paper, self.budget.name());
        say!("results: {}.{{md,csv,svg}}", stem.display());
        match failed {
            Some(problem) => Err(CliError::Failed(format!("not every run finished: {problem}"))),
            None => Ok(()),
        }
    }

    fn seeds(&self, study: &Study) -> u64 {
        self.seeds.unwrap_or(study.seeds)
    }

    fn records(&self) -> PathBuf {
        self.out.join("cells")
    }

    fn stem(&self, study: &Study) -> PathBuf {
        self.out.join(format!("{}-{}", study.name, study.budget.name()))
    }

    /// All studies and how far they are.
    fn list(&self) -> Result<(), CliError> {
        let mut rows = Vec::new();
        for study in Study::names().filter_map(|name| Study::named(name, self.budget)) {
            let wanted = self.wanted(&study)?;
            let done = wanted.iter().filter(|run| run.record.is_some()).count();
            let state = format!("{done} of {}", wanted.len());
            rows.push(vec![study.name.to_owned(), study.paper, study.title, state]);
        }
        say!("{}", table(&["study", "paper", "what it shows", "runs done"], &rows));
        say!("\nbudget {}; run one with: sogclr reproduce STUDY --budget minutes|hours", self.budget.name());
        Ok(())
    }

    /// Every run of the study, the first seed of all cells before the second.
    fn wanted(&self, study: &Study) -> Result<Vec<Wanted>, CliError> {
        if self.seeds == Some(0) {
            return Err(CliError::Input("--seeds is 0: use at least 1".into()));
        }
        let mut wanted = Vec::new();
        for seed in 0.. {
            let mut of_seed = Vec::new();
            for (row, of_row) in study.rows.iter().enumerate() {
                for (column, of_column) in study.columns.iter().enumerate() {
                    let settings = study.settings(of_row, of_column, seed);
                    let key = Record::key(&settings);
                    let record = Record::load(&self.records(), &key)?;
                    of_seed.push(Wanted { row, column, seed, key, settings, record });
                }
            }
            // Also what is known beyond the seeds that are asked for.
            let is_known = of_seed.iter().any(|run| run.record.is_some());
            if seed >= self.seeds(study).max(study.seeds) && !is_known {
                break;
            }
            wanted.extend(of_seed);
        }
        Ok(wanted)
    }

    /// Where the study's data is, as settings; `None` if CIFAR-10 is not there.
    fn source(&self, study: &Study) -> Result<Option<Overrides>, CliError> {
        let mut source = Overrides::default();
        let text = |path: &Path| toml::Value::String(path.to_string_lossy().into_owned());
        match study.kind {
            Kind::Images if self.pairs.is_some() => {
                return Err(CliError::Input(format!("{} is a study of images: leave --pairs out", study.name)));
            }
            Kind::Images => {
                let path = self.data.clone().or_else(|| Some(PathBuf::from(CIFAR10)).filter(|path| path.exists()));
                let Some(path) = path else { return Ok(None) };
                source.lay("data.path", text(&path));
            }
            Kind::Pairs if self.data.is_some() => {
                return Err(CliError::Input(format!("{} is a study of pairs: name them with --pairs", study.name)));
            }
            Kind::Pairs => {
                source.lay("data.pairs", text(self.pairs.as_deref().unwrap_or(Path::new("emoji"))));
                if let Some(images) = &self.images {
                    source.lay("data.images", text(images));
                }
            }
        }
        Ok(Some(source))
    }

    /// The runs with their data; refuses what cannot be run, and records of other settings or data.
    fn check(&self, wanted: &[Wanted], source: &Overrides) -> Result<Vec<(Cell, String)>, CliError> {
        let mut cells = Vec::new();
        for run in wanted {
            let mut settings = run.settings.clone();
            settings.lay_table(source.table());
            let (config, data) = RunConfig::open(&settings)?;
            let title = portable_title(&data.title);
            if let Some(record) = &run.record {
                let path = self.records().join(format!("{}.json", run.key));
                let other = |what: String| {
                    Err(CliError::Input(format!(
                        "{} was made with other {what}, or choose another --out",
                        path.display()
                    )))
                };
                if record.data != title {
                    return other(format!("data, {}, not {title}: name that", record.data));
                }
                if record.config != Record::portable(&config) {
                    return other("settings: remove it".into());
                }
            }
            let cell = Cell { folder: self.runs.join(&run.key), config };
            cell.check(data.train.len())?;
            cells.push((cell, title));
        }
        Ok(cells)
    }

    /// Replaces the study's files by what is known so far; returns the table.
    fn write(&self, study: &Study, wanted: &[Wanted]) -> Result<String, CliError> {
        let mut cells: Vec<_> = study.rows.iter().map(|_| vec![Vec::new(); study.columns.len()]).collect();
        for run in wanted {
            // Another process may have finished it.
            let record = match &run.record {
                Some(record) => Some(record.clone()),
                None => Record::load(&self.records(), &run.key)?,
            };
            cells[run.row][run.column].extend(record.map(|record| (run.seed, record)));
        }
        let results = Results { study, cells };
        let text = results.markdown();
        let stem = self.stem(study);
        let file = |suffix: &str| PathBuf::from(format!("{}{suffix}", stem.display()));
        write_atomic(&file(".md"), (text.clone() + "\n").as_bytes())?;
        write_atomic(&file(".csv"), results.csv().as_bytes())?;
        for (suffix, chart) in study_charts(&results) {
            write_atomic(&file(&format!("{suffix}.svg")), chart.as_bytes())?;
        }
        Ok(text)
    }

    /// Theorem 2's ε along the first seed of the first row, whose run must still be there.
    fn epsilon(
        &self,
        study: &Study,
        wanted: &[Wanted],
        cells: &[(Cell, String)],
        stop: &AtomicBool,
    ) -> Result<(), CliError> {
        let Some((cell, _)) = cells.first() else {
            note!("no histogram of ε: there is no {CIFAR10}");
            return Ok(());
        };
        if wanted.first().is_none_or(|run| run.record.is_none()) {
            return Ok(());
        }
        // The record alone does not have the checkpoints.
        match train(cell, stop)? {
            Trained::Finished => {
                epsilon_of_run(&cell.folder, &PathBuf::from(format!("{}-histogram", self.stem(study).display())))
            }
            Trained::Stopped => Err(stopped()),
            Trained::Failed(problem) => Err(CliError::Failed(format!("no histogram of ε: {problem}"))),
        }
    }
}

/// Trains what is not trained yet, and measures it.
fn train_and_measure(cell: &Cell, data: &str, stop: &AtomicBool) -> Result<Result<Record, Trained>, CliError> {
    match train(cell, stop)? {
        Trained::Finished => Ok(Ok(cell.record(data, |_| {})?)),
        other => Ok(Err(other)),
    }
}
