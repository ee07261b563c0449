//! The program as a user runs it.

mod bad_input;
mod bench_verb;
mod check_verb;
mod checks;
mod compare;
mod damage;
mod encoders;
mod evaluation;
mod export;
mod first_hour;
mod formats;
#[cfg(feature = "wgpu")]
mod gpu;
mod interrupted;
mod loss_verb;
mod pairs;
mod report;
mod reproduce;
mod reproducible;
mod theory;
mod verbs;

use assert_cmd::Command;
use std::path::Path;

/// A run of seconds: 48 embedded images, 6 steps an epoch.
pub const TINY: &[&str] = &[
    "pretrain",
    "--limit",
    "48",
    "--image-size",
    "8",
    "--encoder",
    "resnet8",
    "--batch",
    "8",
    "--epochs",
    "2",
    "--set",
    "encoder.width=0.25",
    "--set",
    "head.hidden=16",
    "--set",
    "head.output=8",
];

pub fn sogclr() -> Command {
    let mut command = Command::cargo_bin("sogclr").unwrap();
    // Not the user's.
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

/// Trains the tiny run into `out` with more arguments.
pub fn train(out: &Path, more: &[&str]) {
    sogclr().args(TINY).arg("--out").arg(out).args(more).assert().success();
}

/// Exit code and the last line of standard error.
pub fn failure(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), text.lines().last().unwrap_or_default().to_owned())
}
