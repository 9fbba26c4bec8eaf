//! A disk in memory, with faults, for tests.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::device::SpillDevice;

/// A fault that the next operations meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillFault {
    /// Writes fail.
    WriteError,
    /// Writes find no room.
    NoSpace,
    /// Reads fail.
    ReadError,
    /// Writes reach only their first half, and say that all is well.
    Torn,
    /// Writes go one block further.
    MisdirectedWrite,
    /// Reads come from one block further.
    MisdirectedRead,
    /// Writes are lost, and say that all is well.
    Lost,
}

#[derive(Debug, Default)]
struct SimulatedSpillState {
    bytes: Vec<u8>,
    fault: Option<SpillFault>,
    reads: u64,
    writes: u64,
    discarded: u64,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedSpillDevice(Arc<Mutex<SimulatedSpillState>>);

impl SimulatedSpillDevice {
    /// Has all further operations meet a fault, or none.
    pub fn set_fault(&self, fault: Option<SpillFault>) {
        self.0.lock().fault = fault;
    }

    /// Flips bits of the byte at an offset.
    pub fn flip(&self, offset: usize, bits: u8) {
        if let Some(byte) = self.0.lock().bytes.get_mut(offset) {
            *byte ^= bits;
        }
    }

    /// Returns the bytes of the file.
    pub fn len(&self) -> usize {
        self.0.lock().bytes.len()
    }

    /// Returns whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the reads and writes so far, and the bytes that were given back.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.0.lock();
        (state.reads, state.writes, state.discarded)
    }
}

impl SpillDevice for SimulatedSpillDevice {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let state = &mut *self.0.lock();
        state.reads += 1;
        let shift = match state.fault {
            Some(SpillFault::ReadError) => return Err(io::Error::other("a fault of the test")),
            Some(SpillFault::MisdirectedRead) => super::format::BLOCK_BYTES,
            _ => 0,
        };
        let start = offset as usize + shift;
        let found = state.bytes.get(start..start + into.len()).ok_or(ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.lock();
        state.writes += 1;
        let (mut start, mut written) = (offset as usize, bytes);
        let end = start + bytes.len();
        if state.bytes.len() < end {
            state.bytes.resize(end, 0);
        }
        match state.fault {
            Some(SpillFault::WriteError) => return Err(io::Error::other("a fault of the test")),
            Some(SpillFault::NoSpace) => return Err(ErrorKind::StorageFull.into()),
            Some(SpillFault::Torn) => written = &bytes[..bytes.len() / 2],
            Some(SpillFault::MisdirectedWrite) => start += super::format::BLOCK_BYTES,
            Some(SpillFault::Lost) => return Ok(()),
            Some(SpillFault::ReadError | SpillFault::MisdirectedRead) | None => {}
        }
        let end = start + written.len();
        if state.bytes.len() < end {
            state.bytes.resize(end, 0);
        }
        state.bytes[start..end].copy_from_slice(written);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) {
        let state = &mut *self.0.lock();
        state.discarded += bytes;
        let range = offset as usize..((offset + bytes) as usize).min(state.bytes.len());
        if let Some(gone) = state.bytes.get_mut(range) {
            gone.fill(0);
        }
    }
}
