//! The status of copies: how far those of this server's log are, and which copies of other servers' logs are here.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::copy_store::CopyStore;
use crate::limits::{FAILOVER_NOTES, REPLACE_AFTER};

/// A copy of this server's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// The id of the server that has it; [`crate::STREAM_HOLDER`]: it is in a stream.
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
    /// Copies that are wanted.
    pub wanted: usize,
    /// The number of the generation; 0: there is none.
    pub generation: u64,
    /// Whether writes that wait for copies are refused, since none confirms them.
    pub is_stalled: bool,
    /// What a copy has is confirmed up to here.
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
    /// The ids of the servers that have copies; [`crate::STREAM_HOLDER`]: in a stream.
    pub servers: Vec<String>,
    /// The server that takes its place now.
    pub successor: Option<String>,
}

/// A server whose log has a copy here, and of which nothing is heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuspectedServer {
    /// Its id.
    pub server: String,
    /// Milliseconds without a word of it, as this server has counted them.
    pub silent_ms: u64,
    /// Whether it is gone: nothing listens where it was, or it leaves questions unanswered.
    pub is_gone: bool,
    /// Why this server does not take its place by itself; `None`: it does, or it is not gone yet.
    pub obstacle: Option<String>,
    /// Whether it stays so until an operator decides.
    pub needs_operator: bool,
}

/// What has become of a server's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverStep {
    /// This server takes it by itself.
    Begun,
    /// This server has taken it.
    Done,
    /// Nothing takes it by itself.
    NotPossible,
}

/// A word about a server whose place is taken, or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverNote {
    /// The id of the server that is gone.
    pub server: String,
    /// What has happened.
    pub step: FailoverStep,
    /// Details, for people.
    pub text: String,
    /// Whether no operator has asked for it.
    is_automatic: bool,
}

impl FailoverNote {
    /// This server takes a place, since nothing was heard of a server: of the one with the place, or of the one that
    /// was to take it.
    pub(crate) fn begun(server: &str, silent: &str, silent_ms: u64) -> FailoverNote {
        let text = match server == silent {
            true => format!("nothing was heard of it for {silent_ms} ms"),
            false => format!("nothing was heard for {silent_ms} ms of server {silent}, which was to take its place"),
        };
        FailoverNote { server: server.to_owned(), step: FailoverStep::Begun, text, is_automatic: true }
    }

    pub(crate) fn done(server: &str, is_automatic: bool, took: &str) -> FailoverNote {
        let by = if is_automatic { "by itself" } else { "by command" };
        let text = format!("{by}, {took}");
        FailoverNote { server: server.to_owned(), step: FailoverStep::Done, text, is_automatic }
    }

    pub(crate) fn not_possible(server: &str, obstacle: &str) -> FailoverNote {
        let text = obstacle.to_owned();
        FailoverNote { server: server.to_owned(), step: FailoverStep::NotPossible, text, is_automatic: true }
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct CopiesView {
    status: Mutex<CopiesStatus>,
    copy_store: OnceLock<CopyStore>,
    suspected: Mutex<Vec<SuspectedServer>>,
    notes: Mutex<VecDeque<FailoverNote>>,
    /// Places that this server has taken since its start: by itself, and by command.
    taken: [AtomicU64; 2],
}

impl CopiesView {
    pub(crate) fn set_copy_store(&self, copy_store: CopyStore) {
        let _once = self.copy_store.set(copy_store);
    }

    pub(crate) fn set_status(&self, status: CopiesStatus) {
        *self.status.lock() = status;
    }

    /// How far the copies of this server's log are.
    pub fn status(&self) -> CopiesStatus {
        self.status.lock().clone()
    }

    pub(crate) fn set_suspected(&self, suspected: Vec<SuspectedServer>) {
        *self.suspected.lock() = suspected;
    }

    /// The servers whose logs have copies here, and of which nothing is heard; and the one whose successor is gone.
    pub fn suspected(&self) -> Vec<SuspectedServer> {
        self.suspected.lock().clone()
    }

    pub(crate) fn note_failover(&self, note: FailoverNote) {
        if note.step == FailoverStep::Done {
            self.taken[usize::from(!note.is_automatic)].fetch_add(1, Ordering::Relaxed);
        }
        let notes = &mut *self.notes.lock();
        notes.push_back(note);
        // They were not read for long: the oldest ones are forgotten.
        let forgotten = notes.len().saturating_sub(FAILOVER_NOTES);
        notes.drain(..forgotten);
    }

    /// What has become of servers' places since this was asked last.
    pub fn take_notes(&self) -> Vec<FailoverNote> {
        self.notes.lock().drain(..).collect()
    }

    /// The places that this server has taken since its start: by itself, and by command.
    pub fn places_taken(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.taken[at].load(Ordering::Relaxed))
    }

    /// The copies of other servers' logs that are here, once this server has joined its cluster.
    pub fn copy_store(&self) -> Option<&CopyStore> {
        self.copy_store.get()
    }
}
