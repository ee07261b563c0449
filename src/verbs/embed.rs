//! `sogclr embed`: features of images, for the user's own tools.

use super::eval::{device_of, open_run, readable_images, say_if_unfinished};
use crate::error::CliError;
use crate::output::{note, refuse_existing_file, say};
use crate::progress::Counter;
use clap::Args;
use sogclr::comm::Group;
use sogclr::config::DeviceName;
use sogclr::params::{HostTensor, NamedTensors};
use sogclr::storage::{save_tensors, write_atomic};
use std::path::PathBuf;

/// Write the features of images: one row for each, before the head.
///
/// OUT is a safetensors file with the tensor `features` [images, dimension]; beside it OUT.tsv names the image of each row,
/// and its class where it has one. Images that cannot be read are left out. In Python:
/// safetensors.numpy.load_file("OUT")["features"].
#[derive(Args)]
#[command(after_help = "Example:\n  sogclr embed runs/photos new-photos/ --out new-photos.safetensors")]
pub struct Embed {
    /// Folder that `sogclr pretrain --out` made
    run: PathBuf,
    /// Folder or archive of images, whole, or another form of DATA; the training images of the run if left out
    data: Option<PathBuf>,
    /// File for the features
    #[arg(long, value_name = "OUT")]
    out: PathBuf,
    /// Side of the images in pixels; the run's own size of evaluation unless given
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    /// cpu, cpu-exact, wgpu or cuda; the run's own unless given
    #[arg(long, value_name = "NAME")]
    device: Option<DeviceName>,
}

impl Embed {
    pub fn run(self, group: &Group) -> Result<(), CliError> {
        let table = PathBuf::from(format!("{}.tsv", self.out.display()));
        for file in [&self.out, &table] {
            refuse_existing_file(file, "--out")?;
        }
        let run = open_run(&self.run, self.image_size)?;
        let encoder = run.encoder(device_of(self.device.unwrap_or(run.config.train.device), group)?)?.shared_by(group);
        say_if_unfinished(&run);
        let (split, bad) = readable_images(&run, self.data.as_deref())?;
        bad.iter().for_each(|image| note!("left out {image}"));
        let bar = Counter::images("computing features of", split.len());
        let features = encoder.extract(&split, |count| bar.inc(count))?.features;
        drop(bar);
        if !group.is_first() {
            return Ok(());
        }
        let shape = vec![features.nrows(), features.ncols()];
        let tensor = HostTensor { shape, values: features.into_iter().collect() };
        let row = |id: usize| {
            let label = split.label(id).map_or(String::new(), |label| format!("\t{label}"));
            format!("{id}\t{}{label}\n", one_field(&split.name(id)))
        };
        let names: String = (0..split.len()).map(row).collect();
        let count = tensor.shape[0];
        save_tensors(&self.out, &NamedTensors::from([("features".to_owned(), tensor)]), ("format", "pt"))?;
        // One without the other would stand in the way of the next try.
        write_atomic(&table, names.as_bytes()).inspect_err(|_| drop(std::fs::remove_file(&self.out)))?;
        say!("{count} rows: {}, named in {}", self.out.display(), table.display());
        Ok(())
    }
}

/// A name without what would end its field or line.
fn one_field(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::one_field;

    #[test]
    fn a_name_stays_in_its_field() {
        assert_eq!(one_field("a\tb\nc\\n.png"), "a\\tb\\nc\\\\n.png");
    }
}
