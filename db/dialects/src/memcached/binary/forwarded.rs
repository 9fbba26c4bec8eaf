//! Which frames are run by another server of the cluster, and how one is refused that could not be.

use sandstorm_net::memcached::StoreRequest;
use sandstorm_net::memcached::binary::{BinaryCommand, BinaryFrame};

use super::super::divided::{ForwardRefusal, RequestPlace};
use sandstorm_catalog::TableEntry;

/// The place of a frame.
pub(super) fn place_of_frame(table: &TableEntry, frame: &BinaryFrame<'_>) -> RequestPlace {
    match &frame.command {
        BinaryCommand::Get { key, exptime, .. } => RequestPlace::of_key(table, key, exptime.is_some()),
        BinaryCommand::Touch { key, .. }
        | BinaryCommand::Store { store: StoreRequest { key, .. }, .. }
        | BinaryCommand::TooLarge { key, .. }
        | BinaryCommand::Delete { key, .. }
        | BinaryCommand::Arithmetic { key, .. } => RequestPlace::of_key(table, key, true),
        BinaryCommand::Flush { .. }
        | BinaryCommand::Stat { .. }
        | BinaryCommand::Noop
        | BinaryCommand::Version
        | BinaryCommand::Quit
        | BinaryCommand::Sasl(_)
        | BinaryCommand::Unknown
        | BinaryCommand::Malformed(_)
        | BinaryCommand::Refused(_) => RequestPlace::WITHOUT_KEY,
    }
}

/// How a frame is refused.
pub(super) fn refusal_of_frame(frame: &BinaryFrame<'_>) -> ForwardRefusal {
    ForwardRefusal::Binary { opcode: frame.opcode, opaque: frame.opaque }
}
