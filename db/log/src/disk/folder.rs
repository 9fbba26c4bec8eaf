//! A folder of the file system.
//!
//! What has to be on the disk at once is written directly (`O_DIRECT` with `O_DSYNC`): one system call, and no copy in
//! the system's memory. File systems that refuse it, and bytes that are not aligned, take a write and a sync instead.

use std::cell::OnceCell;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{LogDisk, LogFile};
use crate::error::LogError;
use crate::limits::BLOCK_BYTES;

/// The file that a running server locks.
pub const LOCK_FILE: &str = "lock";

/// A folder, which this process has to itself while this lives.
#[derive(Debug)]
pub struct LogFolder {
    path: PathBuf,
    /// None for one that is only read.
    _lock: Option<File>,
    writes_directly: bool,
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
            Ok(()) => Ok(LogFolder { path: path.to_owned(), _lock: Some(lock), writes_directly: true }),
            Err(TryLockError::WouldBlock) => Err(LogError::Locked(path.display().to_string())),
            Err(TryLockError::Error(error)) => Err(failed("lock", &error)),
        }
    }

    /// Opens the folder for reading, also that of a running server.
    pub fn read(path: &Path) -> LogFolder {
        LogFolder { path: path.to_owned(), _lock: None, writes_directly: true }
    }

    /// Has all writes go through the system's memory, as where the file system takes no direct ones: for tests and
    /// measurements.
    pub fn with_buffered_writes(mut self) -> LogFolder {
        self.writes_directly = false;
        self
    }

    fn file(&self, file: File) -> Box<dyn LogFile> {
        let direct = OnceCell::new();
        if !self.writes_directly {
            let _new = direct.set(None);
        }
        Box::new(FolderFile { file, direct })
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
        Ok(self.file(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(self.file(File::open(self.path.join(name))?))
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
struct FolderFile {
    file: File,
    /// The same for direct writes, from the first one on. None: the file system takes none.
    direct: OnceCell<Option<File>>,
}

impl FolderFile {
    /// Opens the file once more, for direct writes.
    fn open_direct(&self) -> Option<File> {
        let flags = i32::try_from((OFlags::DIRECT | OFlags::DSYNC).bits()).ok()?;
        // By its descriptor: it may have another name by now.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        OpenOptions::new().write(true).custom_flags(flags).open(path).ok()
    }
}

/// Whether bytes may be written directly: place, length and memory are whole blocks.
fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    let at = [offset, bytes.len() as u64, bytes.as_ptr().addr() as u64];
    at.iter().all(|number| number.is_multiple_of(BLOCK_BYTES))
}

/// Writes once; an interruption before the first byte is no failure.
fn write_once(file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write_at(bytes, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl LogFile for FolderFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        write_once(&self.file, offset, bytes)
    }

    fn write_synced_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if is_aligned(offset, bytes) {
            if let Some(direct) = self.direct.get() {
                if let Some(direct) = direct {
                    return write_once(direct, offset, bytes);
                }
            } else {
                let direct = self.open_direct();
                let done = direct.as_ref().map(|direct| write_once(direct, offset, bytes));
                // Some file systems refuse direct writes only when the first one comes. Nothing was written then.
                let is_refused = matches!(&done, Some(Err(error)) if error.kind() == ErrorKind::InvalidInput);
                let _first = self.direct.set(direct.filter(|_| !is_refused));
                if let Some(done) = done.filter(|_| !is_refused) {
                    return done;
                }
            }
        }
        let written = self.write_at(offset, bytes)?;
        if written == bytes.len() {
            self.sync()?;
        }
        Ok(written)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn forget_cached(&self) {
        // It is advice: a file system in memory has no disk to read from.
        let _advice = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that begin at a multiple of a block in memory, and the bytes before them.
    fn aligned(blocks: usize, fill: u8) -> (Vec<u8>, usize) {
        let bytes = vec![fill; (blocks + 1) * BLOCK_BYTES as usize];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES as usize);
        (bytes, start)
    }

    #[test]
    fn synced_writes_are_read_back_however_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let disks = [LogFolder::read(folder.path()), LogFolder::read(folder.path()).with_buffered_writes()];
        for (number, disk) in disks.iter().enumerate() {
            let name = format!("file-{number}");
            let file = disk.create(&name).unwrap();
            let zeros = vec![0; 8 * BLOCK_BYTES as usize];
            assert_eq!(file.write_at(0, &zeros).unwrap(), zeros.len());
            file.sync().unwrap();
            // Renamed before the first direct write: it goes to this file still.
            disk.rename(&name, "renamed").unwrap();
            let (bytes, start) = aligned(2, 7);
            let blocks = &bytes[start..][..2 * BLOCK_BYTES as usize];
            assert_eq!(file.write_synced_at(BLOCK_BYTES, blocks).unwrap(), blocks.len());
            assert_eq!(file.write_synced_at(5 * BLOCK_BYTES + 3, b"unaligned").unwrap(), 9);
            assert_eq!(file.write_synced_at(6 * BLOCK_BYTES, blocks).unwrap(), blocks.len());
            let mut expected = zeros;
            expected[4096..3 * 4096].fill(7);
            expected[5 * 4096 + 3..][..9].copy_from_slice(b"unaligned");
            expected[6 * 4096..].fill(7);
            let mut found = vec![1; expected.len()];
            let reader = disk.open("renamed").unwrap();
            assert_eq!(reader.read_at(0, &mut found).unwrap(), expected.len());
            assert!(found == expected, "{number}");
        }
    }

    #[test]
    fn a_file_that_takes_no_direct_writes_is_written_and_synced() {
        let folder = tempfile::tempdir().unwrap();
        let (bytes, start) = aligned(1, 9);
        let block = &bytes[start..][..BLOCK_BYTES as usize];
        // /dev/full takes no bytes: what fails is said once, and not tried in another way.
        let full =
            FolderFile { file: OpenOptions::new().write(true).open("/dev/full").unwrap(), direct: OnceCell::new() };
        assert_eq!(full.write_synced_at(0, block).unwrap_err().kind(), ErrorKind::StorageFull);
        let file = File::create(folder.path().join("other")).unwrap();
        let folder_file = FolderFile { file, direct: OnceCell::from(None) };
        assert_eq!(folder_file.write_synced_at(0, block).unwrap(), block.len());
        assert_eq!(fs::read(folder.path().join("other")).unwrap(), block);
    }
}
