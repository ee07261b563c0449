//! `sogclr search`: the images that fit a text.

use super::eval::{open_run, readable_images};
use super::eval_pairs::image_rows;
use crate::error::CliError;
use crate::output::{note, refuse_existing_file, say};
use clap::Args;
use sogclr::check::shown;
use sogclr::config::DeviceName;
use sogclr::cpu::Isa;
use sogclr::math::map_rows;
use sogclr::report::contact_sheet;
use sogclr::storage::write_atomic;
use sogclr::train::open_device;
use std::path::PathBuf;

/// Find the images that fit a text best.
///
/// Prints the best matches with their cosine similarity, and puts them on one picture, RUN/search.png unless --sheet names
/// another. RUN comes from `sogclr pretrain --pairs`.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr search runs/pairs \"two dogs on the beach\" --images photos/")]
pub struct Search {
    /// Folder that `sogclr pretrain --pairs … --out` made
    run: PathBuf,
    /// What to look for
    text: String,
    /// Folder or .zip of images to search, whole; the training images of the run if left out
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Matches to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// File for the picture of the matches
    #[arg(long, value_name = "FILE.png")]
    sheet: Option<PathBuf>,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    device: Option<DeviceName>,
}

impl Search {
    pub fn run(self) -> Result<(), CliError> {
        if let Some(sheet) = &self.sheet {
            refuse_existing_file(sheet, "--sheet")?;
        }
        if self.text.trim().is_empty() || self.top == 0 {
            return Err(CliError::Input("say what to look for, and show at least 1 match (-n)".into()));
        }
        let run = open_run(&self.run, None)?;
        let encoders = run.pair_encoders(open_device(self.device.unwrap_or(run.config.train.device))?)?;
        let (split, bad) = readable_images(&run, self.images.as_deref())?;
        if let Some(first) = bad.first() {
            note!("left out {} unreadable images, first: {first}", bad.len());
        }
        let (text, images) = (encoders.text.embed(&[&self.text], |_| {})?, image_rows(&encoders, &split)?);
        let scores = map_rows(Isa::best(), images.matrix().view(), text.matrix().view(), |_, s| s[0]);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(self.top);
        for &id in &order {
            say!("{:.3}  {}", scores[id], shown(split.name(id)));
        }
        let pictures: Result<Vec<_>, _> = order.iter().map(|&id| split.image(id)).collect();
        let sheet = self.sheet.unwrap_or_else(|| self.run.join("search.png"));
        write_atomic(&sheet, &contact_sheet(&pictures?))?;
        say!("picture: {}", sheet.display());
        Ok(())
    }
}
