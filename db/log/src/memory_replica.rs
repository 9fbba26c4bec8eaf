//! A replica in memory, for tests. It never crashes, so it does exactly what the rules of a replica say.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::LogDisk;
use crate::disk::simulated::SimulatedDisk;
use crate::error::LogError;
use crate::recovery::{ChangeVisitor, ReplaySummary, read_log};
use crate::replica::{LogReplica, ReplicaError, ReplicaState};
use crate::replica_format::ReplicaBatch;
use crate::replica_ledger::ReplicaLedger;

/// See the head of this file. Clones are the same replica.
#[derive(Clone, Debug)]
pub struct MemoryReplica(Arc<Mutex<ReplicaLedger>>);

impl Default for MemoryReplica {
    fn default() -> MemoryReplica {
        MemoryReplica(Arc::new(Mutex::new(ReplicaLedger::with_bytes())))
    }
}

impl LogReplica for MemoryReplica {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        let mut ledger = self.0.lock();
        ledger.enter(epoch)?;
        Ok(ledger.told())
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        let mut ledger = self.0.lock();
        ledger.enter(epoch)?;
        ledger.take(batch)
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        let mut ledger = self.0.lock();
        ledger.enter(epoch)?;
        ledger.trim(checkpoint, segment)
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.0.lock().seal();
        Ok(())
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        let disk: Arc<dyn LogDisk> = Arc::new(SimulatedDisk::default());
        for (name, bytes) in self.0.lock().contents() {
            let written = disk.create(&name).and_then(|file| file.write_at(0, bytes));
            written.map_err(|error| LogError::system("write", name.clone(), &error))?;
        }
        Ok(read_log(&disk, visit)?.summary)
    }
}
