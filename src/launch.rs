//! Trains a run of a race or a study in a process of its own, whose memory is the method's alone.

use crate::error::CliError;
use crate::ranks::forget_launcher;
use sogclr::race::{Cell, Start, Trained};
use sogclr::storage::write_atomic;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a race or a study ends that was stopped among its runs.
pub fn stopped() -> CliError {
    CliError::Stopped("stopped; run the same command again to continue".into())
}

/// Trains what is not trained yet; `stop` ends it after a checkpoint.
pub fn train(cell: &Cell, stop: &AtomicBool) -> Result<Trained, CliError> {
    if stop.load(Ordering::Relaxed) {
        return Ok(Trained::Stopped);
    }
    cell.train(|cell, start| spawn(cell, start, stop))
}

fn spawn(cell: &Cell, start: Start, stop: &AtomicBool) -> Result<Trained, CliError> {
    let failed = |error: std::io::Error| CliError::Failed(format!("{}: {error}", cell.folder.display()));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let recipe = cell.folder.with_extension("toml");
    write_atomic(&recipe, cell.config.to_toml().as_bytes())?;
    match start {
        Start::Resume => command.arg("resume").arg(&cell.folder),
        Start::New => {
            command.arg("pretrain").arg("--config").arg(&recipe).arg("--out").arg(&cell.folder).arg("--unannounced")
        }
    };
    forget_launcher(&mut command);
    command.arg("--no-report").args(["--threads", &rayon::current_num_threads().to_string()]).stdout(Stdio::null());
    let status = wait(own_group(&mut command).spawn().map_err(failed)?, stop).map_err(failed)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(Trained::Stopped);
    }
    std::fs::remove_file(recipe).map_err(failed)?;
    Ok(if status.success() && cell.cost().is_some() {
        Trained::Finished
    } else {
        Trained::Failed(format!("{} did not finish ({status}), see its error above", cell.folder.display()))
    })
}

/// A terminal's Ctrl-C goes to a whole group; the run is told once, by us.
fn own_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command
}

/// Waits for the run, and asks it to stop once `stop` is set.
fn wait(mut child: Child, stop: &AtomicBool) -> std::io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            interrupt(&child)?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
fn interrupt(child: &Child) -> std::io::Result<()> {
    use nix::sys::signal::{Signal, kill};
    let id = nix::unistd::Pid::from_raw(child.id().cast_signed());
    Ok(kill(id, Signal::SIGINT)?)
}

/// Where a Ctrl-C cannot be sent, the run goes on to its end.
#[cfg(not(unix))]
fn interrupt(_: &Child) -> std::io::Result<()> {
    Ok(())
}
