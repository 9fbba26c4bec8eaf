//! Threads that make the changes of a log again. Each has a part of the keys of every table, so the changes of a key
//! are made in their order. A change of a whole table waits until all before it are made.
//!
//! A start is as fast as one thread reads and one makes: so changes are made in groups, whose places in the table are
//! asked for together, and the memory of batches goes round between the two threads instead of to the kernel and back.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Scope;

use hashbrown::HashMap;
use sandstorm_log::change::{UnitParse, parse_unit};
use sandstorm_log::{ChangeKind, LoggedChange, UnitBuilder};
use sandstorm_store::{Epochs, Participant, RecordTable, RestoredRecord, StoreError};

use crate::limits::{RESTORE_ATTEMPTS, RESTORE_BATCH_BYTES, RESTORE_BATCHES, RESTORE_GROUP, RESTORE_THREADS};

/// Tables by their numbers in the log.
type LoggedTables<'t> = HashMap<u64, &'t RecordTable>;

/// What a thread is given.
enum RestoreWork {
    /// Changes of its keys, encoded as a unit.
    Changes(Vec<u8>),
    /// It answers once it has made all before.
    Barrier,
}

/// The way to a thread.
struct RestoreThread {
    unit: UnitBuilder,
    work: SyncSender<RestoreWork>,
    arrived: Receiver<()>,
    /// The memory of batches whose changes are made: as many as may wait, at most.
    spent: Receiver<Vec<u8>>,
}

/// The threads: see the head of this file. They end when this is dropped.
pub(super) struct RestoreThreads {
    threads: Vec<RestoreThread>,
    failure: Arc<OnceLock<StoreError>>,
    participant: Participant,
}

impl RestoreThreads {
    /// Starts [`RESTORE_THREADS`] of them; on a machine of fewer processors one for each.
    pub(super) fn start<'scope, 'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        tables: &'env LoggedTables<'env>,
        epochs: &Arc<Epochs>,
        now_ms: u64,
    ) -> io::Result<RestoreThreads> {
        let count = std::thread::available_parallelism().map_or(1, |count| count.get()).min(RESTORE_THREADS);
        RestoreThreads::start_with(scope, tables, epochs, (now_ms, count))
    }

    /// As [`RestoreThreads::start`] with so many threads.
    fn start_with<'scope, 'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        tables: &'env LoggedTables<'env>,
        epochs: &Arc<Epochs>,
        (now_ms, count): (u64, usize),
    ) -> io::Result<RestoreThreads> {
        let failure = Arc::new(OnceLock::new());
        let mut participant = epochs.register();
        participant.offline();
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let (work, given) = sync_channel(RESTORE_BATCHES);
            let (arrive, arrived) = channel();
            let (spend, spent) = channel();
            let (failure, participant) = (Arc::clone(&failure), epochs.register());
            let named = std::thread::Builder::new().name(format!("restore-{number}"));
            named.spawn_scoped(scope, move || {
                let mut thread = LaneThread { tables, participant, now_ms, failure };
                while let Some(work) = thread.next(&given) {
                    match work {
                        RestoreWork::Changes(unit) => {
                            thread.make(&unit);
                            give_back(&spend, unit);
                        }
                        // If the reader has failed, nothing waits for this any more.
                        RestoreWork::Barrier => drop(arrive.send(())),
                    }
                }
            })?;
            threads.push(RestoreThread { unit: UnitBuilder::default(), work, arrived, spent });
        }
        Ok(RestoreThreads { threads, failure, participant })
    }

    /// Takes a change of a table, to be made after all changes of the same key that were taken before.
    pub(super) fn take(&mut self, table: &RecordTable, change: &LoggedChange<'_>) -> Result<(), StoreError> {
        match change.kind {
            ChangeKind::Put | ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Arrive | ChangeKind::Leave => {
                // By the lower half of the hash. The upper one decides the place in the table: if one thread were ahead
                // of another there, a part of the table would be crowded while the whole is too empty to grow.
                let lower_half = |key: &[u8]| (table.hash(key) & u64::from(u32::MAX)) as usize;
                let count = self.threads.len();
                let thread = if count == 1 { 0 } else { (lower_half(change.key) * count) >> 32 };
                let Some(thread) = self.threads.get_mut(thread) else { return Ok(()) };
                thread.unit.push(change);
                if thread.unit.bytes() >= RESTORE_BATCH_BYTES {
                    thread.send();
                    return self.failure();
                }
                Ok(())
            }
            ChangeKind::Clear => {
                if !clears_overtake() {
                    self.wait()?;
                }
                let cleared = table.restore_clear(&mut self.participant, change.version);
                self.participant.offline();
                cleared
            }
            ChangeKind::MakeTable => {
                table.raise_versions(&self.participant, change.version);
                table.expect_records(&self.participant, change.flags.into());
                self.participant.offline();
                Ok(())
            }
            ChangeKind::DropTable => Ok(()),
        }
    }

    /// Waits until all changes are made.
    pub(super) fn finish(mut self) -> Result<(), StoreError> {
        self.wait()
    }

    fn wait(&mut self) -> Result<(), StoreError> {
        for thread in &mut self.threads {
            thread.send();
            let _ended = thread.work.send(RestoreWork::Barrier);
        }
        for thread in &self.threads {
            // A thread that has ended has panicked, which the end of the scope passes on.
            let _ended = thread.arrived.recv();
        }
        self.failure()
    }

    fn failure(&self) -> Result<(), StoreError> {
        self.failure.get().map_or(Ok(()), |error| Err(*error))
    }
}

impl RestoreThread {
    fn send(&mut self) {
        if !self.unit.is_empty() {
            let memory = self.spent.try_recv().unwrap_or_default();
            let _ended = self.work.send(RestoreWork::Changes(self.unit.take_and_reuse(memory)));
        }
    }
}

/// Gives the memory of a batch back to the reader. What large values took is not needed for the others.
fn give_back(spend: &Sender<Vec<u8>>, unit: Vec<u8>) {
    if unit.capacity() <= 4 * RESTORE_BATCH_BYTES {
        // The reader may have ended.
        let _ended = spend.send(unit);
    }
}

/// One of the threads.
struct LaneThread<'t> {
    tables: &'t LoggedTables<'t>,
    participant: Participant,
    now_ms: u64,
    failure: Arc<OnceLock<StoreError>>,
}

impl LaneThread<'_> {
    /// Waits for work. A thread without work delays no freeing of memory.
    fn next(&mut self, given: &Receiver<RestoreWork>) -> Option<RestoreWork> {
        if let Ok(work) = given.try_recv() {
            return Some(work);
        }
        self.participant.offline();
        given.recv().ok()
    }

    fn make(&mut self, unit: &[u8]) {
        let UnitParse::Unit(mut changes, _) = parse_unit(unit) else { return };
        let (tables, mut group, mut goes_on) = (self.tables, Vec::with_capacity(RESTORE_GROUP), true);
        while std::mem::take(&mut goes_on) {
            for change in changes.by_ref().take(RESTORE_GROUP) {
                goes_on = true;
                let Some(table) = tables.get(&change.table) else { continue };
                // Its place in the table has come when its turn is there.
                table.prefetch_bucket(table.hash(change.key));
                group.push((table, change));
            }
            if !group.drain(..).all(|(table, change)| self.make_one(table, &change)) {
                return;
            }
        }
        self.participant.quiescent();
    }

    /// Makes a change. Returns false if it cannot be made.
    fn make_one(&mut self, table: &RecordTable, change: &LoggedChange<'_>) -> bool {
        let mut restored = restore(table, &self.participant, change, self.now_ms);
        for _ in 0..RESTORE_ATTEMPTS {
            // A part of the table is crowded, and others are moving it: each attempt helps them.
            if restored != Err(StoreError::OutOfMemory) {
                break;
            }
            self.participant.quiescent();
            std::thread::yield_now();
            restored = restore(table, &self.participant, change, self.now_ms);
        }
        if let Err(error) = restored {
            // The first one is told.
            let _is_second = self.failure.set(error);
            return false;
        }
        true
    }
}

/// Whether a test breaks the rule, on this thread, that a table is emptied behind all changes before.
#[cfg(test)]
fn clears_overtake() -> bool {
    tests::CLEARS_OVERTAKE.get()
}

/// As above: it holds.
#[cfg(not(test))]
#[inline(always)]
fn clears_overtake() -> bool {
    false
}

/// Makes the change of a record again.
fn restore(
    table: &RecordTable,
    participant: &Participant,
    change: &LoggedChange<'_>,
    now_ms: u64,
) -> Result<(), StoreError> {
    let LoggedChange { kind, version, expires_at_ms, flags, key, value, .. } = *change;
    match kind {
        ChangeKind::Put | ChangeKind::Arrive => {
            table.restore_record(participant, &RestoredRecord { version, key, value, flags, expires_at_ms }, now_ms)
        }
        ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => table.restore_delete(participant, key, version),
        // Of whole tables: not given to these threads.
        ChangeKind::Clear | ChangeKind::MakeTable | ChangeKind::DropTable => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    //! Promise: many threads make of a log what one would make of it.

    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sandstorm_store::TableConfig;

    use super::*;

    const TABLES: u64 = 2;

    thread_local! {
        pub(super) static CLEARS_OVERTAKE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// The records that are left of some that were put before their table was emptied.
    fn left_by_a_clear() -> u64 {
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
        let by_number: LoggedTables<'_> = [(1, &table)].into_iter().collect();
        std::thread::scope(|scope| {
            let mut threads = RestoreThreads::start_with(scope, &by_number, &epochs, (1, 2)).expect("threads");
            for version in 1..100_u64 {
                let key = version.to_le_bytes();
                let put = LoggedChange { kind: ChangeKind::Put, ..LoggedChange::delete(1, version, &key) };
                threads.take(&table, &put).expect("room");
            }
            let clear = LoggedChange::of_table(ChangeKind::Clear, 1, 100, b"");
            threads.take(&table, &clear).expect("room");
            threads.finish().expect("room");
        });
        table.stats().records
    }

    #[test]
    fn a_table_is_emptied_behind_all_changes_before_and_a_broken_rule_is_found() {
        assert_eq!(left_by_a_clear(), 0);
        CLEARS_OVERTAKE.set(true);
        let left = left_by_a_clear();
        CLEARS_OVERTAKE.set(false);
        assert!(left > 0, "the rule is checked");
    }

    #[test]
    fn a_table_grows_as_fast_as_many_threads_fill_it() {
        const RECORDS: u32 = 150_000;
        const THREADS: usize = 8;
        for seed in 0..4 {
            let epochs = Epochs::new();
            let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), seed);
            let by_number: LoggedTables<'_> = [(1, &table)].into_iter().collect();
            std::thread::scope(|scope| {
                let mut threads =
                    RestoreThreads::start_with(scope, &by_number, &epochs, (1, THREADS)).expect("threads");
                for number in 0..RECORDS {
                    let (key, version) = (number.to_le_bytes(), u64::from(number) + 1);
                    let (kind, value) = (ChangeKind::Put, &[7; 8]);
                    let put = LoggedChange { kind, table: 1, version, expires_at_ms: 0, flags: 0, key: &key, value };
                    threads.take(&table, &put).expect("room");
                }
                threads.finish().expect("room");
            });
            assert_eq!(table.stats().records, u64::from(RECORDS));
        }
    }

    #[test]
    fn a_table_whose_size_is_known_gets_its_room_at_once() {
        const RECORDS: u32 = 100_000;
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
        let by_number: LoggedTables<'_> = [(1, &table)].into_iter().collect();
        std::thread::scope(|scope| {
            let mut threads = RestoreThreads::start_with(scope, &by_number, &epochs, (1, 2)).expect("threads");
            let made = LoggedChange::of_table(ChangeKind::MakeTable, 1, 7, b"t");
            threads.take(&table, &LoggedChange { flags: RECORDS, ..made }).expect("room");
            let capacity = table.stats().capacity;
            assert!(capacity * 3 >= u64::from(RECORDS) * 4, "{capacity}");
            for number in 0..RECORDS {
                let (key, version) = (number.to_le_bytes(), u64::from(number) + 8);
                let (kind, value) = (ChangeKind::Put, &[7; 8]);
                let put = LoggedChange { kind, table: 1, version, expires_at_ms: 0, flags: 0, key: &key, value };
                threads.take(&table, &put).expect("room");
            }
            threads.finish().expect("room");
            assert_eq!((table.stats().records, table.stats().capacity), (u64::from(RECORDS), capacity));
        });
        // A number that the quota has no room for is not believed.
        let config = TableConfig { quota_bytes: 1 << 20, ..TableConfig::default() };
        let small = RecordTable::with_seed(config, Arc::clone(&epochs), 1);
        small.expect_records(&epochs.register(), u64::from(u32::MAX));
        assert!(small.stats().capacity * 16 <= 2 << 20, "{}", small.stats().capacity);
    }

    proptest! {
        #[test]
        fn threads_make_what_one_would(
            steps in proptest::collection::vec((0..TABLES, 0u8..20, 0u32..60, 0usize..3_000), 1..400),
        ) {
            let epochs = Epochs::new();
            let tables: Vec<_> =
                (0..TABLES).map(|_| RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1)).collect();
            let by_number: LoggedTables<'_> = (1..).zip(&tables).collect();
            let mut model: BTreeMap<(u64, Vec<u8>), (u64, Vec<u8>)> = BTreeMap::new();
            std::thread::scope(|scope| {
                let mut threads = RestoreThreads::start(scope, &by_number, &epochs, 1).expect("threads");
                for (version, (table, kind, key, bytes)) in (1..).zip(&steps) {
                    let (number, key, value) = (table + 1, key.to_le_bytes(), vec![version as u8; *bytes]);
                    let put = LoggedChange {
                        kind: ChangeKind::Put, table: number, version, expires_at_ms: 0, flags: 0, key: &key, value: &value,
                    };
                    let change = match kind {
                        0 => LoggedChange::of_table(ChangeKind::Clear, number, version, b""),
                        1..4 => LoggedChange::delete(number, version, &key),
                        _ => put,
                    };
                    match change.kind {
                        ChangeKind::Put => drop(model.insert((number, key.to_vec()), (version, value.clone()))),
                        ChangeKind::Delete => drop(model.remove(&(number, key.to_vec()))),
                        _ => model.retain(|(table, _), _| *table != number),
                    }
                    threads.take(by_number[&number], &change).expect("room");
                }
                threads.finish().expect("room");
            });
            let participant = epochs.register();
            let mut found = BTreeMap::new();
            for (number, table) in &by_number {
                let (guard, mut cursor) = (participant.guard(), Some(0));
                while let Some(at) = cursor {
                    cursor = table.scan(&guard, at, 100, 0, &mut |record| {
                        found.insert((*number, record.key().to_vec()), (record.version(), record.value().to_vec()));
                    });
                }
            }
            prop_assert!(found == model, "{} of {} records", found.len(), model.len());
        }
    }
}
