//! The `sogclr` program: one file for each verb. Prints, asks for nothing, and exits 0, 1 (the run failed), 2 (the input
//! is wrong) or 130 (stopped by Ctrl-C).

mod charts;
mod error;
mod interrupt;
mod launch;
mod options;
mod output;
mod progress;
mod ranks;
mod summary;
mod verbs;

use clap::{CommandFactory, Parser, Subcommand};
use error::CliError;
use output::{Volume, complain, note, say, set_volume};
use ranks::{Company, Ranks};
use sogclr::comm::Group;
use sogclr::math::Isa;
use sogclr::provenance::Provenance;
use std::process::ExitCode;
use std::sync::LazyLock;
use verbs::{
    advise, bench, check, compare, config, demo, embed, eval, loss, manifest, pack, plan, pretrain, report, reproduce,
    resume, search, shell, theory, views,
};

/// Contrastive pre-training that does not need a large batch.
///
/// Start with `sogclr demo`. Then point `pretrain` at a folder of images, evaluate the encoder with `eval`, and load
/// `encoder.safetensors` from the run folder into your own tools.
#[derive(Parser)]
#[command(name = "sogclr", version = VERSION.as_str(), propagate_version = true)]
struct Cli {
    /// Threads to use; all cores unless given, shared evenly by the processes of one machine under mpirun. The result does not
    /// depend on it
    #[arg(long, global = true, value_name = "T")]
    threads: Option<usize>,
    /// Say more: all settings of a run, all signals of the progress line
    #[arg(long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Say nothing but results and errors
    #[arg(long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// Number, revision, features and what the processor can: what a report of a bug needs.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [("wgpu", cfg!(feature = "wgpu")), ("cuda", cfg!(feature = "cuda")), ("mpi", cfg!(feature = "mpi"))];
    let features: Vec<&str> = features.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect();
    format!(
        "{} ({}), features: {}, kernels for {:?}, {} threads",
        env!("CARGO_PKG_VERSION"),
        env!("SOGCLR_REVISION"),
        if features.is_empty() { "none".into() } else { features.join(", ") },
        Isa::best(),
        std::thread::available_parallelism().map_or(1, usize::from)
    )
});

/// The program as clap knows it.
fn command() -> clap::Command {
    Cli::command()
}

#[derive(Subcommand)]
enum Verb {
    Demo(demo::Demo),
    Plan(Box<plan::PlanVerb>),
    Advise(Box<advise::Advise>),
    Check(Box<check::Check>),
    Views(Box<views::Views>),
    Pretrain(Box<pretrain::Pretrain>),
    Resume(resume::Resume),
    /// Measure a trained encoder: linear classifier, nearest neighbours; retrieval or zero-shot with texts
    #[command(subcommand)]
    Eval(eval::Eval),
    Embed(embed::Embed),
    Search(search::Search),
    Export(verbs::export::Export),
    Report(report::Report),
    Pack(pack::Pack),
    Compare(Box<compare::Compare>),
    Loss(loss::LossVerb),
    Manifest(manifest::ManifestVerb),
    /// Show the resolved configuration, or the reference of all keys
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Measure the paper's theory on problems small enough to be exact
    #[command(subcommand)]
    Theory(theory::Theory),
    Reproduce(reproduce::Reproduce),
    Completions(shell::Completions),
    Man(shell::Man),
    /// Measure how fast this machine trains: whole steps, layer by layer, or a loss alone
    #[command(subcommand)]
    Bench(bench::Bench),
}

impl Verb {
    /// What it does where a launcher starts it several times.
    fn company(&self) -> Company {
        match self {
            Self::Pretrain(_) | Self::Resume(_) | Self::Eval(_) | Self::Embed(_) => Company::Together,
            Self::Compare(_) | Self::Bench(bench::Bench::Step(_)) => Company::Together,
            Self::Reproduce(_) => Company::Apart,
            _ => Company::Alone,
        }
    }
}

/// More only take memory.
const THREADS_PER_CORE: usize = 8;

/// Runs the program.
fn main() -> ExitCode {
    ranks::silence_others();
    let cli = Cli::try_parse().unwrap_or_else(|error| match ranks::rank_and_size() {
        (0, _) => error.exit(),
        _ => std::process::exit(error.exit_code()),
    });
    match Ranks::join(cli.verb.company()) {
        Ok(ranks) => {
            let outcome = ranks.work(|group| run(cli, group));
            ranks.end(outcome)
        }
        Err(error) => report(&error),
    }
}

/// Says how it ended, and with which code.
fn report(error: &CliError) -> ExitCode {
    match error {
        CliError::Stopped(how_to_go_on) => say!("{how_to_go_on}"),
        error => complain!("error: {error}"),
    }
    ExitCode::from(error.exit_code())
}

/// What runs, checkpoints and records say of who made them.
fn provenance() -> Provenance {
    Provenance::of(concat!("sogclr ", env!("CARGO_PKG_VERSION"), " (", env!("SOGCLR_REVISION"), ")"))
}

fn run(cli: Cli, group: &Group) -> Result<(), CliError> {
    match (cli.quiet, cli.verbose) {
        (true, _) => set_volume(Volume::Quiet),
        (_, true) => set_volume(Volume::Verbose),
        _ => {}
    }
    if let Some(threads) = cli.threads.or_else(|| ranks::threads(group)) {
        if threads == 0 {
            return Err(CliError::Input("--threads is 0: use at least 1".into()));
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let most = THREADS_PER_CORE * cores;
        if threads > most {
            note!("--threads {threads} is more than {THREADS_PER_CORE} for each of the {cores} cores: using {most}");
        }
        let threads = threads.min(most);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        pool.map_err(|error| CliError::Failed(format!("cannot start {threads} threads: {error}")))?;
    }
    match cli.verb {
        Verb::Demo(verb) => verb.run(),
        Verb::Plan(verb) => verb.run(),
        Verb::Advise(verb) => verb.run(),
        Verb::Check(verb) => verb.run(),
        Verb::Views(verb) => verb.run(),
        Verb::Pretrain(verb) => verb.run(group),
        Verb::Resume(verb) => verb.run(group),
        Verb::Eval(verb) => verb.run(group),
        Verb::Embed(verb) => verb.run(group),
        Verb::Search(verb) => verb.run(),
        Verb::Export(verb) => verb.run(),
        Verb::Report(verb) => verb.run(),
        Verb::Pack(verb) => verb.run(),
        Verb::Compare(verb) => verb.run(group),
        Verb::Loss(verb) => verb.run(),
        Verb::Manifest(verb) => verb.run(),
        Verb::Config(verb) => verb.run(),
        Verb::Theory(verb) => verb.run(),
        Verb::Reproduce(verb) => verb.run(),
        Verb::Completions(verb) => verb.run(),
        Verb::Man(verb) => verb.run(),
        Verb::Bench(verb) => verb.run(group),
    }
}
