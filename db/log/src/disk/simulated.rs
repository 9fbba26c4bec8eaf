//! A disk in memory, for tests. At a crash, what was not synced may be lost, torn by sector and reordered. Writes may
//! go to the wrong place, fail, fall short or meet a full disk; syncs may fail once and then seem to succeed. All of
//! it follows from a seed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{LogDisk, LogFile};

/// Bytes that a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

/// A fault, and the operation that meets it, counted from 1 over all writes, syncs, renames and removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The machine stops before it; every later operation fails.
    Crash,
    /// It fails. What a failed sync should have written is lost, and counts as written from then on.
    Error,
    /// A write takes only half of the bytes.
    ShortWrite,
    /// A write goes to another block of its file.
    Misdirected,
    /// A write changes a bit.
    Flipped,
}

/// A file as the disk has it, and as the system shows it.
#[derive(Clone, Debug, Default)]
struct SimulatedContent {
    synced: Vec<u8>,
    shown: Vec<u8>,
    /// Written and not synced.
    pending: Vec<(usize, Vec<u8>)>,
}

/// A change of names that is not synced.
#[derive(Clone, Debug)]
enum NameChange {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct DiskState {
    files: Vec<SimulatedContent>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    unsynced: Vec<NameChange>,
    operations: u64,
    faults: Vec<(u64, DiskFault)>,
    has_crashed: bool,
    /// Bytes of all files, at most.
    capacity: Option<u64>,
    sync_time: Duration,
    /// Locked for as long as no sync may end.
    gate: Arc<Mutex<()>>,
    most_handles: usize,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk(Arc<Mutex<DiskState>>);

/// An open file of it.
struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

fn stopped() -> io::Error {
    io::Error::other("the machine has stopped")
}

impl DiskState {
    /// Counts an operation, and returns its fault.
    fn next(&mut self) -> io::Result<Option<DiskFault>> {
        if self.has_crashed {
            return Err(stopped());
        }
        self.operations += 1;
        let number = self.operations;
        match self.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault) {
            Some(DiskFault::Crash) => {
                self.has_crashed = true;
                Err(stopped())
            }
            fault => Ok(fault),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].shown.len() as u64).sum()
    }

    fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
        match change {
            NameChange::Create(name, file) => drop(names.insert(name.clone(), *file)),
            NameChange::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            NameChange::Remove(name) => drop(names.remove(name)),
        }
    }

    fn change_names(&mut self, change: NameChange) {
        DiskState::apply(&mut self.names, &change);
        self.unsynced.push(change);
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, piece: &[u8]) {
    if bytes.len() < offset + piece.len() {
        bytes.resize(offset + piece.len(), 0);
    }
    bytes[offset..offset + piece.len()].copy_from_slice(piece);
}

impl SimulatedDisk {
    /// A disk with these faults.
    pub fn with_faults(faults: &[(u64, DiskFault)]) -> SimulatedDisk {
        let disk = SimulatedDisk::default();
        disk.0.lock().faults = faults.to_vec();
        disk
    }

    /// Adds a fault, that many operations from here.
    pub fn fail_after(&self, operations: u64, fault: DiskFault) {
        let mut state = self.0.lock();
        let at = state.operations + operations;
        state.faults.push((at, fault));
    }

    /// Returns the operations so far.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// Returns the bytes of all files.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Returns how many handles of the disk there were at once when a file was opened: files and clones.
    pub fn most_handles(&self) -> usize {
        self.0.lock().most_handles
    }

    /// Limits the bytes of all files.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Makes each sync take that long.
    pub fn set_sync_time(&self, time: Duration) {
        self.0.lock().sync_time = time;
    }

    /// Returns what no sync ends without: it takes as long as this is locked.
    pub fn gate(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.0.lock().gate)
    }

    /// Returns the disk as it is found after the machine has stopped: of what was not synced, sectors and names are
    /// there or not, as the seed says.
    pub fn after_crash(&self, seed: u64) -> SimulatedDisk {
        let state = self.0.lock();
        let mut random = SmallRng::seed_from_u64(seed);
        let mut names = state.synced_names.clone();
        // Names reach the disk in their order.
        let kept = random.random_range(0..=state.unsynced.len());
        state.unsynced.iter().take(kept).for_each(|change| DiskState::apply(&mut names, change));
        let mut files = state.files.clone();
        for file in &mut files {
            let mut found = std::mem::take(&mut file.synced);
            let keeps_all = random.random_bool(0.2);
            for (offset, bytes) in std::mem::take(&mut file.pending) {
                for (sector, piece) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    if keeps_all || random.random_bool(0.5) {
                        put(&mut found, offset + sector * SECTOR_BYTES, piece);
                    }
                }
            }
            (file.shown, file.synced) = (found.clone(), found);
        }
        let capacity = state.capacity;
        let state = DiskState { files, synced_names: names.clone(), names, capacity, ..DiskState::default() };
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }

    /// Returns the disk as another process finds it after this one was killed: everything that was written is there.
    pub fn after_kill(&self) -> SimulatedDisk {
        let state = self.0.lock();
        let (files, capacity) = (state.files.clone(), state.capacity);
        let (names, synced_names, unsynced) = (state.names.clone(), state.synced_names.clone(), state.unsynced.clone());
        let state = DiskState { files, names, synced_names, unsynced, capacity, ..DiskState::default() };
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }

    /// Changes bytes of a file unnoticed, as a failing disk does.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        if let Some(file) = state.names.get(name).copied()
            && let Some(file) = state.files.get_mut(file)
        {
            change(&mut file.synced);
            file.shown = file.synced.clone();
        }
    }

    /// Returns a file's bytes; empty if there is none.
    pub fn content(&self, name: &str) -> Vec<u8> {
        let state = self.0.lock();
        state.names.get(name).and_then(|file| state.files.get(*file)).map(|file| file.shown.clone()).unwrap_or_default()
    }
}

impl LogDisk for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.0.lock();
        if state.has_crashed {
            return Err(stopped());
        }
        state.files.push(SimulatedContent::default());
        let file = state.files.len() - 1;
        state.change_names(NameChange::Create(name.to_owned(), file));
        Ok(Box::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.0.lock();
        state.most_handles = state.most_handles.max(Arc::strong_count(&self.0));
        let file = state.names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.next()? == Some(DiskFault::Error) {
            return Err(io::Error::other("input/output error"));
        }
        state.change_names(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.next()? == Some(DiskFault::Error) {
            return Err(io::Error::other("input/output error"));
        }
        state.change_names(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.next()? == Some(DiskFault::Error) {
            return Err(io::Error::other("input/output error"));
        }
        state.synced_names = state.names.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.0.lock();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used())))
    }

    fn path_of(&self, name: &str) -> String {
        format!("simulated/{name}")
    }
}

impl LogFile for SimulatedFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[self.file].shown.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.0.lock();
        let from = state.files[self.file].shown.get(offset as usize..).unwrap_or_default();
        let bytes = from.len().min(into.len());
        into[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.0.lock();
        let fault = state.next()?;
        let mut written = bytes.to_vec();
        let mut offset = offset as usize;
        match fault {
            Some(DiskFault::Error) => return Err(io::Error::other("input/output error")),
            Some(DiskFault::ShortWrite) => written.truncate(bytes.len() / 2),
            Some(DiskFault::Misdirected) => offset += 4096,
            Some(DiskFault::Flipped) => written[bytes.len() / 3] ^= 4,
            Some(DiskFault::Crash) | None => {}
        }
        let grows = (offset + written.len()).saturating_sub(state.files[self.file].shown.len()) as u64;
        if state.capacity.is_some_and(|capacity| state.used() + grows > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = &mut state.files[self.file];
        put(&mut file.shown, offset, &written);
        let taken = written.len();
        file.pending.push((offset, written));
        Ok(taken)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let (fault, time) = (state.next()?, state.sync_time);
        let file = &mut state.files[self.file];
        let pending = std::mem::take(&mut file.pending);
        if fault == Some(DiskFault::Error) {
            return Err(io::Error::other("input/output error"));
        }
        pending.into_iter().for_each(|(offset, bytes)| put(&mut file.synced, offset, &bytes));
        let gate = Arc::clone(&state.gate);
        drop(state);
        drop(gate.lock());
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        Ok(())
    }
}
