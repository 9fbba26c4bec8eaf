//! The beginning of a range, in a bounded number of steps; on request as it was at one moment.

use super::{RangeRead, commit_with_ranges};
use crate::limits::{RANGE_CALLS_PER_ANSWER, SNAPSHOT_TRIES};
use crate::store::{Guard, NotOrdered, Participant, Progress, RecordRef, Span, Stripes, Table};

/// The beginning of a range.
#[derive(Debug, Default)]
pub struct Stretch<'g> {
    /// The records.
    pub records: Vec<RecordRef<'g>>,
    /// The key behind which it goes on; `None`: this was all of it.
    pub on: Option<&'g [u8]>,
}

/// Tells of each record, by its place among those of the answer, whether there is room for it.
pub type Fits<'f, 'g> = dyn FnMut(usize, &RecordRef<'g>) -> bool + 'f;

/// Reads up to `limit` records of a range, as long as `fits` says of each that there is room for it. Ends before, too, where it meets
/// expired ones alone for long.
///
/// # Errors
/// [`NotOrdered`].
pub fn read_range<'g>(
    participant: &'g Participant,
    guard: &'g Guard<'_>,
    table: &'g Table,
    span: &Span<'g>,
    limit: usize,
    now_ms: u64,
    fits: &mut Fits<'_, 'g>,
) -> Result<Stretch<'g>, NotOrdered> {
    match attempt(guard, table, span, limit, now_ms, fits)? {
        Some(stretch) => Ok(stretch),
        None => read_locked(participant, guard, table, span, limit, now_ms, fits),
    }
}

/// The same while nobody writes: every key has its record.
fn read_locked<'g>(
    participant: &'g Participant,
    guard: &'g Guard<'_>,
    table: &'g Table,
    span: &Span<'g>,
    limit: usize,
    now_ms: u64,
    fits: &mut Fits<'_, 'g>,
) -> Result<Stretch<'g>, NotOrdered> {
    let held = table.exclusive(participant, Stripes::ALL);
    let stretch = attempt(guard, table, span, limit, now_ms, fits);
    drop(held);
    // Each call has moved on, or was the last.
    stretch.map(Option::unwrap_or_default)
}

/// `None`: it met nothing but keys that others were entering or removing, and there would be nowhere to go on from.
fn attempt<'g>(
    guard: &'g Guard<'_>,
    table: &'g Table,
    span: &Span<'g>,
    limit: usize,
    now_ms: u64,
    fits: &mut Fits<'_, 'g>,
) -> Result<Option<Stretch<'g>>, NotOrdered> {
    let (mut left, mut records, mut is_full) = (*span, Vec::new(), false);
    for _ in 0..RANGE_CALLS_PER_ANSWER {
        // One more than is asked for, which tells whether there is more.
        let progress = table.range(guard, &mut left, limit + 1 - records.len(), now_ms, &mut |record| {
            is_full = is_full || records.len() == limit || !fits(records.len(), &record);
            if !is_full {
                records.push(record);
            }
        })?;
        if progress == Progress::Finished && !is_full {
            return Ok(Some(Stretch { records, on: None }));
        }
        if is_full {
            break;
        }
    }
    // What did not fit was looked at, and is still to come.
    let on = if is_full { records.last().map(|record| record.key()) } else { moved_to(span, &left) };
    if on.is_none() && !is_full {
        return Ok(None);
    }
    // Before the empty key there is nothing.
    let at_start = span.backward && on.is_some_and(<[u8]>::is_empty);
    Ok(Some(Stretch { records, on: on.filter(|_| !at_start) }))
}

/// The key up to which a span was looked at; `None` where nothing of it was.
fn moved_to<'k>(span: &Span<'k>, left: &Span<'k>) -> Option<&'k [u8]> {
    if span.backward {
        left.to.filter(|_| left.to != span.to)
    } else {
        (left.past && !(span.past && left.from == span.from)).then_some(left.from)
    }
}

/// The same with all records as they were at one moment.
///
/// # Errors
/// [`NotOrdered`].
pub fn snapshot_range<'g>(
    participant: &'g Participant,
    guard: &'g Guard<'_>,
    table: &'g Table,
    span: &Span<'g>,
    limit: usize,
    now_ms: u64,
    fits: &mut Fits<'_, 'g>,
) -> Result<Stretch<'g>, NotOrdered> {
    // The clock of commits, as with the records of single keys.
    let clock = || participant.epochs().commit_time(now_ms);
    for _ in 0..SNAPSHOT_TRIES {
        let now_ms = clock();
        let Some(stretch) = attempt(guard, table, span, limit, now_ms, fits)? else { continue };
        let rows = stretch.records.iter().map(|record| (record.key(), record.version())).collect();
        let seen = RangeRead { table, span: up_to(span, stretch.on), rows };
        if commit_with_ranges(participant, &[], &[seen], &mut [], now_ms).is_ok() {
            return Ok(stretch);
        }
    }
    read_locked(participant, guard, table, span, limit, clock(), fits)
}

/// The part of a span up to a key, that included, from the end at which it is read; all of it where there is none.
fn up_to<'k>(span: &Span<'k>, last: Option<&'k [u8]>) -> Span<'k> {
    match last {
        None => *span,
        Some(last) if span.backward => Span { from: last, past: false, ..*span },
        Some(last) => Span { to: Some(last), included: true, ..*span },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_which_nothing_was_looked_at_has_not_moved() {
        for (span, met) in [(Span::new(b"", b"", false), &b""[..]), (Span::new(b"b", b"y", true), b"m")] {
            let mut left = span;
            assert_eq!(moved_to(&span, &left), None);
            left.advance(met);
            assert_eq!(moved_to(&span, &left), Some(met));
        }
    }

    #[test]
    fn a_span_is_cut_behind_the_last_key_that_was_read() {
        let (forward, backward) = (Span::new(b"b", b"y", false), Span::new(b"b", b"y", true));
        let cut = up_to(&forward, Some(b"m"));
        assert_eq!((cut.from, cut.to, cut.included), (&b"b"[..], Some(&b"m"[..]), true));
        let cut = up_to(&backward, Some(b"m"));
        assert_eq!((cut.from, cut.past, cut.to, cut.included), (&b"m"[..], false, Some(&b"y"[..]), false));
        assert_eq!(up_to(&forward, None).to, Some(&b"y"[..]));
    }
}
