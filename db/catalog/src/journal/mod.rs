//! What a server keeps of its tenants over a restart: who they are, what they may use, the definitions of their tables,
//! grants, suspensions and the versions of their extensions. No records, and no tokens: only the verifiers that the
//! server keeps of them anyway.
//!
//! A [`Journal`] is a file of lines. Each is one change: the whole of every tenant that it touched ([`JournalTenant`]),
//! and the ids of those that are gone; so reading is putting in place, and no line depends on how the one before was
//! meant. A change is written, and on the disk, before anybody sees it. When the file has grown it is replaced by one
//! that holds what there is now.

mod file;
mod format;
#[cfg(test)]
mod tests;

pub use file::is_disk_full;
pub use file::{CUT_PREFIX, JOURNAL_FILE, Journal, JournalError};
pub(super) use format::JournalEntry;
pub use format::{
    DirectoryImage, JournalGivenGrant, JournalOldToken, JournalReceivedGrant, JournalSuspension, JournalTable,
    JournalTenant, JournalToken, TenantOrigin,
};
