//! Files that are either whole or absent: temporary file, fsync, rename. Checksums that are compared at each read. And tensors
//! in safetensors files.

pub(crate) mod checksum;
mod json;
mod listed;
mod tensors;

pub(crate) use json::{load_table, save_table};
pub(crate) use listed::{LIST, list, listed};
pub use tensors::{load_ids, load_tensors, save_tensors, tensors_from_bytes, tensors_to_bytes};

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What can go wrong with files.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file cannot be written; what stood there before still does.
    #[error("cannot write {path}: {source}; {}, earlier results are intact", way_out(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not what its checksum says.
    #[error("{path} is damaged: it is not what its checksum says; {fix}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What to do.
        fix: &'static str,
    },
    /// A file of tensors is cut, damaged or of another kind.
    #[error("{path} is not a usable safetensors file: {cause}")]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        cause: String,
    },
    /// A file that this program wrote does not say what it should.
    #[error("{path}: {cause}; remove it and run the same command again")]
    Format {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        cause: String,
    },
}

/// What to do about a file that cannot be written.
fn way_out(error: &io::Error) -> &'static str {
    use io::ErrorKind::{
        FileTooLarge, NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => "free some space or choose another folder",
        NotFound | NotADirectory => "its folder was moved or removed: put it back or choose another",
        PermissionDenied | ReadOnlyFilesystem => "allow writing there or choose another folder",
        _ => "check the disk or choose another folder",
    }
}

/// Replaces `path` by `bytes` in one step; a crash at any moment leaves the old file or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    copy_atomic(path, bytes)
}

/// The same with what `content` gives, which need not fit into memory.
pub fn copy_atomic(path: &Path, mut content: impl Read) -> Result<(), StorageError> {
    write_atomic_by(path, |file| match io::copy(&mut content, file) {
        Ok(_) => Ok(()),
        Err(source) => Err(StorageError::Write { path: path.to_owned(), source }),
    })
}

/// The same where `write` fills the new file; an error of its own leaves the old one, too.
pub fn write_atomic_by<E: From<StorageError>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    // Of this process alone: another may be writing the same file.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!("{name}.{}.partial", std::process::id()));
    let failed = |source| E::from(StorageError::Write { path: path.to_owned(), source });
    let write = || {
        let mut file = File::create(&temporary).map_err(failed)?;
        write(&mut file)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&temporary, path).map_err(failed)?;
        sync_folder(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))).map_err(failed)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}

/// Makes a rename survive a power cut. Elsewhere than on Unix a folder cannot be opened as a file.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Opens a file for reading; what is no file but a pipe or a device, which may have no end or never begin, is an error.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    match kind.is_file() {
        true => File::open(path),
        false if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Err(io::Error::other("it is no file but a pipe, a socket or a device; name a file")),
    }
}

/// The content of a file, as [`open_regular`] opens it.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, StorageError> {
    read_regular(path).map_err(|source| StorageError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_follows_the_cause() {
        let told = |source: io::Error| StorageError::Write { path: "run/a".into(), source }.to_string();
        let gone = write_atomic(Path::new("/no such folder/a"), b"x").unwrap_err().to_string();
        assert!(gone.contains("moved or removed") && !gone.contains("space"), "{gone}");
        assert!(told(io::ErrorKind::StorageFull.into()).contains("free some space"));
        assert!(told(io::ErrorKind::PermissionDenied.into()).contains("allow writing"));
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomic(&path, b"old").unwrap();
        // A folder where the temporary file should go makes the write fail.
        std::fs::create_dir(folder.path().join(format!("a.json.{}.partial", std::process::id()))).unwrap();
        let error = write_atomic(&path, b"new").unwrap_err().to_string();
        assert!(error.contains("a.json"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
