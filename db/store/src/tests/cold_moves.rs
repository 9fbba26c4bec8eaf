//! Promise: slots of a table larger than memory are copied while it is written to, those of the disk included, to a
//! table that is larger than memory as well. What is copied is as it was left, and what is removed is gone. A test
//! breaks each rule, and sees that it is found.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_net::slots::slot_of;

use super::cold::{ColdTable, cold_table};
use super::scaled;
use crate::broken_rules::{LogRule, break_rule};
use crate::slots::{SlotOwnership, SlotSpan};
use crate::spill::simulated::SpillFault;
use crate::transactions::{KeyChange, commit};
use crate::{RestoredRecord, SlotWalk, StoreCondition, WalkBudget, WriteOptions};

const SPAN: SlotSpan = SlotSpan { first: 0, last: 8_191 };
const QUOTA_BYTES: u64 = 192 << 10;
const FILE_BYTES: u64 = 64 << 20;
const KEYS: u32 = 900;

/// Keys with their values.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A copy of a table's slots to another one.
struct ColdMove {
    source: ColdTable,
    target: ColdTable,
    slots: Arc<SlotOwnership>,
    content: Content,
    random: SmallRng,
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Makes a key at the target be as it is at the source.
fn take(target: &mut ColdTable, key: &[u8], record: Option<&RestoredRecord<'_>>) {
    match record {
        Some(record) => {
            for _ in 0..1_000 {
                if target.table.makes_room_for_arrivals(&target.participant) == Ok(true) {
                    break;
                }
                target.pool.drive(&mut target.participant);
            }
            target.table.take_arrival(&target.participant, record, 1).expect("room");
        }
        None => target.table.take_leaving(&target.participant, key).expect("no log"),
    }
}

impl ColdMove {
    fn start(seed: u64) -> ColdMove {
        let (source, target) = (cold_table(QUOTA_BYTES, FILE_BYTES), cold_table(QUOTA_BYTES, FILE_BYTES));
        let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
        source.table.set_slots(&slots);
        let (content, random) = (Content::new(), SmallRng::seed_from_u64(seed));
        let mut moved = ColdMove { source, target, slots, content, random };
        (0..KEYS).for_each(|number| moved.put(number));
        moved
    }

    fn put(&mut self, number: u32) {
        let (key, value) = (key_of(number), vec![self.random.random(); self.random.random_range(100..1_500)]);
        self.source.put(&key, &value, &WriteOptions::default(), 1).expect("room");
        self.content.insert(key, value);
    }

    /// A client does something.
    fn change(&mut self) {
        let number = self.random.random_range(0..KEYS);
        let (key, table, participant) = (key_of(number), &self.source.table, &self.source.participant);
        let hash = table.hash(&key);
        match self.random.random_range(0..4) {
            0..2 => self.put(number),
            2 => {
                table.delete(participant, hash, &key, StoreCondition::Always, 1).expect("no log");
                self.content.remove(&key);
            }
            _ => {
                let mut changes = [KeyChange { table, hash, key: &key, becomes: None }];
                commit(participant, &[], &mut changes, 1).expect("it reads nothing");
                self.content.remove(&key);
            }
        }
        self.source.participant.quiescent();
        self.source.pool.drive(&mut self.source.participant);
        self.target.pool.drive(&mut self.target.participant);
    }

    /// Copies the next records; returns whether there may be more.
    fn page(&mut self, walk: &mut SlotWalk) -> bool {
        let budget = WalkBudget { records: 64, reads: self.random.random_range(1..4), bytes: 8 << 10 };
        let (source, target, mut bytes) = (&mut self.source, &mut self.target, 0);
        let walked = source.table.walk_slots(&mut source.participant, walk, (budget, &[SPAN]), &mut |record| {
            assert!(SPAN.contains(slot_of(record.key)));
            take(target, record.key, Some(record));
            bytes += record.value.len();
            bytes
        });
        walked.expect("a sound disk");
        !walk.is_over()
    }

    fn changes(&mut self) {
        let (source, target) = (&mut self.source, &mut self.target);
        let keys = source.table.take_copied_keys(5);
        let mut taken = 0;
        let shown = source.table.show_keys(
            &mut source.participant,
            (&keys, WalkBudget { bytes: 5, reads: self.random.random_range(1..4), ..WalkBudget::UNLIMITED }),
            &mut |key, record| {
                take(target, key, record);
                taken += 1;
                taken
            },
        );
        let left = keys.into_iter().skip(shown.expect("a sound disk"));
        source.table.return_copied_keys(&source.participant, left);
    }

    fn copy(&mut self) {
        self.slots.set_copied(Some(SPAN));
        self.source.table.settle_writers(&self.source.participant);
        let mut walk = SlotWalk::default();
        loop {
            match self.random.random_range(0..4) {
                0..2 => self.change(),
                2 => self.changes(),
                _ if !self.page(&mut walk) => break,
                _ => {}
            }
        }
        while self.slots.noted_bytes() > 0 {
            self.changes();
        }
    }

    /// What the target has.
    fn copied(&mut self) -> Content {
        let mut copied = Content::new();
        let all = SlotSpan { first: 0, last: 16_383 };
        let (mut walk, budget) = (SlotWalk::default(), WalkBudget { records: 50, reads: 8, bytes: 1 << 20 });
        let table = Arc::clone(&self.target.table);
        while !walk.is_over() {
            let walked = table.walk_slots(&mut self.target.participant, &mut walk, (budget, &[all]), &mut |record| {
                let again = copied.insert(record.key.to_vec(), record.value.to_vec());
                assert_eq!(again, None, "it is met once");
                0
            });
            walked.expect("a sound disk");
        }
        copied
    }

    fn wanted(&self) -> Content {
        let of_span = self.content.iter().filter(|(key, _)| SPAN.contains(slot_of(key)));
        of_span.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[test]
fn what_is_copied_from_the_disk_while_it_changes_arrives_as_it_was_left() {
    for seed in 0..scaled(12, 1) as u64 {
        let mut moved = ColdMove::start(seed);
        assert!(moved.source.table.spill_stats().is_some_and(|stats| stats.cold_records > 100));
        moved.copy();
        assert_eq!(moved.copied(), moved.wanted(), "seed {seed}");
        let stats = (moved.target.table.stats(), moved.target.table.spill_stats().expect("a file"));
        assert!(stats.0.bytes <= QUOTA_BYTES + QUOTA_BYTES / 4 && stats.1.cold_records > 0, "{stats:?}");

        // The source removes what it has given away, and nothing else.
        let (table, mut walk) = (Arc::clone(&moved.source.table), SlotWalk::default());
        let budget = WalkBudget { records: 64, reads: 2, bytes: 1 << 20 };
        while table.remove_slots(&mut moved.source.participant, &mut walk, (budget, &[SPAN])).expect("a sound disk") {}
        assert_eq!(table.stats().records as usize, moved.content.len() - moved.wanted().len(), "seed {seed}");
    }
}

#[test]
fn each_rule_of_copies_from_the_disk_is_needed() {
    for rule in [LogRule::ColdRemovalsAreCopied, LogRule::ColdReadsAreChecked] {
        let is_found = (0..scaled(60, 1) as u64).any(|seed| {
            break_rule(Some(rule));
            let mut moved = ColdMove::start(seed);
            moved.copy();
            break_rule(None);
            moved.copied() != moved.wanted()
        });
        assert!(is_found || cfg!(miri), "nobody has noticed {rule:?}");
    }
}

#[test]
fn what_the_disk_does_not_read_is_not_copied_as_absent() {
    let mut moved = ColdMove::start(1);
    moved.source.pool.drive(&mut moved.source.participant);
    moved.source.device.set_fault(Some(SpillFault::ReadError));
    let mut walk = SlotWalk::default();
    let budget = WalkBudget { records: 1 << 20, reads: 1 << 20, bytes: 1 << 30 };
    let table = Arc::clone(&moved.source.table);
    let walked = table.walk_slots(&mut moved.source.participant, &mut walk, (budget, &[SPAN]), &mut |_| 0);
    assert!(walked.is_err(), "{walked:?}");
    let keys: Vec<Box<[u8]>> = (0..KEYS).map(|number| key_of(number).into()).collect();
    let mut absent = 0;
    let shown = table.show_keys(&mut moved.source.participant, (&keys, WalkBudget::UNLIMITED), &mut |_, record| {
        absent += usize::from(record.is_none());
        0
    });
    assert!(shown.is_err() && absent == 0, "{shown:?}, {absent} absent");
}

#[test]
fn changed_keys_are_shown_in_parts_of_few_reads() {
    let mut moved = ColdMove::start(3);
    moved.source.pool.drive(&mut moved.source.participant);
    let table = Arc::clone(&moved.source.table);
    let keys: Vec<Box<[u8]>> = (0..KEYS).map(|number| key_of(number).into()).collect();
    let budget = WalkBudget { reads: 3, ..WalkBudget::UNLIMITED };
    let (mut at, mut parts) = (0, 0);
    while at < keys.len() {
        let shown = table.show_keys(&mut moved.source.participant, (&keys[at..], budget), &mut |_, _| 0);
        at += shown.expect("the disk reads");
        parts += 1;
    }
    let cold = table.spill_stats().expect("of mode spill").cold_records as usize;
    assert!(cold > 3 && parts >= cold / 3, "{cold} cold records in {parts} parts");
}

#[test]
fn what_the_disk_does_not_read_for_a_while_is_removed_later() {
    let mut moved = ColdMove::start(2);
    moved.source.pool.drive(&mut moved.source.participant);
    let (table, mut walk) = (Arc::clone(&moved.source.table), SlotWalk::default());
    let budget = WalkBudget { records: 64, reads: 2, bytes: 1 << 20 };
    let mut refused = 0;
    loop {
        // Records in memory were removed before it fails.
        moved.source.device.set_fault((refused == 0).then_some(SpillFault::ReadError));
        match table.remove_slots(&mut moved.source.participant, &mut walk, (budget, &[SPAN])) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => refused += 1,
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(table.stats().records as usize, moved.content.len() - moved.wanted().len());
}
