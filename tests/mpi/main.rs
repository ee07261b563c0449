//! The program under mpirun: processes train what one trains, and end well when something dies. Needs Open MPI
//! (scripts/install-mpi); hosts are network namespaces, which need root.
#![cfg(feature = "mpi")]

mod failures;
#[cfg(feature = "wgpu")]
mod gpu;
mod hosts;
mod ranks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sogclr");

/// One job at a time: two cores are few.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A job of `ranks` processes, whatever the machine; none outlives two minutes.
fn mpirun(ranks: usize) -> Command {
    let mut command = mpirun_raw();
    command.args(["-n", &ranks.to_string(), PROGRAM]);
    command
}

fn mpirun_raw() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "120", "mpirun", "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "mpi_yield_when_idle", "1", "--mca", "btl_vader_single_copy_mechanism", "none"]);
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn alone() -> Command {
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A tiny run: embedded images, batches of 16.
const SMALL: [&str; 12] = [
    "pretrain",
    "--limit",
    "96",
    "--batch",
    "16",
    "--encoder",
    "resnet8",
    "--set",
    "encoder.width=0.25",
    "--image-size",
    "12",
    "--out",
];

/// 18 small steps: none that lets another rounding grow.
const SHORT: [&str; 4] = ["--epochs", "3", "--set", "learning_rate.base=0.002"];

/// Long enough to be interrupted anywhere, with a checkpoint every few steps.
const LONG: [&str; 6] =
    ["--epochs", "60", "--set", "train.checkpoint_minutes=0.005", "--set", "learning_rate.base=0.002"];

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("mpirun starts");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// The words of a job that must fail, and its exit code.
fn fail(command: &mut Command) -> (String, Option<i32>) {
    let output = command.output().expect("mpirun starts");
    assert!(!output.status.success(), "{command:?} went well:\n{}", text(&output));
    (text(&output), output.status.code())
}

fn encoder(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("encoder.safetensors")).unwrap()
}

/// The newest checkpoint.
fn checkpoint(run: &Path) -> PathBuf {
    let mut all: Vec<PathBuf> =
        run.join("checkpoints").read_dir().into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    all.into_iter().max().unwrap_or_default()
}

fn tensors(file: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(file).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    file.tensors().into_iter().map(|(name, view)| (name, values(view.data()))).collect()
}

/// ‖a − b‖/‖b‖ over all tensors of two checkpoints, the state u included.
fn distance(a: &Path, b: &Path) -> f64 {
    let (a, b) = (tensors(a), tensors(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let pairs = || a.values().flatten().zip(b.values().flatten()).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let apart: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let size: f64 = pairs().map(|(_, b)| b.powi(2)).sum();
    (apart / size).sqrt()
}

/// A started job. It writes to a file: a process that is left behind would keep a pipe open.
struct Job(Child, tempfile::NamedTempFile);

impl Job {
    fn start(command: &mut Command) -> Self {
        let said = tempfile::NamedTempFile::new().unwrap();
        let append = || std::fs::OpenOptions::new().append(true).open(said.path()).unwrap();
        let child = command.stdout(append()).stderr(append()).spawn();
        Self(child.expect("mpirun starts"), said)
    }

    /// Waits until a checkpoint after `step` is there.
    fn wait_for(&mut self, run: &Path, step: usize) {
        let began = Instant::now();
        let first = format!("step-{step:09}.safetensors");
        while checkpoint(run).file_name().is_none_or(|name| *name.to_string_lossy() < *first) {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < Duration::from_secs(60), "no checkpoint {step}: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process of rank `rank`.
    fn process(&self, rank: usize) -> u32 {
        let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
        let found = descendants(self.0.id()).into_iter().find(|id| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            name.trim() == "sogclr" && environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        });
        found.expect("the rank runs")
    }

    /// mpirun itself, below `timeout`.
    fn mpirun(&self) -> u32 {
        let is_mpirun = |id: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            name.trim() == "mpirun"
        };
        descendants(self.0.id()).into_iter().find(is_mpirun).expect("mpirun runs")
    }

    fn end(mut self) -> (String, Option<i32>) {
        let status = self.0.wait().unwrap();
        (String::from_utf8_lossy(&std::fs::read(self.1.path()).unwrap()).into_owned(), status.code())
    }
}

fn descendants(id: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
    children.flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

fn signal(id: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
}
