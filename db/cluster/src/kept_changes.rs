//! The last changes of a log that is read once: its changes stay in memory until the last one of each key is known. A
//! log with too many changes is read a second time instead.

use std::collections::HashMap;

use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_store::slots::SlotSpan;

use crate::last_changes::LastChanges;

/// What is called with each change of a log.
pub(crate) type ChangeVisit<'a> = dyn FnMut(&LoggedChange<'_>) -> Result<(), String> + 'a;

/// A change, whose key and value are with those of the others.
#[derive(Clone, Copy)]
struct KeptChange {
    /// Its number among the changes of records; 0: it changes no record.
    number: u64,
    kind: ChangeKind,
    table: u64,
    version: u64,
    expires_at_ms: u64,
    flags: u32,
    key_at: usize,
    value_at: usize,
    end: usize,
}

/// Changes in their order.
struct KeptChanges {
    changes: Vec<KeptChange>,
    bytes: Vec<u8>,
    limit: usize,
    is_over: bool,
}

impl KeptChanges {
    /// None, and at most so many bytes of them.
    fn with_limit(limit: usize) -> KeptChanges {
        KeptChanges { changes: Vec::new(), bytes: Vec::new(), limit, is_over: false }
    }

    /// Keeps a change, unless there are too many.
    fn push(&mut self, number: u64, change: &LoggedChange<'_>) {
        let LoggedChange { kind, table, version, expires_at_ms, flags, key, value } = *change;
        let more = size_of::<KeptChange>() + key.len() + value.len();
        let used = self.changes.len() * size_of::<KeptChange>() + self.bytes.len();
        self.is_over |= used + more > self.limit;
        if self.is_over {
            // The log is read a second time.
            (self.changes, self.bytes) = (Vec::new(), Vec::new());
            return;
        }
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let end = self.bytes.len();
        self.changes.push(KeptChange { number, kind, table, version, expires_at_ms, flags, key_at, value_at, end });
    }

    /// The changes with their numbers.
    fn iter(&self) -> impl Iterator<Item = (u64, LoggedChange<'_>)> {
        self.changes.iter().map(|kept| {
            let KeptChange { number, kind, table, version, expires_at_ms, flags, key_at, value_at, end } = *kept;
            let key = self.bytes.get(key_at..value_at).unwrap_or_default();
            let value = self.bytes.get(value_at..end).unwrap_or_default();
            (number, LoggedChange { kind, table, version, expires_at_ms, flags, key, value })
        })
    }
}

/// Whether a change is one of a record, and not of a table.
fn is_of_record(kind: ChangeKind) -> bool {
    match kind {
        ChangeKind::Put | ChangeKind::Arrive | ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => true,
        ChangeKind::MakeTable | ChangeKind::DropTable | ChangeKind::Clear => false,
    }
}

/// Calls `make` with the last change of each key of some slots, and with each change that empties a table, in the order
/// of a log. `read` shows all changes of the log, each time in the same order; `kept_bytes` of them are kept at most.
/// Returns the highest version that each table has given, by the tables' numbers.
///
/// # Errors
/// That of `read` or `make`; or the log had other changes when it was read a second time.
pub(crate) fn read_last_changes(
    spans: &[SlotSpan],
    kept_bytes: usize,
    mut read: impl FnMut(&mut ChangeVisit<'_>) -> Result<(), String>,
    mut make: impl FnMut(&LoggedChange<'_>) -> Result<(), String>,
) -> Result<HashMap<u64, u64>, String> {
    let (mut last, mut kept) = (LastChanges::of_slots(spans), KeptChanges::with_limit(kept_bytes));
    let mut versions: HashMap<u64, u64> = HashMap::new();
    read(&mut |change| {
        let known = versions.entry(change.table).or_default();
        *known = change.version.max(*known);
        if is_of_record(change.kind) {
            if let Some(number) = last.note(change.table, change.key) {
                kept.push(number, change);
            }
        } else if change.kind == ChangeKind::Clear {
            kept.push(0, change);
        }
        Ok(())
    })?;
    last.begin_again();
    if !kept.is_over {
        let mut changes = kept.iter().filter(|(number, change)| {
            change.kind == ChangeKind::Clear || last.is_last_of(change.table, change.key, *number)
        });
        changes.try_for_each(|(_, change)| make(&change))?;
        return Ok(versions);
    }
    read(&mut |change| {
        let is_made =
            change.kind == ChangeKind::Clear || is_of_record(change.kind) && last.is_last(change.table, change.key);
        if is_made { make(change) } else { Ok(()) }
    })?;
    match last.is_whole() {
        true => Ok(versions),
        false => Err("the copy was read twice, and had other changes the second time: is its disk sound?".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use sandstorm_net::slots::SLOTS;

    use super::*;

    #[test]
    fn changes_come_back_as_they_were_and_too_many_are_not_kept() {
        let (key, value) = ([7_u8; 300], [9_u8; 500]);
        let change = |number: u64| LoggedChange {
            kind: if number.is_multiple_of(3) { ChangeKind::Delete } else { ChangeKind::Put },
            table: number % 2,
            version: 1_000 - number,
            expires_at_ms: number * 5,
            flags: number as u32,
            key: &key[..number as usize],
            value: &value[number as usize..],
        };
        let mut kept = KeptChanges::with_limit(1 << 20);
        (0..100).for_each(|number| kept.push(number * 2, &change(number)));
        assert!(!kept.is_over);
        assert_eq!(kept.iter().count(), 100);
        for (at, (number, found)) in kept.iter().enumerate() {
            assert_eq!((number, found), (at as u64 * 2, change(at as u64)));
        }
        let mut few = KeptChanges::with_limit(10_000);
        (0..5).for_each(|number| few.push(number, &change(number)));
        assert!(!few.is_over);
        (5..100).for_each(|number| few.push(number, &change(number)));
        assert!(few.is_over && few.iter().count() == 0);
    }

    /// A change of a log: its kind, table, version, key and value.
    type OwnedChange = (ChangeKind, u64, u64, Vec<u8>, Vec<u8>);

    fn shown(change: &OwnedChange) -> LoggedChange<'_> {
        let (kind, table, version, key, value) = change;
        let (kind, table, version) = (*kind, *table, *version);
        LoggedChange { kind, table, version, expires_at_ms: version * 3, flags: version as u32, key, value }
    }

    fn log(seed: u64) -> Vec<OwnedChange> {
        use ChangeKind::{Arrive, Clear, Delete, DropTable, Expire, Leave, MakeTable, Put};
        let mut random = StdRng::seed_from_u64(seed);
        let kinds = [Put, Put, Put, Arrive, Delete, Expire, Leave, MakeTable, DropTable, Clear];
        let change = |version: u64| {
            let kind = kinds[random.random_range(0..kinds.len())];
            let key = random.random_range(0..100_u32).to_string().into_bytes();
            let value = vec![7; random.random_range(0..50)];
            (kind, random.random_range(0..3), version, key, value)
        };
        (0..2_000).map(change).collect()
    }

    /// The numbers of the changes that are made, how often the log is read, and what is returned.
    fn made(log: &[OwnedChange], spans: &[SlotSpan], kept_bytes: usize) -> (Vec<u64>, u64, HashMap<u64, u64>) {
        let (mut reads, mut found) = (0, Vec::new());
        let read = |visit: &mut ChangeVisit<'_>| {
            reads += 1;
            log.iter().try_for_each(|change| visit(&shown(change)))
        };
        let versions = read_last_changes(spans, kept_bytes, read, |change| {
            assert_eq!(*change, shown(&log[change.version as usize]));
            found.push(change.version);
            Ok(())
        });
        (found, reads, versions.unwrap())
    }

    #[test]
    fn a_log_that_is_read_once_has_the_changes_made_of_one_that_is_read_twice() {
        let some = [SlotSpan { first: 10, last: 9_000 }, SlotSpan { first: 16_000, last: SLOTS - 1 }];
        for (seed, spans) in [(1, &[SlotSpan { first: 0, last: SLOTS - 1 }][..]), (2, &some[..])] {
            let log = log(seed);
            let is_made = |at: usize| {
                let (kind, table, _, key, _) = &log[at];
                let is_again = |later: &OwnedChange| is_of_record(later.0) && (later.1, &later.3) == (*table, key);
                let is_last = is_of_record(*kind) && !log[at + 1..].iter().any(is_again);
                *kind == ChangeKind::Clear || is_last && spans.iter().any(|span| span.has(key))
            };
            let expected: Vec<u64> = (0..log.len()).filter(|at| is_made(*at)).map(|at| at as u64).collect();
            let highest = |table: u64| log.iter().filter(|change| change.1 == table).map(|change| change.2).max();
            let versions: HashMap<u64, u64> = (0..3).map(|table| (table, highest(table).unwrap())).collect();
            assert!(expected.len() > 200);
            for (kept_bytes, reads) in [(1 << 20, 1), (20_000, 2), (0, 2)] {
                assert_eq!(made(&log, spans, kept_bytes), (expected.clone(), reads, versions.clone()), "{kept_bytes}");
            }
        }
    }

    #[test]
    fn what_fails_ends_it_and_a_log_that_is_another_one_the_second_time_is_refused() {
        let (log, all) = (log(3), [SlotSpan { first: 0, last: SLOTS - 1 }]);
        for kept_bytes in [1 << 20, 1_000] {
            let whole = |visit: &mut ChangeVisit<'_>| log.iter().try_for_each(|change| visit(&shown(change)));
            let failed = read_last_changes(&all, kept_bytes, whole, |_| Err("no room".to_owned()));
            assert_eq!(failed, Err("no room".to_owned()));
            let failed = read_last_changes(&all, kept_bytes, |_| Err("no disk".to_owned()), |_| Ok(()));
            assert_eq!(failed, Err("no disk".to_owned()));
        }
        let mut less = log.len();
        let shrinking = |visit: &mut ChangeVisit<'_>| {
            let found = log[..less].iter().try_for_each(|change| visit(&shown(change)));
            less -= 500;
            found
        };
        assert!(read_last_changes(&all, 1_000, shrinking, |_| Ok(())).unwrap_err().contains("read twice"));
    }
}
