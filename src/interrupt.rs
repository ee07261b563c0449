//! Ctrl-C and its kin: the first asks the work to stop, a later one ends the program.

use crate::error::CliError;
use crate::output::note;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// `timeout` signals a process and its group: what comes so soon after the first is no second wish.
const ECHO: Duration = Duration::from_secs(1);

/// A flag that the first Ctrl-C sets.
pub fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let mut first: Option<Instant> = None;
    on_signal(move || match first {
        None => {
            first = Some(Instant::now());
            flag.store(true, Ordering::Relaxed);
            note!("\nstopping after this step (Ctrl-C again to end at once)");
        }
        Some(at) if at.elapsed() < ECHO => {}
        Some(_) => std::process::exit(130),
    })
    .map_err(|error| CliError::Failed(format!("cannot catch Ctrl-C: {error}")))?;
    Ok(stop)
}

#[cfg(unix)]
fn on_signal(mut handle: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    // Under nohup the end of the terminal is not to be heeded.
    // Slurm and mpirun pass SIGUSR1 on to every process.
    let wanted =
        [SIGINT, SIGTERM, SIGHUP, SIGUSR1].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    std::thread::spawn(move || signals.forever().for_each(|_| handle()));
    Ok(())
}

/// Whether whoever started this process has it ignore `signal`, where the system tells.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}

#[cfg(not(unix))]
fn on_signal(handle: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(handle)
}
