//! A folder whose files are written once and read once: nothing waits until they are on the disk.

use std::io;
use std::sync::Arc;

use sandstorm_log::disk::{LogDisk, LogFile};

/// See the head of this file.
pub(crate) struct StagingDisk(Arc<dyn LogDisk>);

struct StagingFile(Box<dyn LogFile>);

impl StagingDisk {
    pub(crate) fn new(disk: Arc<dyn LogDisk>) -> StagingDisk {
        StagingDisk(disk)
    }
}

fn unsynced(file: Box<dyn LogFile>) -> Box<dyn LogFile> {
    Box::new(StagingFile(file))
}

impl LogDisk for StagingDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.0.create(name).map(unsynced)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.0.open(name).map(unsynced)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn path_of(&self, name: &str) -> String {
        self.0.path_of(name)
    }
}

impl LogFile for StagingFile {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
