//! `sogclr manifest`: the training images of a run as text.

use crate::error::CliError;
use crate::output::say;
use clap::Args;
use sogclr::data::Manifest;
use sogclr::train::TrainError;
use std::path::PathBuf;

/// Print the training images of a run, one line of JSON for each, in the order of their ids.
///
/// Name, size, BLAKE3 of the content (absent where --check did not look), time of last change in nanoseconds since 1970, class,
/// and BLAKE3 of the captions: what RUN/manifest.bin holds, and manifest.jsonl in runs of before.
#[derive(Args)]
pub struct ManifestVerb {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
}

impl ManifestVerb {
    pub fn run(self) -> Result<(), CliError> {
        if !self.run.join("config.toml").exists() {
            return Err(TrainError::NotARun(self.run).into());
        }
        let mut manifest = Manifest::open(&self.run)?;
        Ok(manifest.each_entry(|entry| say!("{}", serde_json::to_string(&entry).expect("plain data")))?)
    }
}
