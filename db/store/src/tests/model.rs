//! One thread against a `BTreeMap`: every operation, with conditions, flags, expiry, sweeps and growth.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sandstorm_net::shared_bytes::SharedBytes;

use super::super::record::allocation_bytes;
use super::*;
use crate::limits::{INDEX_CHARGE_BYTES, RECORD_CHARGE_BYTES};
use crate::{KeyRange, NotOrdered, StoreCondition, StoreError};

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, len: usize, flags: u32, ttl_ms: u64, condition: Which },
    Delete { key: u8, condition: Which },
    Increment { key: u8, delta: i64 },
    Get { key: u8 },
    Scan { limit: usize },
    Range { from: u8, past: bool, to: Option<u8>, included: bool, backward: bool, limit: usize },
    Sweep { slots: usize },
    Fill { from: u16, keys: u16 },
    Clear,
    Wait { ms: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Always,
    Absent,
    Present,
    Current,
    Older,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Vec<u8>,
    version: u64,
    flags: u32,
    expires_at_ms: u64,
}

/// Live and expired entries, as the table may still hold them.
#[derive(Default)]
struct Model {
    entries: BTreeMap<Vec<u8>, Entry>,
    highest: BTreeMap<Vec<u8>, u64>,
}

impl Model {
    fn live(&self, key: &[u8], now_ms: u64) -> Option<&Entry> {
        let live = |entry: &&Entry| entry.expires_at_ms == 0 || entry.expires_at_ms > now_ms;
        self.entries.get(key).filter(live)
    }

    fn write(&mut self, key: &[u8], entry: Entry) {
        let highest = self.highest.entry(key.to_vec()).or_default();
        assert!(entry.version > *highest, "the version of a key grows, also across delete and re-insert");
        *highest = entry.version;
        self.entries.insert(key.to_vec(), entry);
    }
}

/// Keys of many lengths, the empty one included.
fn key_of(key: u8) -> Vec<u8> {
    vec![key; usize::from(key) * 7 % 90]
}

fn which() -> impl Strategy<Value = Which> {
    use Which::*;
    prop_oneof![4 => Just(Always), 1 => Just(Absent), 1 => Just(Present), 1 => Just(Current), 1 => Just(Older)]
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..32u8;
    let ttl = || prop_oneof![2 => Just(0), 1 => 1..50u64];
    let flags = || prop_oneof![Just(0), any::<u32>()];
    prop_oneof![
        8 => (key(), 0..300usize, flags(), ttl(), which())
            .prop_map(|(key, len, flags, ttl_ms, condition)| Op::Put { key, len, flags, ttl_ms, condition }),
        4 => (key(), which()).prop_map(|(key, condition)| Op::Delete { key, condition }),
        3 => (key(), prop_oneof![-5..5i64, any::<i64>()]).prop_map(|(key, delta)| Op::Increment { key, delta }),
        6 => key().prop_map(|key| Op::Get { key }),
        1 => (1..40usize).prop_map(|limit| Op::Scan { limit }),
        3 => range(),
        1 => (0..2000usize).prop_map(|slots| Op::Sweep { slots }),
        1 => (any::<u16>(), 0..400u16).prop_map(|(from, keys)| Op::Fill { from, keys }),
        1 => (0..30u64).prop_map(|ms| Op::Wait { ms }),
    ]
}

fn range() -> impl Strategy<Value = Op> {
    let ends = (0..33u8, any::<bool>(), prop::option::of(0..33u8), any::<bool>());
    (ends, any::<bool>(), prop_oneof![1..5usize, Just(1000)]).prop_map(
        |((from, past, to, included), backward, limit)| Op::Range { from, past, to, included, backward, limit },
    )
}

fn condition(which: Which, current: Option<&Entry>) -> StoreCondition {
    match which {
        Which::Always => StoreCondition::Always,
        Which::Absent => StoreCondition::Absent,
        Which::Present => StoreCondition::Present,
        Which::Current => StoreCondition::Version(current.map_or(1, |entry| entry.version)),
        Which::Older => StoreCondition::Version(current.map_or(0, |entry| entry.version.wrapping_sub(1))),
    }
}

struct Run {
    table: RecordTable,
    participant: Participant,
    model: Model,
    now_ms: u64,
}

impl Run {
    fn step(&mut self, op: &Op) {
        match *op {
            Op::Put { key, len, flags, ttl_ms, condition: which } => self.put(key, len, flags, ttl_ms, which),
            Op::Delete { key, condition: which } => self.delete(key, which),
            Op::Increment { key, delta } => self.increment(key, delta),
            Op::Get { key } => self.get(&key_of(key)),
            Op::Scan { limit } => self.scan(limit),
            Op::Range { from, past, to, included, backward, limit } => {
                let (from, to) = (key_of(from), to.map(key_of));
                self.range(KeyRange { from: &from, past, to: to.as_deref(), included, backward }, limit);
            }
            Op::Sweep { slots } => {
                self.table.sweep(&self.participant, self.now_ms, slots);
            }
            Op::Fill { from, keys } => self.fill(from, keys),
            Op::Clear => {
                self.table.clear(&self.participant).expect("no log");
                self.model.entries.clear();
            }
            Op::Wait { ms } => self.now_ms += ms,
        }
        self.participant.quiescent();
    }

    fn put(&mut self, key: u8, len: usize, flags: u32, ttl_ms: u64, which: Which) {
        let (key, value) = (key_of(key), vec![len as u8; len]);
        let current = self.model.live(&key, self.now_ms);
        let condition = condition(which, current);
        let is_met = condition.is_met(current.map(|entry| entry.version));
        let expires_at_ms = if ttl_ms == 0 { 0 } else { self.now_ms + ttl_ms };
        let write = WriteOptions { condition, flags, expires_at_ms };
        let hash = self.table.hash(&key);
        // Some stay where they are.
        let result = if len.is_multiple_of(3) {
            let shared = SharedBytes::of(Arc::new(value.clone()));
            self.table.put_shared(&self.participant, hash, &key, &shared, &write, self.now_ms)
        } else {
            self.table.put(&self.participant, hash, &key, &value, &write, self.now_ms)
        };
        match result {
            Ok(version) => {
                assert!(is_met);
                self.model.write(&key, Entry { value, version, flags, expires_at_ms });
            }
            Err(error) => assert_eq!((error, is_met), (StoreError::Conflict, false)),
        }
    }

    fn delete(&mut self, key: u8, which: Which) {
        let key = key_of(key);
        let current = self.model.live(&key, self.now_ms);
        let (existed, condition) = (current.is_some(), condition(which, current));
        let is_met = condition.is_met(current.map(|entry| entry.version));
        let result = self.table.delete(&self.participant, self.table.hash(&key), &key, condition, self.now_ms);
        assert_eq!(result, if is_met { Ok(existed) } else { Err(StoreError::Conflict) });
        if is_met {
            self.model.entries.remove(&key);
        }
    }

    fn increment(&mut self, key: u8, delta: i64) {
        let key = key_of(key);
        let current = self.model.live(&key, self.now_ms).cloned();
        let old = current.as_ref().map_or(Some(0), |entry| std::str::from_utf8(&entry.value).ok()?.parse().ok());
        let sum = old.and_then(|old: i64| old.checked_add(delta));
        match (self.table.increment(&self.participant, self.table.hash(&key), &key, delta, self.now_ms), sum) {
            (Ok((sum, version)), Some(expected)) => {
                assert_eq!(sum, expected);
                let flags = current.as_ref().map_or(0, |entry| entry.flags);
                let expires_at_ms = current.as_ref().map_or(0, |entry| entry.expires_at_ms);
                self.model.write(&key, Entry { value: sum.to_string().into(), version, flags, expires_at_ms });
            }
            (result, sum) => assert_eq!((result, sum), (Err(StoreError::NotANumber), None)),
        }
    }

    fn get(&mut self, key: &[u8]) {
        let guard = self.participant.guard();
        let found = self.table.get(&guard, self.table.hash(key), key, self.now_ms);
        let found = found.map(|r| (r.key(), r.value(), r.version(), r.flags(), r.expires_at_ms()));
        let expected = self.model.live(key, self.now_ms);
        assert_eq!(found, expected.map(|e| (key, e.value.as_slice(), e.version, e.flags, e.expires_at_ms)));
    }

    fn scan(&mut self, limit: usize) {
        let mut seen = scan_all(&self.table, &mut self.participant, limit, self.now_ms);
        seen.sort();
        let live = self.model.entries.keys().filter(|key| self.model.live(key, self.now_ms).is_some());
        assert!(seen.iter().eq(live), "an undisturbed scan sees every live record once");
    }

    fn range(&mut self, span: KeyRange<'_>, limit: usize) {
        let guard = self.participant.guard();
        if !self.table.is_ordered() {
            let refused = self.table.range(&guard, &mut span.clone(), limit, self.now_ms, &mut |_| ());
            assert_eq!(refused, Err(NotOrdered));
            return;
        }
        let inside = |key: &&Vec<u8>| {
            let after = if span.past { key[..] > *span.from } else { key[..] >= *span.from };
            after && span.to.is_none_or(|to| if span.included { key[..] <= *to } else { key[..] < *to })
        };
        let live = self.model.entries.keys().filter(|key| self.model.live(key, self.now_ms).is_some());
        let mut expected: Vec<_> = live.filter(inside).cloned().collect();
        if span.backward {
            expected.reverse();
        }
        expected.truncate(limit);
        assert_eq!(range_all(&self.table, &guard, span, limit, self.now_ms), expected, "{span:?}");
    }

    fn fill(&mut self, from: u16, keys: u16) {
        for n in 0..keys {
            let key = from.wrapping_add(n).to_le_bytes().repeat(8);
            let version = put(&self.table, &self.participant, &key, &key);
            self.model.write(&key, Entry { value: key.clone(), version, flags: 0, expires_at_ms: 0 });
        }
    }

    fn finish(&mut self) {
        let keys: Vec<_> = self.model.highest.keys().cloned().collect();
        keys.iter().for_each(|key| self.get(key));
        while self.table.sweep(&self.participant, self.now_ms, 100_000) != 0 {}
        self.table.sweep(&self.participant, self.now_ms, 100_000);
        let ordered = self.table.is_ordered();
        self.range(KeyRange::new(b"", b"", false), usize::MAX);
        let live = self.model.entries.iter().filter(|(key, _)| self.model.live(key, self.now_ms).is_some());
        let bytes = |(key, e): (&Vec<u8>, &Entry)| {
            let record = allocation_bytes(key.len(), e.value.len(), e.flags, e.expires_at_ms) as u64;
            let entry = if ordered { key.len() as u64 + INDEX_CHARGE_BYTES } else { 0 };
            record + RECORD_CHARGE_BYTES + entry
        };
        let stats = self.table.stats();
        let overflow = 64 * self.table.overflow_buckets(&self.participant.guard()) as u64;
        assert_eq!(
            (stats.records, stats.bytes),
            (live.clone().count() as u64, live.map(bytes).sum::<u64>() + overflow)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled(300, 3) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_operation_answers_as_a_map_would(
        ops in prop::collection::vec(prop_oneof![60 => op(), 1 => Just(Op::Clear)], 0..scaled(400, 60)),
        ordered in any::<bool>(),
    ) {
        let (epochs, table) = table_with(StorageMode::Store, u64::MAX, ordered);
        let mut run = Run { table, participant: epochs.register(), model: Model::default(), now_ms: 1_000 };
        ops.iter().for_each(|op| run.step(op));
        run.finish();
        let Run { table, mut participant, .. } = run;
        drop(table);
        settle(&epochs, &mut participant);
    }

    #[test]
    fn a_store_refuses_exactly_what_does_not_fit(
        ops in prop::collection::vec((0..20u8, 0..200usize, any::<bool>()), 1..scaled(300, 40)),
        ordered in any::<bool>(),
    ) {
        const QUOTA: u64 = 2_000;
        let (epochs, table) = table_with(StorageMode::Store, QUOTA, ordered);
        let entry = if ordered { 1 + INDEX_CHARGE_BYTES } else { 0 };
        let mut participant = epochs.register();
        let mut sizes = BTreeMap::new();
        for (key, len, delete) in ops {
            let (key, value) = (vec![key], vec![0; len]);
            let hash = table.hash(&key);
            let overflow = |participant: &Participant| 64 * table.overflow_buckets(&participant.guard()) as u64;
            let used: u64 = sizes.values().sum::<u64>() + overflow(&participant);
            if delete {
                let deleted = table.delete(&participant, hash, &key, StoreCondition::Always, 0);
                prop_assert_eq!(deleted, Ok(sizes.remove(&key).is_some()), "a delete always works");
            } else {
                let new = allocation_bytes(1, len, 0, 0) as u64 + RECORD_CHARGE_BYTES + entry;
                let old = sizes.get(&key).copied().unwrap_or(0);
                let bucket = if old == 0 { table.bucket_charge(&participant, hash) } else { 0 };
                let written = table.put(&participant, hash, &key, &value, &WriteOptions::default(), 0);
                if new <= old || used - old + new + bucket <= QUOTA {
                    prop_assert!(written.is_ok());
                    sizes.insert(key, new);
                } else {
                    prop_assert_eq!(written, Err(StoreError::OutOfMemory));
                }
            }
            prop_assert_eq!(table.stats().bytes, sizes.values().sum::<u64>() + overflow(&participant));
            participant.quiescent();
        }
    }

    #[test]
    fn a_cache_never_exceeds_its_quota_and_never_refuses_what_fits(
        ops in prop::collection::vec((any::<u16>(), 0..300usize), 1..scaled(600, 60)),
        ordered in any::<bool>(),
    ) {
        const QUOTA: u64 = 20_000;
        let (epochs, table) = table_with(StorageMode::Cache, QUOTA, ordered);
        let mut participant = epochs.register();
        for (key, len) in ops {
            let key = key.to_le_bytes();
            put(&table, &participant, &key, &vec![key[0]; len]);
            prop_assert_eq!(get(&table, &participant, &key), Some(vec![key[0]; len]), "what was just put is there");
            prop_assert!(table.stats().bytes <= QUOTA);
            participant.quiescent();
        }
        let stats = table.stats();
        let mut scanned = scan_all(&table, &mut participant, 10, 0);
        prop_assert_eq!(scanned.len() as u64, stats.records);
        if ordered {
            scanned.sort();
            let guard = participant.guard();
            prop_assert_eq!(range_all(&table, &guard, KeyRange::new(b"", b"", false), usize::MAX, 0), scanned);
        }
    }
}
