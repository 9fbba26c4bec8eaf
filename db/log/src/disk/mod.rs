//! The seam between the log and the disk: a folder of files. [`folder`] is the real one.

pub mod folder;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;

use std::io;

/// A folder of the log's files.
pub trait LogDisk: Send + Sync {
    /// Returns the names in the folder, in any order.
    ///
    /// # Errors
    /// Those of the system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file, in place of one of that name.
    ///
    /// # Errors
    /// Those of the system.
    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of the system.
    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>>;

    /// Renames a file, in place of one of that name.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Waits until the folder's names are on the disk.
    ///
    /// # Errors
    /// Those of the system.
    fn sync_folder(&self) -> io::Result<()>;

    /// Returns the bytes for which the disk has room.
    ///
    /// # Errors
    /// Those of the system.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Returns the whole path of a file, for errors.
    fn path_of(&self, name: &str) -> String;
}

/// A file of the log.
pub trait LogFile: Send {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Those of the system.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads from an offset; returns the bytes read, fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes at an offset; returns the bytes written, fewer than given if the disk took no more.
    ///
    /// # Errors
    /// Those of the system.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Writes at an offset, and waits until these bytes are on the disk. Returns the bytes written, fewer than given if
    /// the disk took no more: these are not on the disk for certain.
    ///
    /// # Errors
    /// Those of the system, as for [`LogFile::sync`].
    fn write_synced_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let written = self.write_at(offset, bytes)?;
        if written == bytes.len() {
            self.sync()?;
        }
        Ok(written)
    }

    /// Waits until everything that was written is on the disk.
    ///
    /// # Errors
    /// Those of the system. What was written before may or may not be there, whatever later calls return.
    fn sync(&self) -> io::Result<()>;

    /// Has the next read come from the disk, and not from the system's memory, as far as the system does that: what was
    /// written and synced is dropped there.
    fn forget_cached(&self) {}
}
