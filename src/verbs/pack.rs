//! `sogclr pack`: images decoded and shrunk once, into one file.

use crate::error::CliError;
use crate::output::{note, say};
use crate::progress::Counter;
use clap::Args;
use sogclr::data::{DataConfig, Dataset, Split};
use sogclr::pack::Packing;
use std::path::PathBuf;

/// Decode and shrink images once, into one file that trains several times as fast.
///
/// OUT holds the pixels, labels, names and splits of DATA and may stand wherever DATA may. Images keep their aspect; what is
/// smaller than --size stays as it is. Every image has a checksum. docs/data.md has the layout.
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr pack photos/ photos.pack && sogclr pretrain photos.pack --out runs/photos")]
pub struct Pack {
    /// Folder of images, archive or any other form of DATA (docs/data.md)
    data: PathBuf,
    /// New file for the pixels: 3 bytes each for colours
    out: PathBuf,
    /// Shrink images until their shortest side has so many pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 256)]
    size: usize,
    /// Test images, in any form of DATA, if DATA has no val/ or test/ of its own
    #[arg(long, value_name = "DIR")]
    test: Option<PathBuf>,
    /// Leave out images that cannot be read
    #[arg(long)]
    skip_bad: bool,
    /// Leave photographs as they are stored, whatever their EXIF data say of how the camera was held
    #[arg(long)]
    ignore_orientation: bool,
}

impl Pack {
    pub fn run(self) -> Result<(), CliError> {
        let config = DataConfig {
            path: Some(self.data),
            test: self.test,
            ignore_orientation: self.ignore_orientation,
            ..Default::default()
        };
        let data = Dataset::open(&config, 0)?;
        let packing = Packing { data: &data, shortest_side: self.size, skip_bad: self.skip_bad };
        packing.check(&self.out)?;
        let bar = Counter::new("packing", data.train.len() + data.test.as_ref().map_or(0, Split::len));
        let packed = packing.write(&self.out, |count| bar.inc(count));
        drop(bar);
        let packed = packed?;
        if let Some(first) = packed.left_out.first() {
            note!("left out {} unreadable images, first: {first}", packed.left_out.len());
        }
        let [train, test] = packed.images;
        let megabytes = packed.bytes as f64 / 1e6;
        say!("{train} training and {test} test images, {megabytes:.1} MB: {}", self.out.display());
        Ok(())
    }
}
