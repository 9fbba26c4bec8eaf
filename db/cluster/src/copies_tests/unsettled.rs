//! Successors that do not know a table yet as the other servers do.

use super::*;

/// Has a server's requests for checkpoints answered while something is done, which must not panic.
fn with_checkpoints<T>(server: &TestServer, act: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let requests = server.directory.checkpoint_requests();
            while !is_over.load(Ordering::Acquire) {
                requests.pending().into_iter().for_each(|request| requests.serve(request, None));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let done = act();
        is_over.store(true, Ordering::Release);
        done
    })
}

#[test]
fn a_server_takes_no_place_while_it_does_not_know_a_table_by_its_number_in_the_log() {
    let cluster = TestCluster::start();
    let first = &cluster.servers[0];
    // The table gets another number, of which the other servers read, and which does not hold there.
    for durability in [TableDurability::None, TableDurability::Copies] {
        let switch = || eventually(|| first.directory.set_durability("shop", "items", durability).is_ok());
        assert!(with_checkpoints(first, switch));
    }
    let position = first.put(b"apple", b"3");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    let holder = cluster.holder(0).expect("it has a copy");
    let (successor, other) = (&cluster.servers[holder], (1..SERVERS).find(|number| *number != holder).unwrap());
    assert!(eventually(|| successor.directory.log_numbers().is_ok_and(|numbers| !numbers.unsettled.is_empty())));
    cluster.cut_off(0);
    drop(first.threads.lock().take());
    assert!(eventually(|| cluster.servers[other].coordinator.fail_over(&id_of(0), None).is_ok()));
    let part = successor.coordinator.copies_view();
    let says_why = || part.take_notes().iter().any(|note| note.text.contains("the durability of table shop/items"));
    assert!(eventually(|| successor.owns_all() || says_why()));
    assert!(!successor.owns_all(), "without the records, {:?} is there", successor.get(b"apple").0);
    let settle = || eventually(|| successor.directory.settle_durability() == Ok(true));
    assert!(with_checkpoints(successor, settle));
    assert!(eventually(|| successor.owns_all()));
    assert_eq!(successor.get(b"apple").0.as_deref(), Some(&b"3"[..]));
}
