//! Requests to a backing, as its threads make them: loads, writes, conflicts, and flushes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_store::backed::{LoadedRecord, waits};
use sandstorm_store::spill::SpillReadError;
use sandstorm_store::{Participant, RecordTable, StoreError};

use crate::backed_table::{BackedTable, FLUSH_POLL, retry_after_ms};
use crate::format::{OBJECT_HEADER_BYTES, ObjectRecord, object_name};
use crate::key_states::{CleanRecord, DirtyKey};
use crate::limits::{ABSENT_KEYS_PER_SHARD, RETRY_FIRST_MS, TRIES_BEFORE_ANSWER};
use crate::marks::DirtyMark;
use crate::object_store::{BackingError, StoredObject, WriteCondition};
use crate::pool::{BackedRequests, TableQueue, TableRequest};
use crate::settings::{BackingPolicy, ConflictChoice, FlushError};
use crate::unix_ms;

/// What is to be written of a key.
struct TakenChange {
    change: u64,
    base: WriteCondition,
    version: u64,
    /// The object; `None`: it is deleted.
    object: Option<Vec<u8>>,
    may_be_deleted: bool,
}

/// The outcome of a write to the backing.
enum ObjectWrite {
    /// The backing has it, under this tag; empty for a delete.
    Done(String),
    /// Another writer has changed the object, or deleted it.
    Conflict(Option<StoredObject>),
    Failed,
}

impl BackedRequests for BackedTable {
    fn queue(&self) -> &Mutex<TableQueue> {
        &self.queue
    }

    fn clock_ms(&self) -> u64 {
        BackedTable::clock_ms(self)
    }

    fn run(&self, request: &TableRequest, participant: &mut Participant) {
        match request {
            TableRequest::Load(key) => self.run_load(participant, key),
            TableRequest::Write(key) => self.run_write(participant, key),
            TableRequest::Forget(key) => self.forget_unchanged(participant, key),
        }
    }

    fn refuse_loads(&self) {
        for mut states in self.shards() {
            states.overtaken.clear();
            for ticket in states.loads.drain().flat_map(|(_, tickets)| tickets) {
                ticket.note_read(Err(SpillReadError::BackingDown));
            }
        }
    }
}

impl BackedTable {
    pub(crate) fn request_load(&self, key: &[u8]) {
        self.queue.lock().push_load(key);
        if let Some(pool) = self.pool.upgrade() {
            pool.notice(&self.as_requests());
        }
    }

    /// The object of a key.
    fn name(&self, key: &[u8]) -> String {
        object_name(key)
    }

    /// The longest object that a record makes.
    fn most_object_bytes(&self) -> usize {
        OBJECT_HEADER_BYTES + self.most_bytes.0 + self.most_bytes.1
    }

    fn decode<'o>(&self, object: &'o StoredObject, key: &'o [u8]) -> Result<ObjectRecord<'o>, &'static str> {
        if self.is_raw {
            let value = &object.bytes;
            return Ok(ObjectRecord { writer: 0, version: 0, expires_at_ms: 0, flags: 0, key, value });
        }
        ObjectRecord::decode(&object.bytes, key)
    }

    /// The record that an object has. A damaged object is noted.
    fn loaded_record<'o>(&self, object: &'o StoredObject, key: &'o [u8]) -> Result<LoadedRecord<'o>, SpillReadError> {
        let ObjectRecord { value, flags, expires_at_ms, .. } = self.decode(object, key).map_err(|why| {
            self.note_damage(&format!("the object {}: {why}", self.name(key)));
            SpillReadError::BackingDamaged
        })?;
        Ok(LoadedRecord { value, flags, expires_at_ms })
    }

    pub(crate) fn run_load(&self, participant: &mut Participant, key: &[u8]) {
        let Some(owner) = self.owner.upgrade() else { return };
        let table = owner.records();
        let hash = table.hash(key);
        participant.offline();
        let got = self.objects().get(&self.name(key), self.most_object_bytes());
        self.counters.loads.fetch_add(1, Relaxed);
        let loaded = match &got {
            Ok(object) => {
                self.note_health(None);
                self.fill(participant, (table, hash, key), object.as_ref())
            }
            Err(BackingError::Damaged(why)) => {
                self.note_damage(why);
                Err(SpillReadError::BackingDamaged)
            }
            Err(error) => {
                self.note_health(Some(error));
                Err(SpillReadError::BackingDown)
            }
        };
        if loaded.is_err() {
            self.counters.load_errors.fetch_add(1, Relaxed);
        }
        let waiting = {
            let mut states = self.shard(hash);
            states.overtaken.remove(key);
            states.loads.remove(key).unwrap_or_default()
        };
        waiting.iter().for_each(|ticket| ticket.note_read(loaded));
    }

    /// Puts what the backing has of a key into memory, unless a client has changed it meanwhile.
    pub(crate) fn fill(
        &self,
        participant: &Participant,
        (table, hash, key): (&RecordTable, u64, &[u8]),
        object: Option<&StoredObject>,
    ) -> Result<(), SpillReadError> {
        let now_ms = unix_ms();
        let record = object.map(|object| self.loaded_record(object, key)).transpose()?;
        let may = || {
            let states = self.shard(hash);
            !states.overtaken.contains(key) && states.dirty.get(key).is_none_or(|dirty| dirty.change == 0)
        };
        let done = |version| self.note_loaded((hash, key), version, object, now_ms);
        let filled = table.fill(participant, (hash, key), record.as_ref(), now_ms, (may, done));
        // Its slot was given away meanwhile: a caller that waits for it is told so when it asks again.
        let filled = filled.or_else(|error| if error == StoreError::WrongServer { Ok(()) } else { Err(error) });
        filled.map_err(|error| match error {
            StoreError::NoMemory | StoreError::ReclaimPressure => SpillReadError::NoMemory,
            StoreError::NotLogged(refusal) => SpillReadError::NotLogged(refusal),
            _ => SpillReadError::BackingTooLarge,
        })
    }

    /// Notes what memory has of a key now, as the backing does.
    fn note_loaded(&self, (hash, key): (u64, &[u8]), version: Option<u64>, object: Option<&StoredObject>, now_ms: u64) {
        let mut states = self.shard(hash);
        match version.zip(object) {
            Some((version, object)) => {
                states.absent.remove(key);
                let clean = CleanRecord { version, tag: (&*object.tag).into(), checked_ms: now_ms };
                states.clean.insert(hash, clean);
            }
            None => {
                states.clean.remove(&hash);
                let until_ms = now_ms.saturating_add(self.absent_ms.load(Relaxed));
                states.note_absent(key, until_ms, now_ms, ABSENT_KEYS_PER_SHARD);
            }
        }
    }

    /// Takes the last change of a dirty key; `None`: there is nothing to write, or not yet.
    fn take_change(
        &self,
        participant: &Participant,
        (table, hash, key): (&RecordTable, u64, &[u8]),
    ) -> Option<TakenChange> {
        table.with_stripe(participant, (hash, key), unix_ms(), |live| {
            let mut states = self.shard(hash);
            let dirty = states.dirty.get_mut(key)?;
            if dirty.change == 0 || !dirty.is_queued || dirty.is_conflicted {
                return None;
            }
            dirty.written_wait = waits::later_of(dirty.written_wait, std::mem::take(&mut dirty.wait));
            let version = live.map_or(0, |record| record.version());
            let object = live.map(|record| {
                let (value, flags, expires_at_ms) = (record.value(), record.flags(), record.expires_at_ms());
                let object = ObjectRecord { writer: self.writer, version, expires_at_ms, flags, key, value };
                if self.is_raw { value.to_vec() } else { object.encode() }
            });
            Some(TakenChange {
                change: dirty.change,
                base: dirty.base().clone(),
                version,
                object,
                may_be_deleted: dirty.may_be_deleted,
            })
        })
    }

    /// Forgets that a key was admitted to be changed, if its change has not come: a transaction was refused.
    pub(crate) fn forget_unchanged(&self, participant: &Participant, key: &[u8]) {
        let Some(owner) = self.owner.upgrade() else { return };
        let hash = owner.records().hash(key);
        // Under the lock of the stripe, where a change is admitted and noted at once.
        owner.records().with_stripe(participant, (hash, key), unix_ms(), |_| {
            let mut states = self.shard(hash);
            match states.dirty.get_mut(key) {
                Some(dirty) if dirty.change == 0 => {
                    states.dirty.remove(key);
                    self.remove_mark(participant, key);
                }
                // Its last change was refused after it was admitted.
                Some(dirty) => dirty.is_admitted = false,
                None => {}
            }
        });
    }

    pub(crate) fn run_write(&self, participant: &mut Participant, key: &[u8]) {
        let Some(owner) = self.owner.upgrade() else { return };
        let table = owner.records();
        let hash = table.hash(key);
        if let Some(down_for_ms) = self.down_for_ms() {
            return self.postpone((hash, key), down_for_ms);
        }
        if !self.is_to_be_written(participant, table, key) {
            return self.postpone((hash, key), RETRY_FIRST_MS);
        }
        let Some(taken) = self.take_change(participant, (table, hash, key)) else { return };
        participant.offline();
        let written = self.write_object(key, &taken);
        match written {
            ObjectWrite::Done(tag) => self.end_write(participant, (hash, key), &taken, &tag),
            ObjectWrite::Failed => self.fail_write((hash, key), taken.object.is_none()),
            ObjectWrite::Conflict(theirs) => self.meet_conflict(participant, (table, hash, key), theirs),
        }
    }

    /// Ends a wait, if there is one, and wakes the workers that may hold its answers.
    pub(crate) fn end_wait(&self, wait: u64, is_done: bool) {
        if wait != 0 {
            waits::end(wait, is_done);
            if let Some(pool) = self.pool.upgrade() {
                pool.note_ended();
            }
        }
    }

    fn write_object(&self, key: &[u8], taken: &TakenChange) -> ObjectWrite {
        let name = self.name(key);
        let write = |condition: &WriteCondition| match &taken.object {
            Some(object) => self.objects().put(&name, object, condition),
            None => self.objects().delete(&name, condition).map(|()| String::new()),
        };
        let mut result = write(&taken.base);
        if result == Err(BackingError::Conflict) {
            // It may be its own success, whose answer was lost: in this server, or in the one before a crash.
            match self.objects().get(&name, self.most_object_bytes()) {
                Ok(Some(theirs)) if Some(&theirs.bytes) == taken.object.as_ref() => result = Ok(theirs.tag),
                Ok(Some(theirs)) if self.is_own(&theirs, key) => {
                    result = write(&WriteCondition::Tag(theirs.tag.clone()));
                    if result == Err(BackingError::Conflict) {
                        return ObjectWrite::Conflict(Some(theirs));
                    }
                }
                Ok(None) if taken.object.is_none() => result = Ok(String::new()),
                Ok(None) if taken.may_be_deleted => result = write(&WriteCondition::Absent),
                // A record that cannot be decoded names no writer: it is looked at again.
                Ok(Some(theirs)) if self.decode(&theirs, key).is_err() => {
                    self.note_damage("an object that another write has changed cannot be read");
                    return ObjectWrite::Failed;
                }
                Ok(theirs) => {
                    self.note_health(None);
                    return ObjectWrite::Conflict(theirs);
                }
                Err(error) => result = Err(error),
            }
        }
        self.note_health(result.as_ref().err());
        result.map_or(ObjectWrite::Failed, ObjectWrite::Done)
    }

    /// Returns whether an object is this table's own, of an earlier change. Its versions only grow.
    fn is_own(&self, object: &StoredObject, key: &[u8]) -> bool {
        !self.is_raw && self.decode(object, key).is_ok_and(|record| record.writer == self.writer)
    }

    /// Notes that the backing has a change.
    fn end_write(&self, participant: &Participant, (hash, key): (u64, &[u8]), taken: &TakenChange, tag: &str) {
        self.counters.flushes.fetch_add(1, Relaxed);
        let now_ms = unix_ms();
        let mut states = self.shard(hash);
        let Some(dirty) = states.dirty.get_mut(key) else { return };
        let ended = std::mem::take(&mut dirty.written_wait);
        (dirty.failures, dirty.may_be_deleted) = (0, false);
        let base = || match &taken.object {
            Some(_) => WriteCondition::Tag(tag.to_owned()),
            None => WriteCondition::Absent,
        };
        if dirty.change == taken.change {
            self.dirty_bytes.fetch_sub(std::mem::take(&mut dirty.bytes), Relaxed);
            self.dirty_keys.fetch_sub(1, Relaxed);
            let is_expected = dirty.is_admitted || dirty.is_promised;
            if is_expected {
                // Another change is about to be made, and its mark is there before it.
                (dirty.change, dirty.first_change, dirty.is_queued) = (0, 0, false);
                self.move_base(participant, key, dirty, base());
                self.queue.lock().push_admitted(key, self.clock_ms() + RETRY_FIRST_MS);
            } else {
                states.dirty.remove(key);
                self.remove_mark(participant, key);
            }
            if taken.object.is_some() {
                let clean = CleanRecord { version: taken.version, tag: tag.into(), checked_ms: now_ms };
                states.clean.insert(hash, clean);
            } else {
                let until_ms = now_ms.saturating_add(self.absent_ms.load(Relaxed));
                states.note_absent(key, until_ms, now_ms, ABSENT_KEYS_PER_SHARD);
            }
        } else {
            // It was changed meanwhile: the next write is one over this one.
            self.move_base(participant, key, dirty, base());
            dirty.first_change = taken.change + 1;
            self.schedule(key, 0);
        }
        drop(states);
        self.end_wait(ended, true);
    }

    /// Notes what the next write of a dirty key replaces.
    fn move_base(&self, participant: &Participant, key: &[u8], dirty: &mut DirtyKey, base: WriteCondition) {
        let mark = DirtyMark { base, ..dirty.mark.clone() };
        // Without room for it in the log the old one stays, by which a start knows its own object.
        let _else_the_old_one = self.write_mark(participant, key, &mark);
        dirty.mark = mark;
    }

    /// Has a key written again later.
    fn postpone(&self, (hash, key): (u64, &[u8]), after_ms: u64) {
        let mut states = self.shard(hash);
        let mut ended = 0;
        if let Some(dirty) = states.dirty.get_mut(key)
            && dirty.failures >= TRIES_BEFORE_ANSWER
        {
            ended = std::mem::take(&mut dirty.wait);
        }
        drop(states);
        self.schedule(key, self.clock_ms() + after_ms);
        self.end_wait(ended, false);
    }

    fn fail_write(&self, (hash, key): (u64, &[u8]), is_delete: bool) {
        self.counters.flush_errors.fetch_add(1, Relaxed);
        let mut states = self.shard(hash);
        let Some(dirty) = states.dirty.get_mut(key) else { return };
        dirty.failures += 1;
        dirty.may_be_deleted |= is_delete;
        let failures = dirty.failures;
        let ended = if failures >= TRIES_BEFORE_ANSWER { std::mem::take(&mut dirty.written_wait) } else { 0 };
        drop(states);
        self.end_wait(ended, false);
        self.postpone((hash, key), retry_after_ms(failures));
    }

    /// Another writer has changed the object since this table has seen it. With write-through no client was told that
    /// the change was made: it is dropped, and the other's record taken. With write-back one was: both stay.
    fn meet_conflict(
        &self,
        participant: &Participant,
        (table, hash, key): (&RecordTable, u64, &[u8]),
        theirs: Option<StoredObject>,
    ) {
        self.counters.conflicts.fetch_add(1, Relaxed);
        let (is_told, ended) = {
            let mut states = self.shard(hash);
            let Some(dirty) = states.dirty.get_mut(key) else { return };
            let ended = waits::later_of(std::mem::take(&mut dirty.written_wait), std::mem::take(&mut dirty.wait));
            dirty.is_conflicted = true;
            dirty.is_queued = false;
            (ended == 0 || self.policy() != BackingPolicy::WriteThrough, ended)
        };
        if is_told {
            tracing::warn!(backing = ?self.objects(), object = self.name(key), "two writers have changed a record");
        } else {
            let _else_it_stays = self.take_theirs(participant, (table, hash, key), theirs.as_ref(), u64::MAX);
        }
        self.end_wait(ended, false);
    }

    /// Gives up this table's change of a key for what the backing has, if it is in conflict still, and is no later one
    /// than `last_change`. What came while the object was read stays: somebody was told that it was made.
    fn take_theirs(
        &self,
        participant: &Participant,
        (table, hash, key): (&RecordTable, u64, &[u8]),
        theirs: Option<&StoredObject>,
        last_change: u64,
    ) -> Result<(), SpillReadError> {
        let now_ms = unix_ms();
        let record = theirs.map(|object| self.loaded_record(object, key)).transpose()?;
        // With the stripe locked, so no change can come. What is taken is not written meanwhile: it counts as queued.
        let is_taken = Cell::new(false);
        let may = || {
            let mut states = self.shard(hash);
            let dirty = states.dirty.get_mut(key).filter(|dirty| dirty.is_conflicted && dirty.change <= last_change);
            is_taken.set(dirty.is_some_and(|dirty| !std::mem::replace(&mut dirty.is_queued, true)));
            is_taken.get()
        };
        let done = |version| {
            if let Some(dirty) = self.shard(hash).dirty.remove(key) {
                self.dirty_bytes.fetch_sub(dirty.held_bytes(), Relaxed);
                self.dirty_keys.fetch_sub(1, Relaxed);
                self.remove_mark(participant, key);
            }
            self.note_loaded((hash, key), version, theirs, now_ms);
        };
        let filled = table.fill(participant, (hash, key), record.as_ref(), now_ms, (may, done));
        if filled.is_err()
            && is_taken.get()
            && let Some(dirty) = self.shard(hash).dirty.get_mut(key)
        {
            dirty.is_queued = false;
        }
        filled.map_err(|_| SpillReadError::NoMemory)
    }

    /// Writes all that is dirty when it is called to the backing, and returns when it has it.
    ///
    /// # Errors
    /// [`FlushError`].
    pub fn flush(
        self: &Arc<Self>,
        participant: &mut Participant,
        choice: ConflictChoice,
        most: Duration,
    ) -> Result<u64, FlushError> {
        let (barrier, begun, before) =
            (self.changes.load(Relaxed), Instant::now(), self.counters.flushes.load(Relaxed));
        self.settle_conflicts(participant, choice, barrier);
        loop {
            self.hurry();
            participant.offline();
            let (mut left, mut conflicted) = (0, 0);
            for states in self.shards() {
                let behind = states.dirty.values().filter(|dirty| dirty.change != 0 && dirty.first_change <= barrier);
                behind.for_each(|dirty| if dirty.is_conflicted { conflicted += 1 } else { left += 1 });
            }
            if left == 0 {
                let flushes = self.counters.flushes.load(Relaxed) - before;
                return if conflicted == 0 { Ok(flushes) } else { Err(FlushError::Conflicts(conflicted)) };
            }
            if begun.elapsed() >= most {
                let error = self.stats().last_error;
                return Err(FlushError::NotInTime { waited: begun.elapsed(), left, error });
            }
            std::thread::sleep(FLUSH_POLL);
        }
    }

    /// Settles the conflicts of now, as far as nothing else has settled them meanwhile: another flush may have another
    /// choice. Changes behind `barrier` are not given up: the operator did not know them.
    fn settle_conflicts(&self, participant: &mut Participant, choice: ConflictChoice, barrier: u64) {
        let Some(owner) = self.owner.upgrade().filter(|_| choice != ConflictChoice::Keep) else { return };
        let table = owner.records();
        let mut keys = Vec::new();
        for states in self.shards() {
            keys.extend(states.dirty.iter().filter(|(_, dirty)| dirty.is_conflicted).map(|(key, _)| key.clone()));
        }
        for key in keys {
            let hash = table.hash(&key);
            if choice == ConflictChoice::Theirs {
                participant.offline();
                if let Ok(theirs) = self.objects().get(&self.name(&key), self.most_object_bytes()) {
                    let _else_it_stays = self.take_theirs(participant, (table, hash, &key), theirs.as_ref(), barrier);
                }
                continue;
            }
            {
                let mut states = self.shard(hash);
                let found = states.dirty.get_mut(&key).filter(|dirty| dirty.is_conflicted && !dirty.is_queued);
                let Some(dirty) = found else { continue };
                (dirty.is_conflicted, dirty.is_queued, dirty.mark.base) = (false, true, WriteCondition::Always);
            }
            self.schedule(&key, 0);
        }
    }
}
