use proptest::prelude::*;

use bytes::Bytes;

use super::codec::{self, Fields, ListContinuation, ListCount, ListPosition};
use super::reads::reconcile;
use super::{Assoc, EdgeCollector};

proptest! {
    #[test]
    fn fields_come_back_as_they_were(fields: std::collections::BTreeMap<Vec<u8>, Vec<u8>>) {
        let fields = Fields(fields);
        prop_assert_eq!(Fields::from_bytes(&fields.to_bytes()), Some(fields));
    }

    #[test]
    fn no_reply_is_taken_for_another(reply: Vec<u8>) {
        // Any reply that can be read is the same when it is written again.
        if let Some(fields) = Fields::from_bytes(&reply) {
            prop_assert!(fields.to_bytes().len() <= reply.len());
        }
        if let Some((edges, more)) = codec::decode_list(&reply) {
            let data: usize = edges.iter().map(|edge| edge.data.len() + 20).sum();
            let tail = match more { None => 0, Some(ListContinuation::Ids(_)) => 4, Some(ListContinuation::After(..)) => 24 };
            prop_assert_eq!(5 + data + tail, reply.len());
        }
        if let Some(Some(inverse)) = codec::decode_type(&reply) {
            prop_assert_eq!(reply.len(), inverse.map_or(1, |_| 5));
        }
        prop_assert_eq!(codec::decode_number(&reply).is_some(), reply.len() == 8);
        prop_assert_eq!(codec::decode_bool(&reply).is_some(), reply.len() == 1 && reply[0] < 2);
        prop_assert!(codec::decode_list_key(&reply).is_none() || reply.len() == 28);
        if let Some(ListCount::Sharded(shards)) = codec::decode_count(Some(&reply)) {
            prop_assert!(shards > 0);
        }
    }

    #[test]
    fn positions_sort_newest_first_then_by_id(a: (u64, u64), b: (u64, u64), list: (u64, u32)) {
        let key = |(time, id2)| codec::list_key(list.0, list.1, time, id2);
        let order = b.0.cmp(&a.0).then(a.1.cmp(&b.1));
        prop_assert_eq!(key(a).cmp(&key(b)), order);
        prop_assert_eq!(codec::decode_list_key(&key(a)), Some(ListPosition { time: a.0, id2: a.1 }));
        let next_list = codec::list_key(list.0, list.1.wrapping_add(1), u64::MAX, 0);
        prop_assert!(list.1 == u32::MAX || key(a) < next_list, "lists do not mix");
    }
}

#[test]
fn fields_that_are_too_many_or_too_long_are_written_so_that_they_are_refused() {
    let many: Fields = (0..70_000_u32).map(|name| (name.to_be_bytes(), "")).collect();
    assert_eq!(Fields::from_bytes(&many.to_bytes()), None);
    let long = Fields::from([(vec![b'x'; 256], "")]);
    assert_eq!(long.to_bytes()[2], 0, "no length of a name");
    assert_eq!(Fields::from([("a", "1")]).get("a"), Some(&b"1"[..]));
}

fn edge(id2: u64, time: u64) -> Assoc {
    Assoc { id2, time, data: Bytes::new() }
}

/// A reply to a query of a list.
fn reply(edges: &[(u64, u64)], more: Option<(u64, ListPosition)>) -> Bytes {
    let mut bytes = vec![u8::from(more.is_some())];
    bytes.extend_from_slice(&(edges.len() as u32).to_le_bytes());
    for (id2, time) in edges {
        bytes.extend([id2.to_le_bytes(), time.to_le_bytes()].concat());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
    }
    if let Some((pos, position)) = more {
        bytes.extend([pos, position.time, position.id2].map(u64::to_le_bytes).concat());
    }
    bytes.into()
}

#[test]
fn an_edge_moved_behind_the_last_position_of_a_page_is_not_in_it() {
    // Edge 5 was at time 90 when its position was read.
    let found =
        || [edge(1, 100), edge(5, 10), edge(3, 80), edge(2, 80), edge(7, 80), edge(1, 100), edge(8, 85)].to_vec();
    let all = [edge(1, 100), edge(8, 85), edge(2, 80), edge(3, 80), edge(7, 80), edge(5, 10)];
    assert_eq!(reconcile(found(), (u64::MAX, 0), None), all, "the list ends there: it may have moved to its end");
    assert_eq!(reconcile(found(), (u64::MAX, 0), Some(&ListPosition { time: 80, id2: 7 })), all[..5]);
    assert_eq!(reconcile(found(), (u64::MAX, 0), Some(&ListPosition { time: 80, id2: 3 })), all[..4]);
    assert_eq!(reconcile(found(), (90, 80), Some(&ListPosition { time: 80, id2: 7 })), all[1..5]);
}

#[test]
fn positions_have_the_order_of_their_keys() {
    let mut positions: Vec<_> = (0..30).map(|n| ListPosition { time: n % 4, id2: n * 7 % 10 }).collect();
    positions.sort();
    assert!(positions.is_sorted_by_key(|position| codec::list_key(1, 1, position.time, position.id2)));
}

#[test]
fn an_edge_that_moves_between_two_replies_comes_once_and_leaves_room_for_another() {
    let mut gathered = EdgeCollector::default();
    let behind = ListPosition { time: 80, id2: 2 };
    let more = gathered.add(&reply(&[(1, 100), (2, 80)], Some((0, behind))), 5);
    assert_eq!(more, Some(Some(ListContinuation::After(0, behind))));
    // Edge 1 was moved behind the edges that came: as many as were asked for are there, but one too few are new.
    let more = gathered.add(&reply(&[(3, 70), (1, 60), (4, 50)], None), 3);
    assert_eq!(more, Some(Some(ListContinuation::After(0, ListPosition { time: 50, id2: 4 }))));
    assert_eq!(gathered.add(&reply(&[(4, 40), (5, 30)], Some((0, ListPosition { time: 30, id2: 5 }))), 1), {
        Some(Some(ListContinuation::After(0, ListPosition { time: 30, id2: 5 })))
    });
    // It has fewer than were asked for, so it is the list's end.
    assert_eq!(gathered.add(&reply(&[(5, 20)], None), 2), Some(None));
    assert_eq!(gathered.found, [edge(1, 100), edge(2, 80), edge(3, 70), edge(4, 50), edge(5, 30)]);
    assert_eq!(gathered.add(&Bytes::from_static(b"no reply"), 1), None);
}
