//! The beginning of a range, in a bounded number of steps; on request, as it was at one moment.

use super::{MetInRange, RangeRead, commit_with_ranges};
use crate::limits::SNAPSHOT_TRIES;
use crate::{
    EpochGuard, KeyRange, NotOrdered, Participant, RangeProgress, RecordRef, RecordTable, ScanBudget, StripeSet,
};

/// A request for the beginning of a range.
#[derive(Clone, Copy, Debug)]
pub struct RangeQuery<'g> {
    /// The participant of the request.
    pub participant: &'g Participant,
    /// The guard that protects the records.
    pub guard: &'g EpochGuard<'g>,
    /// The table, which must be an ordered one.
    pub table: &'g RecordTable,
    /// The range.
    pub span: KeyRange<'g>,
    /// Records at most, 1 at the least.
    pub limit: usize,
    /// The time, milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The beginning of a range.
#[derive(Debug, Default)]
pub struct RangeSlice<'g> {
    /// The records.
    pub records: Vec<RecordRef<'g>>,
    /// The key behind which it goes on; `None`: this was all of it, or not even the first record fits.
    pub on: Option<&'g [u8]>,
    /// There is a further record, beyond the limit or the room.
    pub is_full: bool,
}

impl RangeSlice<'_> {
    /// Returns whether there is no room even for the first record.
    #[inline]
    pub fn none_fits(&self) -> bool {
        self.is_full && self.records.is_empty()
    }
}

/// Tells of each record, by its index in the answer, whether there is room for it.
pub type FitPredicate<'f, 'g> = dyn FnMut(usize, &RecordRef<'g>) -> bool + 'f;

/// Reads the first records of a range, as long as `fits` says of each that there is room for it. It also ends once it
/// has looked at as many keys as it may, of which many may have expired; the keys looked at are counted.
///
/// # Errors
/// [`NotOrdered`].
#[inline]
pub fn read_range<'g>(
    wanted: &RangeQuery<'g>,
    budget: &mut ScanBudget,
    fits: &mut FitPredicate<'_, 'g>,
) -> Result<RangeSlice<'g>, NotOrdered> {
    match try_read_range(wanted, wanted.now_ms, budget, fits)? {
        Some(stretch) => Ok(stretch),
        None => read_locked(wanted, &|| wanted.now_ms, budget, fits),
    }
}

/// As above while no thread writes: every key has its record. The clock is read once no thread writes any more.
fn read_locked<'g>(
    wanted: &RangeQuery<'g>,
    clock: &dyn Fn() -> u64,
    budget: &mut ScanBudget,
    fits: &mut FitPredicate<'_, 'g>,
) -> Result<RangeSlice<'g>, NotOrdered> {
    let locked = wanted.table.exclusive(wanted.participant, StripeSet::ALL);
    let stretch = try_read_range(wanted, clock(), budget, fits);
    drop(locked);
    // Each call has moved on, or was the last.
    stretch.map(Option::unwrap_or_default)
}

/// `None`: it met only keys that other threads were entering or removing, and has no key to continue from.
fn try_read_range<'g>(
    wanted: &RangeQuery<'g>,
    now_ms: u64,
    budget: &mut ScanBudget,
    fits: &mut FitPredicate<'_, 'g>,
) -> Result<Option<RangeSlice<'g>>, NotOrdered> {
    let RangeQuery { guard, table, span, limit, .. } = *wanted;
    let (mut left, mut records, mut is_full) = (span, Vec::new(), false);
    loop {
        let mut call = budget.for_next_call();
        // One more than requested, which tells whether there is more.
        let most = limit + 1 - records.len();
        let progress = table.range_within(guard, &mut left, most, now_ms, &mut call, &mut |record| {
            is_full = is_full || records.len() == limit || !fits(records.len(), &record);
            if !is_full {
                records.push(record);
            }
        });
        budget.add(&call);
        if progress? == RangeProgress::Finished && !is_full {
            return Ok(Some(RangeSlice { records, on: None, is_full }));
        }
        if is_full || budget.is_spent() {
            break;
        }
    }
    // A record that did not fit was looked at, and is still to come.
    let on = if is_full { records.last().map(|record| record.key()) } else { read_up_to(&span, &left) };
    if on.is_none() && !is_full {
        return Ok(None);
    }
    // Before the empty key there is nothing.
    let at_start = span.backward && on.is_some_and(<[u8]>::is_empty);
    Ok(Some(RangeSlice { records, on: on.filter(|_| !at_start), is_full }))
}

/// Returns the key up to which a span was looked at; `None` where nothing of it was.
fn read_up_to<'k>(span: &KeyRange<'k>, left: &KeyRange<'k>) -> Option<&'k [u8]> {
    if span.backward {
        left.to.filter(|_| left.to != span.to)
    } else {
        (left.past && !(span.past && left.from == span.from)).then_some(left.from)
    }
}

/// As above with all records as they were at one moment.
///
/// # Errors
/// [`NotOrdered`].
pub fn snapshot_range<'g>(
    wanted: &RangeQuery<'g>,
    budget: &mut ScanBudget,
    fits: &mut FitPredicate<'_, 'g>,
) -> Result<RangeSlice<'g>, NotOrdered> {
    let RangeQuery { participant, table, span, .. } = *wanted;
    // The clock of commits, as for the records of single keys.
    let clock = || participant.epochs().commit_time(wanted.now_ms);
    for _ in 0..SNAPSHOT_TRIES {
        let now_ms = clock();
        let Some(stretch) = try_read_range(wanted, now_ms, budget, fits)? else { continue };
        if stretch.none_fits() {
            // It shows nothing, so there is nothing to look at again.
            return Ok(stretch);
        }
        let rows = stretch.records.iter().map(|record| (record.key(), record.version())).collect();
        let seen = RangeRead { table, span: clip_to(&span, stretch.on), met: MetInRange::Records(rows) };
        if commit_with_ranges(participant, &[], &[seen], &mut [], now_ms).is_ok() {
            return Ok(stretch);
        }
    }
    read_locked(wanted, &clock, budget, fits)
}

/// Returns the part of a span up to and including a key, from the end at which it is read; all of it where there is
/// none.
fn clip_to<'k>(span: &KeyRange<'k>, last: Option<&'k [u8]>) -> KeyRange<'k> {
    match last {
        None => *span,
        Some(last) if span.backward => KeyRange { from: last, past: false, ..*span },
        Some(last) => KeyRange { to: Some(last), included: true, ..*span },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epochs, TableConfig, WriteOptions};

    #[test]
    fn a_span_of_which_nothing_was_looked_at_has_not_moved() {
        for (span, met) in [(KeyRange::new(b"", b"", false), &b""[..]), (KeyRange::new(b"b", b"y", true), b"m")] {
            let mut left = span;
            assert_eq!(read_up_to(&span, &left), None);
            left.advance(met);
            assert_eq!(read_up_to(&span, &left), Some(met));
        }
    }

    #[test]
    fn a_span_is_cut_behind_the_last_key_that_was_read() {
        let (forward, backward) = (KeyRange::new(b"b", b"y", false), KeyRange::new(b"b", b"y", true));
        let cut = clip_to(&forward, Some(b"m"));
        assert_eq!((cut.from, cut.to, cut.included), (&b"b"[..], Some(&b"m"[..]), true));
        let cut = clip_to(&backward, Some(b"m"));
        assert_eq!((cut.from, cut.past, cut.to, cut.included), (&b"m"[..], false, Some(&b"y"[..]), false));
        assert_eq!(clip_to(&forward, None).to, Some(&b"y"[..]));
    }

    fn with_table(test: impl FnOnce(&RecordTable, &Participant)) {
        let epochs = Epochs::new();
        let config = TableConfig { ordered: true, ..TableConfig::default() };
        let table = RecordTable::with_seed(config, std::sync::Arc::clone(&epochs), 1);
        test(&table, &epochs.register());
    }

    fn whole<'g>(participant: &'g Participant, guard: &'g EpochGuard<'g>, table: &'g RecordTable) -> RangeQuery<'g> {
        RangeQuery { participant, guard, table, span: KeyRange::new(b"", b"", false), limit: 10, now_ms: 0 }
    }

    /// Otherwise a commit, for whose locks this waits, may have found a record expired that is live by an earlier
    /// clock.
    #[test]
    fn the_clock_is_read_after_all_other_writers() {
        with_table(|table, participant| {
            let write = WriteOptions { expires_at_ms: 5, ..WriteOptions::default() };
            table.put(participant, table.hash(b"k"), b"k", b"", &write, 0).expect("room");
            let guard = participant.guard();
            let clock = || if table.is_all_locked() { 5 } else { 4 };
            let read =
                read_locked(&whole(participant, &guard, table), &clock, &mut { ScanBudget::CALL }, &mut |_, _| true);
            assert_eq!(read.expect("the table is ordered").records.len(), 0, "it has expired by then");
            assert!(!table.is_all_locked());
        });
    }

    #[test]
    fn where_not_even_the_first_record_fits_nothing_is_tried_again() {
        with_table(|table, participant| {
            for key in [b"k", b"l"] {
                table.put(participant, table.hash(key), key, b"", &WriteOptions::default(), 0).expect("room");
            }
            let guard = participant.guard();
            let (wanted, mut shown) = (whole(participant, &guard, table), 0);
            for (fitting, found) in [(0, 0), (1, 1), (2, 2)] {
                let mut budget = ScanBudget::MESSAGE;
                let mut fits = |index: usize, _: &RecordRef<'_>| {
                    shown += usize::from(index == 0);
                    index < fitting
                };
                let read = snapshot_range(&wanted, &mut budget, &mut fits).expect("the table is ordered");
                assert_eq!((read.records.len(), read.none_fits(), budget.keys()), (found, fitting == 0, 2));
                assert_eq!((read.is_full, read.on.is_some()), (fitting < 2, fitting == 1));
            }
            assert_eq!(shown, 3, "the first record is met once in each");
        });
    }
}
