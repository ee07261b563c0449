//! The run folder: `config.toml`, `manifest.bin`, `metrics.jsonl`, `checkpoints/`, `encoder.safetensors`,
//! `load.py`, `summary.json`, `open_clip.json` for image–text pairs, and where something was left out `problems.txt`, and
//! `quarantine.txt` as it was given. Each file
//! that decides a result carries a checksum, or stands in the list `checksums.b3`.

use super::{Checkpoint, TrainError};
use crate::config::{Overrides, RunConfig};
use crate::data::{DataConfig, DataError, Dataset, Manifest, Pixels};
use crate::encoder::{Pictures, Precision, load_script, to_open_clip};
use crate::loss::{GLOBAL_TAU, LOG_SCALE};
use crate::params::NamedTensors;
use crate::provenance::Provenance;
use crate::storage::checksum::Seal;
use crate::storage::{
    LIST, StorageError, copy_atomic, list, listed, load_table, load_tensors, read, save_table, save_tensors,
    write_atomic,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fs::{DirEntry, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// How many of the newest checkpoints stay, beside those of `keep_every`.
pub(crate) const NEWEST: usize = 2;
/// The list of images that the run left out, as it was when the run began.
const QUARANTINE: &str = "quarantine.txt";

/// Files that stay as they were written when the run began; the manifest has checksums of its own.
const FIXED: [&str; 5] = ["config.toml", "load.py", "open_clip.json", "provenance.json", QUARANTINE];

/// Holds the step since which a run has had other images: lines of metrics before it have other steps between them.
const ADOPTED: &str = "adopted";

/// An open run folder, locked against a second process.
pub struct Run {
    folder: PathBuf,
    /// Its `config.toml`.
    pub config: RunConfig,
    _lock: File,
}

impl Run {
    /// Makes a new folder and writes configuration and manifest; refuses one that holds anything.
    pub fn create(
        folder: &Path,
        config: RunConfig,
        manifest: &mut Manifest,
        provenance: &Provenance,
    ) -> Result<Self, TrainError> {
        refuse_existing(folder)?;
        let checkpoints = folder.join("checkpoints");
        std::fs::create_dir_all(&checkpoints)
            .map_err(|source| StorageError::Write { path: folder.to_owned(), source })?;
        let lock = lock(folder)?;
        // First: with it, a run that dies before its first checkpoint can begin again.
        write_atomic(&folder.join("config.toml"), config.to_toml().as_bytes())?;
        let run = Self { folder: folder.to_owned(), config, _lock: lock };
        run.begin(manifest, provenance)?;
        Ok(run)
    }

    /// Writes what stays as it is, over what an earlier beginning may have left.
    pub(super) fn begin(&self, manifest: &mut Manifest, provenance: &Provenance) -> Result<(), TrainError> {
        let Self { folder, config, .. } = self;
        std::fs::create_dir_all(folder.join("checkpoints"))
            .map_err(|source| StorageError::Write { path: folder.to_owned(), source })?;
        copy_atomic(&folder.join(Manifest::FILE), manifest.content()?)?;
        // Once: a run that begins again keeps the list that it began with.
        if let Some(list) = config.data.quarantine.as_ref().filter(|_| !folder.join(QUARANTINE).exists()) {
            write_atomic(&folder.join(QUARANTINE), &read(list)?)?;
        }
        if let Some(open_clip) = config.model().open_clip() {
            write_atomic(&folder.join("open_clip.json"), format!("{open_clip:#}\n").as_bytes())?;
        }
        let (model, augment) = (config.model(), &config.augment);
        let size = config.eval_size();
        let sizes = [augment.centre_resize(size), size];
        let pictures = match config.data.pixels {
            Pixels::Stored => Pictures::Arrays,
            _ => Pictures::Pillow { upright: !config.data.ignore_orientation },
        };
        let script = load_script(&model, sizes, &augment.mean, &augment.std, pictures);
        // Should the list be lost, this tells the run from one of before there were checksums.
        let mut origin = serde_json::to_value(provenance).expect("plain data");
        origin["checksums"] = LIST.into();
        write_atomic(&folder.join("provenance.json"), format!("{origin:#}\n").as_bytes())?;
        write_atomic(&folder.join("load.py"), script.as_bytes())?;
        Ok(list(folder, &FIXED)?)
    }

    /// Whether no step was ever recorded: such a run goes on from its beginning. One whose checkpoints were removed does not.
    pub(super) fn is_unbegun(&self) -> bool {
        let is_empty = |name: &str| self.folder.join(name).metadata().map_or(true, |file| file.len() == 0);
        checkpoint_steps(&self.folder).is_empty() && is_empty("metrics.jsonl") && is_empty("summary.json")
    }

    /// What the list of checksums says of a file with this content.
    fn look(folder: &Path, name: &str, content: &[u8]) -> Result<Seal, StorageError> {
        let found = listed(folder, name, content)?;
        let says = |origin: Vec<u8>| String::from_utf8_lossy(&origin).contains(LIST);
        if found == Seal::Absent && read(&folder.join("provenance.json")).is_ok_and(says) {
            return Err(StorageError::Read { path: folder.join(LIST), source: ErrorKind::NotFound.into() });
        }
        Ok(found)
    }

    /// A sentence if `config.toml` is not what the run began with: it may be edited where that does not change what the run
    /// becomes, so that alone is no error.
    pub fn edited(folder: &Path) -> Result<Option<String>, TrainError> {
        let path = folder.join("config.toml");
        let is_other = Self::look(folder, "config.toml", &read(&path)?)? == Seal::Broken;
        Ok(is_other.then(|| format!("{} is not what the run began with: edited, or damaged", path.display())))
    }

    /// Writes the encoder again where its file is damaged; whether it did.
    pub(super) fn mend_encoder(&self, checkpoint: &Checkpoint) -> Result<bool, TrainError> {
        let path = self.folder.join("encoder.safetensors");
        let is_whole = load_tensors(&path).is_ok();
        if !is_whole {
            save_tensors(&path, &Self::exported(&self.config, checkpoint), ("format", "pt"))?;
        }
        Ok(!is_whole)
    }

    /// Opens the folder of an earlier run for writing.
    pub fn open(folder: &Path) -> Result<Self, TrainError> {
        let config = Self::read_config(folder)?;
        let run = Self { folder: folder.to_owned(), config, _lock: lock(folder)? };
        settle(folder)?;
        // What a killed process was writing; others may be writing the summary.
        let leftovers = [&folder.join("checkpoints"), folder].map(|inside| inside.read_dir().into_iter().flatten());
        for leftover in leftovers.into_iter().flatten().flatten() {
            let name = leftover.file_name().to_string_lossy().into_owned();
            if name.ends_with(".partial") && name.contains(".safetensors") {
                let _ = std::fs::remove_file(leftover.path());
            }
        }
        Ok(run)
    }

    /// Goes on with activations stored as `precision`.
    pub fn keep_precision(&mut self, precision: Precision) -> Result<(), TrainError> {
        if self.config.train.precision != precision {
            self.config.train.precision = precision;
            self.write_config()?;
        }
        Ok(())
    }

    /// Sets where its data lies.
    pub(super) fn set_config(&mut self, config: RunConfig) -> Result<(), TrainError> {
        self.config = config;
        self.write_config()
    }

    fn write_config(&self) -> Result<(), TrainError> {
        write_atomic(&self.folder.join("config.toml"), self.config.to_toml().as_bytes())?;
        if self.folder.join(LIST).exists() {
            list(&self.folder, &FIXED)?;
        }
        Ok(())
    }

    /// The step at which it went on with other images, and another number of steps; 0 if it never did.
    pub(super) fn adopted_at(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.join(ADOPTED)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Goes on with other images: their manifest and the checkpoint that knows them, both or neither.
    pub(super) fn adopt(
        &mut self,
        config: RunConfig,
        manifest: &mut Manifest,
        checkpoint: &Checkpoint,
    ) -> Result<(), TrainError> {
        let bytes = checkpoint.to_bytes();
        copy_atomic(&self.folder.join(next_manifest(&bytes)), manifest.content()?)?;
        write_atomic(&checkpoint_path(&self.folder, checkpoint.step), &bytes)?;
        // Once it is the newest it counts.
        for step in checkpoint_steps(&self.folder).into_iter().filter(|&step| step > checkpoint.step) {
            let path = checkpoint_path(&self.folder, step);
            std::fs::remove_file(&path).map_err(|source| StorageError::Write { path, source })?;
        }
        settle(&self.folder)?;
        write_atomic(&self.folder.join(ADOPTED), format!("{}\n", checkpoint.step).as_bytes())?;
        self.set_config(config)
    }

    /// The configuration of a run, without opening it.
    pub fn read_config(folder: &Path) -> Result<RunConfig, TrainError> {
        let path = folder.join("config.toml");
        if !path.exists() {
            return Err(TrainError::NotARun(folder.to_owned()));
        }
        Self::config_of(Overrides::from_file(&path)?, path)
    }

    fn config_of(settings: Overrides, path: PathBuf) -> Result<RunConfig, TrainError> {
        settings.table().clone().try_into().map_err(|error: toml::de::Error| TrainError::Checkpoint {
            path,
            cause: error.to_string().trim().replace('\n', " "),
        })
    }

    /// The configuration that rank 0 has read from `folder`.
    pub(super) fn config_from_toml(folder: &Path, text: &str) -> Result<RunConfig, TrainError> {
        let table: toml::Table = text.parse().expect("what a configuration was written as");
        Self::config_of(Overrides::from(table), folder.join("config.toml"))
    }

    /// The run's training data, narrowed to its manifest and checked against it.
    pub fn open_data_of(folder: &Path, config: &RunConfig) -> Result<Dataset, TrainError> {
        let data = Self::open_all_data_of(folder, config)?;
        narrowed(config, &mut Manifest::open(folder)?, data)
    }

    /// The data that the run was drawn from.
    pub(super) fn open_all_data_of(folder: &Path, config: &RunConfig) -> Result<Dataset, TrainError> {
        // The manifest narrows: a limit drawn again from more files would choose others.
        let kept = folder.join(QUARANTINE);
        let quarantine = config.data.quarantine.clone().map(|given| if kept.exists() { kept } else { given });
        let everything = DataConfig { limit: None, quarantine, ..config.data.clone() };
        let DataConfig { path, pairs, images, .. } = &config.data;
        let is_own = |missing: &PathBuf| [path, pairs, images].into_iter().flatten().any(|own| own == missing);
        let data = Dataset::open(&everything, config.seed).map_err(|error| match error {
            DataError::NotFound(path) if is_own(&path) => DataError::Moved { path, config: folder.join("config.toml") },
            other => other,
        });
        Ok(data?)
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its `metrics.jsonl`.
    pub fn metrics_path(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// Writes a checkpoint and the encoder as it is now, then removes checkpoints that are no longer wanted.
    pub fn save(&self, checkpoint: &Checkpoint, steps_per_epoch: usize) -> Result<(), TrainError> {
        if let Some(name) = checkpoint.first_non_finite() {
            return Err(TrainError::Diverged { step: checkpoint.step, name });
        }
        // The encoder first: a crash between the two leaves a checkpoint from which it is written again.
        let exported = Self::exported(&self.config, checkpoint);
        save_tensors(&self.folder.join("encoder.safetensors"), &exported, ("format", "pt"))?;
        checkpoint.save(&checkpoint_path(&self.folder, checkpoint.step))?;
        let kept = |step: usize| {
            let every = self.config.train.keep_every.map(|epochs| epochs * steps_per_epoch);
            step > 0 && every.is_some_and(|every| step.is_multiple_of(every))
        };
        let steps = checkpoint_steps(&self.folder);
        for &step in steps.iter().rev().skip(NEWEST).filter(|&&step| !kept(step)) {
            let _ = std::fs::remove_file(checkpoint_path(&self.folder, step));
        }
        Ok(())
    }

    /// The encoder alone with torchvision's names, or both encoders of image–text pairs with open_clip's.
    pub fn exported(config: &RunConfig, checkpoint: &Checkpoint) -> NamedTensors {
        if config.text.is_none() {
            return checkpoint.encoder();
        }
        let temperature = config.method.spec().temperature().unwrap_or(1.0);
        let learned = |name: &str| Some(f64::from(*checkpoint.method_tensors.get(name)?.values.first()?));
        let log_scale = learned(LOG_SCALE).or_else(|| Some(-learned(GLOBAL_TAU)?.ln()));
        to_open_clip(&checkpoint.model, log_scale.unwrap_or(-temperature.ln()))
    }

    /// Every checkpoint of a run that is only looked at, in order, each read when it is asked for.
    pub fn read_all(
        folder: &Path,
    ) -> Result<impl ExactSizeIterator<Item = Result<Checkpoint, TrainError>>, TrainError> {
        let steps = checkpoint_steps(folder);
        if steps.is_empty() {
            return Err(TrainError::NoCheckpoint(folder.to_owned()));
        }
        let folder = folder.to_owned();
        Ok(steps.into_iter().map(move |step| read_checkpoint(&folder, step)))
    }

    /// The newest checkpoint that can be read. If that is not the newest of all, also what is wrong with that one.
    pub fn latest(&self) -> Result<(Checkpoint, Option<TrainError>), TrainError> {
        Self::read_latest(&self.folder)
    }

    /// As [`Run::latest`], for a run that is only looked at.
    pub fn read_latest(folder: &Path) -> Result<(Checkpoint, Option<TrainError>), TrainError> {
        let mut broken = None;
        for step in checkpoint_steps(folder).into_iter().rev() {
            match read_checkpoint(folder, step) {
                Ok(checkpoint) => return Ok((checkpoint, broken)),
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        Err(broken.unwrap_or_else(|| TrainError::NoCheckpoint(folder.to_owned())))
    }

    /// The step of the newest checkpoint, which the encoder file is of.
    pub fn newest_step(folder: &Path) -> Option<usize> {
        checkpoint_steps(folder).last().copied()
    }

    /// One entry of `summary.json`, where it is there and of that type.
    pub fn read_entry<T: DeserializeOwned>(folder: &Path, key: &str) -> Option<T> {
        Self::entry_of(folder, key).ok()?
    }

    /// The same, where a file that cannot be read or is damaged is an error.
    pub fn entry_of<T: DeserializeOwned>(folder: &Path, key: &str) -> Result<Option<T>, StorageError> {
        Ok(Self::read_summary(folder)?.shift_remove(key).and_then(|entry| serde_json::from_value(entry).ok()))
    }

    /// As [`Run::read_entry`].
    pub fn entry<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        Self::read_entry(&self.folder, key)
    }

    fn read_summary(folder: &Path) -> Result<Map<String, Value>, StorageError> {
        let path = folder.join("summary.json");
        if !path.exists() {
            return Ok(Map::new());
        }
        load_table(&path, "a summary")
    }

    /// Sets one entry of `summary.json`, keeping the others.
    pub fn set_entry(folder: &Path, key: &str, value: &impl Serialize) -> Result<(), StorageError> {
        Self::change_entry(folder, key, |_: Option<Value>| serde_json::to_value(value).expect("plain data"))
    }

    /// Makes one entry of `summary.json` from what it is, where it is there and of that type; keeps the others.
    pub fn change_entry<T: DeserializeOwned>(
        folder: &Path,
        key: &str,
        change: impl FnOnce(Option<T>) -> Value,
    ) -> Result<(), StorageError> {
        let path = folder.join("summary.json");
        // One at a time: two that evaluate a run at once would lose one of the results.
        let turn = folder.join(".summary.lock");
        let turn = File::create(&turn).map_err(|source| StorageError::Write { path: turn, source })?;
        // A file system without locks is no reason to refuse.
        let _ = turn.lock();
        let mut summary = Self::read_summary(folder)?;
        let old = summary.get(key).and_then(|old| serde_json::from_value(old.clone()).ok());
        summary.insert(key.to_owned(), change(old));
        save_table(&path, summary)
    }
}

/// The data of a run, narrowed to its manifest and checked against it.
pub(super) fn narrowed(config: &RunConfig, manifest: &mut Manifest, mut data: Dataset) -> Result<Dataset, TrainError> {
    manifest.verify(&mut data.train)?;
    config.validate(&data.describe_at(config.augment.views[0].size))?;
    Ok(data)
}

/// Where a manifest waits for its checkpoint.
pub(super) fn next_manifest(checkpoint: &[u8]) -> String {
    format!("manifest.{}.next", &blake3::hash(checkpoint).to_hex()[..16])
}

/// Ends what a crash in [`Run::adopt`] has left: a manifest whose checkpoint is the newest becomes that of the run, another is gone.
fn settle(folder: &Path) -> Result<(), StorageError> {
    let waiting = folder.read_dir().into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("manifest.") && name.ends_with(".next")
    });
    for entry in waiting.collect::<Vec<_>>() {
        let newest = checkpoint_steps(folder).last().map(|&step| read(&checkpoint_path(folder, step))).transpose()?;
        let is_its_own = newest.is_some_and(|bytes| entry.file_name() == *next_manifest(&bytes));
        let (from, to) = (entry.path(), folder.join(Manifest::FILE));
        let done = if is_its_own { std::fs::rename(&from, &to) } else { std::fs::remove_file(&from) };
        done.map_err(|source| StorageError::Write { path: to, source })?;
    }
    Ok(())
}

fn checkpoint_path(folder: &Path, step: usize) -> PathBuf {
    folder.join("checkpoints").join(format!("step-{step:09}.safetensors"))
}

/// The checkpoint that is called after `step`, which it has to be of.
fn read_checkpoint(folder: &Path, step: usize) -> Result<Checkpoint, TrainError> {
    let path = checkpoint_path(folder, step);
    let checkpoint = Checkpoint::load(&path)?;
    match checkpoint.step == step {
        true => Ok(checkpoint),
        false => Err(TrainError::Checkpoint { path, cause: format!("it is of step {}", checkpoint.step) }),
    }
}

/// The steps that have a checkpoint, in order.
fn checkpoint_steps(folder: &Path) -> Vec<usize> {
    let entries = folder.join("checkpoints").read_dir().into_iter().flatten().flatten();
    let step = |entry: DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok()
    };
    let mut steps: Vec<usize> = entries.filter_map(step).collect();
    steps.sort_unstable();
    steps
}

/// Fails if `folder` holds anything.
pub fn refuse_existing(folder: &Path) -> Result<(), TrainError> {
    if folder.join("config.toml").exists() {
        return Err(TrainError::Exists(folder.to_owned()));
    }
    // What a beginning leaves that died before it had written its settings is in nobody's way.
    let is_leftover = |entry: &DirEntry| match entry.file_name().to_string_lossy().as_ref() {
        ".lock" => true,
        "checkpoints" => entry.path().read_dir().is_ok_and(|mut inside| inside.next().is_none()),
        name => name.starts_with("config.toml.") && name.ends_with(".partial"),
    };
    let is_taken = folder.is_file()
        || folder
            .read_dir()
            .is_ok_and(|mut entries| entries.any(|entry| !entry.is_ok_and(|entry| is_leftover(&entry))));
    if is_taken { Err(TrainError::NotEmpty(folder.to_owned())) } else { Ok(()) }
}

fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join(".lock");
    let file = File::create(&path).map_err(|source| StorageError::Write { path, source })?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TrainError::Locked(folder.to_owned())),
        // A file system without locks is no reason to refuse.
        _ => Ok(file),
    }
}
