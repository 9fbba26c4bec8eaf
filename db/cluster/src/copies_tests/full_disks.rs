//! Servers whose disks have no room for all of a copy.

use super::*;

#[test]
fn a_copy_that_does_not_fit_is_removed_and_the_next_one_waits() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let needed = other_copy(&cluster, &[]);
    let holder = cluster.holder(0).unwrap();
    let other = (1..SERVERS).find(|number| *number != holder).unwrap();
    let copy_store_of = |number: usize| cluster.servers[number].coordinator.copies_view().copy_store().unwrap();
    // More than is sent at once.
    let value = vec![7; 1 << 20];
    let last = (0..8).map(|number: u32| first.put(&number.to_le_bytes(), &value)).collect::<Vec<_>>().pop().unwrap();
    assert!(eventually(|| first.state_of(last) == PositionState::OnDisk));
    // There is room for a new copy, and for the first pieces of it.
    copy_store_of(other).assume_use(600 << 20, 250 << 20);
    copy_store_of(holder).assume_free(0);
    first.put(b"apple", b"4");
    let troubles = || first.coordinator.copies_view().status().copies;
    let is_told =
        |text: &str| troubles().iter().any(|copy| copy.trouble.as_ref().is_some_and(|why| why.contains(text)));
    assert!(eventually(|| is_told("did not fit there: 1; the next one")), "{:?}", troubles());
    let is_removed = || copy_store_of(other).names().iter().all(|(owner, _)| *owner != id_of(0));
    assert!(eventually(is_removed), "what it has left takes no room");
    // Room again: it goes on there once the pause is over.
    copy_store_of(other).assume_free(1 << 40);
    let second = other_copy(&cluster, std::slice::from_ref(&needed));
    assert_eq!(second.0, id_of(other));
    assert!(eventually(|| !is_told("did not fit")));
}
