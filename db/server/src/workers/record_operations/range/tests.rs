use std::sync::Arc;

use sandstorm_net::rpc::{MAX_OPERATIONS, MessageHeader, RangeEntries};

use super::*;
use crate::workers::record_operations::operation_context::RangeWork;
use crate::workers::response_assembly::start_response;
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::limits::{
    RANGE_CALL_KEY_BYTES, RANGE_KEY_BYTES_BEYOND, RANGE_KEY_BYTES_PER_MESSAGE, RANGE_KEY_BYTES_PER_REQUEST,
    RANGE_KEYS_PER_CALL, RANGE_KEYS_PER_MESSAGE, RANGE_MIN_KEYS,
};
use sandstorm_store::{Epochs, Participant, TableConfig, WriteOptions};

const NOW_MS: u64 = 10;

/// An ordered table, and a client of it.
struct World {
    table: RecordTable,
    participant: Participant,
    metrics: Arc<ServerMetrics>,
}

/// One answer: the number of records, and the key behind which it continues.
#[derive(Debug, PartialEq, Eq)]
struct Answered {
    status: RpcStatus,
    found: usize,
    on: Option<Vec<u8>>,
}

impl World {
    fn new() -> World {
        let epochs = Epochs::new();
        let config = TableConfig { ordered: true, ..TableConfig::default() };
        let table = RecordTable::with_seed(config, Arc::clone(&epochs), 1);
        World { table, participant: epochs.register(), metrics: ServerMetrics::new(1) }
    }

    fn put(&self, key: &[u8], value: &[u8], expires_at_ms: u64) {
        let write = WriteOptions { expires_at_ms, ..WriteOptions::default() };
        self.table.put(&self.participant, self.table.hash(key), key, value, &write, 0).expect("there is room");
    }

    /// One range of a message.
    fn run_one(&self, ranges: &RangeWork, operation: &Operation<'_>) -> Answered {
        let counters = self.metrics.worker(0).expect("a worker");
        let context =
            OperationContext { participant: &self.participant, now_ms: NOW_MS, counters, ranges, packet: None };
        let mut response = Vec::new();
        let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 1, sequence: 1, acked: 0 };
        start_response(&header, 1, &mut response);
        let status = run(&context, &self.table, operation, &mut response);
        let (_, mut answers) = MessageHeader::decode(&response).expect("a message");
        let answer = answers.next().expect("an answer").expect("a whole one");
        assert_eq!(status, answer.status);
        // An error has a text in their place.
        let rows: &[u8] = if status == RpcStatus::Ok { answer.value } else { b"" };
        let rows: Vec<_> = RangeEntries::new(rows).map(|row| row.expect("a whole row").key.to_vec()).collect();
        let more = answer.number & RANGE_MORE != 0;
        assert!(status != RpcStatus::Ok || answer.number & !RANGE_MORE == rows.len() as u64);
        assert!(answer.key.is_empty() || more && rows.is_empty(), "a key says where to go on where no record does");
        let on = more.then(|| rows.last().cloned().unwrap_or_else(|| answer.key.to_vec()));
        Answered { status, found: rows.len(), on }
    }
}

fn at_once(operation: Operation<'_>, at_once: bool) -> Operation<'_> {
    Operation { flags: if at_once { OP_FLAG_SNAPSHOT } else { 0 }, ..operation }
}

#[test]
fn the_ranges_of_one_message_look_at_so_many_keys_together_however_many_have_expired() {
    let expired = 3 * RANGE_KEYS_PER_MESSAGE as u32;
    for backward in [false, true] {
        let world = World::new();
        (0..expired).for_each(|number| world.put(&number.to_be_bytes(), b"", 1));
        let ranges = RangeWork::new();
        for number in 0..MAX_OPERATIONS {
            let answered = world.run_one(&ranges, &Operation::range(1, b"", b"", 1, backward));
            // No record, but there may be more: the answer has the position, which is further on.
            assert!(answered.found == 0 && answered.on.is_some_and(|on| on.len() == 4), "range {number}");
        }
        let keys = ranges.scan_budget.get().keys();
        let most = RANGE_KEYS_PER_MESSAGE + RANGE_KEYS_PER_CALL + MAX_OPERATIONS * RANGE_MIN_KEYS;
        assert!((RANGE_KEYS_PER_MESSAGE..=most).contains(&keys), "{keys} looks");
        // Admission has counted each range as the records that it may return, and each has one more look.
        assert!(
            keys - ranges.deferred_requests() as usize <= 2 * MAX_OPERATIONS,
            "{keys} looks, {} billed",
            ranges.deferred_requests()
        );
    }
}

#[test]
fn who_asks_on_in_one_message_or_in_several_comes_to_the_end_of_what_has_expired() {
    let expired = 2 * RANGE_KEYS_PER_MESSAGE as u32;
    for (each_alone, backward, snapshot) in
        [(true, false, false), (true, true, false), (false, false, false), (false, true, false), (true, false, true)]
    {
        let world = World::new();
        (0..expired).for_each(|number| world.put(&number.to_be_bytes(), b"", 1));
        // The last one that is met has not.
        world.put(if backward { b"\0" } else { b"\xff" }, b"there", 0);
        let (mut from, mut to, mut ranges, mut answers) = (Vec::new(), Vec::new(), RangeWork::new(), 0);
        loop {
            let operation = at_once(Operation::range(1, &from, &to, 10, backward), snapshot);
            let answered = world.run_one(&ranges, &operation);
            answers += 1;
            let Some(on) = answered.on else {
                assert_eq!(answered.found, 1);
                break;
            };
            assert_eq!(answered.found, 0);
            if backward {
                to = on
            } else {
                from = [&on[..], &[0]].concat()
            }
            if each_alone {
                ranges = RangeWork::new();
            }
        }
        let least = if each_alone { 3 } else { RANGE_KEYS_PER_MESSAGE / RANGE_MIN_KEYS };
        assert!(answers >= least && answers <= expired as usize, "{answers} answers");
    }
}

#[test]
fn the_ranges_of_one_message_go_through_so_many_bytes_of_keys_together() {
    const RANGES: usize = 16;
    const KEY: usize = 63 << 10;
    let world = World::new();
    for number in 0..128 {
        world.put(&[&[number][..], &vec![0; KEY - 1]].concat(), b"", 1);
    }
    let ranges = RangeWork::new();
    for _ in 0..RANGES {
        let answered = world.run_one(&ranges, &Operation::range(1, b"", b"", 1, false));
        assert!(answered.found == 0 && answered.on.is_some_and(|on| on.len() == KEY));
    }
    // One key more than are counted for the message, and one for each further range.
    let most = RANGE_KEY_BYTES_PER_MESSAGE + RANGE_CALL_KEY_BYTES + RANGES * KEY;
    let (requests, deferred_requests) = (ranges.scan_budget.get().requests(), ranges.deferred_requests() as usize);
    assert!(requests <= RANGES * 3 + most / RANGE_KEY_BYTES_PER_REQUEST, "{requests}");
    assert!(
        deferred_requests + 2 * RANGES >= requests
            && deferred_requests * RANGE_KEY_BYTES_PER_REQUEST >= RANGE_KEY_BYTES_PER_MESSAGE
    );
}

#[test]
fn ranges_that_each_meet_a_long_key_have_an_end_in_one_message() {
    const KEY: usize = 64 << 10;
    let world = World::new();
    for number in 0..64 {
        world.put(&[&[number][..], &vec![0; KEY - 1]].concat(), b"", 1);
    }
    world.put(b"\xff", b"v", 0);
    let ranges = RangeWork::new();
    let run_one = |from: &[u8]| world.run_one(&ranges, &Operation::range(1, from, b"", 1, false)).status;
    let statuses: Vec<_> = (0..MAX_OPERATIONS).map(|_| run_one(b"")).collect();
    let answered = statuses.iter().take_while(|status| **status == RpcStatus::Ok).count();
    assert!(answered >= RANGE_KEY_BYTES_BEYOND / KEY, "{answered} ranges");
    assert!(statuses[answered..].iter().all(|status| *status == RpcStatus::TooLarge) && answered < 32, "{answered}");
    assert_eq!(run_one(b"\xff"), RpcStatus::TooLarge, "whatever it would meet");
    let most = RANGE_KEY_BYTES_PER_MESSAGE + RANGE_KEY_BYTES_BEYOND + 2 * RANGE_CALL_KEY_BYTES;
    assert!(ranges.scan_budget.get().requests() <= 2_100 + most / RANGE_KEY_BYTES_PER_REQUEST);
}

#[test]
fn a_range_over_live_records_owes_no_more_than_for_the_bytes_of_its_keys() {
    let world = World::new();
    (0..2_000_u32).for_each(|number| world.put(&number.to_be_bytes(), b"v", 0));
    let ranges = RangeWork::new();
    for (limit, snapshot) in [(900, false), (80, true), (10, false), (10, true)] {
        let answered = world.run_one(&ranges, &at_once(Operation::range(1, b"", b"", limit, false), snapshot));
        assert_eq!((answered.status, answered.found), (RpcStatus::Ok, limit as usize));
    }
    assert!(
        ranges.deferred_requests() as usize <= 1_004 * 4 / RANGE_KEY_BYTES_PER_REQUEST,
        "{}",
        ranges.deferred_requests()
    );
}

#[test]
fn a_range_whose_first_record_does_not_fit_is_refused_and_no_other() {
    let world = World::new();
    world.put(b"k", &vec![0; 8 << 20], 0);
    let counters = world.metrics.worker(0).expect("a worker");
    let ranges = RangeWork::new();
    let context =
        OperationContext { participant: &world.participant, now_ms: NOW_MS, counters, ranges: &ranges, packet: None };
    for snapshot in [false, true] {
        let operation = at_once(Operation::range(1, b"", b"", 10, false), snapshot);
        let mut response = vec![0; 200 << 10];
        assert_eq!(run(&context, &world.table, &operation, &mut response), RpcStatus::TooLarge);
        let elsewhere = Operation { key: b"l", ..operation };
        assert_eq!(run(&context, &world.table, &elsewhere, &mut response), RpcStatus::Ok);
    }
}
