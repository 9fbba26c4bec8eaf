//! Tables in front of objects, without a server: what clients see, and what the objects are then.

mod admission;
mod conflicts;
mod moved;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_store::backed::{BackingRefusal, TableBackend, waits};
use sandstorm_store::spill::{ColdMiss, SpillReadError};
use sandstorm_store::transactions::{KeyChange, KeyRead, NewRecord, commit};
use sandstorm_store::{
    Epochs, NewValue, Participant, RecordTable, RecordUpdate, SpilledTable, StorageMode, StoreCondition, StoreError,
    StripeSet, TableConfig, WriteOptions,
};

use crate::faulty::FaultyObjects;
use crate::format::{ObjectRecord, object_name};
use crate::settings::ConflictChoice;
use crate::{
    BackedTable, BackingPolicy, BackingPool, BackingSettings, FlushError, MemoryObjects, NewBackedTable, ObjectStore,
    WriteCondition, unix_ms,
};

const LONG: Duration = Duration::from_secs(30);

/// A table, what is behind it, and a thread that uses it as a worker does.
struct BackingBench {
    epochs: Arc<Epochs>,
    pool: Arc<BackingPool>,
    table: Arc<RecordTable>,
    backed: Arc<BackedTable>,
    memory: Arc<MemoryObjects>,
    objects: Arc<FaultyObjects>,
    participant: Participant,
}

fn settings(policy: BackingPolicy) -> BackingSettings {
    BackingSettings { policy, flush_after_ms: 20, ..BackingSettings::of("memory:test") }
}

fn bench(settings: BackingSettings, quota_bytes: u64) -> BackingBench {
    over(Arc::default(), settings, quota_bytes, 1)
}

fn over(memory: Arc<MemoryObjects>, settings: BackingSettings, quota_bytes: u64, writer: u64) -> BackingBench {
    over_through(memory, settings, (quota_bytes, writer), |objects| objects)
}

/// As above; `wrap` is between the table and the objects.
fn over_through(
    memory: Arc<MemoryObjects>,
    settings: BackingSettings,
    (quota_bytes, writer): (u64, u64),
    wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
) -> BackingBench {
    let epochs = Epochs::new();
    let pool = BackingPool::new();
    let config = TableConfig { mode: StorageMode::Cache, quota_bytes, ..TableConfig::default() };
    let table = Arc::new(RecordTable::new(config, Arc::clone(&epochs)));
    let objects = FaultyObjects::new(Arc::clone(&memory) as Arc<dyn ObjectStore>, 7);
    let owner: Weak<RecordTable> = Arc::downgrade(&table);
    let new = NewBackedTable {
        owner: owner as Weak<dyn SpilledTable>,
        objects: wrap(Arc::clone(&objects) as Arc<dyn ObjectStore>),
        settings,
        is_raw: false,
        writer,
        most_bytes: (1 << 16, 1 << 20),
    };
    let backed = BackedTable::new(new, &epochs, &pool);
    table.attach_backing(Arc::clone(&backed) as Arc<dyn TableBackend>);
    pool.start(&epochs).unwrap();
    let participant = epochs.register();
    BackingBench { epochs, pool, table, backed, memory, objects, participant }
}

impl Drop for BackingBench {
    fn drop(&mut self) {
        self.pool.stop();
    }
}

impl BackingBench {
    /// Repeats an operation that meets what is not in memory, as a worker does.
    fn until_loaded<R>(&mut self, mut operation: impl FnMut(&BackingBench) -> R) -> Result<R, SpillReadError> {
        for _ in 0..100 {
            self.participant.online();
            let result = operation(self);
            if !self.participant.shown().has_cold() {
                return Ok(result);
            }
            let ticket = ColdMiss::fetch(self.participant.shown().take_cold(), 1, || {});
            // As a worker that goes on: it holds nothing up.
            self.participant.offline();
            let begun = Instant::now();
            while !ticket.is_done() {
                assert!(begun.elapsed() < LONG, "a load hangs");
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(error) = ticket.error() {
                return Err(error);
            }
        }
        panic!("it is loaded again and again");
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, SpillReadError> {
        self.until_loaded(|bench| {
            let (guard, hash) = (bench.participant.guard(), bench.table.hash(key));
            bench.table.get(&guard, hash, key, unix_ms()).map(|record| record.value().to_vec())
        })
    }

    fn put_if(&mut self, key: &[u8], value: &[u8], condition: StoreCondition) -> Result<u64, StoreError> {
        let write = WriteOptions { condition, ..WriteOptions::default() };
        self.until_loaded(|bench| {
            bench.table.put(&bench.participant, bench.table.hash(key), key, value, &write, unix_ms())
        })
        .unwrap()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        self.put_if(key, value, StoreCondition::Always)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.until_loaded(|bench| {
            let hash = bench.table.hash(key);
            bench.table.delete(&bench.participant, hash, key, StoreCondition::Always, unix_ms())
        })
        .unwrap()
    }

    /// Waits as an answer does; returns whether the backing has what it shows.
    fn settle(&mut self) -> bool {
        let shown = self.participant.shown().take();
        self.participant.offline();
        let begun = Instant::now();
        loop {
            match if waits::is_wait(shown) { waits::state_of(shown) } else { waits::WaitState::Ended(0) } {
                waits::WaitState::Waits => assert!(begun.elapsed() < LONG, "a wait hangs"),
                waits::WaitState::Ended(_) => return true,
                waits::WaitState::Failed => return false,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn flush(&mut self, choice: ConflictChoice) -> Result<u64, FlushError> {
        let backed = Arc::clone(&self.backed);
        backed.flush(&mut self.participant, choice, LONG)
    }

    /// What the objects have of a key.
    fn object(&self, key: &[u8]) -> Option<Vec<u8>> {
        let object = self.memory.get(&object_name(key), usize::MAX).unwrap()?;
        Some(ObjectRecord::decode(&object.bytes, key).unwrap().value.to_vec())
    }

    /// Another server's write.
    fn write_elsewhere(&self, key: &[u8], value: &[u8]) {
        let record = ObjectRecord { writer: 999, version: 1, expires_at_ms: 0, flags: 0, key, value };
        self.memory.put(&object_name(key), &record.encode(), &WriteCondition::Always).unwrap();
    }
}

#[test]
fn a_write_through_is_answered_when_the_objects_have_it_and_reads_load_what_memory_has_not() {
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    bench.put(b"a", b"1").unwrap();
    assert!(waits::is_wait(bench.participant.shown().get()), "the answer waits");
    assert!(bench.settle());
    assert_eq!(bench.object(b"a"), Some(b"1".to_vec()));
    bench.write_elsewhere(b"b", b"2");
    assert_eq!(bench.get(b"b").unwrap(), Some(b"2".to_vec()));
    assert_eq!(bench.get(b"c").unwrap(), None);
    let reads = bench.objects.reads.load(Relaxed);
    assert_eq!((bench.get(b"b").unwrap(), bench.get(b"c").unwrap()), (Some(b"2".to_vec()), None));
    assert_eq!(bench.objects.reads.load(Relaxed), reads, "both are remembered");
    // A condition is decided by what the objects have.
    bench.write_elsewhere(b"d", b"4");
    assert_eq!(bench.put_if(b"d", b"5", StoreCondition::Absent), Err(StoreError::Conflict));
    assert_eq!(bench.delete(b"d"), Ok(true));
    assert!(bench.settle());
    assert_eq!((bench.object(b"d"), bench.get(b"d").unwrap()), (None, None));
    assert_eq!(bench.backed.stats().dirty_keys, 0);
    assert!(bench.table.clear(&bench.participant).is_err(), "it is not emptied as a whole");
}

#[test]
fn one_load_serves_all_that_ask_for_a_key() {
    let mut bench = bench(settings(BackingPolicy::ReadThrough), 1 << 20);
    bench.write_elsewhere(b"a", b"1");
    bench.objects.slow_ms.store(30, Relaxed);
    let hash = bench.table.hash(b"a");
    let tickets: Vec<_> = (0..50)
        .map(|_| {
            assert!(bench.table.get(&bench.participant.guard(), hash, b"a", unix_ms()).is_none());
            ColdMiss::fetch(bench.participant.shown().take_cold(), 1, || {})
        })
        .collect();
    bench.participant.offline();
    while !tickets.iter().all(|ticket| ticket.is_done()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((bench.objects.reads.load(Relaxed), bench.get(b"a").unwrap()), (1, Some(b"1".to_vec())));
    assert_eq!(bench.put(b"a", b"2"), Err(StoreError::NotBacked(BackingRefusal::ReadOnly)));
    // A delete makes it forget.
    bench.write_elsewhere(b"a", b"3");
    assert_eq!(bench.get(b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(bench.delete(b"a"), Ok(true));
    assert_eq!((bench.get(b"a").unwrap(), bench.object(b"a")), (Some(b"3".to_vec()), Some(b"3".to_vec())));
}

#[test]
fn a_stale_record_is_shown_while_it_is_loaded_anew_and_not_beyond() {
    let mut bench =
        bench(BackingSettings { fresh_ms: 50, stale_ms: 60_000, ..settings(BackingPolicy::WriteThrough) }, 1 << 20);
    bench.write_elsewhere(b"a", b"1");
    assert_eq!(bench.get(b"a").unwrap(), Some(b"1".to_vec()));
    bench.write_elsewhere(b"a", b"2");
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(bench.get(b"a").unwrap(), Some(b"1".to_vec()), "it is stale, and shown");
    let begun = Instant::now();
    while bench.get(b"a").unwrap() != Some(b"2".to_vec()) {
        assert!(begun.elapsed() < LONG, "it is not loaded anew");
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.backed.apply(&BackingSettings { fresh_ms: 1, stale_ms: 0, ..settings(BackingPolicy::WriteThrough) });
    bench.write_elsewhere(b"a", b"3");
    std::thread::sleep(Duration::from_millis(5));
    // Each read loads it, so that it is fresh for a millisecond: one of them is in time.
    assert_eq!(bench.get(b"a").unwrap(), Some(b"3".to_vec()), "beyond the bound it is loaded first");
}

#[test]
fn a_write_back_is_answered_at_once_and_bounded_and_a_dirty_record_is_never_evicted() {
    let bound = 40 * (256 + 10 + 1_000);
    let mut bench = bench(
        BackingSettings { flush_after_ms: 60_000, dirty_limit_bytes: bound, ..settings(BackingPolicy::WriteBack) },
        80 << 10,
    );
    bench.objects.is_gone.store(true, Relaxed);
    let (mut taken, mut refused) = (0, 0);
    for number in 0..60_u32 {
        match bench.put(format!("key-{number:06}").as_bytes(), &[7; 1_000]) {
            Ok(_) => taken += 1,
            Err(StoreError::NotBacked(BackingRefusal::DirtyFull)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(bench.participant.shown().take(), 0, "no answer waits");
    }
    assert_eq!((taken, refused), (40, 20));
    let stats = bench.backed.stats();
    assert_eq!((stats.dirty_keys, stats.backing_refusals, stats.dirty_bytes), (40, 20, bound));
    bench.objects.is_gone.store(false, Relaxed);
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!((bench.memory.names().len(), bench.backed.stats().dirty_bytes), (40, 0));
    // Clean records are evicted, and come back.
    for number in 0..300_u32 {
        while let Err(error) = bench.put(format!("key-{number:06}").as_bytes(), &number.to_le_bytes().repeat(250)) {
            assert!(matches!(error, StoreError::NotBacked(_) | StoreError::OutOfMemory), "{error}");
            bench.flush(ConflictChoice::Keep).unwrap();
        }
    }
    bench.flush(ConflictChoice::Keep).unwrap();
    assert!(bench.table.stats().evictions > 100, "{:?}", bench.table.stats());
    for number in 0..300_u32 {
        let found = bench.get(format!("key-{number:06}").as_bytes()).unwrap();
        assert_eq!(found, Some(number.to_le_bytes().repeat(250)), "key {number}");
    }
}

#[test]
fn two_writers_notice_each_other_and_nothing_that_was_answered_is_replaced_in_silence() {
    let memory = Arc::<MemoryObjects>::default();
    let mut one = over(Arc::clone(&memory), settings(BackingPolicy::WriteThrough), 1 << 20, 1);
    let mut two = over(memory, settings(BackingPolicy::WriteThrough), 1 << 20, 2);
    one.put(b"a", b"1").unwrap();
    assert!(one.settle());
    assert_eq!(two.get(b"a").unwrap(), Some(b"1".to_vec()));
    two.put(b"a", b"2").unwrap();
    assert!(two.settle());
    // The first one knows nothing of it: its write is not made, and its client is told.
    one.put(b"a", b"3").unwrap();
    assert!(!one.settle(), "the answer says that nobody knows");
    assert_eq!((one.get(b"a").unwrap(), one.object(b"a")), (Some(b"2".to_vec()), Some(b"2".to_vec())));
    assert_eq!((one.backed.stats().conflicts, one.backed.stats().dirty_keys), (1, 0));
    one.put(b"a", b"4").unwrap();
    assert!(one.settle());
    // With write-back the client was told before: both stay, until the operator decides.
    two.backed.apply(&settings(BackingPolicy::WriteBack));
    for choice in [ConflictChoice::Ours, ConflictChoice::Theirs] {
        let before = one.object(b"a");
        two.put(b"a", b"5").unwrap();
        if choice == ConflictChoice::Theirs {
            one.put(b"a", b"6").unwrap();
            one.settle();
            one.put(b"a", b"7").unwrap();
            one.settle();
        }
        let flushed = two.flush(ConflictChoice::Keep);
        if flushed.is_ok() {
            assert_eq!(choice, ConflictChoice::Theirs, "its write was over the other's");
            continue;
        }
        assert_eq!(flushed, Err(FlushError::Conflicts(1)));
        assert_eq!((two.get(b"a").unwrap(), two.backed.stats().conflicted_keys), (Some(b"5".to_vec()), 1));
        assert_ne!(two.object(b"a"), Some(b"5".to_vec()));
        two.flush(choice).unwrap();
        let stands = if choice == ConflictChoice::Ours { Some(b"5".to_vec()) } else { two.object(b"a") };
        assert_eq!((two.object(b"a"), two.get(b"a").unwrap()), (stands.clone(), stands), "{before:?}");
    }
}

#[test]
fn a_lie_of_the_backing_has_its_error_and_the_truth_is_read_later() {
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    bench.write_elsewhere(b"a", b"a value of some length");
    bench.objects.lies.store(1000, Relaxed);
    for _ in 0..50 {
        assert_eq!(bench.get(b"a"), Err(SpillReadError::BackingDamaged));
    }
    assert!(bench.backed.stats().last_error.is_some_and(|error| error.contains("the object a")));
    bench.objects.lies.store(0, Relaxed);
    assert_eq!(bench.get(b"a").unwrap(), Some(b"a value of some length".to_vec()));
    // A backing that is gone is not asked for every read.
    bench.objects.is_gone.store(true, Relaxed);
    for _ in 0..20 {
        assert_eq!(bench.get(b"b"), Err(SpillReadError::BackingDown));
    }
    assert!(bench.backed.stats().is_down);
    assert_eq!(bench.get(b"a").unwrap(), Some(b"a value of some length".to_vec()), "memory has it");
    assert_eq!(bench.put(b"c", b"1"), Err(StoreError::NotBacked(BackingRefusal::Down)));
    bench.objects.is_gone.store(false, Relaxed);
    let begun = Instant::now();
    while bench.get(b"b") != Ok(None) {
        assert!(begun.elapsed() < LONG, "it is never asked again");
        std::thread::sleep(Duration::from_millis(10));
    }
    // An answer that waits while an attempt fails, and one that comes meanwhile, are both told.
    bench.objects.refused.store(1000, Relaxed);
    bench.put(b"twice", b"1").unwrap();
    let first = bench.participant.shown().take();
    std::thread::sleep(Duration::from_millis(50));
    bench.put(b"twice", b"2").unwrap();
    bench.objects.refused.store(0, Relaxed);
    bench.settle();
    assert_ne!(waits::state_of(first), waits::WaitState::Waits, "no answer hangs");
    bench.flush(ConflictChoice::Keep).unwrap();
    // A full one: the answer says that the outcome is unknown, and nothing is lost.
    bench.objects.is_full.store(true, Relaxed);
    bench.put(b"d", b"4").unwrap();
    assert!(!bench.settle());
    assert_eq!((bench.get(b"d").unwrap(), bench.object(b"d")), (Some(b"4".to_vec()), None));
    bench.objects.is_full.store(false, Relaxed);
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!(bench.object(b"d"), Some(b"4".to_vec()));
}

#[test]
fn a_transaction_that_is_refused_leaves_nothing_to_be_written() {
    let mut bench = bench(settings(BackingPolicy::WriteBack), 1 << 20);
    bench.write_elsewhere(b"kept", b"1");
    let (kept, other) = (bench.table.hash(b"kept"), bench.table.hash(b"other"));
    let put = |table, hash, key, value| KeyChange {
        table,
        hash,
        key,
        becomes: Some(NewRecord { value, flags: 0, expires_at_ms: 0 }),
    };
    let table = Arc::clone(&bench.table);
    let wrong = [KeyRead { table: &table, hash: other, key: b"other", version: 77 }];
    let mut changes =
        [put(&*table, kept, b"kept", b"2"), KeyChange { table: &table, hash: other, key: b"other", becomes: None }];
    assert!(commit(&bench.participant, &wrong, &mut changes, unix_ms()).is_err());
    bench.flush(ConflictChoice::Keep).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((bench.object(b"kept"), bench.backed.stats().dirty_keys), (Some(b"1".to_vec()), 0));
    let mut changes = [put(&*table, kept, b"kept", b"2"), put(&*table, other, b"other", b"3")];
    commit(&bench.participant, &[], &mut changes, unix_ms()).unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!((bench.object(b"kept"), bench.object(b"other")), (Some(b"2".to_vec()), Some(b"3".to_vec())));
    let mut changes = [KeyChange { table: &table, hash: other, key: b"other", becomes: None }];
    commit(&bench.participant, &[], &mut changes, unix_ms()).unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!(bench.object(b"other"), None);
}

/// Random operations against a map, while requests fail, answers are lost and reads lie: each answer is the map's, and
/// after a flush the objects are the map.
#[test]
fn after_any_operations_and_faults_a_flush_makes_the_objects_what_clients_were_told() {
    for seed in 0..6_u64 {
        let policy = if seed % 2 == 0 { BackingPolicy::WriteBack } else { BackingPolicy::WriteThrough };
        let mut bench = bench(BackingSettings { flush_after_ms: 1, ..settings(policy) }, 48 << 10);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for _ in 0..600 {
            let key = format!("key-{}", random.random_range(0..80)).into_bytes();
            match random.random_range(0..100) {
                0..40 => {
                    let value = vec![random.random::<u8>(); random.random_range(0..1_200)];
                    if bench.put(&key, &value).is_ok() {
                        model.insert(key, value);
                    }
                }
                40..55 => {
                    let Ok(found) = bench.until_loaded(|bench| {
                        let hash = bench.table.hash(&key);
                        bench.table.delete(&bench.participant, hash, &key, StoreCondition::Always, unix_ms())
                    }) else {
                        continue;
                    };
                    if let Ok(found) = found {
                        assert_eq!(found, model.remove(&key).is_some(), "seed {seed}");
                    }
                }
                55..90 => {
                    if let Ok(found) = bench.get(&key) {
                        assert_eq!(found, model.get(&key).cloned(), "seed {seed}, {key:?}");
                    }
                }
                90..93 => bench.objects.refused.store(random.random_range(0..300), Relaxed),
                93..96 => bench.objects.lost_answers.store(random.random_range(0..300), Relaxed),
                96..98 => bench.objects.lies.store(random.random_range(0..300), Relaxed),
                _ => drop(bench.backed.flush(&mut bench.participant, ConflictChoice::Keep, Duration::from_millis(20))),
            }
            bench.participant.shown().take();
        }
        for faults in [&bench.objects.refused, &bench.objects.lost_answers, &bench.objects.lies] {
            faults.store(0, Relaxed);
        }
        bench.flush(ConflictChoice::Keep).unwrap();
        let names: Vec<String> = model.keys().map(|key| object_name(key)).collect();
        let mut wanted = names.clone();
        wanted.sort();
        assert_eq!(bench.memory.names(), wanted, "seed {seed}");
        for (key, value) in &model {
            assert_eq!(bench.object(key).as_ref(), Some(value), "seed {seed}");
        }
        assert_eq!(bench.backed.stats().conflicts, 0, "its own successes are no conflicts, seed {seed}");
    }
}

/// A crash is the marks and the records without the rest.
#[test]
fn a_start_finds_what_was_dirty_by_its_marks() {
    let mut before = bench(BackingSettings { flush_after_ms: 60_000, ..settings(BackingPolicy::WriteBack) }, 1 << 20);
    before.write_elsewhere(b"deleted", b"old");
    before.write_elsewhere(b"changed", b"old");
    before.write_elsewhere(b"expired", b"old");
    assert_eq!(before.delete(b"deleted"), Ok(true));
    before.put(b"changed", b"new").unwrap();
    before.put(b"made", b"new").unwrap();
    let hash = before.table.hash(b"expired");
    let write = WriteOptions { expires_at_ms: unix_ms() + 5, ..WriteOptions::default() };
    before.table.put(&before.participant, hash, b"expired", b"brief", &write, unix_ms()).unwrap();
    let marks: Vec<_> = [&b"deleted"[..], b"changed", b"made", b"expired"]
        .into_iter()
        .map(|key| {
            let (guard, marks) = (before.participant.guard(), before.backed.marks());
            (key, marks.get(&guard, marks.hash(key), key, 0).unwrap().value().to_vec())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(10));
    let mut after = over(Arc::clone(&before.memory), settings(BackingPolicy::WriteBack), 1 << 20, 1);
    for (key, mark) in [&marks[..], &[(&b"never"[..], marks[2].1.clone())]].concat() {
        let hash = after.backed.marks().hash(key);
        after.backed.marks().put(&after.participant, hash, key, &mark, &WriteOptions::default(), 0).unwrap();
    }
    for key in [&b"changed"[..], b"made"] {
        let record = sandstorm_store::RestoredRecord { version: 5, key, value: b"new", flags: 0, expires_at_ms: 0 };
        after.table.restore_record(&after.participant, &record, unix_ms()).unwrap();
    }
    after.write_elsewhere(b"never", b"stays");
    assert_eq!(after.backed.restore_dirty(&after.participant, unix_ms()), 4);
    assert_eq!(after.get(b"changed").unwrap(), Some(b"new".to_vec()));
    after.flush(ConflictChoice::Keep).unwrap();
    let objects = [&b"deleted"[..], b"changed", b"made", b"expired", b"never"].map(|key| after.object(key));
    let some = |value: &[u8]| Some(value.to_vec());
    assert_eq!(objects, [None, some(b"new"), some(b"new"), None, some(b"stays")]);
    assert_eq!(after.backed.marks().stats().records, 0);
    let _ = &after.epochs;
}

#[test]
fn whoever_holds_stripes_asks_for_what_it_decides_by_before_it_changes_anything() {
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    let record = ObjectRecord { writer: 9, version: 1, expires_at_ms: 0, flags: 3, key: b"k", value: b"41" };
    bench.memory.put(&object_name(b"k"), &record.encode(), &WriteCondition::Always).unwrap();
    let table = Arc::clone(&bench.table);
    let (hash, now_ms) = (table.hash(b"k"), unix_ms());
    let mut stripes = StripeSet::default();
    stripes.add(hash);
    {
        let mut locked = table.exclusive(&bench.participant, stripes);
        let deleted = locked.update(hash, b"k", now_ms, |_| RecordUpdate::Delete(()));
        assert_eq!(deleted, Err(StoreError::Cold), "nobody knows what is there");
        assert_eq!(locked.update_by_head(hash, b"k", now_ms, |_| RecordUpdate::Delete(())), Err(StoreError::Cold));
    }
    bench.participant.shown().take_cold();
    let head = bench.until_loaded(|bench| bench.table.head(&bench.participant.guard(), hash, b"k", unix_ms()));
    assert!(head.unwrap().is_some(), "its head is the backing's");
    let missing = |bench: &BackingBench, key: &[u8]| {
        let hash = bench.table.hash(key);
        bench.table.note_if_missing(&bench.participant.guard(), hash, key, unix_ms())
    };
    assert!(!missing(&bench, b"k") && missing(&bench, b"nowhere"));
    bench.participant.shown().take_cold();
    assert_eq!(bench.until_loaded(|bench| missing(bench, b"nowhere")), Ok(false), "it is known to be absent then");
    bench.participant.online();
    {
        let mut locked = table.exclusive(&bench.participant, stripes);
        locked.keep_in_memory();
        let old = locked.update(hash, b"k", now_ms, |old| RecordUpdate::Keep(old.map(|old| old.value().to_vec())));
        assert_eq!(old.unwrap().0.as_deref(), Some(&b"41"[..]));
        let put = NewValue { value: b"42"[..].into(), flags: 0, expires_at_ms: 0 };
        locked.replace(hash, b"k", now_ms, &put).unwrap();
    }
    assert!(bench.settle(), "an answer that shows it waits for the backing");
    // What is put whatever is there asks for nothing.
    let loads = bench.backed.stats().loads;
    bench.participant.online();
    let (other, put) = (table.hash(b"other"), NewValue { value: b"1"[..].into(), flags: 0, expires_at_ms: 0 });
    table.replace(&bench.participant, other, b"other", now_ms, &put).unwrap();
    assert!(bench.settle() && bench.backed.stats().loads == loads);
    assert_eq!(bench.memory.names(), ["k", "other"]);
}
