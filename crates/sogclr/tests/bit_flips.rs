//! One flipped bit in any file of a run is noticed, or the file is one that nothing reads.

use sogclr::config::{Overrides, RunConfig};
use sogclr::data::DataConfig;
use sogclr::encoder::{ResNetConfig, ResNetName};
use sogclr::train::{Metrics, Pretraining, Run, TrainSummary};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What people read, and the program does not; and the list for `b3sum --check`, of which it does not read their lines.
const UNREAD: [&str; 3] = ["load.py", "provenance.json", "checksums.b3"];
/// Bits of a file that are flipped, at most.
const FLIPS: usize = 48;

fn finished(out: &Path) {
    let images = DataConfig { limit: Some(16), ..Default::default() };
    let encoder = ResNetConfig { width: 0.25, ..ResNetConfig::for_size(ResNetName::Resnet8, 8) };
    let settings = Overrides::default().images(&images).image_size(8).encoder(encoder).batch(8).epochs(2);
    let (config, data) = RunConfig::open(&settings).unwrap();
    let mut run = Pretraining::new(config, data, out).unwrap();
    run.train(|_| ControlFlow::Continue(())).unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files
}

/// What can be read of a run, or that something is wrong with it.
fn read(run: &Path) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let config = Run::read_config(run).map_err(|error| text(&error))?;
    if let Some(remark) = Run::edited(run).map_err(|error| text(&error))? {
        return Err(remark);
    }
    let data = Run::open_data_of(run, &config).map_err(|error| text(&error))?;
    let checkpoints = Run::read_all(run).map_err(|error| text(&error))?;
    let checkpoints: Result<Vec<_>, _> = checkpoints.collect();
    let checkpoints: Vec<_> =
        checkpoints.map_err(|error| text(&error))?.iter().map(|checkpoint| checkpoint.digests()).collect();
    let weights = sogclr::storage::load_tensors(&run.join("encoder.safetensors")).map_err(|error| text(&error))?;
    let summary = Run::entry_of::<TrainSummary>(run, TrainSummary::KEY).map_err(|error| text(&error))?;
    let metrics = Metrics::read(&run.join("metrics.jsonl"));
    Ok(format!("{} {checkpoints:?} {:?} {summary:?} {metrics:?}", data.train.len(), weights.0))
}

#[test]
fn a_flipped_bit_is_noticed_in_every_file_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    finished(&run);
    let whole = read(&run).unwrap();
    let mut seen = Vec::new();
    for file in files(&run) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&file).unwrap();
        let bits = 8 * bytes.len();
        // Odd, so that all bits of a byte have their turn.
        let stride = (bits / FLIPS).max(1) | 1;
        for bit in (0..bits).step_by(stride) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, flipped).unwrap();
            match read(&run) {
                Ok(found) if UNREAD.contains(&name.as_str()) => assert!(found == whole, "{name} is read"),
                // A line of metrics that was passed over; what is missing is said when the run is resumed.
                Ok(found) => assert!(
                    name == "metrics.jsonl" && found != whole || bit / 8 + 1 == bytes.len(),
                    "{name}, bit {bit}"
                ),
                Err(_) => {}
            }
        }
        std::fs::write(&file, bytes).unwrap();
        seen.push(name);
    }
    assert_eq!(read(&run).as_ref(), Ok(&whole));
    for name in ["config.toml", "manifest.bin", "step-000000004.safetensors", "encoder.safetensors", "summary.json"] {
        assert!(seen.iter().any(|other| other == name), "{name} is not among {seen:?}");
    }
}
