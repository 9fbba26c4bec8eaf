//! Promise: an idle worker takes over invocations and packets that a busy neighbour has no time for. Every answer is
//! right, whichever worker computed it.

use std::time::{Duration, Instant};

use crate::common::alone::ran_alone;
use crate::common::{Wire, data_plane, data_plane_with, get_args, load, load_with, tenant};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus, encode_message};

/// Timeout after which stealing counts as broken. It happens within milliseconds; this is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

fn counter(plane: &DataPlane, name: &str) -> u64 {
    plane.metrics.read().iter().find(|reading| reading.metric.name == name).expect("a metric").values.iter().sum()
}

/// Sends one message of these operations without waiting.
fn send(wire: &mut Wire, operations: &[Operation<'_>]) {
    let header = wire.header(operations.len());
    let mut message = Vec::new();
    encode_message(&header, operations, &mut message);
    wire.send(header.sequence as u16, &message);
}

#[test]
fn an_idle_worker_takes_over_invocations_and_packets() {
    if ran_alone(module_path!(), "an_idle_worker_takes_over_invocations_and_packets") {
        return;
    }
    let plane = data_plane(2);
    let (alice, _) = tenant(&plane, "alice", true);
    let (mallory, _) = tenant(&plane, "mallory", true);
    load(&plane, "alice", "get", 1);
    // Long enough that packets pile up behind one.
    let budget = BudgetOverride { slice_us: Some(5_000), total_us: Some(6_000), ..BudgetOverride::default() };
    load_with(&plane, "mallory", "bad", 1, budget);
    // All requests go to the first worker.
    let (mut good, mut bad) = (Wire::new(&plane, 0, alice), Wire::new(&plane, 0, mallory));
    assert_eq!(good.one(Operation::put(1, b"k", b"value")).status, RpcStatus::Ok);
    let begun = Instant::now();
    let (endless, args) = ([&1u64.to_le_bytes()[..], b"loop"].concat(), get_args(b"k"));
    let mut rounds = 0;
    while counter(&plane, "steals") == 0 || counter(&plane, "packet_steals") == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing was stolen in {rounds} rounds");
        rounds += 1;
        send(&mut bad, &vec![Operation::invoke(b"bad", &endless); 4]);
        for _ in 0..10 {
            let calls = [Operation::invoke(b"get", &args), Operation::increment(1, b"n", 1), Operation::get(1, b"k")];
            send(&mut good, &calls);
        }
        for _ in 0..10 {
            let (_, _, answers) = good.receive();
            assert_eq!((answers[0].status, answers[0].text()), (RpcStatus::Ok, "value".into()));
            assert_eq!((answers[2].status, answers[2].text()), (RpcStatus::Ok, "value".into()));
        }
        let (_, _, answers) = bad.receive();
        assert!(answers.iter().all(|answer| answer.status == RpcStatus::Killed), "{answers:?}");
    }
    assert_eq!(good.one(Operation::increment(1, b"n", 0)).number, rounds * 10, "every increment ran once");
}

#[test]
fn without_stealing_all_work_stays_where_it_came() {
    if ran_alone(module_path!(), "without_stealing_all_work_stays_where_it_came") {
        return;
    }
    let plane = data_plane_with("workers = 2\npin = false\nsteal = false\n");
    let (alice, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut wire = Wire::new(&plane, 0, alice);
    assert_eq!(wire.one(Operation::put(1, b"k", b"value")).status, RpcStatus::Ok);
    let args = get_args(b"k");
    for _ in 0..20 {
        // Together enough that a neighbour is offered some.
        for _ in 0..8 {
            send(&mut wire, &vec![Operation::invoke(b"get", &args); 10]);
        }
        for _ in 0..8 {
            let (_, _, answers) = wire.receive();
            assert!(answers.len() == 10 && answers.iter().all(|answer| answer.text() == "value"), "{answers:?}");
        }
    }
    assert_eq!((counter(&plane, "steals"), counter(&plane, "packet_steals")), (0, 0));
}
