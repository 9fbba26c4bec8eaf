//! The extension against a model of the interface, over the test store; what it is sent is what the client's codec
//! writes.

#[path = "../../../client/src/tao/codec.rs"]
#[allow(dead_code)]
mod codec;
#[path = "../../../tests/social_graph/tao/model.rs"]
mod model;

use codec::{ListContinuation, Tables};
use model::{Answer, ENDS, Edge, Graph, Model, Op, Random, TYPES};
use sandstorm_api::testing::TestStore;
use sandstorm_api::{Error, ErrorKind};
use std::cell::Cell;
use std::rc::Rc;

struct Store {
    store: TestStore,
    tables: Tables,
}

impl Store {
    fn new() -> Store {
        let mut store = TestStore::new();
        let tables = Tables { objects: store.table("tao").0, lists: store.ordered_table("tao_lists").0 };
        Store { store, tables }
    }

    fn call(&mut self, args: &[u8]) -> Result<Vec<u8>, Error> {
        self.store.invoke(ext_tao::run, args)
    }

    fn declare(&mut self) -> Model {
        let mut model = Model::default();
        for op in model::declarations() {
            let answer = self.run(&op);
            model.check(&op, &answer);
        }
        model
    }

    /// Asks on until there is no more: `args` from behind a place, for so many edges.
    fn whole(
        &mut self,
        limit: u32,
        mut pos: u64,
        args: impl Fn(&Tables, u64, u32, Option<codec::ListPosition>) -> Vec<u8>,
    ) -> Result<Vec<Edge>, Error> {
        let (mut edges, mut after, limit) = (Vec::new(), None, limit.min(codec::LIMIT));
        loop {
            let reply = self.call(&args(&self.tables, pos, limit - edges.len() as u32, after))?;
            let (some, more) = codec::decode_list(&reply).expect("a list");
            edges.extend(some.into_iter().map(|edge| (edge.id2, edge.time, edge.data.to_vec())));
            match more {
                None => return Ok(edges),
                Some(ListContinuation::After(left, place)) => (pos, after) = (left, Some(place)),
                Some(ListContinuation::Ids(_)) => panic!("of another query"),
            }
        }
    }

    fn some(&mut self, (id1, atype): (u64, u32), mut ids: &[u64], (high, low): (u64, u64)) -> Result<Vec<Edge>, Error> {
        let mut edges = Vec::new();
        loop {
            let reply = self.call(&codec::assoc_get(&self.tables, id1, atype, ids, high, low))?;
            let (some, more) = codec::decode_list(&reply).expect("a list");
            edges.extend(some.into_iter().map(|edge| (edge.id2, edge.time, edge.data.to_vec())));
            match more {
                None => break,
                Some(ListContinuation::Ids(done)) => ids = &ids[done as usize..],
                Some(ListContinuation::After(..)) => panic!("of another query"),
            }
        }
        edges.sort_by_key(|(id2, time, _)| (std::cmp::Reverse(*time), *id2));
        Ok(edges)
    }

    fn answer(&mut self, op: &Op) -> Result<Answer, Error> {
        let tables = self.tables;
        let fields = |fields: &model::Fields| codec::Fields(fields.clone());
        let args = match op {
            Op::AssocRange { id1, atype, pos, limit } => {
                let args =
                    |tables: &Tables, pos, limit, after| codec::assoc_range(tables, *id1, *atype, pos, limit, after);
                return self.whole(*limit, *pos, args).map(Answer::List);
            }
            Op::AssocTimeRange { id1, atype, high, low, limit } => {
                let args = |tables: &Tables, _, limit, after| {
                    codec::assoc_time_range(tables, *id1, *atype, (*high, *low), limit, after)
                };
                return self.whole(*limit, 0, args).map(Answer::List);
            }
            Op::AssocGet { id1, atype, id2set, high, low } => {
                let times = (high.unwrap_or(u64::MAX), low.unwrap_or(0));
                return self.some((*id1, *atype), id2set, times).map(Answer::List);
            }
            Op::ObjAdd { otype, fields: given } => codec::obj_add(&tables, *otype, &fields(given)),
            Op::ObjGet { id } => codec::obj_get(&tables, *id),
            Op::ObjUpdate { id, set, remove } => {
                let names: Vec<&[u8]> = remove.iter().map(Vec::as_slice).collect();
                codec::obj_update(&tables, *id, &fields(set), &names)
            }
            Op::ObjDelete { id } => codec::obj_delete(&tables, *id),
            Op::AssocAdd { id1, atype, id2, time, data } => codec::assoc_add(&tables, *id1, *atype, *id2, *time, data),
            Op::AssocDelete { id1, atype, id2 } => codec::assoc_delete(&tables, *id1, *atype, *id2),
            Op::AssocChangeType { id1, atype, id2, newtype } => {
                codec::assoc_change_type(&tables, *id1, *atype, *id2, *newtype)
            }
            Op::AssocCount { id1, atype } => codec::assoc_count(&tables, *id1, *atype),
            Op::AssocType { atype, inverse } => codec::assoc_type(&tables, *atype, *inverse),
            Op::AssocTypeGet { atype } => codec::assoc_type_get(&tables, *atype),
        };
        let reply = self.call(&args)?;
        Ok(match op {
            Op::ObjAdd { .. } => Answer::Id(codec::decode_number(&reply).expect("an id")),
            Op::ObjGet { .. } if reply.is_empty() => Answer::Object(None),
            Op::ObjGet { .. } => {
                let (otype, fields) = codec::decode_object(&reply).expect("an object");
                Answer::Object(Some((otype, fields.0)))
            }
            Op::AssocCount { .. } => Answer::Count(codec::decode_number(&reply).expect("a count")),
            Op::AssocTypeGet { .. } => Answer::Type(codec::decode_type(&reply).expect("a type")),
            Op::AssocType { .. } => {
                assert!(reply.is_empty());
                Answer::Nothing
            }
            _ => Answer::Done(codec::decode_bool(&reply).expect("yes or no")),
        })
    }
}

impl Graph for Store {
    fn run(&mut self, op: &Op) -> Answer {
        match self.answer(op) {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::Invalid => Answer::Invalid,
            Err(error) => panic!("{op:?}: {error}"),
        }
    }
}

fn add(id1: u64, atype: u32, id2: u64, time: u64, data: &[u8]) -> Op {
    Op::AssocAdd { id1, atype, id2, time, data: data.to_vec() }
}

#[test]
fn answers_as_the_model_does() {
    for seed in 0..60 {
        let (mut store, mut random) = (Store::new(), Random(seed));
        let mut model = store.declare();
        for _ in 0..250 {
            let op = model::random(&mut random, &model);
            let answer = store.run(&op);
            model.check(&op, &answer);
        }
        model::audit(&mut store, &ENDS, &TYPES);
    }
}

#[test]
fn what_others_write_meanwhile_leaves_lists_counts_and_inverses_as_they_should_be() {
    for seed in 0..40 {
        let (mut store, mut random) = (Store::new(), Random(seed));
        store.declare();
        let (tables, mut others) = (store.tables, random.clone());
        let mut edges = 0;
        for _ in 0..60 {
            // Another call comes whole between two polls of this one.
            let mut nth = others.below(6);
            let (id1, atype, id2) = (others.of(&ENDS[..3]), others.of(&[1, 2, 3]), others.of(&ENDS[..3]));
            let args = match others.below(3) {
                0 => codec::assoc_delete(&tables, id1, atype, id2),
                _ => codec::assoc_add(&tables, id1, atype, id2, others.below(4), b"other"),
            };
            store.store.between_polls(move |store| {
                if nth == 0 {
                    store.invoke(ext_tao::run, &args).expect("another call");
                }
                nth = nth.wrapping_sub(1);
            });
            let (id1, atype, id2) = (random.of(&ENDS[..3]), random.of(&[1, 2, 3]), random.of(&ENDS[..3]));
            let answer = match random.below(5) {
                0 => store.run(&Op::AssocDelete { id1, atype, id2 }),
                1 => store.run(&Op::AssocChangeType { id1, atype, id2, newtype: random.of(&[1, 2, 3]) }),
                2 => store.run(&Op::AssocRange { id1, atype, pos: 0, limit: 10 }),
                _ => store.run(&add(id1, atype, id2, random.below(4), b"own")),
            };
            if let Answer::List(edges) = answer {
                let mut ids: Vec<u64> = edges.iter().map(|edge| edge.0).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), edges.len(), "each id once: {edges:?}");
            }
            store.store.between_polls(|_| {});
            edges += model::audit(&mut store, &ENDS, &TYPES);
        }
        assert!(edges > 0);
    }
}

#[test]
fn ids_are_never_given_out_again() {
    let mut store = Store::new();
    let mut last = 0;
    for round in 0..200_u32 {
        if round % 3 == 0 {
            // It is refused, after its id was taken.
            let room = store.store.bytes() + 20;
            store.store.limit_bytes(room);
            let fields = model::Fields::from([(b"x".to_vec(), vec![0; 100])]);
            assert!(store.answer(&Op::ObjAdd { otype: 1, fields }).is_err());
            store.store.limit_bytes(usize::MAX);
        }
        let Answer::Id(id) = store.run(&Op::ObjAdd { otype: round, fields: model::Fields::new() }) else { panic!() };
        assert!(id > last, "{id} after {last}");
        last = id;
        if round % 2 == 0 {
            assert_eq!(store.run(&Op::ObjDelete { id }), Answer::Done(true));
        }
    }
}

#[test]
fn an_edge_that_others_move_is_in_the_list_all_the_time() {
    let mut store = Store::new();
    for id2 in 0..100 {
        store.run(&add(1, 4, id2, 1_000 + id2, b""));
    }
    let (tables, mut time) = (store.tables, 5_000);
    let mut poll = 0;
    store.store.between_polls(move |store| {
        poll += 1;
        // Often enough to fall into the middle of a range, seldom enough that a range without it comes.
        if poll % 7 == 3 {
            time += 1;
            let args = codec::assoc_add(&tables, 1, 4, 0, time, b"moved");
            store.invoke(ext_tao::run, &args).expect("moved");
        }
    });
    for _ in 0..20 {
        let Answer::List(edges) = store.run(&Op::AssocRange { id1: 1, atype: 4, pos: 0, limit: 200 }) else { panic!() };
        let mut ids: Vec<u64> = edges.iter().map(|edge| edge.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn an_edge_that_is_moved_at_each_moment_comes_once_at_most() {
    let mut store = Store::new();
    for id2 in 0..200 {
        store.run(&add(1, 4, id2, 1_000 + id2, b""));
    }
    let (tables, mut time, mut random) = (store.tables, 5_000, Random(5));
    store.store.between_polls(move |store| {
        // To the list's end and back: a page that met it at the beginning may meet it again there.
        if random.below(4) == 0 {
            time = 5_001 - time;
            let args = codec::assoc_add(&tables, 1, 4, 7, time, b"moved");
            store.invoke(ext_tao::run, &args).expect("moved");
        }
    });
    for pos in [0, 3].repeat(100) {
        let found = store.run(&Op::AssocRange { id1: 1, atype: 4, pos, limit: 300 });
        let Answer::List(edges) = found else { panic!("{found:?}") };
        let mut ids: Vec<u64> = edges.iter().map(|edge| edge.0).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), edges.len());
        assert!(edges.len() >= 195, "the others are there: {}", edges.len());
    }
}

#[test]
fn an_edge_has_the_time_and_the_data_of_one_moment() {
    let mut store = Store::new();
    let edges = 1_500_u64;
    for id2 in 0..edges {
        store.run(&add(1, 4, id2, 10_000 + id2, &(10_000 + id2).to_le_bytes()));
    }
    // Data tell the time that they were written with; each poll some edge is moved.
    let (tables, mut random) = (store.tables, Random(9));
    store.store.between_polls(move |store| {
        for _ in 0..8 {
            let time = 5_000 + random.below(10_000);
            let args = codec::assoc_add(&tables, 1, 4, random.below(edges), time, &time.to_le_bytes());
            store.invoke(ext_tao::run, &args).expect("moved");
        }
    });
    let (high, low) = (11_000, 10_200);
    for op in [
        Op::AssocRange { id1: 1, atype: 4, pos: 0, limit: 6_000 },
        Op::AssocRange { id1: 1, atype: 4, pos: 10, limit: 300 },
        Op::AssocRange { id1: 1, atype: 4, pos: 1_100, limit: 6_000 },
        Op::AssocTimeRange { id1: 1, atype: 4, high, low, limit: 6_000 },
    ]
    .iter()
    .cycle()
    .take(80)
    {
        let Answer::List(edges) = store.run(op) else { panic!("{op:?}") };
        for (id2, time, data) in &edges {
            assert_eq!(time.to_le_bytes()[..], data[..], "{op:?}: of {id2}");
            let is_within = low <= *time && *time <= high;
            assert!(is_within || !matches!(op, Op::AssocTimeRange { .. }), "{op:?}: {id2} at {time}");
        }
        assert!(edges.is_sorted_by_key(|(id2, time, _)| (std::cmp::Reverse(*time), *id2)), "{op:?}");
        if let Op::AssocRange { pos: 10, limit, .. } = op {
            assert_eq!(edges.len(), *limit as usize, "no answer ends before the list does");
        }
    }
}

#[test]
fn a_busy_list_is_read_again_until_nobody_writes_to_it() {
    let mut store = Store::new();
    for id2 in 0..20 {
        store.run(&add(1, 4, id2, 1_000 + id2, b""));
    }
    // Moved past the reader each time, for a hundred polls and more.
    let (tables, polls) = (store.tables, Rc::new(Cell::new(0_u64)));
    let counted = Rc::clone(&polls);
    store.store.between_polls(move |store| {
        counted.set(counted.get() + 1);
        if counted.get() < 120 {
            let args = codec::assoc_add(&tables, 1, 4, 7, 1 + counted.get() % 2 * 5_000, b"moved");
            store.invoke(ext_tao::run, &args).expect("moved");
        }
    });
    let op = Op::AssocRange { id1: 1, atype: 4, pos: 0, limit: 50 };
    let Answer::List(edges) = store.run(&op) else { panic!() };
    assert!(polls.get() > 119, "read until the list was left alone: {}", polls.get());
    assert_eq!(edges.len(), 20);
}

#[test]
fn a_position_far_from_both_ends_is_reached_in_several_calls() {
    let mut store = Store::new();
    store.store.interleave(false);
    for id2 in 0..12_000 {
        store.run(&add(1, 4, id2, id2, b""));
    }
    let mut first = |pos| {
        let reply = store.call(&codec::assoc_range(&store.tables.clone(), 1, 4, pos, 1, None)).expect("a list");
        let (edges, more) = codec::decode_list(&reply).expect("a list");
        (edges.first().map(|edge| edge.id2), more.is_some())
    };
    assert_eq!(first(9_500), (None, true), "2,500 from the end are not counted off from there");
    assert_eq!(first(10_500), (Some(1_499), false), "1,500 are");
}

#[test]
fn an_id_that_has_an_object_is_not_given_out() {
    let mut store = Store::new();
    let objects = sandstorm_api::TableId(store.tables.objects);
    for id in [1, 2, 4] {
        store.store.put(objects, &codec::object_key(id), b"\0\0\0\0\0\0");
    }
    for id in [3, 5, 6] {
        assert_eq!(store.run(&Op::ObjAdd { otype: 7, fields: model::Fields::new() }), Answer::Id(id));
    }
    for id in 7..1_007 {
        store.store.put(objects, &codec::object_key(id), b"\0\0\0\0\0\0");
    }
    let error = store.call(&codec::obj_add(&store.tables.clone(), 7, &codec::Fields::default())).unwrap_err();
    assert!(error.text().contains("under the key n"), "{error}");
}

#[test]
fn long_lists_and_deep_positions() {
    let mut store = Store::new();
    store.store.interleave(false);
    let edges = 30_000_u64;
    let mut model = Model::default();
    for number in 0..edges {
        // Not in the order of time, several of a time; each one's data are its id.
        let id2 = number * 7_919 % edges;
        let op = add(9, 3, id2, id2 / 3, &id2.to_le_bytes());
        let answer = store.run(&op);
        assert_eq!(answer, Answer::Done(true));
        model.check(&op, &answer);
    }
    let range = |pos, limit| Op::AssocRange { id1: 9, atype: 3, pos, limit };
    for pos in [
        0,
        1,
        1_023,
        1_024,
        1_025,
        6_000,
        10_240,
        10_241,
        11_264,
        11_265,
        15_000,
        20_000,
        20_001,
        28_976,
        28_977,
        29_998,
        29_999,
        30_000,
        1 << 40,
    ] {
        for limit in [1, 2, 6_000, 6_001] {
            let op = range(pos, limit);
            let answer = store.run(&op);
            model.check(&op, &answer);
            // Not the whole list, but what one call skips, and what it gives.
            assert!(store.store.polls() == 1 && store.store.reads() <= 6_020, "{}", store.store.reads());
        }
    }
    for (high, low) in [(u64::MAX, 0), (5_000, 4_000), (5_000, 5_000), (0, 0), (20_000, 10_000)] {
        let op = Op::AssocTimeRange { id1: 9, atype: 3, high, low, limit: 6_000 };
        let answer = store.run(&op);
        model.check(&op, &answer);
    }
    // Half of them go: the count is kept in shards, some of which fall below 0.
    for id2 in (0..edges).step_by(2) {
        let op = Op::AssocDelete { id1: 9, atype: 3, id2 };
        let answer = store.run(&op);
        model.check(&op, &answer);
    }
    let op = Op::AssocCount { id1: 9, atype: 3 };
    let answer = store.run(&op);
    model.check(&op, &answer);
    for id2 in (1..edges).step_by(2) {
        store.run(&Op::AssocDelete { id1: 9, atype: 3, id2 });
    }
    assert_eq!(store.run(&op), Answer::Count(0));
    assert_eq!(store.run(&range(0, 10)), Answer::List(Vec::new()));
}

#[test]
fn answers_that_need_several_replies() {
    let (mut store, mut model) = (Store::new(), Model::default());
    for id2 in 0..100 {
        let op = add(1, 3, id2, 7, &vec![id2 as u8; 64 << 10]);
        let answer = store.run(&op);
        model.check(&op, &answer);
    }
    let id2set: Vec<u64> = (0..200).collect();
    for op in [
        Op::AssocRange { id1: 1, atype: 3, pos: 3, limit: 90 },
        Op::AssocTimeRange { id1: 1, atype: 3, high: 9, low: 7, limit: 95 },
        Op::AssocGet { id1: 1, atype: 3, id2set, high: None, low: None },
    ] {
        let answer = store.run(&op);
        model.check(&op, &answer);
    }
}

#[test]
fn what_is_no_question_is_refused_and_says_what_one_is() {
    let mut store = Store::new();
    store.declare();
    let tables = store.tables;
    let fields = codec::Fields::from([("a", "1"), ("b", "2")]);
    let whole = [
        ("obj_add", codec::obj_add(&tables, 1, &fields)),
        ("obj_get", codec::obj_get(&tables, 1)),
        ("obj_update", codec::obj_update(&tables, 1, &fields, &[b"c"])),
        ("obj_delete", codec::obj_delete(&tables, 1)),
        ("assoc_add", codec::assoc_add(&tables, 1, 1, 2, 3, b"")),
        ("assoc_delete", codec::assoc_delete(&tables, 1, 1, 2)),
        ("assoc_change_type", codec::assoc_change_type(&tables, 1, 1, 2, 3)),
        ("assoc_get", codec::assoc_get(&tables, 1, 1, &[1], 2, 1)),
        ("assoc_count", codec::assoc_count(&tables, 1, 1)),
        ("assoc_range", codec::assoc_range(&tables, 1, 1, 0, 1, Some(codec::ListPosition { time: 1, id2: 1 }))),
        ("assoc_time_range", codec::assoc_time_range(&tables, 1, 1, (2, 1), 1, None)),
        ("assoc_type", codec::assoc_type(&tables, 9, Some(8))),
        ("assoc_type_get", codec::assoc_type_get(&tables, 9)),
    ];
    for (name, args) in whole {
        let fits = |len: usize| match name {
            // The ids are the rest, and may be none; the inverse, and where to go on, may be left out.
            "assoc_get" => len == 45,
            "assoc_range" => len == 41,
            "assoc_type" => len == 21,
            _ => false,
        };
        for len in 0..args.len() {
            let refused = store.call(&args[..len]);
            if fits(len) {
                assert!(refused.is_ok(), "{name}, {len} bytes: {refused:?}");
                continue;
            }
            let error = refused.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name}, {len} bytes: {error}");
            assert!(len <= 16 || error.text().contains(name) || error.text().contains("name"), "{name}: {error}");
        }
        if name != "assoc_add" {
            let long = [&args[..], &[0]].concat();
            assert_eq!(store.call(&long).expect_err(name).kind(), ErrorKind::Invalid, "{name}: a byte too many");
        }
    }
    let mut other = codec::obj_get(&tables, 1);
    for op in [0, 14, 255] {
        other[16] = op;
        assert_eq!(store.call(&other).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn what_is_too_much_is_refused_and_nothing_is_written() {
    let mut store = Store::new();
    let tables = store.tables;
    let add_fields = |fields: codec::Fields| codec::obj_add(&tables, 1, &fields);
    let many = |count: u32| (0..count).map(|name| (name.to_be_bytes(), b"")).collect::<codec::Fields>();
    let mut unordered = codec::obj_add(&tables, 1, &codec::Fields::from([("a", ""), ("b", "")]));
    let at = unordered.len() - 5;
    unordered[at] = b'a';
    for (args, text) in [
        (add_fields(many(1_025)), "1,024"),
        (add_fields([("x", vec![0; 256 << 10])].into_iter().collect()), "256 KiB"),
        (add_fields([("", "")].into_iter().collect()), "1 to 255"),
        (add_fields([(vec![b'x'; 256], "")].into_iter().collect()), "1 to 255"),
        (unordered, "twice"),
        (codec::assoc_add(&tables, 1, 5, 2, 3, &vec![0; (64 << 10) + 1]), "64 KiB"),
        (codec::assoc_get(&tables, 1, 1, &vec![0; 6_001], 1, 0), "6,000"),
    ] {
        let error = store.call(&args).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.text().contains(text), "{text}: {error}");
    }
    assert!(store.call(&add_fields(many(1_024))).is_ok());
    assert!(store.call(&codec::assoc_add(&tables, 1, 5, 2, 3, &vec![0; 64 << 10])).is_ok());
    assert!(store.call(&codec::assoc_get(&tables, 1, 1, &vec![0; 6_000], 1, 0)).is_ok());

    // An object that grows past its limit by an update.
    let large = add_fields([("x", vec![0; 200 << 10])].into_iter().collect());
    let id = codec::decode_number(&store.call(&large).unwrap()).unwrap();
    let more = codec::Fields::from([("y", vec![0; 100 << 10])]);
    let error = store.call(&codec::obj_update(&tables, id, &more, &[])).expect_err("too large together");
    assert!(error.text().contains("256 KiB"), "{error}");

    // No room for the inverse: then there is none for the edge.
    store.declare();
    for room in (0..400).step_by(9) {
        let bytes = store.store.bytes();
        store.store.limit_bytes(bytes + room);
        let added = store.answer(&add(1, 1, 2, 3, &[7; 40]));
        store.store.limit_bytes(usize::MAX);
        match added {
            Ok(_) => {
                assert_eq!(model::audit(&mut store, &ENDS, &TYPES), 3, "beside the one without an inverse");
                store.run(&Op::AssocDelete { id1: 1, atype: 1, id2: 2 });
            }
            Err(_) => assert_eq!(store.store.bytes(), bytes),
        }
    }
}

#[test]
fn tables_that_are_not_of_a_graph_are_told() {
    let mut store = Store::new();
    let tables = store.tables;
    store.run(&add(1, 1, 2, 3, b""));
    let swapped = Tables { objects: tables.objects, lists: tables.objects };
    let error = store.call(&codec::assoc_range(&swapped, 1, 1, 0, 10, None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for args in [codec::assoc_type(&swapped, 8, None), codec::assoc_add(&swapped, 1, 8, 2, 3, b"")] {
        let error = store.call(&args).expect_err("at set-up");
        assert!(error.text().contains("ordered"), "{error}");
    }
    let missing = Tables { objects: 77, lists: tables.lists };
    assert_eq!(store.call(&codec::obj_get(&missing, 1)).unwrap_err().kind(), ErrorKind::UnknownTable);
    let objects = sandstorm_api::TableId(tables.objects);
    for key in [&codec::edge_key(5, 5, 5)[..], &codec::count_key(5, 5), &codec::type_key(5), &codec::object_key(5)] {
        store.store.put(objects, key, b"odd");
    }
    for args in [
        codec::assoc_get(&tables, 5, 5, &[5], 9, 0),
        codec::assoc_count(&tables, 5, 5),
        codec::assoc_range(&tables, 5, 5, 0, 10, None),
        codec::assoc_add(&tables, 5, 5, 5, 5, b""),
        codec::assoc_add(&tables, 5, 5, 6, 5, b""),
        codec::assoc_delete(&tables, 5, 5, 5),
        codec::assoc_type(&tables, 5, None),
        codec::obj_update(&tables, 5, &codec::Fields::default(), &[]),
        codec::obj_get(&tables, 5),
    ] {
        let error = store.call(&args).expect_err("an odd record");
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
    }
    // A place whose edge's record is odd, and a part of a count.
    store.run(&add(6, 1, 7, 3, b""));
    store.store.put(objects, &codec::edge_key(6, 1, 7), b"odd");
    store.call(&codec::assoc_range(&tables, 6, 1, 0, 10, None)).expect_err("an odd record");
    store.store.put(objects, &codec::count_key(6, 2), &[8]);
    store.store.put(objects, &codec::shard_key(6, 2, 3), b"odd");
    store.call(&codec::assoc_range(&tables, 6, 2, 0, 10, None)).expect_err("an odd part of a count");
}
