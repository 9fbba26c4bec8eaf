//! The identifier of a connection.

use crate::workers::generational_slab::SlotId;

/// Identifies a connection of a worker. As one word it is the token of the selector, too.
pub(in crate::workers) type ConnectionId = SlotId<ConnectionKind>;

/// The kind of a [`ConnectionId`].
pub(in crate::workers) enum ConnectionKind {}
