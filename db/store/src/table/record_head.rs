//! What is known of a record without its value, and whether it is there.

use super::locked_stripe::FoundRecord;
use crate::RecordRef;

pub(super) fn live_record<'t>(found: Option<FoundRecord<'t>>, now_ms: u64) -> Option<RecordRef<'t>> {
    found.map(|found| found.record).filter(|record| !record.is_expired(now_ms))
}

/// What is known of a record without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Its version.
    pub version: u64,
    /// From when on it counts as absent, in milliseconds since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
}

impl RecordHead {
    pub(super) fn of(record: &RecordRef<'_>) -> RecordHead {
        RecordHead { version: record.version(), expires_at_ms: record.expires_at_ms() }
    }

    pub(super) fn of_live(found: Option<FoundRecord<'_>>, now_ms: u64) -> Option<RecordHead> {
        live_record(found, now_ms).map(|record| RecordHead::of(&record))
    }
}
