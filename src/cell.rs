//! One run of a race or a study: trained in a process of its own, then measured, each at most once.

use crate::error::CliError;
use crate::verbs::eval::{linear_and_knn, load_encoder, open_run_data};
use crate::verbs::eval_pairs::{Encoders, held_out_pairs};
use serde_json::{Value, json};
use sogclr::config::RunConfig;
use sogclr::eval::FrozenEncoder;
use sogclr::storage::write_atomic;
use sogclr::train::{Run, TrainError, open_device, refuse_existing};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A run folder and the settings it has, or is to have.
pub struct Cell {
    pub folder: PathBuf,
    pub config: RunConfig,
}

/// How a run ended.
pub enum Trained {
    Finished,
    Stopped,
    Failed(String),
}

/// How a race or a study ends that was stopped among its runs.
pub fn stopped() -> CliError {
    CliError::Stopped("stopped; run the same command again to continue".into())
}

impl Cell {
    /// Refuses a folder that holds something else, or a run with other settings, or on other than the `images` there are now.
    pub fn check(&self, images: usize) -> Result<(), CliError> {
        if !self.folder.join("config.toml").exists() {
            return Ok(refuse_existing(&self.folder)?);
        }
        let other = |what: String| {
            let folder = self.folder.display();
            Err(CliError::Input(format!(
                "{folder} was run with {what}: remove it, or put the runs into another folder"
            )))
        };
        if Run::read_config(&self.folder)? != self.config {
            return other("other settings".into());
        }
        let known = Run::open_data_of(&self.folder, &self.config)?.train.len();
        // Of what was left out as unreadable nothing is known.
        match known == images || self.config.data.skip_bad {
            true => Ok(()),
            false => other(format!("{known} images, and there are {images} now")),
        }
    }

    /// Whether there is something to resume; checkpoints that cannot be read are an error.
    fn has_checkpoint(&self) -> Result<bool, CliError> {
        if !self.folder.join("config.toml").exists() {
            return Ok(false);
        }
        match Run::open(&self.folder)?.latest() {
            Ok(_) => Ok(true),
            Err(TrainError::NoCheckpoint(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn is_trained(&self) -> bool {
        Run::read_entry(&self.folder, "train").is_some()
    }

    /// Trains to the end in a process of its own, whose memory is the method's alone.
    pub fn train(&self, stop: &AtomicBool) -> Result<Trained, CliError> {
        if stop.load(Ordering::Relaxed) {
            return Ok(Trained::Stopped);
        }
        if self.is_trained() {
            return Ok(Trained::Finished);
        }
        let failed = |error: std::io::Error| CliError::Failed(format!("{}: {error}", self.folder.display()));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        let recipe = self.folder.with_extension("toml");
        write_atomic(&recipe, self.config.to_toml().as_bytes())?;
        if self.has_checkpoint()? {
            command.arg("resume").arg(&self.folder);
        } else {
            if self.folder.exists() {
                // Begun, and lost before its first checkpoint.
                std::fs::remove_dir_all(&self.folder).map_err(failed)?;
            }
            command.arg("pretrain").arg("--config").arg(&recipe).arg("--out").arg(&self.folder);
        }
        command.args(["--threads", &rayon::current_num_threads().to_string()]).stdout(Stdio::null());
        let status = wait(own_group(&mut command).spawn().map_err(failed)?, stop).map_err(failed)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(Trained::Stopped);
        }
        std::fs::remove_file(recipe).map_err(failed)?;
        Ok(if status.success() && self.is_trained() {
            Trained::Finished
        } else {
            Trained::Failed(format!("{} did not finish ({status}), see its error above", self.folder.display()))
        })
    }

    /// What the trained encoder reaches.
    pub fn result(&self) -> Result<Value, CliError> {
        let device = open_device(self.config.train.device)?;
        self.remembered("compare", || match self.config.text {
            Some(_) => Ok(Encoder::Pair(Encoders::load(&self.folder, &self.config, device)?)),
            None => Ok(Encoder::Image(load_encoder(&self.folder, &self.config, device)?)),
        })
    }

    /// What the encoder reaches that this run starts from; `None` if it is not trained.
    pub fn untrained_result(&self) -> Result<Option<Value>, CliError> {
        if !self.is_trained() {
            return Ok(None);
        }
        let device = open_device(self.config.train.device)?;
        let RunConfig { encoder, augment, seed, .. } = &self.config;
        let result = self.remembered("compare_untrained", || match self.config.text {
            Some(_) => Ok(Encoder::Pair(Encoders::untrained(&self.config, device)?)),
            None => Ok(Encoder::Image(FrozenEncoder::untrained(encoder, *seed, augment, device))),
        })?;
        Ok(Some(result))
    }

    /// What training took: `seconds`, `peak_rss_mb` and more.
    pub fn cost(&self) -> Value {
        Run::read_entry(&self.folder, "train").unwrap_or_default()
    }

    /// The result under `key` of the run's summary, measured if it is not there yet.
    fn remembered(&self, key: &str, encoder: impl FnOnce() -> Result<Encoder, CliError>) -> Result<Value, CliError> {
        if let Some(known) = Run::read_entry(&self.folder, key) {
            return Ok(known);
        }
        let data = open_run_data(&self.folder, &self.config)?;
        let result = match encoder()? {
            Encoder::Image(encoder) => json!(linear_and_knn(&encoder, &data)?),
            Encoder::Pair(encoders) => json!(encoders.retrieval(&held_out_pairs(data)?)?),
        };
        Run::summarise(&self.folder, key, result.clone())?;
        Ok(result)
    }
}

/// What is measured.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Encoder {
    Image(FrozenEncoder),
    Pair(Encoders),
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
