//! Lines for the user. Whoever reads them may go first (`| head`, a closed terminal): that must not end training.

use crate::error::CliError;
use sogclr::check::shown;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A line on standard output: results.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::result(format_args!($($text)*)) };
}

/// A line on standard error: everything else.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

/// A line on standard error that --quiet does not hold back.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::complaint(format_args!($($text)*)) };
}

pub(crate) use {complain, note, say};

/// Refuses a file that is there already, and a folder that is not, before the work begins.
pub fn refuse_existing_file(path: &Path, flag: &str) -> Result<(), CliError> {
    if path.exists() {
        return Err(CliError::Input(format!("{} exists: remove it, or choose another {flag}", path.display())));
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(CliError::Input(format!("{} is not a folder: make it first", folder.display()))),
        None => Ok(()),
    }
}

/// Whether another process of the same job does the talking.
static SILENT: AtomicBool = AtomicBool::new(false);

pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// How much the user wants to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Volume {
    Quiet,
    Usual,
    Verbose,
}

static VOLUME: AtomicU8 = AtomicU8::new(Volume::Usual as u8);

/// Set once, from the flags of the program.
pub fn set_volume(volume: Volume) {
    VOLUME.store(volume as u8, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    VOLUME.load(Ordering::Relaxed) == Volume::Quiet as u8
}

pub fn is_verbose() -> bool {
    VOLUME.load(Ordering::Relaxed) == Volume::Verbose as u8
}

/// Whether a result could not be written.
static LOST: AtomicBool = AtomicBool::new(false);

pub fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Names of files stand in many lines: nothing but text reaches the terminal.
fn printable(text: Arguments) -> String {
    let lines = text.to_string();
    let plain = |line: &str| line.split('\t').map(shown).collect::<Vec<_>>().join("\t");
    lines.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

pub fn result(text: Arguments) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    let written = writeln!(std::io::stdout().lock(), "{}", printable(text));
    if let Some(error) = written.err().filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        LOST.store(true, Ordering::Relaxed);
        complaint(format_args!("cannot write to standard output: {error}"));
    }
}

pub fn remark(text: Arguments) {
    if !is_quiet() {
        complaint(text);
    }
}

/// What also the user of --quiet has to know.
pub fn complaint(text: Arguments) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    // There is nowhere left to say that it failed.
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}
