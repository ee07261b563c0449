//! Ends a job that waits for a rank which does not come, and says for which.
//!
//! MPI notices a process that dies, not one that hangs or whose link is dead: the others wait for ever. So each rank has a
//! thread that watches how long the rank has waited in one collective. Past the limit it tells all others how far it is; they
//! answer with the same. Who does not answer is gone; where all answer, who is not waiting is late.

use ferrompi::{Communicator, Source, Tag};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time for the others to answer.
const GRACE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(250);
const TAG: i32 = 17;

/// How far a rank is: written by its collectives, read by its watchdog.
pub(super) struct Pulse {
    began: Instant,
    /// Collectives that it is in.
    inside: AtomicU64,
    /// Collectives begun and ended.
    turns: AtomicU64,
    /// Milliseconds after `began` of the last of these.
    last: AtomicU64,
    /// Milliseconds that are too many.
    limit: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        let [inside, turns, last] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { began: Instant::now(), inside, turns, last, limit: AtomicU64::new(u64::MAX) }
    }
}

impl Pulse {
    pub(super) fn set_limit(&self, limit: Duration) {
        self.limit.store(limit.as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn enter(&self) {
        self.turn();
        self.inside.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
        self.turn();
    }

    fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.last.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn read(&self) -> Word {
        let still = self.began.elapsed().as_millis() as u64 - self.last.load(Ordering::Relaxed);
        Word {
            turns: self.turns.load(Ordering::Relaxed),
            still,
            waits: u64::from(self.inside.load(Ordering::Relaxed) > 0),
        }
    }
}

/// What ranks tell each other.
#[derive(Clone, Copy)]
struct Word {
    /// Collectives begun and ended.
    turns: u64,
    /// Milliseconds since.
    still: u64,
    /// 1 inside a collective.
    waits: u64,
}

pub(super) struct Watchdog {
    comm: Arc<Communicator>,
    hosts: Vec<String>,
    pulse: Arc<Pulse>,
}

/// What a watchdog knows while somebody complains.
struct Alarm {
    since: Instant,
    ours: Word,
    heard: Vec<Option<Word>>,
}

impl Watchdog {
    pub(super) fn start(comm: Arc<Communicator>, hosts: Vec<String>, pulse: Arc<Pulse>) {
        let watchdog = Self { comm, hosts, pulse };
        std::thread::spawn(move || watchdog.run());
    }

    /// Ends with the connection.
    fn run(self) {
        let mut alarm: Option<Alarm> = None;
        loop {
            std::thread::sleep(TICK);
            let now = self.pulse.read();
            let Ok(heard) = self.listen() else { return };
            // Who went on has nothing to complain of, and has heard enough.
            alarm = alarm.filter(|alarm| alarm.ours.turns == now.turns);
            let is_late = now.waits == 1 && now.still > self.pulse.limit.load(Ordering::Relaxed);
            if alarm.is_none() && (is_late || !heard.is_empty()) {
                self.tell(now);
                alarm = Some(Alarm { since: Instant::now(), ours: now, heard: vec![None; self.hosts.len()] });
            }
            let Some(alarm) = &mut alarm else { continue };
            heard.into_iter().for_each(|(rank, word)| alarm.heard[rank] = Some(word));
            if is_late && alarm.since.elapsed() > GRACE {
                self.end(alarm, now);
            }
        }
    }

    fn listen(&self) -> ferrompi::Result<Vec<(usize, Word)>> {
        let mut heard = Vec::new();
        while let Some(status) = self.comm.iprobe::<u64>(Source::Any, Tag::Value(TAG))? {
            let mut word = [0; 3];
            self.comm.recv(&mut word, status.source, TAG)?;
            if let Source::Rank(rank) = status.source {
                heard.push((rank as usize, Word { turns: word[0], still: word[1], waits: word[2] }));
            }
        }
        Ok(heard)
    }

    /// Tells every other rank, each from a thread of its own: one that is gone may hold up the message.
    fn tell(&self, word: Word) {
        let ours = self.comm.rank() as usize;
        for rank in (0..self.hosts.len()).filter(|rank| *rank != ours) {
            let comm = self.comm.clone();
            std::thread::spawn(move || comm.send(&[word.turns, word.still, word.waits], rank as i32, TAG));
        }
    }

    /// Says who is late, or lets the first of those who wait say it, and ends the job.
    fn end(&self, alarm: &Alarm, now: Word) -> ! {
        let ours = self.comm.rank() as usize;
        let seconds = now.still / 1000;
        let others = || alarm.heard.iter().enumerate().filter(|(rank, _)| *rank != ours);
        let gone = others().find(|(_, word)| word.is_none()).map(|(rank, _)| (rank, "does not answer"));
        let slow = others().find(|(_, word)| word.is_some_and(|word| word.waits == 0));
        let least = others().min_by_key(|(_, word)| word.map_or(0, |word| word.turns));
        let late = gone.or(slow.or(least).map(|(rank, _)| (rank, "is late")));
        let is_first = others().all(|(rank, word)| rank > ours || word.is_none_or(|word| word.waits == 0));
        if !is_first {
            std::thread::sleep(2 * TICK);
        } else if let Some((rank, how)) = late {
            eprintln!(
                "error: rank {rank} on {} {how}: the others have waited {seconds} s for it (--watchdog); check that machine \
                 and its network, then resume the run from its last checkpoint",
                self.hosts[rank]
            );
        }
        if gone.is_some() {
            end_launcher();
        }
        self.comm.abort(1)
    }
}

/// Asks the mpirun of this machine to end, twice: the first time it tries to reach every machine, and would wait for one that
/// is cut off until the system gives up its connection, a quarter of an hour.
fn end_launcher() {
    #[cfg(unix)]
    {
        // SAFETY: takes nothing and cannot fail.
        let parent = unsafe { libc::getppid() };
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        if matches!(name.trim(), "mpirun" | "orterun" | "mpiexec") {
            for _ in 0..2 {
                // SAFETY: a signal to the process that started this one.
                unsafe { libc::kill(parent, libc::SIGTERM) };
                std::thread::sleep(Duration::from_secs(1));
            }
            // SAFETY: there is nothing left to tell the others with.
            unsafe { libc::_exit(1) };
        }
    }
}
