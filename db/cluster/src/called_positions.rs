//! What a server's log says of its triggers, for the server that takes its place: how far each table's trigger has made
//! its calls, and changes of other servers that are still to be called for.
//!
//! Both are changes of tables that no server has, which all but triggers leave out, also in earlier versions. So they
//! reach the copies of the log with it, in its order: a copy that has a position has what the calls before it did.

use std::collections::{BTreeMap, BTreeSet};

use sandstorm_log::{ChangeKind, LoggedChange};

/// The number, in the log, of the table of all positions: `triggers`. Numbers of tables are random.
pub const CALLED_TABLE: u64 = u64::from_be_bytes(*b"triggers");
/// Bytes of a position's value.
const VALUE_BYTES: usize = 16;

/// How far a trigger has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalledPosition {
    /// The number of its table in the log.
    pub table: u64,
    /// The position up to which all changes are handled.
    pub position: u64,
}

impl CalledPosition {
    /// The bytes by which the log has it.
    pub fn encode(self) -> [u8; VALUE_BYTES] {
        let mut bytes = [0; VALUE_BYTES];
        let (table, position) = bytes.split_at_mut(VALUE_BYTES / 2);
        table.copy_from_slice(&self.table.to_le_bytes());
        position.copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<CalledPosition> {
        let (table, rest) = bytes.split_first_chunk()?;
        let (position, _) = rest.split_first_chunk()?;
        Some(CalledPosition { table: u64::from_le_bytes(*table), position: u64::from_le_bytes(*position) })
    }
}

/// The change of the log that tells a position, of which these are the key and the value: the trigger's serial, and
/// [`CalledPosition::encode`].
pub fn position_change<'a>(key: &'a [u8; 8], value: &'a [u8]) -> LoggedChange<'a> {
    LoggedChange {
        kind: ChangeKind::Put,
        table: CALLED_TABLE,
        version: 0,
        expires_at_ms: 0,
        flags: 0,
        key: key.as_slice(),
        value,
    }
}

/// The number, in the log, of the table of the changes of other servers that are still to be called for by the trigger
/// of that serial, for its table of that number. The same at all servers: a part of the format.
pub fn inherited_table(serial: u64, table: u64) -> u64 {
    // The last steps of SplitMix64: two of these numbers are equal by chance alone.
    let mut mixed = serial ^ table.rotate_left(32);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).max(1)
}

/// The last position of each trigger, by serial, as a log tells them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CalledPositions(BTreeMap<u64, CalledPosition>);

impl CalledPositions {
    /// Notes a change, if it tells a position. Returns whether it does.
    pub(crate) fn note(&mut self, change: &LoggedChange<'_>) -> bool {
        if change.table != CALLED_TABLE {
            return false;
        }
        let serial = change.key.try_into().ok().map(u64::from_le_bytes);
        self.0.extend(serial.zip(CalledPosition::decode(change.value)));
        true
    }

    /// Whether it has those of all of some triggers.
    pub(crate) fn has_all(&self, serials: &BTreeSet<u64>) -> bool {
        serials.iter().all(|serial| self.0.contains_key(serial))
    }

    /// Those of some triggers.
    pub(crate) fn of(&self, serials: &BTreeSet<u64>) -> Vec<(u64, CalledPosition)> {
        self.0.iter().filter(|(serial, _)| serials.contains(serial)).map(|(serial, one)| (*serial, *one)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_position_of_each_trigger_counts_and_anything_else_is_none() {
        let mut known = CalledPositions::default();
        let wanted = BTreeSet::from([7, 9]);
        for (serial, table, position) in [(7_u64, 1, 100), (9, 1, 50), (8, 1, 70), (7, 2, 90)] {
            let value = CalledPosition { table, position }.encode();
            assert!(known.note(&position_change(&serial.to_le_bytes(), &value)));
            assert_eq!(known.has_all(&wanted), serial != 7 || position != 100);
        }
        let found: Vec<_> =
            known.of(&wanted).into_iter().map(|(serial, one)| (serial, one.table, one.position)).collect();
        assert_eq!(found, [(7, 2, 90), (9, 1, 50)]);
        for (key, value) in [(&b"short"[..], &[0; 16][..]), (&[7, 0, 0, 0, 0, 0, 0, 0], &[0; 15])] {
            let change = LoggedChange { key, value, ..position_change(&[0; 8], b"") };
            assert!(known.note(&change), "it is none of a table");
        }
        assert_eq!(known.of(&wanted).len(), 2);
        assert!(!known.note(&LoggedChange { table: 1, ..position_change(&[0; 8], &[0; 16]) }));
        // A format: all servers of a cluster have the same numbers.
        let numbers = [(1, 2), (2, 1), (1, 1), (u64::MAX, 0)].map(|(serial, table)| inherited_table(serial, table));
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 4);
        assert_eq!(numbers[0], inherited_table(1, 2));
    }
}
