//! Promise: memory of replaced records is bounded, and an innocent tenant does not pay for another's readers. A tenant
//! keeps an invocation in flight that only yields, and could do so for hours. Its neighbour overwrites its own records
//! with more bytes than may wait to be freed. All writes are accepted, and in the end nothing waits.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::alone::ran_alone;
use crate::common::{Stop, Wire, client, data_plane, data_plane_with, eventually, load_with, tenant};
use sandstorm_catalog::NewTable;
use sandstorm_client::PutOptions;
use sandstorm_extension::BudgetOverride;
use sandstorm_net::rpc::{KillCause, Operation, RpcStatus};
use sandstorm_store::WriteOptions;
use sandstorm_store::limits::GARBAGE_MIN_BYTES;

/// Bytes of a value: large ones make most garbage.
const VALUE: usize = 1 << 20;
/// Bytes that the innocent tenant writes.
const WRITTEN: u64 = GARBAGE_MIN_BYTES + (64 << 20);

#[test]
fn an_innocent_writer_is_not_refused_while_others_hold_its_garbage_up() {
    if ran_alone(module_path!(), "an_innocent_writer_is_not_refused_while_others_hold_its_garbage_up") {
        return;
    }
    let plane = data_plane(2);
    let (alice, _) = tenant(&plane, "alice", true);
    let (mallory, _) = tenant(&plane, "mallory", true);
    // A quarter of it is less than the limit.
    let small = NewTable { id: Some(2), quota_bytes: Some(8 << 20), ..NewTable::named("small") };
    plane.directory.create_table("alice", small).expect("a table");
    let small = Arc::clone(&plane.directory.snapshot().by_name("alice").expect("alice").tables[&2]);
    let budget = BudgetOverride { slice_us: Some(1_000_000), total_us: Some(30_000_000), ..BudgetOverride::default() };
    load_with(&plane, "mallory", "bad", 1, budget);
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stopped);
        let yields = scope.spawn(|| {
            let mut wire = Wire::new(&plane, 0, mallory);
            let args = [&1u64.to_le_bytes()[..], b"yields"].concat();
            while !stopped.load(Ordering::SeqCst) {
                let answer = wire.one(Operation::invoke(b"bad", &args));
                let seen = (answer.status, answer.number);
                assert_eq!(seen, (RpcStatus::Killed, KillCause::ReclaimPressure as u64), "{}", answer.text());
                assert!(answer.text().contains("held up memory reclamation"), "{}", answer.text());
            }
        });
        let alice = client(&plane, alice);
        assert!(eventually(|| plane.epochs.stats().pins > 0), "an invocation is under way");
        let (value, mut written) = (vec![7; VALUE], 0);
        // The last invocation ends when there is a reason, too.
        while written < WRITTEN || !yields.is_finished() {
            alice.put(2, b"key", &value, &PutOptions::default()).expect("alice is not refused");
            written += VALUE as u64;
            stopped.store(written >= WRITTEN, Ordering::SeqCst);
        }
    });
    assert_eq!(small.table.stats().held_back, 0);
    assert!(plane.metrics.kills() > 0, "it was mallory's invocations that ended");
    let left = || (plane.epochs.stats().limbo_bytes, small.table.stats().garbage_bytes, plane.epochs.stats().pins);
    assert!(eventually(|| left() == (0, 0, 0)), "{:?}, {:?}", left(), plane.epochs.stats());
}

/// The rest of an emptied or dropped table is freed without any requests: by workers before they sleep, and by the
/// janitor for threads that have gone.
#[test]
fn memory_of_an_emptied_table_is_freed_without_requests() {
    const RECORDS: u32 = 700_000;
    let plane =
        data_plane_with("workers = 2\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\ntable = 't'\n");
    tenant(&plane, "shop", true);
    let entry = Arc::clone(&plane.directory.snapshot().by_name("shop").expect("the tenant").tables[&1]);
    let mut participant = plane.epochs.register();
    let mut fill = || {
        for number in 0..RECORDS {
            let (key, write) = (number.to_le_bytes(), WriteOptions::default());
            entry.table.put(&participant, entry.table.hash(&key), &key, b"value", &write, 1).expect("there is room");
            participant.quiescent();
        }
        // A thread that sleeps delays nothing.
        participant.offline();
    };
    let left = || (plane.epochs.stats().limbo_items, plane.epochs.stats().limbo_bytes);
    fill();
    assert!(eventually(|| left() == (0, 0)), "the array that grew: {:?}", left());
    let mut stream = TcpStream::connect(plane.listening()[0]).expect("a connection");
    stream.write_all(b"FLUSHALL\r\n").expect("sent");
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"+OK\r\n");
    assert!(eventually(|| left() == (0, 0)), "a worker flushed it, and has nothing else to do: {:?}", left());
    fill();
    plane.directory.drop_table("shop", "t").expect("it is there");
    drop(entry);
    assert!(eventually(|| left() == (0, 0)), "nobody's worker dropped it: {:?}", left());
}
