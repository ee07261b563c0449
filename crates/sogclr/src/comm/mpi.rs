//! A group whose ranks are processes that MPI connects.

use super::watchdog::{Pulse, Watchdog};
use super::{Collective, Group};
use crate::system::host;
use ferrompi::{Communicator, Mpi, MpiDatatype, ReduceOp, ThreadLevel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Values of one message: MPI counts them in 32 bits.
const AT_ONCE: usize = 1 << 28;
/// Values of one message of gradients: batch norm's sums wait behind it on the same wire.
const PIECE: usize = 1 << 15;

/// The connection to the other processes: as long as it lives, and only on the thread that made it.
pub struct Session {
    mpi: Mpi,
}

impl Session {
    /// Ends all processes of the job.
    pub fn abort(&self, code: i32) -> ! {
        self.mpi.world().abort(code)
    }
}

/// Joins the processes that a launcher started together.
pub fn mpi() -> Result<(Session, Group), String> {
    let mpi = Mpi::init_thread(ThreadLevel::Multiple).map_err(|error| error.to_string())?;
    let world = mpi.world();
    let copy = || world.duplicate().map_err(|error| error.to_string());
    let (apart, guard) = (copy()?, Arc::new(copy()?));
    let engine = Engine { world, apart, guard, pulse: Arc::default(), watched: OnceLock::new() };
    Ok((Session { mpi }, Group::new(engine)))
}

struct Engine {
    world: Communicator,
    /// For a second thread: collectives of one communicator must not cross.
    apart: Communicator,
    /// What the watchdog talks through.
    guard: Arc<Communicator>,
    pulse: Arc<Pulse>,
    watched: OnceLock<()>,
}

impl Engine {
    fn call(&self, what: impl FnOnce(&Communicator) -> ferrompi::Result<()>) {
        self.call_in(&self.world, what);
    }

    fn call_in(&self, comm: &Communicator, what: impl FnOnce(&Communicator) -> ferrompi::Result<()>) {
        self.pulse.enter();
        let outcome = what(comm);
        self.pulse.leave();
        if let Err(error) = outcome {
            eprintln!("error: rank {} on {} lost the other ranks: {error}", self.rank(), host());
            self.world.abort(1)
        }
    }

    fn sum_of<T: MpiDatatype>(&self, comm: &Communicator, values: &mut [T]) {
        for part in values.chunks_mut(AT_ONCE) {
            self.call_in(comm, |comm| comm.allreduce_inplace(part, ReduceOp::Sum));
        }
    }
}

impl Collective for Engine {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn sum(&self, values: &mut [f32]) {
        self.sum_of(&self.world, values);
    }

    fn sum_apart(&self, values: &mut [f32]) {
        for piece in values.chunks_mut(PIECE) {
            self.sum_of(&self.apart, piece);
        }
    }

    fn sum_f64(&self, values: &mut [f64]) {
        self.sum_of(&self.world, values);
    }

    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        let mut all = vec![0.0; values.len() * self.size()];
        self.call(|world| world.allgather(&values, &mut all));
        all
    }

    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let mut lengths = vec![0; self.size()];
        self.call(|world| world.allgather(&[bytes.len() as u64], &mut lengths));
        let mut ours = Some(bytes);
        let mut of_rank = |(rank, length): (usize, u64)| {
            let own = (rank == self.rank()).then(|| ours.take().expect("one rank is this one"));
            let mut bytes = own.unwrap_or_else(|| vec![0; length as usize]);
            for part in bytes.chunks_mut(AT_ONCE) {
                self.call(|world| world.broadcast(part, rank as i32));
            }
            bytes
        };
        lengths.into_iter().enumerate().map(&mut of_rank).collect()
    }

    fn watch(&self, limit: Duration) {
        self.pulse.set_limit(limit);
        if self.watched.set(()).is_ok() {
            let hosts = self.gather_bytes(host().into_bytes());
            let hosts = hosts.iter().map(|host| String::from_utf8_lossy(host).into_owned()).collect();
            Watchdog::start(self.guard.clone(), hosts, self.pulse.clone());
        }
    }
}
