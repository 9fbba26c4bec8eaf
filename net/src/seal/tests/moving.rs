//! Tests of clients that change their address.

use super::limits::{PATH_QUEUE_BYTES, PATH_QUEUE_BYTES_TOTAL, PATH_QUEUE_PACKETS};
use super::session_table::{PathQueue, QueuedBytes};
use super::*;

/// A client asks from an address that it has not proven: its session's address, and the probe.
fn send_from(pair: &mut Pair, last: u8) -> (PeerAddr, Vec<u8>) {
    (pair.at, pair.now_us) = (address(last), pair.now_us + 1_000_000);
    let request = pair.seal(b"request");
    let (opened, mut probes) = pair.deliver(&request);
    (opened.expect("a genuine packet").0, probes.remove(0).1)
}

#[test]
fn an_answer_that_has_to_wait_for_the_proof_of_an_address_comes_with_it() {
    let mut pair = Pair::ready();
    pair.talk();
    // At each repeat the client has another port, so none is proven by the time of an answer that is longer than the
    // request.
    for last in 10..40 {
        let (peer, probe) = send_from(&mut pair, last);
        assert!(pair.answer(peer, &[last; 500]).is_empty(), "not more than came from there");
        let (_, proof) = pair.bring(&probe);
        let (_, queued) = pair.deliver(&proof[0].1);
        assert_eq!((queued.len(), queued[0].0), (1, address(last)));
        assert!(pair.bring(&queued[0].1).0.expect("a genuine packet").ends_with(&[last; 500]));
    }
    assert_eq!((pair.server.counters().unproven, pair.server.used_bytes()), (0, 0));
}

#[test]
fn an_answer_that_waits_goes_to_where_the_client_is_by_then_and_once() {
    let mut pair = Pair::ready();
    pair.talk();
    let home = pair.at;
    for last in 10..40 {
        let (peer, _lost) = send_from(&mut pair, last);
        assert!(pair.answer(peer, &[1; 500]).is_empty());
    }
    assert_eq!(pair.server.used_bytes(), 508, "the same answer waits once");
    pair.at = home;
    let request = pair.seal(b"back home");
    let (_, queued) = pair.deliver(&request);
    assert_eq!((queued.len(), queued[0].0, pair.server.used_bytes()), (1, home, 0));
    let (_, nothing) = pair.deliver(&request);
    assert!(nothing.is_empty());
}

#[test]
fn what_waits_for_proofs_is_bounded_and_leaves_with_its_session() {
    let mut pair = Pair::ready();
    pair.talk();
    let (peer, _) = send_from(&mut pair, 10);
    for number in 0..1000u32 {
        let answer = [&number.to_le_bytes()[..], &[0; 1000]].concat();
        assert!(pair.answer(peer, &answer).is_empty());
    }
    assert!(pair.server.used_bytes() > PATH_QUEUE_PACKETS * 1000 && pair.server.used_bytes() <= PATH_QUEUE_BYTES);
    assert_eq!(pair.server.counters().unproven, 1000 - PATH_QUEUE_PACKETS as u64);
    const { assert!(PATH_QUEUE_BYTES_TOTAL > 10 * PATH_QUEUE_BYTES) };
    pair.server.end(peer);
    assert_eq!((pair.server.used_bytes(), pair.server.sessions()), (0, 0));
}

#[test]
fn answers_that_wait_for_one_tenants_clients_leave_room_for_those_of_others() {
    const SESSIONS: usize = 2 * PATH_QUEUE_BYTES_TOTAL / (PATH_QUEUE_PACKETS * 1400);
    let mut in_all = QueuedBytes::default();
    let fill = |tenant: u32, in_all: &mut QueuedBytes| {
        let mut queue = PathQueue::default();
        let packets = (0..PATH_QUEUE_PACKETS as u32).map(|number| [&number.to_le_bytes()[..], &[0; 1396]].concat());
        let waiting = packets.filter(|packet| queue.push(tenant, &[packet], in_all)).count();
        (queue, waiting)
    };
    let mut others: Vec<PathQueue> = (0..SESSIONS).map(|_| fill(TENANT, &mut in_all).0).collect();
    let queued = in_all.all();
    assert!(queued > PATH_QUEUE_BYTES_TOTAL / 2 && queued <= PATH_QUEUE_BYTES_TOTAL * 2 / 3, "{queued}");
    assert_eq!(fill(TENANT, &mut in_all).1, 0, "the tenant has its share");
    let (mut other, waiting) = fill(8, &mut in_all);
    assert_eq!(waiting, PATH_QUEUE_PACKETS, "another one's client that moves has its answers");
    other.take(8, &mut in_all);
    assert_eq!(in_all.all(), queued);
    others.iter_mut().for_each(|queue| drop(queue.take(TENANT, &mut in_all)));
    assert_eq!(in_all.all(), 0);
    assert_eq!(fill(TENANT, &mut in_all).1, PATH_QUEUE_PACKETS);
}
