//! A table's side of its backing.
//!
//! Each key is in one of these states: *dirty* (memory has a change that the backing has not), *clean* (the record in
//! memory is the backing's), *absent* (the backing has none, for a time), or unknown. A record of a key that is unknown
//! is shown only after the backing was asked: so a start asks once for each record that it has restored.
//!
//! Locks: a stripe of the table, then a shard of keys, then a stripe of the marks, the queue, or the health.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sandstorm_store::backed::{BackedChange, BackedKeyChange, BackedRead, TableBackend, waits};
use sandstorm_store::spill::{ColdTicket, SpillReadError};
use sandstorm_store::{Epochs, Participant, RecordTable, SpilledTable, StoreError, TableConfig, WriteOptions};

use crate::key_states::{DirtyKey, KeyStates};
use crate::limits::{
    DIRTY_KEY_BYTES, FAILURES_UNTIL_DOWN, LEAST_ABSENT_MS, LOADS_PER_TABLE, RETRY_FIRST_MS, RETRY_MOST_MS,
};
use crate::marks::DirtyMark;
use crate::object_store::{BackingError, ObjectStore};
use crate::pool::{BackedRequests, BackingPool, TableQueue};
use crate::settings::{BackingPolicy, BackingSettings, BackingStats};

const SHARDS: usize = 16;

/// What a table with a backing is made of.
pub struct NewBackedTable {
    /// The table.
    pub owner: Weak<dyn SpilledTable>,
    /// What is behind it.
    pub objects: Arc<dyn ObjectStore>,
    /// How it is used.
    pub settings: BackingSettings,
    /// Whether objects are values alone.
    pub is_raw: bool,
    /// A number that no other table that writes to these objects has; the same after a restart.
    pub writer: u64,
    /// The longest key and value that the table takes.
    pub most_bytes: (usize, usize),
}

/// The backing of a table: see the head of this file.
pub struct BackedTable {
    pub(crate) owner: Weak<dyn SpilledTable>,
    objects: RwLock<Arc<dyn ObjectStore>>,
    settings: Mutex<BackingSettings>,
    pub(crate) is_raw: bool,
    pub(crate) writer: u64,
    pub(crate) most_bytes: (usize, usize),
    /// The marks of dirty keys: see [`crate::marks`].
    pub(crate) marks: RecordTable,
    shards: [Mutex<KeyStates>; SHARDS],
    policy: AtomicU8,
    pub(crate) fresh_ms: AtomicU64,
    pub(crate) stale_ms: AtomicU64,
    pub(crate) absent_ms: AtomicU64,
    flush_after_ms: AtomicU64,
    pub(crate) dirty_limit: AtomicU64,
    pub(crate) dirty_bytes: AtomicU64,
    pub(crate) dirty_keys: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) queue: Mutex<TableQueue>,
    pub(crate) health: Mutex<BackingHealth>,
    pub(crate) counters: BackingCounters,
    pub(crate) pool: Weak<BackingPool>,
    /// Itself, for the pool.
    me: Weak<BackedTable>,
    begun: Instant,
}

/// How the last requests went.
#[derive(Debug, Default)]
pub(crate) struct BackingHealth {
    failures: u32,
    /// Nothing is asked before this, milliseconds of the table's clock.
    until_ms: u64,
    error: Option<String>,
}

/// Counters, since the table was made.
#[derive(Debug, Default)]
pub(crate) struct BackingCounters {
    pub(crate) loads: AtomicU64,
    pub(crate) load_errors: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flush_errors: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) refusals: AtomicU64,
}

impl std::fmt::Debug for BackedTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackedTable").field("objects", &self.objects()).finish_non_exhaustive()
    }
}

impl BackedTable {
    /// Makes the backing of a table, whose marks are records of these epochs.
    pub fn new(new: NewBackedTable, epochs: &Arc<Epochs>, pool: &Arc<BackingPool>) -> Arc<BackedTable> {
        let NewBackedTable { owner, objects, settings, is_raw, writer, most_bytes } = new;
        // Its own limit is that of dirty bytes.
        let marks = TableConfig { quota_bytes: u64::MAX / 2, max_key_len: most_bytes.0, ..TableConfig::default() };
        let table = Arc::new_cyclic(|me| BackedTable {
            me: Weak::clone(me),
            owner,
            objects: RwLock::new(objects),
            is_raw,
            writer,
            most_bytes,
            marks: RecordTable::new(marks, Arc::clone(epochs)),
            shards: std::array::from_fn(|_| Mutex::default()),
            policy: AtomicU8::new(settings.policy as u8),
            fresh_ms: AtomicU64::new(settings.fresh_ms),
            stale_ms: AtomicU64::new(settings.stale_ms),
            absent_ms: AtomicU64::new(settings.absent_ms.max(LEAST_ABSENT_MS)),
            flush_after_ms: AtomicU64::new(settings.flush_after_ms),
            dirty_limit: AtomicU64::new(settings.dirty_limit_bytes),
            dirty_bytes: AtomicU64::new(0),
            dirty_keys: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            queue: Mutex::default(),
            health: Mutex::default(),
            counters: BackingCounters::default(),
            pool: Arc::downgrade(pool),
            begun: Instant::now(),
            settings: Mutex::new(settings),
        });
        let weak: Weak<BackedTable> = Arc::downgrade(&table);
        pool.add_table(&(weak as Weak<dyn BackedRequests>));
        table
    }

    /// Returns the table of marks, which is logged where the table's records are.
    pub fn marks(&self) -> &RecordTable {
        &self.marks
    }

    /// Returns the policy for writes.
    pub fn policy(&self) -> BackingPolicy {
        BackingPolicy::ALL.get(usize::from(self.policy.load(Acquire))).copied().unwrap_or_default()
    }

    /// Changes how the backing is used, while it is; where it is stays.
    pub fn apply(self: &Arc<Self>, settings: &BackingSettings) {
        self.fresh_ms.store(settings.fresh_ms, Relaxed);
        self.stale_ms.store(settings.stale_ms, Relaxed);
        self.absent_ms.store(settings.absent_ms.max(LEAST_ABSENT_MS), Relaxed);
        self.flush_after_ms.store(settings.flush_after_ms, Relaxed);
        self.dirty_limit.store(settings.dirty_limit_bytes, Relaxed);
        self.policy.store(settings.policy as u8, Release);
        *self.settings.lock() = settings.clone();
        // Changes that wait for their time are written now, so that the first answer of the new policy does not wait.
        self.hurry();
    }

    /// Returns how the backing is used.
    pub fn settings(&self) -> BackingSettings {
        self.settings.lock().clone()
    }

    /// Reaches the same objects another way from now on: with other credentials.
    pub fn reopen(&self, objects: Arc<dyn ObjectStore>) {
        *self.objects.write() = objects;
        *self.health.lock() = BackingHealth::default();
    }

    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects.read())
    }

    /// Returns the number by which objects that this table has written are known.
    pub fn writer(&self) -> u64 {
        self.writer
    }

    /// Returns the counters.
    pub fn stats(&self) -> BackingStats {
        let (mut oldest, mut conflicted, now_ms) = (None::<u64>, 0, self.clock_ms());
        for shard in &self.shards {
            for dirty in shard.lock().dirty.values().filter(|dirty| dirty.change != 0) {
                oldest = Some(oldest.map_or(dirty.since_ms, |oldest| oldest.min(dirty.since_ms)));
                conflicted += u64::from(dirty.is_conflicted);
            }
        }
        let health = self.health.lock();
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        BackingStats {
            dirty_keys: count(&self.dirty_keys),
            dirty_bytes: count(&self.dirty_bytes),
            oldest_dirty_ms: oldest.map_or(0, |since_ms| now_ms.saturating_sub(since_ms)),
            conflicted_keys: conflicted,
            loads: count(&self.counters.loads),
            load_errors: count(&self.counters.load_errors),
            flushes: count(&self.counters.flushes),
            flush_errors: count(&self.counters.flush_errors),
            conflicts: count(&self.counters.conflicts),
            backing_refusals: count(&self.counters.refusals),
            is_down: health.is_down(now_ms),
            last_error: health.error.clone(),
        }
    }

    /// Milliseconds since the table was made.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    pub(crate) fn as_requests(&self) -> Weak<dyn BackedRequests> {
        let me: Weak<BackedTable> = Weak::clone(&self.me);
        me
    }

    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, KeyStates> {
        self.shards[(hash >> 60) as usize % SHARDS].lock()
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, KeyStates>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    /// Notes how a request went. A condition that did not hold was answered.
    pub(crate) fn note_health(&self, error: Option<&BackingError>) {
        let mut health = self.health.lock();
        match error {
            None | Some(BackingError::Conflict) => *health = BackingHealth::default(),
            Some(error) => {
                if health.failures == 0 {
                    tracing::warn!(backing = ?self.objects(), %error, "a table's backing fails");
                }
                health.failures += 1;
                health.until_ms = self.clock_ms() + retry_after_ms(health.failures);
                health.error = Some(error.to_string());
            }
        }
    }

    /// Notes that an object is not what it should be: the backing answers all the same.
    pub(crate) fn note_damage(&self, text: &str) {
        let mut health = self.health.lock();
        tracing::warn!(backing = ?self.objects(), text, "an object of a table's backing is damaged");
        health.error = Some(text.to_owned());
    }

    pub(crate) fn is_down(&self) -> bool {
        self.health.lock().is_down(self.clock_ms())
    }

    /// Milliseconds until a backing that is down is asked again; `None`: it is not down.
    pub(crate) fn down_for_ms(&self) -> Option<u64> {
        let (health, now_ms) = (self.health.lock(), self.clock_ms());
        health.is_down(now_ms).then(|| health.until_ms - now_ms)
    }

    /// The time at which a key that became dirty now is to be written.
    fn due_ms(&self) -> u64 {
        match self.policy() {
            BackingPolicy::WriteBack => self.clock_ms() + self.flush_after_ms.load(Relaxed),
            BackingPolicy::WriteThrough | BackingPolicy::ReadThrough => 0,
        }
    }

    /// Has a dirty key written at a time; 0: now.
    pub(crate) fn schedule(&self, key: &[u8], due_ms: u64) {
        let is_due = {
            let mut queue = self.queue.lock();
            queue.push_write(key, due_ms);
            due_ms == 0
        };
        if is_due && let Some(pool) = self.pool.upgrade() {
            pool.notice(&self.as_requests());
        }
    }

    /// Has all that waits for its time written now.
    pub fn hurry(&self) {
        self.queue.lock().release_until(u64::MAX);
        if let Some(pool) = self.pool.upgrade() {
            pool.notice(&self.as_requests());
        }
    }

    /// Returns the marks of the table of marks, to the dirty keys; called once, when the records of a start are there.
    pub fn restore_dirty(&self, participant: &Participant, now_ms: u64) -> u64 {
        let Some(owner) = self.owner.upgrade() else { return 0 };
        let mut found = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let guard = participant.guard();
            cursor = self.marks.scan(&guard, at, 1024, 0, &mut |record| {
                if let Some(mark) = DirtyMark::decode(record.value()) {
                    found.push((record.key().to_vec(), mark));
                }
            });
        }
        let mut restored = 0;
        for (key, mark) in found {
            let hash = owner.records().hash(&key);
            let bytes = owner
                .records()
                .with_stripe(participant, (hash, &key), now_ms, |live| live.map(|record| record.value().len()));
            let has_expired = mark.expires_at_ms != 0 && mark.expires_at_ms <= now_ms;
            if bytes.is_none() && !mark.is_delete && !has_expired {
                // The crash came between the mark and its change.
                self.remove_mark(participant, &key);
                continue;
            }
            restored += 1;
            let change = self.changes.fetch_add(1, Relaxed) + 1;
            let bytes = (key.len() + bytes.unwrap_or(0)) as u64 + DIRTY_KEY_BYTES;
            self.dirty_bytes.fetch_add(bytes, Relaxed);
            self.dirty_keys.fetch_add(1, Relaxed);
            let dirty = DirtyKey {
                change,
                first_change: change,
                bytes,
                is_queued: true,
                ..DirtyKey::admitted(mark, self.clock_ms())
            };
            self.shard(hash).dirty.insert(key.clone().into(), dirty);
            self.schedule(&key, 0);
        }
        restored
    }

    pub(crate) fn remove_mark(&self, participant: &Participant, key: &[u8]) {
        let hash = self.marks.hash(key);
        // A mark that stays is looked at once more after a restart.
        let _else_later = self.marks.delete(participant, hash, key, sandstorm_store::StoreCondition::Always, 0);
    }

    pub(crate) fn write_mark(&self, participant: &Participant, key: &[u8], mark: &DirtyMark) -> Result<(), StoreError> {
        let hash = self.marks.hash(key);
        self.marks.put(participant, hash, key, &mark.encode(), &WriteOptions::default(), 0).map(drop)
    }
}

/// Milliseconds until the next attempt after so many failures.
pub(crate) fn retry_after_ms(failures: u32) -> u64 {
    (RETRY_FIRST_MS << failures.saturating_sub(1).min(16)).min(RETRY_MOST_MS)
}

impl BackingHealth {
    fn is_down(&self, now_ms: u64) -> bool {
        self.failures >= FAILURES_UNTIL_DOWN && now_ms < self.until_ms
    }
}

impl TableBackend for BackedTable {
    fn on_read(self: Arc<Self>, hash: u64, key: &[u8], version: Option<u64>, now_ms: u64) -> BackedRead {
        let mut states = self.shard(hash);
        if let Some(dirty) = states.dirty.get(key).filter(|dirty| dirty.change != 0) {
            return BackedRead::Show(waits::later_of(dirty.wait, dirty.written_wait));
        }
        let Some(version) = version else {
            return if states.is_absent(key, now_ms) { BackedRead::Show(0) } else { BackedRead::Load };
        };
        let Some(clean) = states.clean.get(&hash).filter(|clean| clean.version == version) else {
            return BackedRead::Load;
        };
        let fresh_ms = self.fresh_ms.load(Relaxed);
        let age_ms = now_ms.saturating_sub(clean.checked_ms);
        if fresh_ms == 0 || age_ms < fresh_ms {
            return BackedRead::Show(0);
        }
        if age_ms - fresh_ms >= self.stale_ms.load(Relaxed) {
            return BackedRead::Load;
        }
        let is_new = !states.loads.contains_key(key) && states.loads.len() < LOADS_PER_TABLE / SHARDS;
        if is_new && !self.is_down() {
            states.loads.insert(key.into(), Vec::new());
            drop(states);
            self.request_load(key);
        }
        BackedRead::Show(0)
    }

    fn load(self: Arc<Self>, hash: u64, key: &[u8], ticket: &Arc<ColdTicket>) {
        let mut states = self.shard(hash);
        if let Some(waiting) = states.loads.get_mut(key) {
            waiting.push(Arc::clone(ticket));
            return;
        }
        if states.loads.len() >= LOADS_PER_TABLE / SHARDS || self.is_down() {
            drop(states);
            self.counters.load_errors.fetch_add(1, Relaxed);
            return ticket.note_read(Err(SpillReadError::BackingDown));
        }
        states.loads.insert(key.into(), vec![Arc::clone(ticket)]);
        drop(states);
        self.request_load(key);
    }

    fn admit(&self, participant: &Participant, hash: u64, key: &[u8], change: BackedChange) -> Result<(), StoreError> {
        self.admit_one(participant, (hash, key), change)
    }

    fn admit_all(&self, participant: &Participant, changes: &[BackedKeyChange<'_>]) -> Result<(), StoreError> {
        self.admit_together(participant, changes)
    }

    fn release(&self, hash: u64, key: &[u8]) {
        self.end_promise(hash, key);
    }

    fn note_change(&self, hash: u64, key: &[u8], _version: u64, bytes: usize) -> u64 {
        let policy = self.policy();
        let mut states = self.shard(hash);
        if policy == BackingPolicy::ReadThrough && !states.dirty.contains_key(key) {
            return 0;
        }
        states.absent.remove(key);
        if states.loads.contains_key(key) {
            states.overtaken.insert(key.into());
        }
        let change = self.changes.fetch_add(1, Relaxed) + 1;
        let now_ms = self.clock_ms();
        let base = states.known(hash, key, crate::unix_ms());
        // The policy may have changed since it was admitted.
        let mark = || DirtyMark { is_delete: false, expires_at_ms: 0, base };
        let dirty = states.dirty.entry(key.into()).or_insert_with(|| DirtyKey::admitted(mark(), now_ms));
        let (bytes, held) = (bytes as u64 + DIRTY_KEY_BYTES, dirty.held_bytes());
        // What is reserved may be used up, or stays for further changes.
        dirty.reserved_bytes = if dirty.is_promised { held.saturating_sub(bytes) } else { 0 };
        (dirty.bytes, dirty.is_admitted) = (bytes, false);
        self.dirty_bytes.fetch_add(dirty.held_bytes().wrapping_sub(held), Relaxed);
        if dirty.first_change == 0 {
            (dirty.first_change, dirty.since_ms) = (change, now_ms);
        }
        if dirty.change == 0 {
            self.dirty_keys.fetch_add(1, Relaxed);
        }
        dirty.change = change;
        if policy == BackingPolicy::WriteThrough && dirty.is_conflicted {
            // It is not written before the operator has decided.
            let wait = waits::begin();
            waits::end(wait, false);
            return wait;
        }
        if policy == BackingPolicy::WriteThrough && dirty.wait == 0 {
            dirty.wait = waits::begin();
        }
        let is_new = !dirty.is_queued && !dirty.is_conflicted;
        dirty.is_queued |= is_new;
        let wait = dirty.wait;
        drop(states);
        if is_new {
            self.schedule(key, self.due_ms());
        }
        wait
    }

    fn is_dirty(&self, hash: u64, key: &[u8]) -> bool {
        self.shard(hash).dirty.contains_key(key)
    }

    fn note_gone(&self, hash: u64) {
        self.shard(hash).clean.remove(&hash);
    }
}

/// How long a flush looks away between two looks at what is left.
pub(crate) const FLUSH_POLL: Duration = Duration::from_millis(5);
