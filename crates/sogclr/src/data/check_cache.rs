//! What earlier checks found, in the user's cache folder: a ledger for each folder of images, in the order of its paths.
//!
//! A check adds what it learns to a file of its own, part by part, and at its end merges all into one, which replaces the old one
//! in one step. So processes may share it, and a killed check leaves what it knew. Only images that were good are remembered:
//! others are read each time. A record counts where size, time of the last change and, on Unix, of the last change of anything about
//! the file are as they were. A file that was changed within the last seconds is not remembered, as it may be once more without
//! another time.

use super::ledger::{LedgerError, Reader, Record, Writer};
use std::cmp::Ordering;
use std::fs::{File, Metadata};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Raised whenever the check of an image refuses what it took before: what an older check let pass is then read again.
const STRICTNESS: u32 = 2;

/// The coarsest clock of a file system.
const TICK: Duration = Duration::from_secs(2);

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub size: u64,
    pub modified: u64,
    pub changed: Option<u64>,
}

pub(super) fn stamp_of(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some(Stamp { size: meta.len(), modified: u64::try_from(modified).ok()?, changed: changed(&meta) })
}

#[cfg(unix)]
fn changed(meta: &Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    u64::try_from(i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec())).ok()
}

#[cfg(not(unix))]
fn changed(_: &Metadata) -> Option<u64> {
    None
}

/// Where caches belong on this system.
fn user_folder() -> Option<PathBuf> {
    let named = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || match () {
        () if cfg!(windows) => named("LOCALAPPDATA"),
        () if cfg!(target_os = "macos") => Some(named("HOME")?.join("Library/Caches")),
        () => Some(named("HOME")?.join(".cache")),
    };
    Some(named("XDG_CACHE_HOME").or_else(usual)?.join("sogclr").join("checks"))
}

/// What is known of the images of one folder.
pub(super) struct CheckCache {
    folder: PathBuf,
    key: String,
    title: String,
    /// The newest first.
    known: Vec<Stream>,
    /// What is learned now.
    own: Option<(PathBuf, Writer<File>)>,
    /// What checks left that did not come to their end.
    left: Vec<PathBuf>,
    notes: Vec<String>,
}

impl CheckCache {
    /// That of the images below `root`; `None` where the system has no place for it.
    pub fn of_user(root: &Path) -> Option<Self> {
        // Unit tests leave the user's folders alone.
        let folder = user_folder().filter(|_| !cfg!(test))?;
        Self::open(&folder, root, STRICTNESS)
    }

    pub(super) fn open(folder: &Path, root: &Path, strictness: u32) -> Option<Self> {
        let root = root.canonicalize().ok()?.to_string_lossy().into_owned();
        let key = blake3::hash(root.as_bytes()).to_hex()[..32].to_owned();
        let version = env!("CARGO_PKG_VERSION");
        let title = format!("checks {strictness} of sogclr {version}: {root}");
        let (known, left) = (Vec::new(), Vec::new());
        let mut cache = Self { folder: folder.to_owned(), key, title, known, own: None, left, notes: Vec::new() };
        for path in cache.others() {
            let Ok(file) = File::open(&path) else { continue };
            if path.extension().is_some_and(|extension| extension == "new") {
                // Killed while it merged: all of it is in other files.
                let _ = file.try_lock().map(|()| std::fs::remove_file(&path));
                continue;
            }
            // What a live process writes is of use, too, as far as it has come.
            if file.try_lock().is_ok() {
                cache.left.push(path);
            }
            let stream = Stream::open(file, &cache.title).ok().flatten();
            // It has no end.
            cache.known.extend(stream.map(|stream| Stream { is_partial: true, ..stream }));
        }
        if let Ok(file) = File::open(cache.path()) {
            match Stream::open(file, &cache.title) {
                Ok(stream) => cache.known.extend(stream),
                Err(problem) => cache.warn(&problem),
            }
        }
        Some(cache)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.ledger", self.key))
    }

    /// What checks of the same images write, or have left.
    fn others(&self) -> Vec<PathBuf> {
        let is_other =
            |name: &str| name.starts_with(&self.key) && (name.ends_with(".partial") || name.ends_with(".new"));
        let entries = self.folder.read_dir().into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_other));
        named.map(|entry| entry.path()).collect()
    }

    fn warn(&mut self, problem: &str) {
        self.notes.push(format!("the checks kept in {} are not used: {problem}", self.path().display()));
    }

    /// What compares as paths do, name by name.
    pub fn order_of(name: &str) -> Vec<u8> {
        name.bytes().map(|byte| if byte == std::path::MAIN_SEPARATOR as u8 { 0 } else { byte }).collect()
    }

    fn compare(a: &str, b: &str) -> Ordering {
        let key = |byte: u8| if byte == std::path::MAIN_SEPARATOR as u8 { 0 } else { byte };
        a.bytes().map(key).cmp(b.bytes().map(key))
    }

    /// Whether names are in the order of paths.
    pub fn is_ordered(names: impl Iterator<Item = String>) -> bool {
        names.is_sorted_by(|a, b| Self::compare(a, b).is_lt())
    }

    /// What is known of an image; names are asked for in order.
    pub fn find(&mut self, name: &str) -> Option<Record> {
        let mut found = None;
        for stream in &mut self.known {
            found = found.or(stream.find(name));
        }
        found
    }

    /// Remembers that an image is good; in the order of names.
    pub fn learn(&mut self, record: &Record) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_settled = |time: Option<u64>| time.is_none_or(|time| Duration::from_nanos(time) + TICK < now);
        if record.hash.is_none() || !is_settled(record.modified) {
            return;
        }
        if self.own.is_none() {
            match self.begin() {
                Ok(own) => self.own = Some(own),
                Err(error) => return self.fail(&error),
            }
        }
        let record = Record { label: None, captions: None, ..record.clone() };
        let written = self.own.as_mut().map_or(Ok(()), |(_, writer)| writer.push(&record));
        written.unwrap_or_else(|error| self.fail(&error));
    }

    fn begin(&self) -> io::Result<(PathBuf, Writer<File>)> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        std::fs::create_dir_all(&self.folder)?;
        let number = COUNT.fetch_add(1, Relaxed);
        let path = self.folder.join(format!("{}.{}-{number}.partial", self.key, std::process::id()));
        let file = File::create(&path)?;
        // A file system without locks is no reason to refuse.
        let _ = file.try_lock();
        Ok((path, Writer::new(file, &self.title)?))
    }

    /// A full disk or a folder of somebody else: the checks go on without a memory.
    fn fail(&mut self, error: &io::Error) {
        if let Some((path, _)) = self.own.take() {
            let _ = std::fs::remove_file(path);
        }
        let note = format!("checks cannot be kept in {}: {error}", self.folder.display());
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Keeps what was learned, also if this program is killed now.
    pub fn flush(&mut self) {
        let written = self.own.as_mut().map_or(Ok(()), |(_, writer)| writer.flush());
        written.unwrap_or_else(|error| self.fail(&error));
    }

    /// Keeps what was learned for good; gives what the user should know.
    pub fn close(mut self) -> Vec<String> {
        let problems: Vec<String> = self.known.iter_mut().filter_map(Stream::take_problem).collect();
        problems.iter().for_each(|problem| self.warn(problem));
        self.flush();
        if self.own.is_some() || !self.left.is_empty() {
            match self.merge() {
                Ok(()) => {
                    let own = self.own.take().map(|(path, _)| path);
                    own.iter().chain(&self.left).for_each(|path| drop(std::fs::remove_file(path)));
                }
                Err(error) => self.fail(&error),
            }
        }
        self.notes
    }

    /// All that is known in one file, of several records of one name that of the first.
    fn merge(&self) -> io::Result<()> {
        let own = self.own.as_ref().map(|(path, _)| path.clone());
        let all = own.into_iter().chain(self.left.clone()).chain([self.path()]);
        let streams = all.filter_map(|path| Stream::open(File::open(path).ok()?, &self.title).ok().flatten());
        let mut streams: Vec<Stream> = streams.collect();
        let new = self.folder.join(format!("{}.{}.new", self.key, std::process::id()));
        let file = File::create(&new)?;
        let _ = file.try_lock();
        let mut writer = Writer::new(BufWriter::new(file), &self.title)?;
        loop {
            let next = streams.iter().filter_map(|stream| stream.next.as_ref());
            let Some(least) = next.min_by(|a, b| Self::compare(&a.name, &b.name)) else { break };
            writer.push(least)?;
            let name = least.name.clone();
            for stream in &mut streams {
                stream.find(&name);
            }
        }
        let mut out = writer.finish()?.0;
        out.flush()?;
        out.get_ref().sync_all()?;
        drop(out);
        std::fs::rename(&new, self.path())
    }

    /// As if its process had been killed.
    #[cfg(test)]
    pub fn kill(mut self) {
        self.own.take();
    }
}

/// A ledger of checks, read in step with the names that are asked for.
struct Stream {
    reader: Reader<BufReader<File>>,
    next: Option<Record>,
    problem: Option<String>,
    is_partial: bool,
}

impl Stream {
    /// `None` where another version has written it; what is wrong with it.
    fn open(file: File, title: &str) -> Result<Option<Self>, String> {
        let reader = Reader::new(BufReader::new(file)).map_err(|error| error.to_string())?;
        if reader.title() != title {
            let root = |title: &str| title.split_once(": ").map(|(_, root)| root.to_owned());
            let is_older = reader.title().starts_with("checks ") && root(reader.title()) == root(title);
            return if is_older { Ok(None) } else { Err("they are of other data".into()) };
        }
        let mut stream = Self { reader, next: None, problem: None, is_partial: false };
        stream.advance();
        Ok(Some(stream))
    }

    fn advance(&mut self) {
        self.next = self.reader.next().unwrap_or_else(|error: LedgerError| {
            self.problem = Some(error.to_string());
            None
        });
    }

    /// What is wrong with a file that should be whole.
    fn take_problem(&mut self) -> Option<String> {
        self.problem.take().filter(|_| !self.is_partial)
    }

    /// The record of `name`, or none; those before it are passed over.
    fn find(&mut self, name: &str) -> Option<Record> {
        loop {
            match CheckCache::compare(&self.next.as_ref()?.name, name) {
                Ordering::Less => self.advance(),
                Ordering::Equal => {
                    let found = self.next.take();
                    self.advance();
                    return found;
                }
                Ordering::Greater => return None,
            }
        }
    }
}
