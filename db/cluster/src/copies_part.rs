//! What of copies others see: how far those of this server's log are, and the copies of others' logs that are here.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::copy_depot::CopyDepot;
use crate::limits::REPLACE_AFTER;

/// A copy of this server's log on another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// The id of the server that has it.
    pub server: String,
    /// Its number.
    pub copy: u64,
    /// Whether acknowledgements wait for it. Else it is being filled.
    pub is_needed: bool,
    /// The position up to which it has the log; `None`: it has not enough yet.
    pub held: Option<u64>,
    /// Bytes of the log that it has not confirmed.
    pub behind: u64,
    /// Milliseconds since it has last confirmed something; `None`: it never has.
    pub silent_ms: Option<u64>,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

impl CopyStatus {
    /// Whether it has confirmed something a moment ago.
    pub fn confirms(&self) -> bool {
        self.silent_ms.is_some_and(|silent_ms| u128::from(silent_ms) < REPLACE_AFTER.as_millis())
    }
}

/// The copies of this server's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiesStatus {
    /// Whether a table needs them.
    pub is_on: bool,
    /// Copies on other servers that are wanted.
    pub wanted: usize,
    /// The number of the generation; 0: there is none.
    pub generation: u64,
    /// Whether writes that wait for copies are refused, since none confirms them.
    pub is_stalled: bool,
    /// What another server has is confirmed up to here.
    pub position: u64,
    /// Each of them.
    pub copies: Vec<CopyStatus>,
    /// The generations of all servers, as the map has them.
    pub generations: Vec<GenerationStatus>,
}

/// The copies of a server's log, as the map has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationStatus {
    /// The id of the server.
    pub owner: String,
    /// The number of the generation.
    pub number: u64,
    /// The ids of the servers that have copies.
    pub servers: Vec<String>,
    /// The server that takes its place now.
    pub successor: Option<String>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct CopiesPart {
    status: Mutex<CopiesStatus>,
    depot: OnceLock<CopyDepot>,
}

impl CopiesPart {
    pub(crate) fn set_depot(&self, depot: CopyDepot) {
        let _once = self.depot.set(depot);
    }

    pub(crate) fn set_status(&self, status: CopiesStatus) {
        *self.status.lock() = status;
    }

    /// How far the copies of this server's log are.
    pub fn status(&self) -> CopiesStatus {
        self.status.lock().clone()
    }

    /// The copies of other servers' logs that are here, once this server has joined its cluster.
    pub fn depot(&self) -> Option<&CopyDepot> {
        self.depot.get()
    }
}
