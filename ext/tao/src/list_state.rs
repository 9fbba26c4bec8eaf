//! What the count of a list says.

use sandstorm_api::prelude::*;

/// What tells whether a list has changed, and its size. An edge that is written again with the time that it has changes
/// neither the list's order nor its count: that is not told, and of such an edge a reader sees the one record or the
/// other, whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListState {
    pub(crate) size: u64,
    /// It is in one record, so it is of one moment.
    pub(crate) is_single_record: bool,
    /// The sum of the versions of what keeps the count, which is written whenever the list changes: none of them ever
    /// falls.
    pub(crate) versions: u64,
}

impl ListState {
    pub(crate) fn from_single_record(size: u64, record: Option<Record<'_>>) -> ListState {
        ListState { size, is_single_record: true, versions: record.map_or(0, |record| record.version()) }
    }
}
