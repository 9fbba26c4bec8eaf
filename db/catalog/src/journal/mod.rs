//! The journal: the persisted state of a server's tenants. It has their settings and quotas, the definitions of their
//! tables, grants, suspensions and the versions of their extensions. It has no records and no tokens, only the tokens'
//! verifiers.
//!
//! A [`Journal`] is a file of lines. Each is one change: the whole state of every tenant that it touched
//! ([`JournalTenant`]), and the ids of deleted ones. So a line is applied without regard to those before it. A change
//! is written, and on the disk, before it is visible. When the file has grown it is replaced by one with the current
//! state.

mod file;
mod format;
#[cfg(test)]
mod tests;

pub use file::is_disk_full;
pub use file::{CUT_PREFIX, JOURNAL_FILE, Journal, JournalError, LOCK_FILE, read_image};
pub(super) use format::JournalEntry;
pub use format::{
    DirectoryImage, JournalGivenGrant, JournalOldToken, JournalReceivedGrant, JournalSecret, JournalSuspension,
    JournalTable, JournalTenant, JournalToken, TenantOrigin,
};
