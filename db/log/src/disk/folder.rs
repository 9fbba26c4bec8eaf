//! A folder of the file system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{LogDisk, LogFile};
use crate::error::LogError;

/// The file that a running server locks.
pub const LOCK_FILE: &str = "lock";

/// A folder, which this process has to itself while this lives.
#[derive(Debug)]
pub struct LogFolder {
    path: PathBuf,
    /// None for one that is only read.
    _lock: Option<File>,
}

impl LogFolder {
    /// Makes the folder if it is not there, and locks it.
    ///
    /// # Errors
    /// [`LogError`]: another process has it; a system call failed.
    pub fn lock(path: &Path) -> Result<LogFolder, LogError> {
        let failed = |action, error: &io::Error| LogError::system(action, path.display().to_string(), error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| failed("make", &error))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK_FILE));
        let lock = lock.map_err(|error| failed("lock", &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(LogFolder { path: path.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(LogError::Locked(path.display().to_string())),
            Err(TryLockError::Error(error)) => Err(failed("lock", &error)),
        }
    }

    /// Opens the folder for reading, also that of a running server.
    pub fn read(path: &Path) -> LogFolder {
        LogFolder { path: path.to_owned(), _lock: None }
    }
}

impl LogDisk for LogFolder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).read(true).write(true).mode(0o600);
        Ok(Box::new(FolderFile(options.open(self.path.join(name))?)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(FolderFile(File::open(self.path.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn path_of(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// A file of the folder.
struct FolderFile(File);

impl LogFile for FolderFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        // Interrupted before the first byte: nothing has failed.
        loop {
            match self.0.write_at(bytes, offset) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
