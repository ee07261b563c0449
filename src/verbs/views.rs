//! `sogclr views`: what the encoder sees.

use crate::error::CliError;
use crate::options::RunOptions;
use crate::output::{refuse_existing_file, say};
use clap::Args;
use sogclr::config::RunConfig;
use sogclr::inspect::views_sheet;
use sogclr::storage::write_atomic;
use std::path::PathBuf;

/// Show images beside the views that the encoder is given of them, on one picture.
///
/// Takes the flags of `pretrain`, recipes and --set augment.… among them, and makes exactly the views of such a run: those of
/// its first epoch, then of the next. What cannot be recognised in them cannot be learned from them.
#[derive(Args)]
#[command(args_override_self = true)]
#[command(after_help = "Example:\n  sogclr views photos/ --out views.png --set augment.blur.probability=0")]
pub struct Views {
    #[command(flatten)]
    options: RunOptions,
    /// File for the picture
    #[arg(long, value_name = "FILE.png")]
    out: PathBuf,
    /// Images to show, spread over the training images
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=200))]
    rows: u64,
    /// Views of each
    #[arg(long, value_name = "K", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=50))]
    columns: u64,
}

impl Views {
    pub fn run(self) -> Result<(), CliError> {
        refuse_existing_file(&self.out, "--out")?;
        let (config, data) = RunConfig::open(&self.options.overrides()?)?;
        let sheet = views_sheet(&config, &data, self.rows as usize, self.columns as usize)?;
        write_atomic(&self.out, &sheet)?;
        let (rows, out) = ((self.rows as usize).min(data.train.len()), self.out.display());
        say!("{rows} images and {} views of each: {out}", self.columns);
        Ok(())
    }
}
