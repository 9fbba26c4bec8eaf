//! Promise: a warmed-up worker allocates nothing from the packet to the answer, for a get or for a call of an extension
//! that gets. (The parts of `net` by themselves: `net/tests/allocations.rs`.)

use std::sync::atomic::Ordering::Relaxed;

use crate::common::alone::ran_alone;
use crate::common::{Wire, data_plane, get_args, load, tenant};
use crate::counting::{ALLOCATIONS, WATCHED};
use sandstorm_net::rpc::{Operation, RpcStatus};

/// The kernel's number of the only worker's thread.
fn worker() -> i32 {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let named = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "worker-0")
    };
    let thread = threads.flatten().find(named).expect("a worker");
    thread.file_name().to_string_lossy().parse().expect("a number")
}

#[test]
fn gets_and_calls_allocate_nothing() {
    if ran_alone(module_path!(), "gets_and_calls_allocate_nothing") {
        return;
    }
    const MESSAGES: usize = 250;
    const ROUNDS: usize = 10;
    // Their answers fit one packet.
    const GETS: usize = 8;
    // Their answers are remembered until the client has them, and fit a buffer that is kept for the next one
    // (`ReplyCacheLimits::reuse_bytes`).
    const CALLS: usize = 3;
    let plane = data_plane(1);
    let (alice, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut wire = Wire::new(&plane, 0, alice);
    assert_eq!(wire.one(Operation::put(1, b"k", &[7; 100])).status, RpcStatus::Ok);
    let args = get_args(b"k");
    let gets = vec![Operation::get(1, b"k"); GETS];
    let calls = vec![Operation::invoke(b"get", &args); CALLS];
    let alone = [Operation::invoke(b"get", &args)];
    let mut request_all = || {
        for _ in 0..MESSAGES {
            for operations in [&gets[..], &calls, &alone] {
                assert!(
                    wire.ask(operations)
                        .iter()
                        .all(|answer| answer.status == RpcStatus::Ok && answer.value == [7; 100])
                );
            }
        }
    };
    request_all();
    // Periodic work may allocate, such as finding the heaviest sender, or the work of a worker that the machine
    // delayed. Work for each request may not, and would show in every round.
    let requests = (MESSAGES * (GETS + CALLS + 1)) as u64;
    let mut counted = Vec::new();
    let is_quiet = |_: usize| {
        ALLOCATIONS.store(0, Relaxed);
        WATCHED.store(worker(), Relaxed);
        request_all();
        WATCHED.store(0, Relaxed);
        counted.push(ALLOCATIONS.load(Relaxed));
        counted.last().is_some_and(|allocations| allocations * 100 < requests)
    };
    assert!((0..ROUNDS).any(is_quiet), "{counted:?} allocations for {requests} requests each");
}
