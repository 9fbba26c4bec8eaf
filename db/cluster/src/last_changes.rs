//! Finds the last change of each key in a log that is read twice in the same order.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use sandstorm_net::slots::{SLOTS, slot_of};
use sandstorm_store::slots::SlotSpan;

use crate::limits::LAST_CHANGES;

/// The last changes of the keys of some slots. The first time that the log is read, each change of a record is noted;
/// the second time it is asked of each, in the same order, whether it is the last one of its key.
///
/// A key is known by two hashes of 64 bits each, whose keys are drawn anew: that two of a log's keys have the same
/// ones does not happen, by chance or on purpose.
pub(crate) struct LastChanges {
    is_wanted: Box<[bool]>,
    hashers: [RandomState; 2],
    last: HashMap<[u64; 2], u64>,
    number: u64,
    noted: u64,
    limit: usize,
}

impl LastChanges {
    pub(crate) fn of_slots(spans: &[SlotSpan]) -> LastChanges {
        let mut is_wanted = vec![false; usize::from(SLOTS)].into_boxed_slice();
        for span in spans {
            is_wanted[usize::from(span.first)..=usize::from(span.last)].fill(true);
        }
        let hashers = [RandomState::new(), RandomState::new()];
        LastChanges { is_wanted, hashers, last: HashMap::new(), number: 0, noted: 0, limit: LAST_CHANGES }
    }

    fn hashes(&self, table: u64, key: &[u8]) -> [u64; 2] {
        [0, 1].map(|at| self.hashers[at].hash_one((table, key)))
    }

    /// Notes a change. Returns its number, if it is of one of the slots.
    pub(crate) fn note(&mut self, table: u64, key: &[u8]) -> Option<u64> {
        self.number += 1;
        if !self.is_wanted[usize::from(slot_of(key))] {
            return None;
        }
        let (hashes, number, has_room) = (self.hashes(table, key), self.number, self.last.len() < self.limit);
        match self.last.get_mut(&hashes) {
            Some(last) => *last = number,
            None if has_room => drop(self.last.insert(hashes, number)),
            // All its changes are made, in their order: it comes to the same.
            None => {}
        }
        Some(number)
    }

    /// Whether the change of one of the slots that had this number is the last one of its key, or that is not known.
    pub(crate) fn is_last_of(&self, table: u64, key: &[u8], number: u64) -> bool {
        self.last.get(&self.hashes(table, key)).is_none_or(|last| *last == number)
    }

    /// All are noted: the log is read once more.
    pub(crate) fn begin_again(&mut self) {
        self.noted = std::mem::take(&mut self.number);
    }

    /// Whether the log had as many changes the second time: with fewer, earlier changes of a key were left out for a
    /// last one that never came.
    pub(crate) fn is_whole(&self) -> bool {
        self.number == self.noted
    }

    /// Whether a change is of one of the slots, and has to be made: it is the last one of its key, or that is not
    /// known, as there are too many keys.
    pub(crate) fn is_last(&mut self, table: u64, key: &[u8]) -> bool {
        self.number += 1;
        self.is_wanted[usize::from(slot_of(key))] && self.is_last_of(table, key, self.number)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const ALL: SlotSpan = SlotSpan { first: 0, last: SLOTS - 1 };

    /// Changes, and the numbers of those that are made.
    fn made(changes: &[(u64, Vec<u8>)], spans: &[SlotSpan], limit: usize) -> Vec<usize> {
        let mut last = LastChanges { limit, ..LastChanges::of_slots(spans) };
        let numbers: Vec<Option<u64>> = changes.iter().map(|(table, key)| last.note(*table, key)).collect();
        last.begin_again();
        let mut found = Vec::new();
        for (number, (table, key)) in changes.iter().enumerate() {
            assert!(!last.is_whole(), "not before all have come again");
            // The changes kept since the first reading are the same ones.
            let is_last = numbers[number].is_some_and(|number| last.is_last_of(*table, key, number));
            assert_eq!(last.is_last(*table, key), is_last);
            if is_last {
                found.push(number);
            }
        }
        assert!(last.is_whole());
        found
    }

    #[test]
    fn the_last_change_of_each_key_is_made_and_of_these_slots_alone() {
        let mut random = StdRng::seed_from_u64(1);
        let changes: Vec<(u64, Vec<u8>)> = (0..10_000)
            .map(|_| (random.random_range(0..3), random.random_range(0..500_u32).to_string().into_bytes()))
            .collect();
        for spans in [&[ALL][..], &[SlotSpan { first: 10, last: 9_000 }, SlotSpan { first: 16_000, last: SLOTS - 1 }]] {
            let has = |key: &[u8]| spans.iter().any(|span| span.has(key));
            let is_last = |number: &usize| {
                let change = &changes[*number];
                has(&change.1) && !changes[number + 1..].contains(change)
            };
            let expected: Vec<usize> = (0..changes.len()).filter(is_last).collect();
            assert!(expected.len() < 1_501);
            assert_eq!(made(&changes, spans, LAST_CHANGES), expected);
            // With room for few keys more changes are made, and the last ones of all keys among them.
            let more = made(&changes, spans, 100);
            assert!(more.len() > expected.len() && expected.iter().all(|number| more.contains(number)));
        }
    }
}
