//! A transaction's steps on one table: it checks versions, makes sure that all of its changes fit, installs them, and
//! makes readers wait meanwhile. The steps over several tables, and their order, are in `store::transactions`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sandstorm_log::LogPermit;

use super::buckets::{BUCKET_BYTES, SpareBuckets, stripe_of};
use super::locked_stripe::{FoundRecord, LockedStripe, UnpublishedRecord, record_charge};
use super::{ExclusiveStripes, RecordTable, StripeSet};
use crate::limits::{COMMIT_EVICTION_ROUNDS, STRIPES};
use crate::noted_locks::note_commit_wait;
use crate::transactions::change::KeyChange;
use crate::transactions::protocol;
use crate::{EpochGuard, Participant, ShownPosition, StoreError};

/// While this lives, readers of keys in these stripes wait for their locks.
pub(crate) struct CommitAnnouncement<'t> {
    table: &'t RecordTable,
    stripes: StripeSet,
}

impl Drop for CommitAnnouncement<'_> {
    fn drop(&mut self) {
        self.table.commit_mask.take_back(self.stripes.0);
    }
}

/// A table's part of a commit, prepared: what was accounted for, and the new records in the order of the changes.
pub(crate) struct PreparedWrites {
    /// Bytes. A decrease is accounted for only when it is certain: other writers might take the room meanwhile.
    growth: i64,
    records: Vec<Option<UnpublishedRecord>>,
    /// Memory for the overflow buckets that they need, all of them accounted for.
    buffers: SpareBuckets,
    /// Room in the log for the changes.
    permits: Vec<LogPermit>,
}

/// Why changes are refused, and which one: its index among them, if it is one.
pub(crate) type RefusedChange = (StoreError, Option<usize>);

/// The room that changes take.
struct CommitGrowth {
    /// Bytes by which the table grows when all of them are made.
    bytes: i64,
    /// Bytes of the new records alone.
    new: u64,
    /// Overflow buckets among these.
    buckets: usize,
}

/// Counts the inserts of one commit, in the order of their hashes, that meet in a chain of buckets. It also counts
/// those that meet in a bucket and the one before it.
#[derive(Default)]
struct ChainTally {
    /// The stripe and the chain of the previous insert.
    chain: Option<(usize, (bool, usize))>,
    /// The inserts in that chain so far.
    inserts: usize,
    /// The bucket of the previous insert, and the inserts in it so far.
    bucket: (usize, usize),
    /// The inserts in the bucket before that one.
    before: usize,
}

impl ChainTally {
    /// Adds an insert; returns whether there is room for it, and whether it needs another bucket.
    fn add(&mut self, locked: &LockedStripe<'_>, hash: u64) -> Option<bool> {
        let (room, bucket) = (locked.room(hash), locked.buckets.index_of(hash));
        let chain = Some((locked.index, room.chain));
        self.inserts = if self.chain == chain { self.inserts + 1 } else { 1 };
        self.chain = chain;
        if self.bucket.0 != bucket {
            self.before = if self.bucket.0 + 1 == bucket { self.bucket.1 } else { 0 };
            self.bucket = (bucket, 0);
        }
        self.bucket.1 += 1;
        let fits = room.takes(self.inserts) && !locked.exceeds_chain_limit(hash, self.before + self.bucket.1);
        fits.then(|| room.adds_bucket_for(self.inserts))
    }
}

impl RecordTable {
    /// Waits until the commit that is writing to the stripe of `hash`, if any, has installed all of its changes. That
    /// commit holds the stripe's lock until then, and waits for nothing itself. The thread's variables are used within
    /// this call only.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_commit(&self, hash: u64, shown: &ShownPosition) {
        let stripe = stripe_of(hash);
        if self.commit_mask.has(stripe) {
            let begun = Instant::now();
            self.commit_mask.wait(stripe, &self.stripes[stripe].state);
            note_commit_wait(shown, begun);
        }
    }

    /// Makes readers of some stripes wait, whose locks the caller holds.
    pub(crate) fn announce(&self, stripes: StripeSet) -> CommitAnnouncement<'_> {
        self.commit_mask.add(stripes.0);
        CommitAnnouncement { table: self, stripes }
    }

    /// Returns whether another thread is writing to the stripe of `hash`. If not, the caller's next reads see
    /// everything that was written before its last fence.
    pub(crate) fn is_write_locked(&self, hash: u64) -> bool {
        protocol::is_write_locked(&self.stripes[stripe_of(hash)].state)
    }

    /// Returns whether readers of the key of that hash must wait.
    #[cfg(test)]
    pub(crate) fn is_commit_announced(&self, hash: u64) -> bool {
        self.commit_mask.has(stripe_of(hash))
    }

    /// Returns the version of the live record of `key` at this moment, also in the middle of a commit.
    pub(crate) fn current_version(&self, guard: &EpochGuard<'_>, hash: u64, key: &[u8], now_ms: u64) -> Option<u64> {
        self.check(guard.epochs());
        // SAFETY: protected by the guard; the record is not kept.
        unsafe { self.find_live(hash, key, now_ms) }.map(|record| record.version())
    }

    /// Does as much for the growth of the table as so many writes, one lock at a time: a larger array is made while no
    /// thread waits.
    pub(crate) fn grow_for(&self, participant: &Participant, changes: &[KeyChange<'_>]) {
        for change in changes {
            let _nothing = self.write(participant, change.hash, change.key, |_| Ok(()));
        }
    }

    /// Refuses keys and values that the table does not take.
    pub(crate) fn check_change(&self, change: &KeyChange<'_>) -> Result<(), StoreError> {
        self.check_key(change.key)?;
        match &change.becomes {
            Some(new) if new.value.len() > self.config.max_value_len => Err(StoreError::ValueTooLarge),
            _ => Ok(()),
        }
    }
}

impl<'t> ExclusiveStripes<'t> {
    /// Returns the version of the live record of `key`, which stays while this lives.
    pub(crate) fn version(&mut self, hash: u64, key: &[u8], now_ms: u64) -> Option<u64> {
        let index = self.index_of(hash)?;
        let found = self.locked[index].find(hash, key)?;
        Some(found.record).filter(|record| !record.is_expired(now_ms)).map(|record| record.version())
    }

    /// Takes room and memory for all changes, or for none. They are in the order of their hashes, and of locked
    /// stripes.
    pub(crate) fn prepare(&mut self, changes: &[KeyChange<'_>], now_ms: u64) -> Result<PreparedWrites, RefusedChange> {
        // From here to `install` with the arrays of this moment: a larger one may be put in place meanwhile, but
        // nothing moves there out of locked stripes.
        for locked in &mut self.locked {
            self.table.refresh(locked);
        }
        if changes.iter().any(|change| change.becomes.is_some())
            && let Some(locked) = self.locked.first_mut()
        {
            locked.check_garbage_limit().map_err(|error| (error, None))?;
        }
        self.expire_replaced(changes, now_ms)?;
        let mut permits = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let admitted = self.admit(change, now_ms).map_err(|error| (error, Some(index)))?;
            permits.extend(admitted);
        }
        let CommitGrowth { bytes: growth, buckets, .. } = self.reserve(changes)?;
        let records = self.records_of(changes, buckets).inspect_err(|_| self.give_back(growth));
        records.map(|(records, buffers)| PreparedWrites { growth, records, buffers, permits })
    }

    /// Admits a change to the log, and to what is behind the table.
    fn admit(&self, change: &KeyChange<'_>, now_ms: u64) -> Result<Option<LogPermit>, StoreError> {
        let Some(locked) = self.index_of(change.hash).and_then(|index| self.locked.get(index)) else { return Ok(None) };
        let value_len = change.becomes.as_ref().map(|new| new.value.len());
        let permit = locked.log.map(|log| log.admit(change.key.len(), value_len.unwrap_or(0))).transpose()?;
        if change.becomes.is_none() {
            // A delete of what only the backing has would find nothing to do.
            let found = locked.find(change.hash, change.key).map(|found| found.record);
            let live = found.filter(|record| !record.is_expired(now_ms));
            locked.check_loaded(change.hash, change.key, live, now_ms)?;
        }
        let expires_at_ms = change.becomes.as_ref().map_or(0, |new| new.expires_at_ms);
        locked.admit_backed(change.hash, change.key, value_len, expires_at_ms)?;
        Ok(permit)
    }

    /// Has the records leave whose time is over, if the log is told of it: before the changes, and also without them.
    fn expire_replaced(&mut self, changes: &[KeyChange<'_>], now_ms: u64) -> Result<(), RefusedChange> {
        if !self.table.logs_expiry() {
            return Ok(());
        }
        for (at, change) in changes.iter().enumerate() {
            if let Some(locked) = self.index_of(change.hash).and_then(|index| self.locked.get_mut(index)) {
                let found = locked.find(change.hash, change.key);
                let expired = locked.expire_replaced(change.hash, change.key, found, now_ms);
                expired.map_err(|error| (error, Some(at)))?;
            }
        }
        Ok(())
    }

    /// Gives the prepared room and memory back.
    pub(crate) fn abandon(&self, prepared: PreparedWrites) {
        self.give_back(prepared.growth);
    }

    /// Makes the prepared changes.
    pub(crate) fn install(&mut self, mut prepared: PreparedWrites, changes: &[KeyChange<'_>], now_ms: u64) {
        self.account(prepared.growth.min(0));
        prepared.permits.drain(..).for_each(|permit| self.participant.unit_of_changes().keep(permit));
        let (accounted, mut added) = (prepared.buffers.left(), 0);
        // New records first: a bucket that deletes empty would be unlinked, and was counted as room.
        for (change, record) in changes.iter().zip(&mut prepared.records) {
            if let Some((record, index)) = record.take().zip(self.index_of(change.hash)) {
                let found = self.found(index, change, now_ms);
                let locked = &mut self.locked[index];
                added += usize::from(locked.publish_prepared(change.hash, record, found, &mut prepared.buffers));
            }
        }
        self.table.account_buckets(added, accounted);
        for change in changes.iter().filter(|change| change.becomes.is_none()) {
            if let Some(index) = self.index_of(change.hash)
                && let Some(found) = self.found(index, change, now_ms)
            {
                self.locked[index].log_delete(change.hash, change.key);
                let version = self.locked[index].state.last_version;
                self.locked[index].note_backed(change.hash, change.key, version, change.key.len());
                self.locked[index].note_copied_removal(change.key, found.record);
                self.locked[index].unlink(change.hash, found);
            }
        }
    }

    /// The record that a change replaces or removes, counted if it has expired.
    fn found(&self, index: usize, change: &KeyChange<'_>, now_ms: u64) -> Option<FoundRecord<'t>> {
        let locked = &self.locked[index];
        let found = locked.find(change.hash, change.key);
        if found.is_some_and(|found| found.record.is_expired(now_ms)) {
            locked.stripe.expirations.add(1);
        }
        found
    }

    fn account(&self, growth: i64) -> u64 {
        let growth = growth as u64;
        self.table.bytes.fetch_add(growth, Ordering::Relaxed).wrapping_add(growth)
    }

    /// Undoes the accounting of `reserve`.
    fn give_back(&self, growth: i64) {
        self.account(-growth.max(0));
    }

    /// Accounts for the table's growth, making room in a cache.
    fn reserve(&mut self, changes: &[KeyChange<'_>]) -> Result<CommitGrowth, RefusedChange> {
        for _ in 0..COMMIT_EVICTION_ROUNDS {
            let growth = self.growth_of(changes)?;
            if growth.bytes <= 0 || self.account(growth.bytes) <= self.table.quota_bytes() {
                return Ok(growth);
            }
            self.give_back(growth.bytes);
            // For all that is new: evicted records may be among those to be replaced. So the sum is made again, too.
            if !self.table.makes_room() || growth.new > self.table.quota_bytes() || !self.evict(growth.new) {
                break;
            }
        }
        if let Some(locked) = self.locked.first() {
            locked.stripe.refusals.add(1);
        }
        Err((self.table.why_full(), None))
    }

    /// Returns the room that the changes take, if each new record fits into its chain.
    fn growth_of(&self, changes: &[KeyChange<'_>]) -> Result<CommitGrowth, RefusedChange> {
        let (mut old_bytes, mut new_bytes, mut buckets) = (0, 0, 0);
        let mut tally = ChainTally::default();
        for (at, change) in changes.iter().enumerate() {
            let locked = self.index_of(change.hash).and_then(|index| self.locked.get(index));
            let locked = locked.ok_or((StoreError::WrongServer, Some(at)))?;
            let found = locked.find(change.hash, change.key);
            // For a record that stays under its key, the key counts before and after.
            let key_bytes = self.table.key_charge(change.key.len());
            old_bytes += found.map_or(0, |found| found.record.charged_bytes() + key_bytes);
            if let Some(new) = &change.becomes {
                new_bytes += record_charge(change.key.len(), new.value.len(), new.flags, new.expires_at_ms) + key_bytes;
                if found.is_none() {
                    let adds = tally.add(locked, change.hash).ok_or((StoreError::OutOfMemory, Some(at)))?;
                    buckets += usize::from(adds);
                }
            }
        }
        new_bytes += (buckets * BUCKET_BYTES) as u64;
        Ok(CommitGrowth { bytes: new_bytes as i64 - old_bytes as i64, new: new_bytes, buckets })
    }

    /// Evicts until there is room for so many bytes, from the locked stripes first; returns whether it evicted
    /// anything.
    fn evict(&mut self, bytes: u64) -> bool {
        /// No hash, so that no record is spared.
        const NONE: u64 = 0;
        let (table, participant, locked) = (self.table, self.participant, self.stripes);
        let full = || table.bytes.load(Ordering::Relaxed).saturating_add(bytes) > table.quota_bytes();
        let most = table.evictions_per_write();
        let mut left = most;
        let mut evict = |locked: &mut LockedStripe<'_>| {
            while left != 0 && full() && locked.evict_one(NONE) {
                left -= 1;
            }
        };
        self.locked.iter_mut().for_each(&mut evict);
        for other in (0..STRIPES).filter(|stripe| !locked.contains(*stripe)) {
            // Never waits for a further lock, so that no two wait for each other.
            if let Some(mut locked) = full().then(|| table.try_lock_stripe(participant, other)).flatten() {
                evict(&mut locked);
            }
        }
        left != most
    }

    /// Makes the new records, and takes memory for the buckets that they add.
    fn records_of(
        &mut self,
        changes: &[KeyChange<'_>],
        buckets: usize,
    ) -> Result<(Vec<Option<UnpublishedRecord>>, SpareBuckets), RefusedChange> {
        let (mut records, mut buffers) = (Vec::with_capacity(changes.len()), SpareBuckets::default());
        if !(0..buckets).all(|_| buffers.add()) {
            return Err((self.locked.first().map_or(StoreError::NoMemory, LockedStripe::no_memory), None));
        }
        for (at, change) in changes.iter().enumerate() {
            let Some(new) = &change.becomes else {
                records.push(None);
                continue;
            };
            let locked = self.index_of(change.hash).and_then(|index| self.locked.get_mut(index));
            let locked = locked.ok_or((StoreError::WrongServer, Some(at)))?;
            let is_new = locked.find(change.hash, change.key).is_none();
            let record = locked.new_record((change.key, is_new), new.value, new.flags, new.expires_at_ms);
            records.push(Some(record.ok_or_else(|| (locked.no_memory(), Some(at)))?));
        }
        Ok((records, buffers))
    }
}
