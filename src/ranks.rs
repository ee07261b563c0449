//! The processes that mpirun or srun started together: each runs this program, and they train one run.

use crate::error::CliError;
use crate::output::{self, note};
use sogclr::comm::Group;
use std::process::{Command, ExitCode};

/// Rank and number of processes, as a launcher tells them.
const LAUNCHERS: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "PMI_SIZE"],
    // Set by srun alone: a batch script that starts one process has other variables, too.
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
];

/// This process among those that a launcher started together: its number and how many there are.
pub fn rank_and_size() -> (usize, usize) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let found = LAUNCHERS.iter().find_map(|[rank, size]| Some((number(rank)?, number(size)?)));
    found.filter(|(rank, size)| rank < size).unwrap_or((0, 1))
}

/// Rank 0 does the talking.
pub fn silence_others() {
    if rank_and_size().0 > 0 {
        output::be_silent();
    }
}

/// Makes a child a program of its own, not one more process of the job.
pub fn forget_launcher(command: &mut Command) {
    let is_told = |name: &str| {
        ["OMPI_", "PMIX_", "PMI_"].iter().any(|of| name.starts_with(of)) || LAUNCHERS.as_flattened().contains(&name)
    };
    let told = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_told));
    for name in told {
        command.env_remove(name);
    }
}

/// Threads of each process where several share the cores of a machine.
pub fn threads(group: &Group) -> Option<usize> {
    if group.size() == 1 {
        return None;
    }
    let (cores, place) = (std::thread::available_parallelism().map_or(1, |cores| cores.get()), group.place());
    let is_bound = place.sharers < place.local_size;
    if let Some(all) = sogclr::system::cores().filter(|&all| is_bound && cores * place.local_size <= all / 2) {
        note!(
            "each process may use {cores} of the {all} cores here: `mpirun --bind-to none`, or `--map-by slot:pe={}`, \
             lets them use all",
            all / place.local_size
        );
    }
    Some((cores / place.sharers).max(1))
}

/// What a verb does where a launcher starts it several times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// The processes work on one thing.
    Together,
    /// Each takes its part and needs none of the others.
    Apart,
    /// It is for one process.
    Alone,
}

/// The connection to the other processes.
pub struct Ranks {
    pub group: Group,
    #[cfg(feature = "mpi")]
    session: Option<sogclr::comm::Session>,
}

impl Ranks {
    /// Joins the other processes, where a launcher started more than this one.
    pub fn join(company: Company) -> Result<Self, CliError> {
        let (_, size) = rank_and_size();
        match company {
            Company::Together if size > 1 => Self::connect(size),
            Company::Alone if size > 1 => {
                Err(CliError::Input(format!("this is for one process, {size} were started: start it without mpirun")))
            }
            _ => Ok(Self {
                group: Group::solo(),
                #[cfg(feature = "mpi")]
                session: None,
            }),
        }
    }

    #[cfg(feature = "mpi")]
    fn connect(size: usize) -> Result<Self, CliError> {
        let (session, group) = sogclr::comm::mpi().map_err(|error| CliError::Failed(format!("MPI: {error}")))?;
        if group.size() != size {
            return Err(CliError::Input(format!(
                "{size} processes were started, but MPI connects {}: use mpirun, or srun --mpi=pmix",
                group.size()
            )));
        }
        Ok(Self { group, session: Some(session) })
    }

    #[cfg(not(feature = "mpi"))]
    fn connect(size: usize) -> Result<Self, CliError> {
        Err(CliError::Input(format!(
            "{size} processes were started, but this build cannot connect them: build it again with `--features mpi` \
             (docs/distributed.md)"
        )))
    }

    /// Does the work of this process. A panic ends the others, too, which would wait for it for ever.
    pub fn work<T>(&self, work: impl FnOnce(&Group) -> T) -> T {
        #[cfg(feature = "mpi")]
        if let Some(session) = &self.session {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&self.group)));
            return outcome.unwrap_or_else(|_| session.abort(101));
        }
        work(&self.group)
    }

    /// Ends the program, and on an error the other processes, which may wait for this one.
    pub fn end(self, outcome: Result<(), CliError>) -> ExitCode {
        match outcome {
            Ok(()) if output::is_lost() => ExitCode::FAILURE,
            Ok(()) => ExitCode::SUCCESS,
            // All have agreed to stop.
            Err(error @ CliError::Stopped(_)) => crate::report(&error),
            Err(error) => self.fail(&error),
        }
    }

    #[cfg(feature = "mpi")]
    fn fail(self, error: &CliError) -> ExitCode {
        let Some(session) = self.session else { return crate::report(error) };
        if !self.group.is_first() {
            // Rank 0 knows it, too, and says it; unless it does not.
            std::thread::sleep(std::time::Duration::from_secs(2));
            eprintln!("error: rank {}: {error}", self.group.rank());
        }
        crate::report(error);
        session.abort(error.exit_code().into())
    }

    #[cfg(not(feature = "mpi"))]
    fn fail(self, error: &CliError) -> ExitCode {
        crate::report(error)
    }
}
