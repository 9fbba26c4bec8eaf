//! A sample of a table's records: all of a small table; of a large one some records at each of many places.

use std::hash::{BuildHasher, RandomState};

use sandstorm_store::{Participant, RecordRef, RecordTable};

use crate::limits::RECORD_SCAN_RECORDS;

/// How many records are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleSize {
    /// Records: all of a table that has no more, about this number of a larger one.
    pub(crate) records: u64,
    /// Places of a larger table that they lie behind: each in a part of its own, of equal parts of the hashes.
    pub(crate) places: u64,
    /// Of the random numbers that choose the places.
    pub(crate) seed: u64,
}

/// A seed that no tenant can know.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Looks at records that are as likely to be seen as others.
pub(crate) fn visit_sample(
    table: &RecordTable,
    participant: &Participant,
    size: SampleSize,
    now_ms: u64,
    visit: &mut dyn FnMut(&RecordRef<'_>),
) {
    let mut scan = |from: u64, records: usize| {
        // A guard for each piece: no freeing of memory waits for the whole.
        let guard = participant.guard();
        table.scan(&guard, from, records, now_ms, &mut |record| visit(&record))
    };
    if table.stats().records <= size.records {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = scan(at, RECORD_SCAN_RECORDS);
        }
        return;
    }
    let part = u64::MAX / size.places;
    let mut random = size.seed | 1;
    for place in 0..size.places {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let within = (u128::from(random) * u128::from(part)) >> 64;
        scan(place * part + within as u64, (size.records / size.places) as usize);
    }
}
