//! Threads that do not fall asleep between the parallel parts of a step.

use rayon::Yield;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns of a loop between two looks for work.
const PAUSE: usize = 64;

/// Runs `work` on this thread of a pool, while the pool's other threads look for parts of it without pause. A step has hundreds
/// of parallel parts; with small batches most are shorter than it takes to wake a thread. Changes no value.
pub fn awake<T>(work: impl FnOnce() -> T) -> T {
    struct Done(Arc<AtomicBool>);
    // Also when `work` panics.
    impl Drop for Done {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let Some(here) = rayon::current_thread_index().filter(|_| rayon::current_num_threads() > 1) else { return work() };
    let done = Done(Arc::new(AtomicBool::new(false)));
    let seen = done.0.clone();
    rayon::spawn_broadcast(move |context| {
        while context.index() != here && !seen.load(Ordering::Acquire) {
            if rayon::yield_now() != Some(Yield::Executed) {
                (0..PAUSE).for_each(|_| spin_loop());
                // Whoever else wants the processor has it.
                std::thread::yield_now();
            }
        }
    });
    work()
}

#[cfg(test)]
mod tests {
    use super::awake;
    use rayon::prelude::*;

    #[test]
    fn work_is_done_once_by_any_number_of_threads_and_a_panic_lets_them_go() {
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let sums: Vec<u64> =
                (0..20).map(|_| pool.install(|| awake(|| (0..1000_u64).into_par_iter().sum()))).collect();
            assert_eq!(sums, [499_500; 20], "{threads} threads");
            let panics = || pool.install(|| awake(|| panic!("as it should")));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
            // A pool whose threads were still in their loops would never end.
            pool.install(|| rayon::broadcast(|_| ()));
        }
        // Off the pool there is nothing to keep awake.
        assert_eq!(awake(|| 3), 3);
    }
}
