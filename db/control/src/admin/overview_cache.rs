//! Readings for the page, and the bytes that were rendered of them: requests for the same within the age of a reading
//! get the same bytes.

use std::time::Instant;

use axum::body::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::Deserialize;

use super::error::ApiError;
use super::types::OverviewResponse;
use crate::limits::{PAGE_FRONT_KILLS, PAGE_FRONT_ROWS, PAGE_SNAPSHOT_INTERVAL};

/// What a reading is of: a tenant, by its serial (another may be given its id), or the server; and whether texts of
/// tenants' code are left out.
pub(super) type ReadingKey = (Option<u64>, bool);

/// What of an overview of the server is asked for: a view of the page gets what it shows.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub(super) enum OverviewPart {
    /// All of it.
    #[default]
    All,
    /// The first view: findings, hot keys, and the first of tenants, extensions and kills.
    Front,
    Tenants,
    Extensions,
    Kills,
    Events,
    /// Counters and numbers, which are in all others, too.
    Counters,
}

impl OverviewPart {
    /// The part of an overview. One of a tenant is small, and always whole.
    fn of(self, whole: &OverviewResponse) -> OverviewResponse {
        if self == OverviewPart::All || whole.tenant.is_some() {
            return whole.clone();
        }
        // Of a list all, its first ones, or nothing.
        fn some<T: Clone>(list: &[T], is_shown: bool, front: Option<usize>) -> Vec<T> {
            let most = if is_shown { list.len() } else { front.unwrap_or(0) };
            list.iter().take(most).cloned().collect()
        }
        let is_front = self == OverviewPart::Front;
        let (rows, kills) = (is_front.then_some(PAGE_FRONT_ROWS), is_front.then_some(PAGE_FRONT_KILLS));
        OverviewResponse {
            at_ms: whole.at_ms,
            version: whole.version,
            uptime_s: whole.uptime_s,
            counters: whole.counters.clone(),
            workers: whole.workers.clone(),
            findings: whole.findings.clone().filter(|_| is_front),
            tenants_in_all: whole.tenants_in_all,
            tenants: some(&whole.tenants, self == OverviewPart::Tenants, rows),
            extensions_in_all: whole.extensions_in_all,
            extensions: some(&whole.extensions, self == OverviewPart::Extensions, rows),
            kills: some(&whole.kills, self == OverviewPart::Kills, kills),
            hot: some(&whole.hot, is_front, None),
            events: some(&whole.events, self == OverviewPart::Events, None),
            ..OverviewResponse::default()
        }
    }
}

/// A reading, and its parts as they are sent.
struct OverviewReading {
    at: Instant,
    whole: OverviewResponse,
    rendered: HashMap<OverviewPart, Bytes>,
}

/// Readings that are younger than [`PAGE_SNAPSHOT_INTERVAL`].
#[derive(Default)]
pub(super) struct OverviewCache {
    readings: Mutex<HashMap<ReadingKey, OverviewReading>>,
}

impl OverviewCache {
    /// A part of the reading, or of a new one if there is none that is young enough at `now`.
    pub(super) fn get(
        &self,
        (key, part): (ReadingKey, OverviewPart),
        now: Instant,
        read: impl FnOnce() -> OverviewResponse,
    ) -> Result<Bytes, ApiError> {
        let mut readings = self.readings.lock();
        // What is no longer looked at is not kept, either.
        readings.retain(|_, reading| now.saturating_duration_since(reading.at) < PAGE_SNAPSHOT_INTERVAL);
        let reading =
            readings.entry(key).or_insert_with(|| OverviewReading { at: now, whole: read(), rendered: HashMap::new() });
        if let Some(bytes) = reading.rendered.get(&part) {
            return Ok(bytes.clone());
        }
        let bytes = serde_json::to_vec(&part.of(&reading.whole)).map(Bytes::from);
        let bytes = bytes.map_err(|error| ApiError::internal(error.to_string()))?;
        reading.rendered.insert(part, bytes.clone());
        Ok(bytes)
    }
}

impl std::fmt::Debug for OverviewCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OverviewCache(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SERVER: ReadingKey = (None, true);

    /// Readings that are numbered by their time.
    struct Read<'r>(&'r Cell<u64>);

    impl Read<'_> {
        fn next(&self) -> OverviewResponse {
            self.0.set(self.0.get() + 1);
            OverviewResponse { at_ms: self.0.get(), ..OverviewResponse::default() }
        }
    }

    #[test]
    fn viewers_of_one_thing_get_the_same_bytes_of_one_reading_and_a_new_one_after_its_age() {
        let (cache, reads, begun) = (OverviewCache::default(), Cell::new(0), Instant::now());
        let read = Read(&reads);
        let get = |part, at| cache.get((SERVER, part), at, || read.next()).expect("bytes");
        let first = get(OverviewPart::Front, begun);
        for ms in [0, 1, 700, 1_999] {
            let at = begun + std::time::Duration::from_millis(ms);
            let again = get(OverviewPart::Front, at);
            assert_eq!((again.as_ptr(), again.len()), (first.as_ptr(), first.len()), "rendered once");
            assert!(get(OverviewPart::Tenants, at).starts_with(b"{\"at_ms\":1,"), "another part of the same reading");
        }
        assert_eq!(reads.get(), 1);
        // One that came to the lock after another one had read.
        assert_eq!(get(OverviewPart::Front, begun.checked_sub(PAGE_SNAPSHOT_INTERVAL).expect("a time")), first);
        let later = get(OverviewPart::Front, begun + PAGE_SNAPSHOT_INTERVAL);
        assert!(later.starts_with(b"{\"at_ms\":2,"), "{later:?}");
        assert_eq!(reads.get(), 2);
    }

    #[test]
    fn what_others_may_not_see_is_a_reading_of_its_own() {
        let (cache, reads, now) = (OverviewCache::default(), Cell::new(0), Instant::now());
        let read = Read(&reads);
        let keys: [ReadingKey; 4] = [(None, true), (Some(7), true), (Some(7), false), (Some(8), false)];
        for _ in 0..2 {
            let bytes = keys.map(|key| cache.get((key, OverviewPart::All), now, || read.next()).expect("bytes"));
            let all: std::collections::HashSet<_> = bytes.iter().collect();
            assert_eq!((all.len(), reads.get()), (keys.len(), keys.len() as u64));
        }
        assert_eq!(cache.readings.lock().len(), keys.len());
        let late = now + PAGE_SNAPSHOT_INTERVAL;
        cache.get((SERVER, OverviewPart::All), late, || read.next()).expect("bytes");
        assert_eq!(cache.readings.lock().len(), 1, "a reading that is asked for no more is not kept");
    }
}
