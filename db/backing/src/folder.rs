//! Objects as files of a folder. A file is written beside, synced and renamed, and the folder is synced then: so an
//! object that was written is there after a crash of the machine, whole. A lock over the folder makes conditional
//! writes of several servers one after the other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use crate::memory::too_long;
use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

/// The file that is locked while an object is written. No object has such a name: they never begin with a dot.
const LOCK_FILE: &str = ".sandstorm-lock";

/// The file with a random number that tells the folder from another machine's of the same name.
const IDENTITY_FILE: &str = ".sandstorm-folder";

/// Objects of a folder.
#[derive(Debug)]
pub struct FolderObjects {
    folder: PathBuf,
    /// Held while this process writes: the lock of the file is one of processes.
    lock: Mutex<File>,
    written: AtomicU64,
}

fn failed(error: &io::Error) -> BackingError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BackingError::Refused(format!("the file system is full: {error}"))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => BackingError::Refused(error.to_string()),
        _ => BackingError::Unavailable(error.to_string()),
    }
}

fn tag_of(file: &File) -> io::Result<String> {
    let about = file.metadata()?;
    // Another content is another file.
    Ok(format!("{:x}-{:x}-{:x}-{:x}", about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
}

impl FolderObjects {
    /// Opens a folder, and makes it if it is not there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(folder: &Path) -> io::Result<FolderObjects> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(folder.join(LOCK_FILE))?;
        Ok(FolderObjects { folder: folder.to_owned(), lock: Mutex::new(lock), written: AtomicU64::new(0) })
    }

    fn tag(&self, name: &str) -> Result<Option<String>, BackingError> {
        match File::open(self.folder.join(name)) {
            Ok(file) => tag_of(&file).map(Some).map_err(|error| failed(&error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Runs `change` while no other server writes here.
    fn locked<R>(&self, change: impl FnOnce() -> Result<R, BackingError>) -> Result<R, BackingError> {
        let lock = self.lock.lock();
        flock(&*lock, FlockOperation::LockExclusive).map_err(|error| failed(&error.into()))?;
        let done = change();
        let _unlocked_at_the_latest_when_it_ends = flock(&*lock, FlockOperation::Unlock);
        done
    }

    fn write(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let beside = self.folder.join(format!(".new-{}-{number}", std::process::id()));
        let write = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            tag_of(&file)
        };
        let written = write().map_err(|error| failed(&error));
        let done = written.and_then(|tag| {
            self.locked(|| {
                if !condition.is_met(self.tag(name)?.as_deref()) {
                    return Err(BackingError::Conflict);
                }
                let put = || fs::rename(&beside, self.folder.join(name)).and_then(|()| self.sync());
                put().map(|()| tag).map_err(|error| failed(&error))
            })
        });
        if done.is_err() {
            let _it_may_not_be_there = fs::remove_file(&beside);
        }
        done
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl ObjectStore for FolderObjects {
    fn identity(&self) -> Result<Option<String>, BackingError> {
        let (path, beside) = (self.folder.join(IDENTITY_FILE), self.folder.join(".new-sandstorm-folder"));
        let read = || match fs::read_to_string(&path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{:032x}", rand::random::<u128>());
                let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                fs::rename(&beside, &path)?;
                self.sync().map(|()| text)
            }
            Err(error) => Err(error),
        };
        self.locked(|| read().map(Some).map_err(|error| failed(&error)))
    }

    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        let file = match File::open(self.folder.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let tag = tag_of(&file).map_err(|error| failed(&error))?;
        let mut bytes = Vec::new();
        file.take(most_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        if bytes.len() > most_bytes {
            return Err(too_long(bytes.len(), most_bytes));
        }
        Ok(Some(StoredObject { bytes, tag }))
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        self.write(name, bytes, condition)
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        self.locked(|| match self.tag(name)? {
            None => Ok(()),
            tag if !condition.is_met(tag.as_deref()) => Err(BackingError::Conflict),
            Some(_) => {
                fs::remove_file(self.folder.join(name)).and_then(|()| self.sync()).map_err(|error| failed(&error))
            }
        })
    }
}
