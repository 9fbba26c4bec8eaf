//! The keys of a table that are used most, counted only while an operator looks.
//!
//! A watch counts requests and bytes with the space-saving algorithm (Metwally and others, 2005): so many counters, and
//! a key that has none takes over the least. A key's count is too large by the error that it shows at most, and a key
//! that is used more than the least counter is never missed. The counters are in parts by the key's hash, each with a
//! lock that is never waited for: an access that meets it taken is counted as missed.
//!
//! Without a watch an access costs a load and a branch; the same word says whether a single access is drawn
//! (`access_sample.rs`).

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::RecordTable;
use super::access_sample::AccessSample;
pub use super::access_sample::{AccessedKey, SampledAccess};
use super::heat::{HeatReport, HeatSampler, heat_report};
use crate::limits::{WATCH_COUNTERS, WATCH_KEY_BYTES, WATCH_PARTS};

/// A key that is used much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The table's hash of the whole key.
    pub hash: u64,
    /// The beginning of the key.
    pub prefix: Vec<u8>,
    /// Bytes of the whole key.
    pub key_len: usize,
    /// Its requests, or their bytes.
    pub count: u64,
    /// How much of that may be other keys'.
    pub error: u64,
}

/// What a watch has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessReport {
    /// Reads and writes of keys.
    pub requests: u64,
    /// Bytes of the values that they read or wrote.
    pub bytes: u64,
    /// Requests that were not counted, because another thread was counting.
    pub missed: u64,
    /// The keys with most requests, the first first.
    pub by_requests: Vec<HotKey>,
    /// The keys with most bytes.
    pub by_bytes: Vec<HotKey>,
    /// CPU time of calls, nanoseconds.
    pub cpu_ns: u64,
    /// The keys whose calls took most of it: those that a call read first.
    pub by_cpu: Vec<HotKey>,
}

/// The watch of a table: see the head of this file.
#[derive(Debug, Default)]
pub(super) struct AccessWatch {
    /// What an access is counted for: [`WATCHING`], [`SAMPLING`].
    state: AtomicU64,
    missed: AtomicU64,
    /// The stretch of time that accesses count in, if those are told apart.
    column: AtomicU64,
    parts: [Mutex<Option<Box<WatchPart>>>; WATCH_PARTS],
    /// Single accesses.
    sample: AccessSample,
}

/// Accesses are counted by their keys, or by key ranges.
const WATCHING: u64 = 1;
/// A single access is wanted.
const SAMPLING: u64 = 2;

#[derive(Debug, Default)]
struct WatchPart {
    requests: SpaceSaving,
    bytes: SpaceSaving,
    cpu_ns: SpaceSaving,
    /// Counts by key ranges and time instead.
    heat: Option<HeatSampler>,
}

#[derive(Debug)]
struct SpaceSaving {
    counts: Vec<u64>,
    entries: Vec<CountedKey>,
    places: HashMap<u64, u32>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct CountedKey {
    hash: u64,
    error: u64,
    key_len: u32,
    prefix: [u8; WATCH_KEY_BYTES],
}

impl CountedKey {
    fn of(key: &AccessedKey, error: u64) -> CountedKey {
        CountedKey { hash: key.hash, error, key_len: key.key_len, prefix: key.prefix }
    }
}

impl Default for SpaceSaving {
    fn default() -> SpaceSaving {
        SpaceSaving {
            counts: Vec::with_capacity(WATCH_COUNTERS),
            entries: Vec::with_capacity(WATCH_COUNTERS),
            // It is never full, so counting allocates nothing.
            places: HashMap::with_capacity(2 * WATCH_COUNTERS),
            total: 0,
        }
    }
}

impl SpaceSaving {
    fn add(&mut self, key: &AccessedKey, weight: u64) {
        self.total += weight;
        let hash = key.hash;
        if let Some(place) = self.places.get(&hash) {
            self.counts[*place as usize] += weight;
        } else if self.entries.len() < WATCH_COUNTERS {
            self.places.insert(hash, self.entries.len() as u32);
            self.entries.push(CountedKey::of(key, 0));
            self.counts.push(weight);
        } else if let Some(least) = self.counts.iter().copied().min()
            && let Some(place) = self.counts.iter().position(|count| *count == least)
        {
            self.places.remove(&self.entries[place].hash);
            self.places.insert(hash, place as u32);
            self.entries[place] = CountedKey::of(key, least);
            self.counts[place] = least + weight;
        }
    }

    fn keys(&self) -> impl Iterator<Item = HotKey> {
        self.entries.iter().zip(&self.counts).map(|(entry, count)| HotKey {
            hash: entry.hash,
            prefix: entry.prefix[..(entry.key_len as usize).min(WATCH_KEY_BYTES)].to_vec(),
            key_len: entry.key_len as usize,
            count: *count,
            error: entry.error,
        })
    }
}

impl AccessWatch {
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        // A build with `--cfg unobserved` tells what the branch costs (`scripts/compare`).
        !cfg!(unobserved) && self.state.load(Relaxed) != 0
    }

    /// Whether accesses are counted by their keys, or key ranges.
    #[inline(always)]
    fn is_watching(&self) -> bool {
        !cfg!(unobserved) && self.state.load(Relaxed) & WATCHING != 0
    }

    /// Whether a single access is wanted.
    fn is_sampling(&self) -> bool {
        self.state.load(Relaxed) & SAMPLING != 0
    }

    /// Begins or ends what accesses are counted for.
    fn set(&self, what: u64, is_on: bool) {
        // A reader that sees this also sees what was stored before.
        if is_on {
            self.state.fetch_or(what, Release);
        } else {
            self.state.fetch_and(!what, Release);
        }
    }

    /// Counts an access. It neither allocates nor waits.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&self, (hash, key): (u64, &[u8]), value_bytes: usize, is_write: bool) {
        let state = self.state.load(Acquire);
        if state & SAMPLING != 0 && self.sample.note(hash, key, is_write) {
            self.set(SAMPLING, false);
        }
        if state & WATCHING == 0 {
            return;
        }
        match self.part(hash).try_lock() {
            Some(mut part) => {
                // The watch may have ended meanwhile.
                if let Some(WatchPart { heat: Some(heat), .. }) = part.as_deref_mut() {
                    heat.add(self.column.load(Relaxed) as usize, key);
                } else if let Some(part) = part.as_mut() {
                    let key = AccessedKey::new(hash, key);
                    part.requests.add(&key, 1);
                    part.bytes.add(&key, value_bytes as u64);
                }
            }
            None => drop(self.missed.fetch_add(1, Relaxed)),
        }
    }

    /// Counts the CPU time of a call that has ended; as [`AccessWatch::note`].
    #[cold]
    fn note_call(&self, key: &AccessedKey, cpu_ns: u64) {
        match self.part(key.hash).try_lock() {
            Some(mut part) => part.as_mut().map_or((), |part| part.cpu_ns.add(key, cpu_ns)),
            None => drop(self.missed.fetch_add(1, Relaxed)),
        }
    }

    /// By the low bits: the high ones choose buckets and stripes.
    fn part(&self, hash: u64) -> &Mutex<Option<Box<WatchPart>>> {
        &self.parts[hash as usize % WATCH_PARTS]
    }
}

/// Takes a lock that is only ever held for a moment, without a queue: those that count never look for waiters.
fn locked<T, R>(lock: &Mutex<T>, f: impl FnOnce(&mut T) -> R) -> R {
    loop {
        if let Some(mut held) = lock.try_lock() {
            return f(&mut held);
        }
        std::thread::yield_now();
    }
}

impl RecordTable {
    /// Counts a write of a value, if the table is watched.
    #[inline(always)]
    pub(super) fn note_value(&self, hash: u64, key: &[u8], value_bytes: usize) {
        if self.watch.is_on() {
            self.watch.note((hash, key), value_bytes, true);
        }
    }

    /// Whether a watch counts its accesses.
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.watch.is_watching()
    }

    /// Counts the CPU time of a call for the key that it read first, if the table is watched.
    pub fn note_call(&self, key: &AccessedKey, cpu_ns: u64) {
        if self.watch.is_watching() {
            self.watch.note_call(key, cpu_ns);
        }
    }

    /// Takes the access that was asked for last, if it has come, and asks for the one after `accesses` more. While it
    /// has not come nothing changes.
    pub fn sample_access(&self, accesses: u32) -> Option<SampledAccess> {
        if self.watch.is_sampling() {
            return None;
        }
        let drawn = self.watch.sample.ask(accesses);
        self.watch.set(SAMPLING, true);
        drawn
    }

    /// Begins to count which keys are used most. Returns `false` if that is done already.
    pub fn start_watch(&self) -> bool {
        self.start(|_| None)
    }

    /// Begins to count accesses by key ranges, in so many stretches of time, the first of which begins now. Returns
    /// `false` if the table is watched already.
    pub fn start_heat_watch(&self, columns: usize) -> bool {
        self.start(|part| Some(HeatSampler::new(columns, part)))
    }

    fn start(&self, heat: impl Fn(u64) -> Option<HeatSampler>) -> bool {
        let watch = &self.watch;
        let part = |number| Some(Box::new(WatchPart { heat: heat(number), ..WatchPart::default() }));
        let is_first = locked(&watch.parts[0], |first| {
            let is_free = first.is_none();
            if is_free {
                *first = part(0);
            }
            is_free
        });
        if is_first {
            watch.missed.store(0, Relaxed);
            watch.column.store(0, Relaxed);
            (1..).zip(&watch.parts[1..]).for_each(|(number, next)| locked(next, |next| *next = part(number)));
            watch.set(WATCHING, true);
        }
        is_first
    }

    /// Says which stretch of time accesses count in from now on.
    pub fn set_heat_column(&self, column: usize) {
        self.watch.column.store(column as u64, Relaxed);
    }

    /// Ends a watch of key ranges, and returns so many of them at most.
    pub fn end_heat_watch(&self, ranges: usize) -> HeatReport {
        let watch = &self.watch;
        watch.set(WATCHING, false);
        let missed = watch.missed.load(Relaxed);
        // The first part last: another watch begins with it.
        let parts = watch.parts.iter().rev().filter_map(|part| locked(part, Option::take)?.heat);
        heat_report(&parts.collect::<Vec<_>>(), ranges, missed)
    }

    /// Ends the watch, and returns the `top` keys of each kind; nothing if there was none.
    pub fn end_watch(&self, top: usize) -> AccessReport {
        let watch = &self.watch;
        watch.set(WATCHING, false);
        let mut report = AccessReport { missed: watch.missed.load(Relaxed), ..AccessReport::default() };
        // The first part last: another watch begins with it.
        for part in watch.parts.iter().rev() {
            let Some(part) = locked(part, Option::take) else { continue };
            report.requests += part.requests.total;
            report.bytes += part.bytes.total;
            report.by_requests.extend(part.requests.keys());
            report.by_bytes.extend(part.bytes.keys().filter(|key| key.count > 0));
            report.cpu_ns += part.cpu_ns.total;
            report.by_cpu.extend(part.cpu_ns.keys().filter(|key| key.count > 0));
        }
        for keys in [&mut report.by_requests, &mut report.by_bytes, &mut report.by_cpu] {
            keys.sort_by(|one, two| two.count.cmp(&one.count).then_with(|| one.prefix.cmp(&two.prefix)));
            keys.truncate(top);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::{Epochs, TableConfig, WriteOptions};

    /// A number from 0 on, whose shares fall with the power 0.99 of the rank.
    fn zipf(random: &mut SmallRng, sums: &[f64]) -> usize {
        let at = random.random::<f64>() * sums.last().unwrap();
        sums.partition_point(|sum| *sum < at)
    }

    #[test]
    fn the_ten_hottest_of_a_zipf_trace_are_right_in_order_and_their_shares_within_a_tenth() {
        const KEYS: usize = 20_000;
        const REQUESTS: usize = 100_000;
        const SEEK_EVERY: usize = 4_000;
        let sums: Vec<f64> = (1..=KEYS)
            .scan(0.0, |sum, rank| {
                *sum += (rank as f64).powf(-0.99);
                Some(*sum)
            })
            .collect();
        let epochs = Epochs::new();
        let participant = epochs.register();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 7);
        let key = |number: usize| format!("user:{number:08}");
        // A large value under a key that is asked for seldom.
        let large = vec![0; 200_000];
        let put = |name: &[u8], value: &[u8]| {
            table.put(&participant, table.hash(name), name, value, &WriteOptions::default(), 1).unwrap();
        };
        put(b"large", &large);
        put(key(0).as_bytes(), b"0123456789");
        assert!(table.start_watch() && !table.start_watch(), "one at a time");
        let (mut random, mut exact) = (SmallRng::seed_from_u64(3), BTreeMap::<usize, u64>::new());
        for request in 0..REQUESTS {
            let number = zipf(&mut random, &sums);
            *exact.entry(number).or_default() += 1;
            let name = key(number);
            table.get(&participant.guard(), table.hash(name.as_bytes()), name.as_bytes(), 1);
            if request % SEEK_EVERY == 0 {
                table.get(&participant.guard(), table.hash(b"large"), b"large", 1);
            }
        }
        let report = table.end_watch(10);
        let mut hottest: Vec<(u64, usize)> = exact.iter().map(|(number, count)| (*count, *number)).collect();
        hottest.sort_unstable_by(|one, two| two.cmp(one));
        let seeks = REQUESTS / SEEK_EVERY;
        assert_eq!((report.requests, report.missed), ((REQUESTS + seeks) as u64, 0));
        for (hot, (count, number)) in report.by_requests.iter().zip(&hottest) {
            assert_eq!(hot.prefix, key(*number).as_bytes(), "{report:?}");
            assert!(hot.count.abs_diff(*count) * 10 <= *count, "{hot:?} and {count}");
            assert!(hot.count >= *count && hot.count - hot.error <= *count, "the stated error: {hot:?} and {count}");
        }
        assert_eq!(
            (report.by_bytes[0].prefix.as_slice(), report.by_bytes[0].count),
            (&b"large"[..], (seeks * large.len()) as u64)
        );
        assert_eq!(report.by_bytes[1].count, 10 * exact[&0]);
        // Nothing is counted without a watch.
        table.get(&participant.guard(), table.hash(b"large"), b"large", 1);
        assert_eq!(table.end_watch(10), AccessReport::default());
        assert!(table.start_watch());
        put(b"large", b"x");
        let report = table.end_watch(10);
        assert_eq!((report.requests, report.bytes, report.by_requests[0].prefix.as_slice()), (1, 1, &b"large"[..]));
        // Calls are counted by the key that they began with.
        let watched = |name: &[u8]| AccessedKey::new(table.hash(name), name);
        table.note_call(&watched(b"large"), 9);
        assert!(table.start_watch() && table.is_watched());
        for (name, cpu_ns) in [(&b"large"[..], 70), (b"small", 20), (b"large", 10)] {
            table.note_call(&watched(name), cpu_ns);
        }
        let report = table.end_watch(10);
        let by_cpu: Vec<_> = report.by_cpu.iter().map(|key| (key.prefix.as_slice(), key.count)).collect();
        assert_eq!((report.cpu_ns, by_cpu), (100, vec![(&b"large"[..], 80), (b"small", 20)]));
    }
}
