//! Messages that wait for cold records. An operation that meets one has done nothing; its message waits here until the
//! record is in memory, and goes on with that operation. The worker goes on meanwhile, with the messages behind it too.

use hashbrown::HashMap;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

use super::postponed_message::PostponedMessage;
use crate::limits::COLD_MESSAGES_BYTES;

/// The text for a message beyond the limit of those that wait.
pub(super) const NO_ROOM_TEXT: &str = "too many bytes of requests wait for records on the disk; this was not run: ask again, with less under way at a time";

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
