//! A group whose ranks are threads of one process: the collectives of a cluster, for tests.

use super::{Collective, Group};
use std::sync::{Arc, Barrier, Mutex};

struct Meeting {
    barrier: Barrier,
    /// What each rank brought, as f64, which holds every f32.
    brought: Mutex<Vec<Vec<f64>>>,
}

struct Thread {
    rank: usize,
    meeting: Arc<Meeting>,
    /// Of the threads of sums.
    apart: Arc<Meeting>,
}

/// `size` groups, one for each of as many threads.
pub fn threads(size: usize) -> Vec<Group> {
    let meeting = || Arc::new(Meeting { barrier: Barrier::new(size), brought: Mutex::new(vec![Vec::new(); size]) });
    let (meeting, apart) = (meeting(), meeting());
    (0..size).map(|rank| Group::new(Thread { rank, meeting: meeting.clone(), apart: apart.clone() })).collect()
}

impl Meeting {
    /// What every rank brought, in the order of ranks.
    fn meet(&self, rank: usize, values: Vec<f64>) -> Vec<Vec<f64>> {
        let Self { barrier, brought } = self;
        let ours = |all: &mut Vec<Vec<f64>>| all[rank] = values;
        ours(&mut brought.lock().expect("no rank panics while it holds the lock"));
        barrier.wait();
        let all = brought.lock().expect("no rank panics while it holds the lock").clone();
        barrier.wait();
        all
    }

    /// The same, of ranks that must bring as much each.
    fn meet_alike(&self, rank: usize, values: Vec<f64>) -> Vec<Vec<f64>> {
        let all = self.meet(rank, values);
        assert!(all.iter().all(|other| other.len() == all[0].len()), "ranks brought different lengths");
        all
    }

    fn sum(&self, rank: usize, values: &mut [f32]) {
        let all = self.meet_alike(rank, values.iter().map(|&v| f64::from(v)).collect());
        for (at, value) in values.iter_mut().enumerate() {
            // In f32, as MPI does.
            *value = all.iter().map(|of_rank| of_rank[at] as f32).sum();
        }
    }
}

impl Collective for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.brought.lock().expect("no rank panics while it holds the lock").len()
    }

    fn sum(&self, values: &mut [f32]) {
        self.meeting.sum(self.rank, values);
    }

    fn sum_apart(&self, values: &mut [f32]) {
        self.apart.sum(self.rank, values);
    }

    fn sum_f64(&self, values: &mut [f64]) {
        let all = self.meeting.meet_alike(self.rank, values.to_vec());
        for (at, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|of_rank| of_rank[at]).sum();
        }
    }

    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        let all = self.meeting.meet_alike(self.rank, values.iter().map(|&v| f64::from(v)).collect());
        all.concat().into_iter().map(|v| v as f32).collect()
    }

    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let all = self.meeting.meet(self.rank, bytes.into_iter().map(f64::from).collect());
        all.into_iter().map(|of_rank| of_rank.into_iter().map(|byte| byte as u8).collect()).collect()
    }
}
