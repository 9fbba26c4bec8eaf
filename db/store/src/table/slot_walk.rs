//! Walks through the records of some slots, those on the disk included: for copying them to another server, and for
//! removing them.
//!
//! A walk meets records in the order of their hashes. Those in memory are shown at once; cold ones are gathered, and
//! read in the order in which they lie on the disk, as a checkpoint reads them. What is read is shown only if the table
//! still refers to it then: so what a walk shows is never older than what was known of the key before.

use std::sync::atomic::Ordering;

use super::buckets::stripe_of;
use super::cold_copies::ColdRecord;
use super::{RecordTable, RestoredRecord};
use crate::broken_rules::{LogRule, is_broken};
use crate::limits::{SPILL_OVERDRAFT_ONE_IN, WALK_COLD_RECORDS};
use crate::slots::SlotSpan;
use crate::spill::{SpillReadError, SpillRefusal, near_runs};
use crate::{Participant, StoreError};

/// The reason that a walk cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotWalkError {
    /// The table refuses a change.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk does not read a record.
    #[error("a record cannot be read from the disk: {0}")]
    Cold(#[from] SpillReadError),
}

/// What a step of a walk takes, at most.
#[derive(Clone, Copy, Debug)]
pub struct WalkBudget {
    /// Records in memory, or places of cold ones, that are looked at.
    pub records: usize,
    /// Reads of the disk.
    pub reads: usize,
    /// Bytes that are gathered; the step ends with what exceeds them.
    pub bytes: usize,
}

impl WalkBudget {
    /// No limit.
    pub const UNLIMITED: WalkBudget = WalkBudget { records: usize::MAX, reads: usize::MAX, bytes: usize::MAX };
}

/// Where a walk goes on.
#[derive(Debug)]
pub struct SlotWalk {
    /// The hash from which on records were not met yet; `None`: all were.
    next: Option<u64>,
    /// Cold records that were met and not read yet. While they are read, the last one is the next.
    cold: Vec<ColdRecord>,
    is_reading: bool,
}

impl Default for SlotWalk {
    fn default() -> SlotWalk {
        SlotWalk { next: Some(0), cold: Vec::new(), is_reading: false }
    }
}

impl SlotWalk {
    /// Whether all records were shown.
    pub fn is_over(&self) -> bool {
        self.next.is_none() && self.cold.is_empty()
    }
}

/// Times that records which were all touched just now are asked to leave.
const ROOM_ROUNDS: usize = 8;

/// A copy of a record that was read.
struct ReadRecord {
    key: Vec<u8>,
    value: Vec<u8>,
    version: u64,
    flags: u32,
    expires_at_ms: u64,
}

impl ReadRecord {
    fn of(record: &RestoredRecord<'_>) -> ReadRecord {
        let RestoredRecord { version, key, value, flags, expires_at_ms } = *record;
        ReadRecord { key: key.to_vec(), value: value.to_vec(), version, flags, expires_at_ms }
    }

    fn as_restored(&self) -> RestoredRecord<'_> {
        let ReadRecord { version, flags, expires_at_ms, .. } = *self;
        RestoredRecord { version, key: &self.key, value: &self.value, flags, expires_at_ms }
    }
}

impl RecordTable {
    /// Shows further records of some slots (disjoint spans, in their order), also those whose time is over. `f` returns
    /// the bytes that it has gathered so far. The participant is offline while the disk reads.
    ///
    /// # Errors
    /// The disk does not read a record.
    pub fn walk_slots(
        &self,
        participant: &mut Participant,
        walk: &mut SlotWalk,
        (budget, spans): (WalkBudget, &[SlotSpan]),
        f: &mut dyn FnMut(&RestoredRecord<'_>) -> usize,
    ) -> Result<(), SpillReadError> {
        let (mut looked, mut reads, mut bytes) = (0, 0, 0);
        while !walk.is_over() && looked < budget.records && reads < budget.reads && bytes < budget.bytes {
            if walk.cold.len() >= WALK_COLD_RECORDS || walk.next.is_none() || walk.is_reading {
                bytes = self.read_near(participant, walk, spans, f)?.unwrap_or(bytes);
                reads += 1;
            } else {
                let met = self.walk_in_memory(participant, walk, (budget, spans), f);
                (looked, bytes) = (looked + met.0, met.1.unwrap_or(bytes));
            }
        }
        participant.offline();
        Ok(())
    }

    /// Shows records in memory, and gathers cold ones; returns how many were met, and the bytes that `f` has said.
    fn walk_in_memory(
        &self,
        participant: &Participant,
        walk: &mut SlotWalk,
        (budget, spans): (WalkBudget, &[SlotSpan]),
        f: &mut dyn FnMut(&RestoredRecord<'_>) -> usize,
    ) -> (usize, Option<usize>) {
        let Some(from) = walk.next else { return (0, None) };
        let gathered = walk.cold.len();
        let (mut met, mut bytes, mut rest) = (0, None, None);
        let guard = participant.guard();
        let next = self.scan_all(
            &guard,
            (from, budget.records),
            0,
            &mut |record| {
                met += 1;
                // Those of one hash are shown together, so that the next step begins behind them.
                let is_full = bytes.is_some_and(|bytes| bytes >= budget.bytes);
                if rest.is_some() || is_full && self.hash(record.key()) != from {
                    rest = rest.or_else(|| Some(self.hash(record.key())));
                } else if SlotSpan::any_has(spans, record.key()) {
                    bytes = Some(f(&RestoredRecord {
                        version: record.version(),
                        key: record.key(),
                        value: record.value(),
                        flags: record.flags(),
                        expires_at_ms: record.expires_at_ms(),
                    }));
                }
            },
            &mut walk.cold,
        );
        if let Some(rest) = rest {
            // They are met again.
            let mut place = 0;
            walk.cold.retain(|cold| {
                place += 1;
                place <= gathered || cold.hash < rest
            });
        }
        met += walk.cold.len() - gathered;
        walk.next = rest.or(next);
        (met, bytes)
    }

    /// Reads the next cold records that lie near each other, and shows those that the table still has.
    fn read_near(
        &self,
        participant: &mut Participant,
        walk: &mut SlotWalk,
        spans: &[SlotSpan],
        f: &mut dyn FnMut(&RestoredRecord<'_>) -> usize,
    ) -> Result<Option<usize>, SpillReadError> {
        if !walk.is_reading {
            walk.cold.sort_unstable_by_key(|cold| std::cmp::Reverse(cold.address.block));
            walk.is_reading = true;
        }
        let (count, _) = near_runs(walk.cold.iter().rev().map(|cold| cold.address));
        let mut near = walk.cold.split_off(walk.cold.len() - count.min(walk.cold.len()));
        let (mut read, mut bytes) = (Vec::new(), None);
        self.read_cold_together(participant, &mut near, &|| true, &mut |record| {
            if SlotSpan::any_has(spans, record.key) {
                read.push(ReadRecord::of(record));
            }
        })?;
        for record in &read {
            if self.has_version(participant, &record.key, record.version) {
                bytes = Some(f(&record.as_restored()));
            }
        }
        walk.is_reading = !walk.cold.is_empty();
        Ok(bytes)
    }

    /// Whether the record of a key is the one of a version, wherever it is.
    fn has_version(&self, participant: &Participant, key: &[u8], version: u64) -> bool {
        let hash = self.hash(key);
        let found = self.lock_stripe(participant, stripe_of(hash)).find(hash, key);
        is_broken(LogRule::ColdReadsAreChecked) || found.is_some_and(|found| found.record.version() == version)
    }

    /// Shows some keys with their records, also where their time is over, until `f` has gathered so many bytes, or the
    /// disk was read so often; returns how many were shown. `f` returns the bytes that it has gathered so far. The
    /// participant is offline while the disk reads.
    ///
    /// # Errors
    /// The disk does not read a record.
    pub fn show_keys(
        &self,
        participant: &mut Participant,
        (keys, budget): (&[Box<[u8]>], WalkBudget),
        f: &mut dyn FnMut(&[u8], Option<&RestoredRecord<'_>>) -> usize,
    ) -> Result<usize, SpillReadError> {
        let mut reads = 0;
        let keys = &keys[..keys.len().min(budget.records)];
        for (shown, key) in keys.iter().enumerate() {
            if self.show_key(participant, key, &mut reads, f)? >= budget.bytes || reads >= budget.reads {
                return Ok(shown + 1);
            }
        }
        Ok(keys.len())
    }

    fn show_key(
        &self,
        participant: &mut Participant,
        key: &[u8],
        reads: &mut usize,
        f: &mut dyn FnMut(&[u8], Option<&RestoredRecord<'_>>) -> usize,
    ) -> Result<usize, SpillReadError> {
        loop {
            let mut bytes = 0;
            let Some(cold) = self.show_in_memory(participant, key, &mut |key, record| {
                bytes = f(key, record);
            }) else {
                return Ok(bytes);
            };
            let mut read = None;
            *reads += 1;
            self.read_cold(participant, &cold, &mut |record| read = Some(ReadRecord::of(record)))?;
            // A record that has changed meanwhile is looked for again.
            if let Some(record) = read
                && record.key == key
                && self.has_version(participant, key, record.version)
            {
                return Ok(f(key, Some(&record.as_restored())));
            }
        }
    }

    /// Shows what is under a key, under the lock of its stripe, unless it is on the disk: then it returns where.
    fn show_in_memory(
        &self,
        participant: &Participant,
        key: &[u8],
        f: &mut dyn FnMut(&[u8], Option<&RestoredRecord<'_>>),
    ) -> Option<ColdRecord> {
        let hash = self.hash(key);
        let locked = self.lock_stripe(participant, stripe_of(hash));
        let Some(record) = locked.find(hash, key).map(|found| found.record) else {
            f(key, None);
            return None;
        };
        if let Some(address) = record.cold_address() {
            return Some(ColdRecord { hash, version: record.version(), address });
        }
        let (version, flags, expires_at_ms) = (record.version(), record.flags(), record.expires_at_ms());
        f(key, Some(&RestoredRecord { version, key: record.key(), value: record.value(), flags, expires_at_ms }));
        None
    }

    /// Moves records of a table larger than memory to the disk, if those that come from another server exceed its
    /// quota: for as long as one write does. Returns whether there is room now; else the disk is slower than they come,
    /// and the caller waits for a moment.
    ///
    /// # Errors
    /// `NotSpilled`: the disk is full, or fails.
    pub fn makes_room_for_arrivals(&self, participant: &Participant) -> Result<bool, StoreError> {
        let quota = self.quota_bytes();
        let is_full = || self.bytes.load(Ordering::Relaxed) > quota.saturating_add(quota / SPILL_OVERDRAFT_ONE_IN);
        if !self.is_larger_than_memory() || !is_full() {
            return Ok(true);
        }
        for _ in 0..ROOM_ROUNDS {
            let before = self.bytes.load(Ordering::Relaxed);
            self.make_room(participant, 0);
            if self.bytes.load(Ordering::Relaxed) < before {
                return Ok(!is_full());
            }
            match self.why_full() {
                StoreError::NotSpilled(SpillRefusal::Slow) => return Ok(false),
                StoreError::OutOfMemory => {}
                error => return Err(error),
            }
        }
        // Nothing that is there can leave: all of it is cold. Quotas are not checked for what comes.
        Ok(true)
    }

    /// Removes further records of some slots (disjoint spans, in their order), which this server does not serve.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// The log or the disk fails; the records stay, and the walk begins again, so that it passes none of them over.
    pub fn remove_slots(
        &self,
        participant: &mut Participant,
        walk: &mut SlotWalk,
        of: (WalkBudget, &[SlotSpan]),
    ) -> Result<bool, SlotWalkError> {
        let removed = self.remove_next(participant, walk, of);
        if removed.is_err() {
            // It is beyond records that are there yet.
            *walk = SlotWalk::default();
        }
        removed
    }

    fn remove_next(
        &self,
        participant: &mut Participant,
        walk: &mut SlotWalk,
        of: (WalkBudget, &[SlotSpan]),
    ) -> Result<bool, SlotWalkError> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        self.walk_slots(participant, walk, of, &mut |record| {
            keys.push(record.key.to_vec());
            bytes += record.key.len();
            bytes
        })?;
        for key in &keys {
            self.take_leaving(participant, key)?;
        }
        Ok(!walk.is_over())
    }
}
