//! What met a cold record, and the wait until it is in memory again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{SpillAddress, SpillReadError};

/// Where the values of cold records are read from.
pub(crate) trait ColdSource: std::fmt::Debug + Send + Sync {
    /// Has a record read, and the ticket told when it is in memory, or cannot be.
    fn fetch(self: Arc<Self>, miss: ColdMiss, ticket: &Arc<ColdTicket>);

    /// Whether that is the backing of a table, and not the disk.
    fn is_backing(&self) -> bool;
}

/// A cold record that an operation met. The operation has done nothing then: once the record was fetched, it is run
/// again.
#[derive(Clone, Debug)]
pub struct ColdMiss {
    source: Arc<dyn ColdSource>,
    pub(super) hash: u64,
    pub(super) version: u64,
    pub(super) address: SpillAddress,
    /// The tenant that reads, whose quota the read is taken out of; 0 until it is fetched.
    pub(super) reader: u32,
    /// The number of the read that its table makes for all that wait for the record now; 0 until it is fetched.
    pub(super) read: u64,
}

impl ColdMiss {
    pub(crate) fn new(source: Arc<dyn ColdSource>, hash: u64, version: u64, address: SpillAddress) -> ColdMiss {
        ColdMiss { source, hash, version, address, reader: 0, read: 0 }
    }

    /// Has all of these records read, together, for the tenant `reader`: in a granted table the grantee's quota is
    /// charged, not the owner's. `wake` is called once, from another thread or this one, when the last of them is in
    /// memory, or cannot be.
    pub fn fetch(misses: Vec<ColdMiss>, reader: u32, wake: impl Fn() + Send + Sync + 'static) -> Arc<ColdTicket> {
        let ticket = Arc::new(ColdTicket {
            missing: AtomicUsize::new(misses.len() + 1),
            has_backing: misses.iter().any(|miss| miss.source.is_backing()),
            is_done: AtomicBool::new(false),
            error: Mutex::new(None),
            wake: Box::new(wake),
        });
        for miss in misses {
            Arc::clone(&miss.source).fetch(ColdMiss { reader, ..miss }, &ticket);
        }
        // Its own part: records that were read at once do not end it before the others were asked for.
        ticket.note_read(Ok(()));
        ticket
    }
}

/// Cold records that are being read together.
pub struct ColdTicket {
    missing: AtomicUsize,
    has_backing: bool,
    is_done: AtomicBool,
    error: Mutex<Option<SpillReadError>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for ColdTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColdTicket").field("missing", &self.missing).finish_non_exhaustive()
    }
}

impl ColdTicket {
    /// Returns whether all of them are in memory, or cannot be.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::SeqCst)
    }

    /// Returns whether any of them is behind its table, in a backing; else all of them are on the disk.
    pub fn has_backing(&self) -> bool {
        self.has_backing
    }

    /// Returns why one of them could not be read, if that is so.
    pub fn error(&self) -> Option<SpillReadError> {
        *self.error.lock()
    }

    /// Notes that one of them is in memory, or why it cannot be. Once for each.
    pub fn note_read(&self, read: Result<(), SpillReadError>) {
        if let Err(error) = read {
            *self.error.lock() = Some(error);
        }
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Before the look for sleepers in `wake`: a waiter announces its sleep, then looks here.
            self.is_done.store(true, Ordering::SeqCst);
            (self.wake)();
        }
    }
}
