//! The identifier of a connection.

/// Identifies a connection of a worker: its slot, and the generation of the slot, which grows with each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::workers) struct ConnectionId {
    /// The number of its slot.
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl ConnectionId {
    /// The id in one word.
    pub(in crate::workers) fn word(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    /// The inverse of [`ConnectionId::word`].
    pub(in crate::workers) fn from_u64(word: u64) -> ConnectionId {
        ConnectionId { slot: (word >> 32) as u32, generation: word as u32 }
    }

    /// The id as a token of the selector. Its highest bit is not set.
    pub(super) fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`ConnectionId::token`].
    pub(super) fn from_token(token: u64) -> ConnectionId {
        ConnectionId { slot: token as u32, generation: (token >> 32) as u32 }
    }
}
