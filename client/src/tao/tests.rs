use proptest::prelude::*;

use super::codec::{self, Count, Fields, More, Place};

proptest! {
    #[test]
    fn fields_come_back_as_they_were(fields: std::collections::BTreeMap<Vec<u8>, Vec<u8>>) {
        let fields = Fields(fields);
        prop_assert_eq!(Fields::from_bytes(&fields.to_bytes()), Some(fields));
    }

    #[test]
    fn no_reply_is_taken_for_another(reply: Vec<u8>) {
        // Whatever is understood says the same again when it is written.
        if let Some(fields) = Fields::from_bytes(&reply) {
            prop_assert!(fields.to_bytes().len() <= reply.len());
        }
        if let Some((edges, more)) = codec::list(&reply) {
            let data: usize = edges.iter().map(|edge| edge.data.len() + 20).sum();
            let tail = match more { None => 0, Some(More::Ids(_)) => 4, Some(More::Behind(..)) => 24 };
            prop_assert_eq!(5 + data + tail, reply.len());
        }
        if let Some(Some(inverse)) = codec::declared(&reply) {
            prop_assert_eq!(reply.len(), inverse.map_or(1, |_| 5));
        }
        prop_assert_eq!(codec::number(&reply).is_some(), reply.len() == 8);
        prop_assert_eq!(codec::yes(&reply).is_some(), reply.len() == 1 && reply[0] < 2);
        prop_assert!(codec::place(&reply).is_none() || reply.len() == 28);
        if let Some(Count::Sharded(shards)) = codec::count(Some(&reply)) {
            prop_assert!(shards > 0);
        }
    }

    #[test]
    fn places_sort_newest_first_then_by_id(a: (u64, u64), b: (u64, u64), list: (u64, u32)) {
        let key = |(time, id2)| codec::list_key(list.0, list.1, time, id2);
        let order = b.0.cmp(&a.0).then(a.1.cmp(&b.1));
        prop_assert_eq!(key(a).cmp(&key(b)), order);
        prop_assert_eq!(codec::place(&key(a)), Some(Place { time: a.0, id2: a.1 }));
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
