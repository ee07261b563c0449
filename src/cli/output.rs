//! Lines for the user. Whoever reads them may go first (`| head`, a closed terminal): that must not end training.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// A line on standard output: results.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::output::result(format_args!($($text)*)) };
}

/// A line on standard error: everything else.
macro_rules! note {
    ($($text:tt)*) => { $crate::cli::output::remark(format_args!($($text)*)) };
}

pub(super) use {note, say};

pub fn result(text: Arguments) {
    let written = writeln!(std::io::stdout().lock(), "{text}");
    if let Some(error) = written.err().filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        remark(format_args!("cannot write to standard output: {error}"));
    }
}

pub fn remark(text: Arguments) {
    // There is nowhere left to say that it failed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
