//! What a server keeps of its tenants over a restart: who they are, what they may use, the definitions of their tables,
//! grants, suspensions and the versions of their extensions. No records, and no tokens: only the verifiers that the
//! server keeps of them anyway.
//!
//! A [`Journal`] is a file of lines. Each is one change: the whole of every tenant that it touched ([`KeptTenant`]), and
//! the ids of those that are gone; so reading is putting in place, and no line depends on how the one before was meant. A
//! change is written, and on the disk, before anybody sees it. When the file has grown it is replaced by one that holds
//! what there is now.

mod journal;
mod state;
#[cfg(test)]
mod tests;

pub use journal::is_no_room;
pub use journal::{CUT_PREFIX, JOURNAL_FILE, Journal, KeptError};
pub(super) use state::Change;
pub use state::{
    KeptGiven, KeptOldToken, KeptReceived, KeptSuspension, KeptTable, KeptTenant, KeptToken, Origin, State,
};
