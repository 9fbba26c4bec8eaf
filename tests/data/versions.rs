//! Promise: a new version replaces the old one without losing a call, and the old one is unmapped after its last call.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::alone::ran_alone;
use crate::common::{Wire, data_plane, get_args, load, tenant};
use sandstorm_net::rpc::{Operation, RpcStatus};

/// Versions pushed while calls run.
const VERSIONS: u64 = 30;

/// Number of mapped libraries of extensions.
fn libraries() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().filter(|line| line.contains("memfd:sandstorm")).count()
}

#[test]
fn calls_go_on_while_versions_change_and_old_libraries_go() {
    if ran_alone(module_path!(), "calls_go_on_while_versions_change_and_old_libraries_go") {
        return;
    }
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let one_library = libraries();
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::put(1, b"k", b"value")).status, RpcStatus::Ok);
    let done = AtomicBool::new(false);
    let (calls, newest) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let (args, mut calls, mut newest) = (get_args(b"k"), 0u64, 0);
            while !done.load(Relaxed) {
                let answer = wire.one(Operation::invoke(b"get", &args));
                assert_eq!((answer.status, answer.text()), (RpcStatus::Ok, "value".into()));
                assert!(answer.number >= newest, "version {} ran after {newest}", answer.number);
                (calls, newest) = (calls + 1, answer.number);
            }
            (calls, newest)
        });
        (2..=VERSIONS).for_each(|version| load(&plane, "alice", "get", version));
        // The last version is called at least once before the caller stops.
        let mut last = Wire::new(&plane, 0, id);
        assert_eq!(last.one(Operation::invoke(b"get", &get_args(b"k"))).number, VERSIONS);
        done.store(true, Relaxed);
        caller.join().expect("no call was lost")
    });
    println!("{calls} calls over {newest} versions");
    assert!(calls > 0 && newest > 1);
    let mut wire = Wire::new(&plane, 0, id);
    let old = Operation { number: 1, ..Operation::invoke(b"get", b"") };
    assert_eq!(wire.one(old).status, RpcStatus::UnknownExtension);
    plane.directory.remove_extension("alice", "get").expect("it was loaded");
    assert_eq!(wire.one(Operation::invoke(b"get", b"")).status, RpcStatus::UnknownExtension);
    assert!(libraries() <= one_library, "{} maps of libraries, {one_library} with one loaded", libraries());
}
