//! Messages that wait for cold records. An operation that meets one has done nothing; its message waits here until the
//! record is in memory, and goes on with that operation. The worker goes on meanwhile, with the messages behind it too.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use hashbrown::HashMap;
use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::rpc::{OpKind, RpcStatus};
use sandstorm_store::Participant;
use sandstorm_store::spill::{ColdMiss, ColdTicket, SpillReadError};

use super::postponed_message::PostponedMessage;
use super::shared::SharedWorkerState;
use crate::limits::{COLD_MESSAGES_BYTES, COLD_TRIES};

/// The answer to an operation whose records leave memory again before it is run.
const NOT_KEPT_TEXT: &str =
    "the record was read from the disk and left memory again before it was used: the table's memory is too small";

/// The text for a message beyond the limit of those that wait.
pub(super) const NO_ROOM_TEXT: &str = "too many bytes of requests wait for records on the disk; this was not run: ask again, with less under way at a time";

/// What a message waits for, and how often it has waited at its operation.
#[derive(Debug, Default)]
pub(super) struct ColdWait {
    ticket: Option<Arc<ColdTicket>>,
    tries: u32,
}

impl ColdWait {
    /// Whether it waits for records.
    pub(super) fn is_cold(&self) -> bool {
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.is_done())
    }
}

/// The cold records of a message that is being run.
#[derive(Default)]
pub(super) struct ColdProgress {
    /// The operation that has met some.
    parked_at: Cell<Option<usize>>,
    misses: RefCell<Vec<ColdMiss>>,
    /// Why records of the first operation could not be read.
    error: Cell<Option<SpillReadError>>,
    tries: Cell<u32>,
}

impl ColdProgress {
    /// Continues a message that has waited.
    pub(super) fn resumed(waited: ColdWait) -> ColdProgress {
        let error = waited.ticket.and_then(|ticket| ticket.error());
        ColdProgress { error: Cell::new(error), tries: Cell::new(waited.tries), ..ColdProgress::default() }
    }

    /// The operation at which the message waits, if it does.
    pub(super) fn parked_at(&self) -> Option<usize> {
        self.parked_at.get()
    }

    /// Parks the message at an operation that has just met cold records, or returns why that is refused.
    pub(super) fn park(&self, participant: &Participant, index: usize) -> Option<(RpcStatus, String)> {
        let misses = participant.shown().take_cold();
        if let Some(error) = self.error.take() {
            self.tries.set(0);
            return Some((RpcStatus::NotRead, error.to_string()));
        }
        if self.tries.get() >= COLD_TRIES {
            self.tries.set(0);
            return Some((RpcStatus::Overloaded, NOT_KEPT_TEXT.to_owned()));
        }
        self.tries.set(self.tries.get() + 1);
        self.misses.borrow_mut().extend(misses);
        self.parked_at.set(Some(index));
        None
    }

    /// Adds what a later operation of the message will meet.
    pub(super) fn foresee(&self, participant: &Participant) {
        self.misses.borrow_mut().extend(participant.shown().take_cold());
    }

    /// Notes that an operation was run.
    pub(super) fn passed(&self) {
        if self.tries.get() != 0 {
            self.tries.set(0);
        }
    }

    /// Has the records read that the message waits for.
    pub(super) fn wait(&self, shared: &Arc<SharedWorkerState>, port: usize) -> ColdWait {
        if self.parked_at.get().is_none() {
            return ColdWait { ticket: None, tries: self.tries.get() };
        }
        let shared = Arc::clone(shared);
        let ticket = ColdMiss::fetch(self.misses.take(), move || shared.wake_if_idle(port));
        ColdWait { ticket: Some(ticket), tries: self.tries.get() }
    }
}

/// Whether an operation only reads the record under its key: then it can be foreseen that it waits.
pub(super) fn can_foresee(op: OpKind) -> bool {
    op == OpKind::Get
}

/// The messages of a port that wait.
#[derive(Default)]
pub(super) struct ColdMessages {
    waiting: Vec<PostponedMessage>,
    bytes: usize,
    by_tenant: HashMap<u32, usize>,
}

impl ColdMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one of them need not wait any more.
    pub(super) fn has_ready(&self) -> bool {
        self.waiting.iter().any(|message| message.suspended.cold.is_over())
    }

    /// Adds a message.
    ///
    /// # Errors
    /// The message, if there is no room for its tenant's.
    pub(super) fn push(&mut self, message: PostponedMessage) -> Result<(), Box<PostponedMessage>> {
        let own = self.by_tenant.get(&message.tenant()).copied().unwrap_or(0);
        if !DynamicThreshold::of(COLD_MESSAGES_BYTES).admits(self.bytes, own) {
            return Err(Box::new(message));
        }
        self.bytes += message.bytes();
        *self.by_tenant.entry(message.tenant()).or_default() += message.bytes();
        self.waiting.push(message);
        Ok(())
    }

    /// Takes those that need not wait any more, in their order.
    pub(super) fn take_ready(&mut self) -> Vec<PostponedMessage> {
        if !self.has_ready() {
            return Vec::new();
        }
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|message| message.suspended.cold.is_over());
        self.waiting = waiting;
        for message in &ready {
            self.bytes -= message.bytes();
            if let Some(own) = self.by_tenant.get_mut(&message.tenant()) {
                *own -= message.bytes();
                if *own == 0 {
                    self.by_tenant.remove(&message.tenant());
                }
            }
        }
        ready
    }
}
