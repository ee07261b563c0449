//! `sogclr reproduce`: the paper's tables and figures at a budget of minutes, of hours, or at the paper's own size.

mod cost;

use super::theory::epsilon_of_run;
use crate::charts::study_charts;
use crate::error::CliError;
use crate::interrupt::stop_on_ctrl_c;
use crate::launch::{stopped, train};
use crate::output::{note, say};
use crate::ranks::rank_and_size;
use clap::Args;
use sogclr::config::{Overrides, RunConfig};
use sogclr::data::{Dataset, Description, Split};
use sogclr::race::{Cell, Trained, portable_title};
use sogclr::report::{Results, table};
use sogclr::storage::write_atomic;
use sogclr::study::{Budget, Kind, Record, Show, Study};
use std::collections::HashMap;
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
/// --budget paper takes the paper's own settings and linear protocol, on the folder of ImageNet that DATA names: train/ and
/// val/ with a folder for each class. It first measures a step and says what time and disk the runs will take.
///
/// Every finished run is a small file in OUT/cells, shared by all studies, so a study can be stopped and grow over days: run
/// the same command again. Started by mpirun or srun, every process takes its share of the runs. The settings are in the
/// folder crates/sogclr/studies of the source, those of the paper also in recipes/.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sogclr reproduce\n  scripts/get-cifar10 && sogclr reproduce batch-epochs --budget minutes\n  \
    sogclr reproduce bimodal --budget hours --pairs Flickr8k.token.txt --images Flicker8k_Dataset\n  \
    sogclr reproduce batch-epochs --budget paper IMAGENET --device cuda --only \"ImageNet-S, SogCLR, batch 256\"\n\n\
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
    /// What each run may cost: minutes (every run takes seconds: shows that it works, too short for differences), hours (every
    /// run takes minutes on two cores) or paper (the paper's own settings: every run takes days on a GPU)
    #[arg(long, default_value = "minutes")]
    budget: Budget,
    /// Train only the row or column TEXT, or cells whose row and column, as in "SogCLR, batch 32, 10 epochs", contain it; the
    /// table shows all that is known
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// cpu, cpu-exact, wgpu or cuda; cpu unless given
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Set any configuration key for every run, e.g. train.micro_batch=64; runs of other settings have records of their own
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Begin --budget paper though it would take longer than a day
    #[arg(long)]
    yes: bool,
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

/// A run that can be trained: its settings fit its data.
struct Checked {
    cell: Cell,
    /// What the data is called.
    title: String,
    /// Training and test images.
    train: usize,
    test: usize,
}

impl Reproduce {
    pub fn run(self) -> Result<(), CliError> {
        let Some(name) = &self.name else { return self.list() };
        let study = Study::named(name, self.budget).ok_or_else(|| {
            let known: Vec<&str> = Study::names().filter(|name| Study::named(name, self.budget).is_some()).collect();
            let budget = self.budget.name();
            CliError::Input(format!(
                "there is no study {name:?} of budget {budget}; known ones are {}",
                known.join(", ")
            ))
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
            let asked = wanted.iter().filter(|run| is_asked(run)).count();
            return Err(CliError::Input(match self.budget {
                Budget::Paper => format!(
                    "{missing} of {asked} runs are not done: name the folder of ImageNet as DATA, with train/ and val/ \
                     and a folder for each class in them"
                ),
                _ => format!(
                    "{missing} of {asked} runs are not done, and there is no {CIFAR10} to run them on: fetch it with \
                     scripts/get-cifar10, or name DATA"
                ),
            }));
        }
        let cells = match &source {
            Some(source) => self.check(&study, &wanted, source, is_asked)?,
            None => HashMap::new(),
        };
        // Every process of several takes each so many-th of the runs.
        let (rank, ranks) = rank_and_size();
        let missing: Vec<usize> = (0..wanted.len()).filter(|&index| is_missing(&wanted[index])).collect();
        let ours: Vec<usize> = missing.iter().copied().skip(rank).step_by(ranks).collect();
        if ranks > 1 {
            note!("process {rank} of {ranks} takes {} of {} runs", ours.len(), missing.len());
        }
        if self.budget == Budget::Paper && !ours.is_empty() {
            let runs: Vec<_> = ours.iter().map(|&index| (title(&wanted[index]), &cells[&index])).collect();
            cost::tell(&runs, self.yes)?;
        }
        let stop = stop_on_ctrl_c()?;
        let unwritable = |folder: &Path, error: std::io::Error| {
            CliError::Input(format!("cannot write to {}: {error}; choose another folder", folder.display()))
        };
        for folder in [&self.records(), &self.runs] {
            std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, error))?;
        }
        let failed = self.train(&study, &mut wanted, &cells, &ours, &stop)?;
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

    /// Trains and measures the runs `ours`, one after another; returns why the last that failed did.
    fn train(
        &self,
        study: &Study,
        wanted: &mut [Wanted],
        cells: &HashMap<usize, Checked>,
        ours: &[usize],
        stop: &AtomicBool,
    ) -> Result<Option<String>, CliError> {
        let mut failed = None;
        for (place, &index) in ours.iter().enumerate() {
            let run = &wanted[index];
            note!("[{}/{}] {}, seed {}", place + 1, ours.len(), study.title_of(run.row, run.column), run.seed);
            // There is data, and so a cell, for what is missing.
            let Checked { cell, title, .. } = &cells[&index];
            match train_and_measure(cell, title, stop)? {
                Ok(record) => {
                    record.save(&self.records(), &run.key)?;
                    wanted[index].record = Some(record);
                    self.write(study, wanted)?;
                }
                Err(Trained::Failed(problem)) => {
                    note!("{problem}");
                    failed = Some(problem);
                }
                Err(_) => return Err(stopped()),
            }
        }
        Ok(failed)
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

    /// All studies and how far they are at each budget.
    fn list(&self) -> Result<(), CliError> {
        let mut rows = Vec::new();
        for name in Study::names() {
            let mut row = vec![name.to_owned()];
            for budget in Budget::ALL {
                let Some(study) = Study::named(name, budget) else {
                    row.push("–".into());
                    continue;
                };
                if row.len() == 1 {
                    row.extend([study.paper.clone(), study.title.clone()]);
                }
                let wanted = self.wanted(&study)?;
                let done = wanted.iter().filter(|run| run.record.is_some()).count();
                row.push(format!("{done} of {}", wanted.len()));
            }
            rows.push(row);
        }
        say!("{}", table(&["study", "paper", "what it shows", "minutes", "hours", "paper's size"], &rows));
        say!("\nruns done at each budget; run a study with: sogclr reproduce STUDY --budget minutes|hours|paper");
        Ok(())
    }

    /// What is set for every run.
    fn sets(&self) -> Result<Overrides, CliError> {
        let mut sets = Overrides::default();
        for assignment in &self.sets {
            sets.set(assignment)?;
        }
        if let Some(device) = &self.device {
            sets.lay("train.device", toml::Value::String(device.clone()));
        }
        Ok(sets)
    }

    /// Every run of the study, the first seed of all cells before the second.
    fn wanted(&self, study: &Study) -> Result<Vec<Wanted>, CliError> {
        if self.seeds == Some(0) {
            return Err(CliError::Input("--seeds is 0: use at least 1".into()));
        }
        let (mut wanted, sets) = (Vec::new(), self.sets()?);
        for seed in 0.. {
            let mut of_seed = Vec::new();
            for (row, of_row) in study.rows.iter().enumerate() {
                for (column, of_column) in study.columns.iter().enumerate() {
                    let mut settings = study.settings(of_row, of_column, seed);
                    settings.lay_table(sets.table());
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

    /// Where the study's data is, as settings; `None` if none is named and CIFAR-10 is not there.
    fn source(&self, study: &Study) -> Result<Option<Overrides>, CliError> {
        let mut source = Overrides::default();
        let text = |path: &Path| toml::Value::String(path.to_string_lossy().into_owned());
        match study.kind {
            Kind::Images | Kind::Captions if self.pairs.is_some() => {
                return Err(CliError::Input(format!("{} is a study of images: leave --pairs out", study.name)));
            }
            Kind::Images | Kind::Captions => {
                let usual =
                    || Some(PathBuf::from(CIFAR10)).filter(|path| path.exists() && self.budget != Budget::Paper);
                let path = self.data.clone().or_else(usual);
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

    /// The runs that are asked for or known, by their place, with their data; refuses what cannot be run, and records of other
    /// settings or data.
    fn check(
        &self,
        study: &Study,
        wanted: &[Wanted],
        source: &Overrides,
        is_asked: impl Fn(&Wanted) -> bool,
    ) -> Result<HashMap<usize, Checked>, CliError> {
        let mut cells = HashMap::new();
        // A folder of a million images is listed once, not for every run.
        let mut opened: HashMap<String, (Dataset, Description)> = HashMap::new();
        for (place, run) in wanted.iter().enumerate().filter(|(_, run)| run.record.is_some() || is_asked(run)) {
            let mut settings = run.settings.clone();
            settings.lay_table(source.table());
            let (data, seed) = settings.data()?;
            // A seed draws its own share of limited data.
            let key = format!("{data:?} {:?}", data.limit.map(|_| seed));
            if !opened.contains_key(&key) {
                let data = Dataset::open(&data, seed)?;
                let description = data.describe();
                opened.insert(key.clone(), (data, description));
            }
            let (data, description) = &opened[&key];
            let config = RunConfig::resolve(description, &settings)?;
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
            let cell = Cell { measure: study.measure(), ..Cell::new(self.runs.join(&run.key), config) };
            cell.check(data.train.len())?;
            let test = data.test.as_ref().map_or(0, Split::len);
            cells.insert(place, Checked { cell, title, train: data.train.len(), test });
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
        cells: &HashMap<usize, Checked>,
        stop: &AtomicBool,
    ) -> Result<(), CliError> {
        let Some(Checked { cell, .. }) = cells.get(&0) else {
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
