//! Collectives of the training step. One process is not a special case: [`Solo`] returns its input.
//!
//! Every rank calls the same collectives in the same order, with values of the same length. All ranks get the same bits. A
//! collective does not fail: an engine that cannot go on ends the job.

#[cfg(feature = "mpi")]
mod mpi;
mod solo;
mod threads;
#[cfg(feature = "mpi")]
mod watchdog;

#[cfg(feature = "mpi")]
pub use mpi::{Session, mpi};
pub use solo::Solo;
pub use threads::threads;

use crate::math::Matrix;
use crate::system::{cpus, host};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What an engine of a group of equal processes can do.
pub trait Collective: Send + Sync {
    /// This process among the others, from 0.
    fn rank(&self) -> usize;

    /// Number of processes.
    fn size(&self) -> usize;

    /// Adds `values` over the ranks, in place.
    fn sum(&self, values: &mut [f32]);

    /// The same from a second thread, beside what the first one does.
    fn sum_apart(&self, values: &mut [f32]);

    /// The same in f64.
    fn sum_f64(&self, values: &mut [f64]);

    /// The values of every rank, rank after rank.
    fn gather(&self, values: Vec<f32>) -> Vec<f32>;

    /// The bytes of every rank, in the order of ranks; their lengths may differ.
    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>>;

    /// From now on, a rank for which the others wait longer than `limit` ends the job.
    fn watch(&self, limit: Duration) {
        let _ = limit;
    }
}

/// Why a rank does not go on.
#[derive(Debug)]
pub enum Halt<E> {
    /// It has a problem of its own.
    Here(E),
    /// Another rank has.
    Elsewhere {
        /// The first that has.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it says.
        cause: String,
    },
}

/// Where a rank runs, among the others of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This rank among those of the machine, from 0.
    pub local_rank: usize,
    /// Ranks of the machine.
    pub local_size: usize,
    /// How many of them, this one included, may use the same cores.
    pub sharers: usize,
}

/// A handle to the group of processes that train together, with the time spent in it.
#[derive(Clone)]
pub struct Group {
    engine: Arc<dyn Collective>,
    /// Nanoseconds inside collectives.
    spent: Arc<AtomicU64>,
    /// To the thread of [`Group::beside`], once there is one.
    works: Arc<OnceLock<Sender<Work>>>,
}

/// Adds values over the ranks, in place.
pub type Sum<'a> = &'a mut dyn FnMut(&mut [f32]);

type Work = Box<dyn FnOnce(&dyn Collective) + Send>;

/// Work that goes on in another thread.
pub struct Pending<T> {
    result: Receiver<T>,
    group: Group,
}

impl<T> Pending<T> {
    /// Waits for its end.
    pub fn wait(self) -> T {
        self.group.timed(|_| self.result.recv().expect("the thread lives as long as its group"))
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Default for Group {
    fn default() -> Self {
        Self::solo()
    }
}

impl Group {
    /// The ranks that `engine` connects.
    pub fn new(engine: impl Collective + 'static) -> Self {
        Self { engine: Arc::new(engine), spent: Arc::default(), works: Arc::default() }
    }

    /// A group of one.
    pub fn solo() -> Self {
        Self::new(Solo)
    }

    /// This process among the others, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.engine.size()
    }

    /// Whether this is the process that prints and writes.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Time spent in collectives so far, waiting for slower ranks included.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    fn timed<T>(&self, call: impl FnOnce(&dyn Collective) -> T) -> T {
        let began = Instant::now();
        let result = call(self.engine.as_ref());
        self.spent.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Adds `values` over the ranks, in place.
    pub fn sum_f64(&self, values: &mut [f64]) {
        self.timed(|engine| engine.sum_f64(values));
    }

    /// From now on, a rank for which the others wait longer than `limit` ends the job.
    pub fn watch(&self, limit: Duration) {
        self.engine.watch(limit);
    }

    /// The bytes of every rank, in the order of ranks.
    pub fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        self.timed(|engine| engine.gather_bytes(bytes))
    }

    /// What rank 0 holds; the others bring nothing.
    pub fn from_first(&self, bytes: Vec<u8>) -> Vec<u8> {
        let ours = if self.is_first() { bytes } else { Vec::new() };
        self.gather_bytes(ours).swap_remove(0)
    }

    /// The result of this rank if every rank has one; otherwise all end, and know why.
    pub fn together<T, E: Display>(&self, here: Result<T, E>) -> Result<T, Halt<E>> {
        if self.size() == 1 {
            return here.map_err(Halt::Here);
        }
        let told = here.as_ref().err().map(|error| (host(), error.to_string()));
        let all = self.gather_bytes(serde_json::to_vec(&told).expect("plain data"));
        let all = all.iter().map(|told| serde_json::from_slice(told).expect("what a rank has written"));
        let first = all.enumerate().find_map(|(rank, told): (usize, Option<(String, String)>)| Some((rank, told?)));
        match (here, first) {
            (Err(error), _) => Err(Halt::Here(error)),
            (Ok(_), Some((rank, (host, cause)))) => Err(Halt::Elsewhere { rank, host, cause }),
            (Ok(result), None) => Ok(result),
        }
    }

    /// Where this rank runs.
    pub fn place(&self) -> Place {
        let ours = (host(), cpus());
        let all = self.gather_bytes(serde_json::to_vec(&ours).expect("plain data"));
        let all = all.iter().map(|place| serde_json::from_slice(place).expect("what a rank has written"));
        let here: Vec<(usize, String)> = all
            .enumerate()
            .filter_map(|(rank, (host, cpus)): (usize, (String, String))| (host == ours.0).then_some((rank, cpus)))
            .collect();
        Place {
            local_size: here.len(),
            local_rank: here.iter().filter(|(rank, _)| *rank < self.rank()).count(),
            sharers: here.iter().filter(|(_, cpus)| *cpus == ours.1).count(),
        }
    }

    /// Whether any rank says so.
    pub fn any(&self, here: bool) -> bool {
        self.any_of([here])[0]
    }

    /// The same of several questions at once.
    pub fn any_of<const N: usize>(&self, here: [bool; N]) -> [bool; N] {
        let mut counts = here.map(|here| f64::from(u8::from(here)));
        self.sum_f64(&mut counts);
        counts.map(|count| count > 0.0)
    }

    /// The rows of every rank, rank after rank.
    pub fn gather(&self, rows: Matrix) -> Matrix {
        let dim = rows.ncols();
        let (values, offset) = rows.into_raw_vec_and_offset();
        assert!(offset.unwrap_or(0) == 0, "rows that were sliced");
        let all = self.timed(|engine| engine.gather(values));
        Matrix::from_shape_vec((all.len() / dim.max(1), dim), all).expect("whole rows from every rank")
    }

    /// Lets `work` add values over the ranks, by the function that it is given, while this thread goes on. Every rank begins
    /// the same work in the same order.
    pub fn beside<T: Send + 'static>(&self, work: impl FnOnce(Sum) -> T + Send + 'static) -> Pending<T> {
        let works = self.works.get_or_init(|| {
            let (sender, works) = channel::<Work>();
            let engine = self.engine.clone();
            std::thread::spawn(move || works.into_iter().for_each(|work| work(engine.as_ref())));
            sender
        });
        let (sender, result) = sync_channel(1);
        let work: Work = Box::new(move |engine| {
            // Nobody waits for it after an error.
            let _ = sender.send(work(&mut |values| engine.sum_apart(values)));
        });
        works.send(work).expect("the thread lives as long as its group");
        Pending { result, group: self.clone() }
    }
}

/// A group is an engine itself, for one that changes what another does.
impl Collective for Group {
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn size(&self) -> usize {
        self.engine.size()
    }

    fn sum(&self, values: &mut [f32]) {
        self.timed(|engine| engine.sum(values));
    }

    fn sum_apart(&self, values: &mut [f32]) {
        self.engine.sum_apart(values);
    }

    fn sum_f64(&self, values: &mut [f64]) {
        self.timed(|engine| engine.sum_f64(values));
    }

    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        self.timed(|engine| engine.gather(values))
    }

    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        self.timed(|engine| engine.gather_bytes(bytes))
    }

    fn watch(&self, limit: Duration) {
        self.engine.watch(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_each<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = threads(size).into_iter().map(|group| scope.spawn(|| work(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_problem_of_one_rank_ends_all_and_is_named() {
        let results = on_each(3, |group| {
            let rank = group.rank();
            group.together(if rank == 1 { Err("no such folder".to_owned()) } else { Ok(rank) })
        });
        assert!(matches!(&results[1], Err(Halt::Here(own)) if own == "no such folder"));
        for other in [0, 2] {
            let Err(Halt::Elsewhere { rank, cause, .. }) = &results[other] else { panic!("rank {other} goes on") };
            assert_eq!((*rank, cause.as_str()), (1, "no such folder"));
        }
        let results = on_each(3, |group| group.together(Ok::<_, String>(group.rank())).unwrap());
        assert_eq!(results, [0, 1, 2]);
    }

    #[test]
    fn ranks_of_one_machine_know_each_other() {
        let places = on_each(3, |group| group.place());
        let expected = [0, 1, 2].map(|local_rank| Place { local_rank, local_size: 3, sharers: 3 });
        assert_eq!(places, expected);
        assert_eq!(Group::solo().place(), Place { local_rank: 0, local_size: 1, sharers: 1 });
    }

    #[test]
    fn bytes_come_in_the_order_of_ranks_and_from_the_first() {
        let all = on_each(3, |group| {
            let rank = group.rank() as u8;
            (group.gather_bytes(vec![rank; group.rank()]), group.from_first(vec![7 + rank]))
        });
        let expected = (vec![vec![], vec![1], vec![2, 2]], vec![7]);
        assert!(all.iter().all(|got| *got == expected));
    }
}
