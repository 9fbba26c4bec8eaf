//! Transactions: any number of reads are confirmed and any number of changes are made at one moment, or nothing
//! happens.
//!
//! Optimistic: the caller that prepares a transaction reads without locks and notes the versions (0: no record).
//! [`commit`] then
//! 1. locks the stripes of its changes and of the keys that it found absent, tables by address, stripes by number.
//!    Every thread that locks several uses this order, so that none of them wait for each other in a ring;
//! 2. checks the ranges that it has read, with all stripes of their tables locked. No thread adds, removes or writes a
//!    record there until they are unlocked in step 5. So a range's content now is its content at the moment of the
//!    transaction. This takes as long as ranges are; writers of these tables wait for it, and readers do not;
//! 3. makes readers of the stripes that it changes wait (in [`RecordTable::get`]), so that they see all of the changes
//!    or none;
//! 4. checks the records that it has read: the versions must be those that were noted. Here, after the fence, is the
//!    moment at which the transaction takes place. A stripe that it has not locked must not be locked by another thread
//!    either: a writer whose moment was before would have its lock still, or have installed everything. If one is, all
//!    stripes that were read are locked as well, once, and checked again. So no transaction is refused because of
//!    another key in the same stripe;
//! 5. unlocks the stripes that it does not change: a transaction that may only read a table locks its writers out for
//!    one check at most;
//! 6. takes room and memory for all changes, in all tables; if there is none, nothing has happened;
//! 7. installs the changes, and unlocks;
//! 8. does the tables' growth that is due, as any write, with no lock but one.
//!
//! Why an absent key is locked: it may come and go between the fence and the check, which a version would show and
//! absence does not. Why it need not stay locked: a thread that writes it after the check comes after this transaction.
//! Any thread that sees that write sees by then that readers have to wait for the changes, since that was announced
//! before the lock was released. Expiry uses a clock that no commit sees go back ([`super::Epochs`]), whichever
//! thread's time it brings.

pub(crate) mod change;
pub(crate) mod protocol;
mod range;
mod snapshot;
mod sync;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::ptr;

pub use self::change::{KeyChange, NewRecord};
use self::protocol::{CommitSteps, needs_no_announcement, run_steps};
pub use self::range::{FitPredicate, RangeQuery, RangeSlice, read_range, snapshot_range};
pub use self::snapshot::snapshot;
use super::table::{CommitAnnouncement, ExpiryBudget, PreparedWrites};
use super::{ExclusiveStripes, KeyRange, Participant, RecordTable, ShownPosition, StoreError, StripeSet};

/// One read of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct KeyRead<'k> {
    /// The table.
    pub table: &'k RecordTable,
    /// [`RecordTable::hash`] of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// The record's version; 0: there was none.
    pub version: u64,
}

/// A range of an ordered table that a transaction has read.
#[derive(Clone, Debug)]
pub struct RangeRead<'k> {
    /// The table.
    pub table: &'k RecordTable,
    /// The bounds of the keys.
    pub span: KeyRange<'k>,
    /// What it has met in it.
    pub met: MetInRange<'k>,
}

/// What a transaction has met in a range, and must meet there when it is committed.
#[derive(Clone, Debug)]
pub enum MetInRange<'k> {
    /// These records and no others: key and version of each, in the order in which the span is read.
    Records(Vec<(&'k [u8], u64)>),
    /// So many keys, whichever they are, as [`RecordTable::count_keys`] counts them.
    Keys(u64),
}

/// Has an answer wait for the log where it rests on counts: an equal count may by now be of other keys, whose changes
/// were not waited for. A record that was read was waited for then, with its version.
pub fn note_counts(ranges: &[RangeRead<'_>], shown: &ShownPosition) {
    let counted = ranges.iter().filter(|range| matches!(range.met, MetInRange::Keys(_)));
    counted.for_each(|range| range.table.note_all_read(shown));
}

impl MetInRange<'_> {
    /// The number of records, if they were read.
    fn records(&self) -> usize {
        match self {
            MetInRange::Records(rows) => rows.len(),
            MetInRange::Keys(_) => 0,
        }
    }
}

/// The reason why a transaction did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A record or range that it has read has changed.
    #[error("records that the transaction read were changed by others: retry it")]
    Conflict,
    /// A table refuses the changes.
    #[error(transparent)]
    Refused(#[from] StoreError),
    /// Two changes of one key.
    #[error("the transaction changes a key twice: pass only the last change of each key")]
    DuplicateKey,
}

/// What of a transaction's reads does not hold any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutdatedRead {
    /// The key of that index.
    Key(usize),
    /// The range of that index.
    Range(usize),
}

/// The reason why a transaction did not happen, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitFailure {
    /// The reason.
    pub error: CommitError,
    /// What does not hold, of a conflict.
    pub outdated: Option<OutdatedRead>,
    /// The index, among the changes as [`commit_or_tell`] leaves them, of the one that a table refuses. Where all of a
    /// table's changes are refused, for its quota, that of the first of these.
    pub refused: Option<usize>,
}

impl CommitFailure {
    fn conflict(outdated: OutdatedRead) -> CommitFailure {
        CommitFailure { error: CommitError::Conflict, outdated: Some(outdated), refused: None }
    }

    fn refused(error: StoreError, change: usize) -> CommitFailure {
        CommitFailure { error: CommitError::Refused(error), outdated: None, refused: Some(change) }
    }
}

impl From<CommitError> for CommitFailure {
    fn from(error: CommitError) -> CommitFailure {
        CommitFailure { error, outdated: None, refused: None }
    }
}

/// Makes all changes at one moment at which everything that was read still holds, or none. Reorders the changes.
///
/// # Errors
/// See [`CommitError`]; nothing has changed then.
pub fn commit(
    participant: &Participant,
    reads: &[KeyRead<'_>],
    changes: &mut [KeyChange<'_>],
    now_ms: u64,
) -> Result<(), CommitError> {
    commit_with_ranges(participant, reads, &[], changes, now_ms)
}

/// As above where ranges of ordered tables were read, too.
///
/// # Errors
/// As [`commit`].
pub fn commit_with_ranges(
    participant: &Participant,
    reads: &[KeyRead<'_>],
    ranges: &[RangeRead<'_>],
    changes: &mut [KeyChange<'_>],
    now_ms: u64,
) -> Result<(), CommitError> {
    commit_or_tell(participant, reads, ranges, changes, now_ms).map_err(|failure| failure.error)
}

/// As above, for callers that want to know what of their reads does not hold.
///
/// # Errors
/// As [`commit`], with the place.
pub fn commit_or_tell(
    participant: &Participant,
    reads: &[KeyRead<'_>],
    ranges: &[RangeRead<'_>],
    changes: &mut [KeyChange<'_>],
    now_ms: u64,
) -> Result<(), CommitFailure> {
    changes.sort_unstable_by(|a, b| lock_order(a).cmp(&lock_order(b)));
    if changes.windows(2).any(|pair| lock_order(&pair[0]) == lock_order(&pair[1])) {
        return Err(CommitError::DuplicateKey.into());
    }
    for (index, change) in changes.iter().enumerate() {
        change.table.check_change(change).map_err(|error| CommitFailure::refused(error, index))?;
    }
    let mut outdated = None;
    for reach in [LockScope::Necessary, LockScope::All] {
        let mut attempt = CommitAttempt::new(participant, (reads, ranges), changes, now_ms, reach);
        match attempt.run() {
            Err(AttemptFailure::Contended) => {}
            Err(AttemptFailure::Expired(range)) => {
                drop(attempt);
                outdated = Some(OutdatedRead::Range(range));
                let now_ms = participant.epochs().commit_time(now_ms);
                let mut left = ExpiryBudget::AFTER_COMMIT;
                for range in ranges {
                    range.table.remove_expired(participant, &range.span, now_ms, range.met.records(), &mut left);
                }
            }
            Err(AttemptFailure::Final(failure)) => return Err(failure),
            Ok(()) => return Ok(()),
        }
    }
    // With everything locked, nothing is uncertain; and expired records go within a few tries.
    Err(CommitFailure { error: CommitError::Conflict, outdated, refused: None })
}

/// The order of changes: by table, as they are locked, and by hash, as they lie in it.
fn lock_order<'c>(change: &KeyChange<'c>) -> (usize, u64, &'c [u8]) {
    (ptr::from_ref(change.table).addr(), change.hash, change.key)
}

/// The stripes that are locked beside those of changes and of absent keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockScope {
    Necessary,
    All,
}

enum AttemptFailure {
    /// Another thread is writing to a stripe that was read.
    Contended,
    /// More records of the range of that index have expired than may be removed while all writers wait.
    Expired(usize),
    Final(CommitFailure),
}

/// A transaction's locks and changes in one table.
struct TableLocks<'t> {
    table: &'t RecordTable,
    /// The stripes to be locked.
    stripes: StripeSet,
    /// Those of them that are changed.
    changed: StripeSet,
    /// The table's changes among all.
    changes: Range<usize>,
    locked: Option<ExclusiveStripes<'t>>,
}

impl<'t> TableLocks<'t> {
    /// The parts of a transaction, in the order of locks.
    fn of(
        reads: &[KeyRead<'t>],
        ranges: &[RangeRead<'t>],
        changes: &[KeyChange<'t>],
        reach: LockScope,
    ) -> Vec<TableLocks<'t>> {
        let mut parts = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let part = TableLocks::find(&mut parts, change.table);
            if part.changed.is_empty() {
                part.changes = index..index;
            }
            part.stripes.add(change.hash);
            part.changed.add(change.hash);
            part.changes.end = index + 1;
        }
        for read in reads {
            let part = TableLocks::find(&mut parts, read.table);
            if read.version == 0 || reach == LockScope::All {
                part.stripes.add(read.hash);
            }
        }
        for range in ranges {
            TableLocks::find(&mut parts, range.table).stripes = StripeSet::ALL;
        }
        parts.sort_unstable_by_key(|part| ptr::from_ref(part.table).addr());
        parts
    }

    fn find<'p>(parts: &'p mut Vec<TableLocks<'t>>, table: &'t RecordTable) -> &'p mut TableLocks<'t> {
        let index = parts.iter().position(|part| ptr::eq(part.table, table)).unwrap_or_else(|| {
            let none = StripeSet::default();
            parts.push(TableLocks { table, stripes: none, changed: none, changes: 0..0, locked: None });
            parts.len() - 1
        });
        &mut parts[index]
    }

    /// Returns whether the stripe of a read is to be locked.
    fn locks(&self, read: &KeyRead<'_>) -> bool {
        ptr::eq(self.table, read.table) && self.stripes.has(read.hash)
    }

    /// Returns whether it is locked until the changes are made.
    fn locks_read(&self, read: &KeyRead<'_>) -> bool {
        ptr::eq(self.table, read.table) && self.changed.has(read.hash)
    }

    /// Unlocks the stripes that are not changed.
    fn unlock_unchanged(&mut self) {
        match &mut self.locked {
            Some(locked) if !self.changed.is_empty() => locked.keep_only(self.changed),
            locked => *locked = None,
        }
    }

    /// Returns whether a read holds at this moment, and will hold or was not touched by an earlier commit.
    fn still_valid(
        &mut self,
        participant: &Participant,
        read: &KeyRead<'_>,
        now_ms: u64,
    ) -> Result<bool, AttemptFailure> {
        let noted = (read.version != 0).then_some(read.version);
        if self.locks(read)
            && let Some(locked) = &mut self.locked
        {
            return Ok(locked.version(read.hash, read.key, now_ms) == noted);
        }
        if read.table.is_write_locked(read.hash) {
            return Err(AttemptFailure::Contended);
        }
        Ok(read.table.current_version(&participant.guard(), read.hash, read.key, now_ms) == noted)
    }
}

/// One attempt at a commit.
struct CommitAttempt<'a, 't> {
    participant: &'t Participant,
    reads: &'a [KeyRead<'t>],
    ranges: &'a [RangeRead<'t>],
    changes: &'a [KeyChange<'t>],
    parts: Vec<TableLocks<'t>>,
    /// It takes place at one moment though no reader waits: see [`needs_no_announcement`].
    unannounced: bool,
    now_ms: u64,
}

impl<'a, 't> CommitAttempt<'a, 't> {
    fn new(
        participant: &'t Participant,
        (reads, ranges): (&'a [KeyRead<'t>], &'a [RangeRead<'t>]),
        changes: &'a [KeyChange<'t>],
        now_ms: u64,
        reach: LockScope,
    ) -> CommitAttempt<'a, 't> {
        let parts = TableLocks::of(reads, ranges, changes, reach);
        let is_locked = |read| parts.iter().any(|part| part.locks_read(read));
        // Ranges are of a whole table, which is unlocked.
        let reads_locked = reads.iter().map(is_locked).chain(ranges.iter().map(|_| false));
        let unannounced = needs_no_announcement(changes.len(), reads_locked);
        CommitAttempt { participant, reads, ranges, changes, parts, unannounced, now_ms }
    }

    /// Refuses what this server does not own. With the locks: a server that gives slots away waits for these locks.
    fn check_owner(&self) -> Result<(), AttemptFailure> {
        if let Some(moved) = self.changes.iter().position(|change| !change.table.owns(change.key)) {
            return Err(AttemptFailure::Final(CommitFailure::refused(StoreError::WrongServer, moved)));
        }
        let reads = self.reads.iter().all(|read| read.table.owns(read.key));
        let is_owner = reads && self.ranges.iter().all(|range| range.table.owns_all());
        if is_owner { Ok(()) } else { Err(AttemptFailure::Final(CommitError::Refused(StoreError::WrongServer).into())) }
    }

    /// Steps 1 to 8.
    fn run(&mut self) -> Result<(), AttemptFailure> {
        for part in self.parts.iter_mut().filter(|part| !part.stripes.is_empty()) {
            part.locked = Some(part.table.exclusive(self.participant, part.stripes));
        }
        self.check_owner()?;
        run_steps(self)?;
        self.parts.iter_mut().for_each(|part| part.locked = None);
        for part in &self.parts {
            part.table.grow_for(self.participant, &self.changes[part.changes.clone()]);
        }
        Ok(())
    }
}

impl<'t> CommitSteps for CommitAttempt<'_, 't> {
    type Announced = Vec<CommitAnnouncement<'t>>;
    type Failure = AttemptFailure;

    /// Returns whether all ranges have the records that were read.
    fn check_locked(&mut self) -> Result<(), AttemptFailure> {
        // With the locks, so that an earlier writer has had an earlier time, and a later writer has a later one.
        self.now_ms = self.participant.epochs().commit_time(self.now_ms);
        #[cfg(test)]
        tests::pause::at_ranges();
        let mut expired = ExpiryBudget::WHILE_LOCKED;
        for (index, range) in self.ranges.iter().enumerate() {
            let part = self.parts.iter_mut().find(|part| ptr::eq(part.table, range.table));
            let conflict = Err(AttemptFailure::Final(CommitFailure::conflict(OutdatedRead::Range(index))));
            let Some(locked) = part.and_then(|part| part.locked.as_mut()) else { return conflict };
            let mut rows = match &range.met {
                MetInRange::Records(rows) => rows.iter(),
                // No key comes or goes while all stripes are locked, but for expired ones that this commit removes.
                MetInRange::Keys(count) => match range.table.count_keys(&range.span) == Ok(*count) {
                    true => continue,
                    false => return conflict,
                },
            };
            let is_next = |key: &[u8], version| rows.next() == Some(&(key, version));
            match locked.contains_exactly(&range.span, self.now_ms, &mut expired, is_next) {
                Some(true) if rows.next().is_none() => {}
                Some(_) => return conflict,
                None => return Err(AttemptFailure::Expired(index)),
            }
        }
        Ok(())
    }

    fn announce(&mut self) -> Vec<CommitAnnouncement<'t>> {
        let announced = self.parts.iter().filter(|part| !self.unannounced && !part.changed.is_empty());
        announced.map(|part| part.table.announce(part.changed)).collect()
    }

    /// Returns whether all records that were read are unchanged at this moment.
    fn check(&mut self) -> Result<(), AttemptFailure> {
        for (index, read) in self.reads.iter().enumerate() {
            let part = self.parts.iter_mut().find(|part| ptr::eq(part.table, read.table));
            if !part.map_or(Ok(false), |part| part.still_valid(self.participant, read, self.now_ms))? {
                return Err(AttemptFailure::Final(CommitFailure::conflict(OutdatedRead::Key(index))));
            }
        }
        Ok(())
    }

    fn let_go(&mut self) {
        self.parts.iter_mut().for_each(TableLocks::unlock_unchanged);
        #[cfg(test)]
        tests::pause::here();
    }

    fn make(&mut self) -> Result<(), AttemptFailure> {
        install_writes(&mut self.parts, self.changes, self.now_ms).map_err(AttemptFailure::Final)
    }
}

/// Prepares the changes of all tables, then installs them; or none.
fn install_writes(parts: &mut [TableLocks<'_>], changes: &[KeyChange<'_>], now_ms: u64) -> Result<(), CommitFailure> {
    let mut prepared: Vec<Option<PreparedWrites>> = Vec::with_capacity(parts.len());
    for part in &mut *parts {
        let next = match part.locked.as_mut().filter(|_| !part.changes.is_empty()) {
            Some(locked) => locked.prepare(&changes[part.changes.clone()], now_ms).map(Some),
            None => Ok(None),
        };
        match next {
            Ok(next) => prepared.push(next),
            Err((error, refused)) => {
                let refused = part.changes.start + refused.unwrap_or(0);
                for (part, prepared) in parts.iter().zip(prepared) {
                    if let Some((locked, prepared)) = part.locked.as_ref().zip(prepared) {
                        locked.abandon(prepared);
                    }
                }
                return Err(CommitFailure::refused(error, refused));
            }
        }
    }
    for (part, prepared) in parts.iter_mut().zip(prepared) {
        if let Some((locked, prepared)) = part.locked.as_mut().zip(prepared) {
            locked.install(prepared, &changes[part.changes.clone()], now_ms);
        }
    }
    Ok(())
}
