//! The seam between a spill file and the disk. [`SpillFolderFile`] is the real one; `simulated` has faults.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};

use super::format::BLOCK_BYTES;

/// The file of one table's cold records. Offsets, lengths and the addresses of buffers are multiples of
/// [`BLOCK_BYTES`].
pub trait SpillDevice: Send + Sync {
    /// Fills `into` from an offset.
    ///
    /// # Errors
    /// Those of the system; `UnexpectedEof` beyond the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// Those of the system; `StorageFull` when the disk takes no more.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Gives the disk's room of a range back, where the file system can.
    fn discard(&self, offset: u64, bytes: u64);
}

/// A file of the state directory, removed when this is dropped. It is read and written past the system's cache where
/// the file system allows that.
#[derive(Debug)]
pub struct SpillFolderFile {
    path: PathBuf,
    file: File,
}

impl SpillFolderFile {
    /// Makes an empty file, in place of one of that name.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(path: &Path) -> io::Result<SpillFolderFile> {
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(true).read(true).write(true).mode(0o600).custom_flags(flags).open(path)
        };
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
        let file = match open(direct) {
            // A file system in memory, for example.
            Err(error) if error.kind() == ErrorKind::InvalidInput => open(0)?,
            opened => opened?,
        };
        Ok(SpillFolderFile { path: path.to_owned(), file })
    }
}

impl Drop for SpillFolderFile {
    fn drop(&mut self) {
        // What is left is removed at the next start.
        let _removed = fs::remove_file(&self.path);
    }
}

impl SpillDevice for SpillFolderFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn discard(&self, offset: u64, bytes: u64) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Without it the room is used again by the file's next segment.
        let _given_back = rustix::fs::fallocate(&self.file, how, offset, bytes);
    }
}

/// Bytes whose address is a multiple of [`BLOCK_BYTES`], as direct reads and writes need them.
pub(super) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Makes so many zero bytes; `None` when memory is out.
    pub(super) fn zeroed(len: usize) -> Option<AlignedBytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len + BLOCK_BYTES).ok()?;
        bytes.resize(len + BLOCK_BYTES, 0);
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Some(AlignedBytes { bytes, start, len })
    }

    /// Returns the bytes.
    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Returns the bytes.
    pub(super) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
