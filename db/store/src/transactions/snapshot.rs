//! Several records of one moment.

use super::{KeyRead, commit};
use crate::limits::SNAPSHOT_TRIES;
use crate::{EpochGuard, Participant, RecordRef, RecordTable, StripeSet};

/// Returns the live records of some keys, given with their hashes, as they all were at one moment.
pub fn snapshot<'g>(
    participant: &'g Participant,
    guard: &'g EpochGuard<'_>,
    table: &'g RecordTable,
    keys: &[(u64, &[u8])],
    now_ms: u64,
) -> Vec<Option<RecordRef<'g>>> {
    let get = |now_ms| -> Vec<_> { keys.iter().map(|(hash, key)| table.get(guard, *hash, key, now_ms)).collect() };
    // The clock of commits, for all of it: by the thread's own, records may be live that an earlier transaction found
    // expired.
    let clock = || participant.epochs().commit_time(now_ms);
    for _ in 0..SNAPSHOT_TRIES {
        let now_ms = clock();
        let records = get(now_ms);
        if guard.shown().has_cold() {
            // The caller asks again.
            return records;
        }
        let reads: Vec<_> = (keys.iter().zip(&records))
            .map(|((hash, key), record)| KeyRead {
                table,
                hash: *hash,
                key,
                version: record.map_or(0, |record| record.version()),
            })
            .collect();
        if keys.len() < 2 || commit(participant, &reads, &mut [], now_ms).is_ok() {
            return records;
        }
    }
    let mut stripes = StripeSet::default();
    keys.iter().for_each(|(hash, _)| stripes.add(*hash));
    let locked = table.exclusive(participant, stripes);
    let records = get(clock());
    drop(locked);
    records
}
