//! Promise: a social graph in any of the three placements answers as TAO's paper and docs/tao.md say, according to an
//! oracle written from those alone. Invalid arguments are refused and change nothing. Records that belong to no graph
//! are errors, never crashes.
//!
//! `TAO_OPS=100000 cargo test -p sandstorm-tests --test social_graph graph::` sends so many requests to each placement,
//! with longer lists.

mod dice;
mod oracle;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{PATIENT, await_nothing_charged, client, client_at, data_plane, load_with, tenant};
use dice::{DECLARED, Dice, FROM, HUBS, MANY, TYPES, World};
use oracle::{GraphAnswer, GraphQuery, MOST_DATA, Oracle};
use sandstorm_catalog::NewTable;
use sandstorm_client::tao::{Assoc, Fields, Placement, Tables, Tao, codec};
use sandstorm_client::{Direction, Error, PutOptions, blocking};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;

const PLACEMENTS: [Placement; 3] = [Placement::Client, Placement::Invocation, Placement::Combined];
/// The extension's error code for invalid arguments.
const INVALID: u32 = 8;

/// A tenant with one graph for each placement, and the extension.
fn graphs(plane: &DataPlane) -> (u32, [Tables; 3]) {
    let (id, _) = tenant(plane, "graphs", true);
    let tables = [10, 20, 30].map(|objects| {
        for (id, ordered) in [(objects, false), (objects + 1, true)] {
            let table = NewTable { id: Some(id), ordered, ..NewTable::named(&format!("t{id}")) };
            plane.directory.create_table("graphs", table).expect("a table");
        }
        Tables { objects, lists: objects + 1 }
    });
    // Ranges of thousands in a build without optimisation, beside other tests: no answer is decided by the time it
    // takes.
    load_with(plane, "graphs", "tao", 1, BudgetOverride { total_us: Some(1_000_000), ..BudgetOverride::default() });
    (id, tables)
}

/// One client's view of a graph.
struct Graph {
    client: blocking::Client,
    tables: Tables,
    placement: Placement,
}

fn hits(found: Vec<Assoc>) -> GraphAnswer {
    GraphAnswer::Hits(found.into_iter().map(|edge| (edge.id2, edge.time, edge.data.to_vec())).collect())
}

async fn answer(tao: &Tao, query: &GraphQuery) -> Result<GraphAnswer, Error> {
    Ok(match query {
        GraphQuery::ObjAdd(otype, fields) => GraphAnswer::Id(tao.obj_add(*otype, fields).await?),
        GraphQuery::ObjGet(id) => {
            GraphAnswer::Object(tao.obj_get(*id).await?.map(|object| (object.otype, object.fields)))
        }
        GraphQuery::ObjUpdate(id, fields, away) if away.is_empty() => {
            GraphAnswer::Yes(tao.obj_update(*id, fields).await?)
        }
        GraphQuery::ObjUpdate(id, fields, away) => {
            let names: Vec<&[u8]> = away.iter().map(Vec::as_slice).collect();
            GraphAnswer::Yes(tao.obj_update_removing(*id, fields, &names).await?)
        }
        GraphQuery::ObjDelete(id) => GraphAnswer::Yes(tao.obj_delete(*id).await?),
        GraphQuery::Add((id1, atype, id2), time, data) => {
            GraphAnswer::Yes(tao.assoc_add(*id1, *atype, *id2, *time, data).await?)
        }
        GraphQuery::Delete((id1, atype, id2)) => GraphAnswer::Yes(tao.assoc_delete(*id1, *atype, *id2).await?),
        GraphQuery::Change((id1, atype, id2), newtype) => {
            GraphAnswer::Yes(tao.assoc_change_type(*id1, *atype, *id2, *newtype).await?)
        }
        GraphQuery::Get { list, ids, high, low } => hits(tao.assoc_get(list.0, list.1, ids, *high, *low).await?),
        GraphQuery::Count(list) => GraphAnswer::Count(tao.assoc_count(list.0, list.1).await?),
        GraphQuery::Range { list, pos, limit } => hits(tao.assoc_range(list.0, list.1, *pos, *limit).await?),
        GraphQuery::TimeRange { list, high, low, limit } => {
            hits(tao.assoc_time_range(list.0, list.1, *high, *low, *limit).await?)
        }
        GraphQuery::Declare(atype, inverse) => tao.assoc_type(*atype, *inverse).await.map(|()| GraphAnswer::Nothing)?,
        GraphQuery::Declared(atype) => GraphAnswer::Type(tao.assoc_type_get(*atype).await?),
    })
}

impl Graph {
    fn new(plane: &DataPlane, tenant: u32, tables: Tables, placement: Placement) -> Graph {
        Graph { client: client(plane, tenant), tables, placement }
    }

    fn try_query(&self, query: &GraphQuery) -> Result<GraphAnswer, Error> {
        let (tables, placement) = (self.tables, self.placement);
        self.client.run(async |client| answer(&Tao::new(client, tables, placement), query).await)
    }

    fn query(&self, query: &GraphQuery) -> GraphAnswer {
        loop {
            match self.try_query(query) {
                Ok(answered) => return answered,
                Err(Error::Failed { code: INVALID, text }) if !text.is_empty() => return GraphAnswer::Refused,
                // Too many requests of the tenant are in flight, and this one was not run.
                Err(Error::Overloaded | Error::OverQuota { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{query:?}: {error}"),
            }
        }
    }

    fn check(&self, oracle: &mut Oracle, query: &GraphQuery) {
        oracle.check(query, &self.query(query));
    }

    /// Adds edges, many in flight at a time.
    fn add_many(&self, oracle: &mut Oracle, edges: Vec<(oracle::Edge, u64)>) {
        for some in edges.chunks(128) {
            let mut batch = self.client.batch();
            for ((id1, atype, id2), time) in some {
                let args = codec::assoc_add(&self.tables, *id1, *atype, *id2, *time, &time.to_le_bytes());
                batch = batch.invoke("tao", &args);
            }
            let answers = self.client.with_deadline(PATIENT).send(batch).expect("answers");
            for ((edge, time), answer) in some.iter().zip(answers) {
                let query = GraphQuery::Add(*edge, *time, time.to_le_bytes().to_vec());
                match answer {
                    Ok(_) => oracle.check(&query, &GraphAnswer::Yes(!oracle.edges.contains_key(edge))),
                    // It conflicted each time, or there was no room: nothing was written.
                    Err(Error::Conflict | Error::Overloaded | Error::OverQuota { .. }) => self.check(oracle, &query),
                    Err(error) => panic!("{query:?}: {error}"),
                }
            }
        }
    }

    /// Compares everything, and the records in which it is stored.
    fn audit(&self, oracle: &mut Oracle) {
        let mut lists: BTreeSet<(u64, u32)> = oracle.edges.keys().map(|edge| (edge.0, edge.1)).collect();
        // Thousands have one edge or two each, and are alike.
        lists.retain(|list| list.0 < MANY || list.0 % 10 == 0 || list.0 == u64::MAX);
        let few = FROM.into_iter().chain(HUBS).flat_map(|id1| TYPES.map(|atype| (id1, atype)));
        for list in lists.into_iter().chain(few) {
            self.check(oracle, &GraphQuery::Count(list));
            let whole = oracle.list(list);
            for pos in (0..=whole.len() as u64).step_by(6_000) {
                self.check(oracle, &GraphQuery::Range { list, pos, limit: u32::MAX });
            }
            let ids = whole.iter().map(|hit| hit.0).collect();
            self.check(oracle, &GraphQuery::Get { list, ids, high: None, low: None });
        }
        for id in oracle.given.clone() {
            self.check(oracle, &GraphQuery::ObjGet(id));
        }
        let keys = self.client.range(self.tables.lists, b"", b"", usize::MAX, Direction::Forward).expect("an answer");
        let kept: BTreeSet<Vec<u8>> = keys.into_iter().map(|record| record.key.to_vec()).collect();
        let edges = oracle.edges.iter();
        let wanted: BTreeSet<Vec<u8>> =
            edges.map(|(edge, (time, _))| codec::list_key(edge.0, edge.1, *time, edge.2).to_vec()).collect();
        assert!(kept == wanted, "places of edges: {} kept, {} wanted", kept.len(), wanted.len());
    }
}

/// The number of requests to each placement.
fn questions() -> u64 {
    std::env::var("TAO_OPS").map_or(2_500, |text| text.parse().expect("TAO_OPS is a number"))
}

/// The whole run of one placement.
fn run(graph: &Graph, seed: u64) -> Oracle {
    let mut oracle = Oracle::default();
    for (atype, inverse) in DECLARED {
        graph.check(&mut oracle, &GraphQuery::Declare(atype, inverse));
    }
    // Just below the length from which a list's count is stored in parts; the long run has more than one call skips.
    let many = if questions() > 10_000 { 9_000 } else { 2_040 };
    for atype in [1, 2] {
        let edges = (0..many).map(|number| ((HUBS[0], atype, MANY + number), number / 3)).collect();
        graph.add_many(&mut oracle, edges);
    }
    graph.add_many(&mut oracle, (0..2_046).map(|number| ((HUBS[1], 4, MANY + number), number % 7)).collect());
    let mut world = World { dice: Dice(seed), many };
    for number in 0..questions() {
        if number == questions() / 2 {
            graph.audit(&mut oracle);
        }
        let query = world.query(&oracle);
        graph.check(&mut oracle, &query);
    }
    graph.audit(&mut oracle);
    oracle
}

#[test]
fn every_placement_answers_as_the_papers_interface_does() {
    let plane = data_plane(2);
    let (id, tables) = graphs(&plane);
    let seed = std::env::var("TAO_SEED").map_or(11, |text| text.parse().expect("TAO_SEED is a number"));
    std::thread::scope(|scope| {
        for (number, tables) in tables.into_iter().enumerate() {
            let plane = &plane;
            scope.spawn(move || {
                let graph = Graph::new(plane, id, tables, PLACEMENTS[number]);
                let oracle = run(&graph, seed + number as u64);
                for what in [
                    "an edge to itself",
                    "an edge that is there is added",
                    "a change to the same type",
                    "an edge changed to its own inverse",
                    "a change onto an edge that is there",
                    "a change that loses the inverse",
                    "a change that gains an inverse",
                    "a type declared otherwise",
                    "an update that makes an object too large",
                ] {
                    assert!(oracle.met.contains_key(what), "never met: {what} ({:?})", oracle.met);
                }
            });
        }
    });
    await_nothing_charged(&plane, id);
}

#[test]
fn a_graph_that_is_taken_away_edge_by_edge_leaves_nothing() {
    let plane = data_plane(2);
    let (id, tables) = graphs(&plane);
    let graph = Graph::new(&plane, id, tables[0], Placement::Combined);
    let mut oracle = Oracle::default();
    for (atype, inverse) in DECLARED {
        graph.check(&mut oracle, &GraphQuery::Declare(atype, inverse));
    }
    graph.add_many(&mut oracle, (0..2_100).map(|number| ((7, 2, MANY + number), number)).collect());
    let mut dice = Dice(5);
    while let Some((edge, _)) = oracle.edges.range((dice.next(), 0, 0)..).next().or(oracle.edges.iter().next()) {
        let edge = *edge;
        graph.check(&mut oracle, &GraphQuery::Delete(edge));
        if dice.one_in(50) {
            graph.check(&mut oracle, &GraphQuery::Count((7, 2)));
            graph.check(&mut oracle, &GraphQuery::Delete(edge));
        }
    }
    for placement in PLACEMENTS {
        let graph = Graph { placement, ..Graph::new(&plane, id, tables[0], placement) };
        graph.audit(&mut oracle);
        graph.check(&mut oracle, &GraphQuery::Count((7, 2)));
    }
    // And grows anew.
    graph.add_many(&mut oracle, (0..2_100).map(|number| ((7, 2, MANY + number), number)).collect());
    graph.audit(&mut oracle);
}

/// Reads bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn number(&mut self, len: usize) -> Option<usize> {
        Some(self.take(len)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        let len = self.number(1)?;
        self.take(len).filter(|name| !name.is_empty())
    }

    fn fields(&mut self) -> Option<Vec<&'a [u8]>> {
        let (mut names, mut bytes) = (Vec::new(), 0);
        for _ in 0..self.number(2)? {
            names.push(self.name()?);
            let len = self.number(4)?;
            bytes += names.last()?.len() + self.take(len)?.len() + 5;
        }
        let fit = names.len() <= oracle::MOST_FIELDS && bytes <= oracle::MOST_FIELD_BYTES;
        (fit && names.is_sorted_by(|a, b| a < b)).then_some(names)
    }
}

/// Returns whether these are valid arguments, after the tables, according to the head of ext/tao/src/lib.rs.
fn is_call(args: &[u8]) -> Option<bool> {
    let mut args = Reader(args);
    let op = args.number(1)?;
    let left = args.0.len();
    Some(match op {
        1 => args.take(4).is_some() && args.fields().is_some() && args.0.is_empty(),
        2 | 4 => left == 8,
        3 => {
            args.take(8)?;
            let names = args.fields()?;
            let (mut all_other, removed) = (true, args.number(2)?);
            for _ in 0..removed {
                all_other &= !names.contains(&args.name()?);
            }
            all_other && removed <= oracle::MOST_FIELDS && args.0.is_empty()
        }
        5 => (28..=28 + MOST_DATA).contains(&left),
        6 => left == 20,
        7 => left == 24,
        8 => left >= 28 && (left - 28).is_multiple_of(8) && (left - 28) / 8 <= 6_000,
        9 => left == 12,
        10 => left == 24 || left == 40,
        11 => left == 32 || left == 48,
        12 => left == 4 || left == 8,
        13 => left == 4,
        _ => false,
    })
}

/// Valid arguments of every function.
fn good_calls(tables: &Tables) -> Vec<Vec<u8>> {
    let fields = Fields::from([("age", "7"), ("name", "Ann")]);
    let place = Some(codec::ListPosition { time: 5, id2: 2 });
    vec![
        codec::obj_add(tables, 1, &fields),
        codec::obj_get(tables, 1),
        codec::obj_update(tables, 1, &fields, &[b"gone", b"too"]),
        codec::obj_delete(tables, 9),
        codec::assoc_add(tables, 1, 1, 2, 5, b"data"),
        codec::assoc_delete(tables, 1, 1, 9),
        codec::assoc_change_type(tables, 1, 1, 9, 2),
        codec::assoc_get(tables, 1, 1, &[2, 3, 4], 9, 0),
        codec::assoc_count(tables, 1, 1),
        codec::assoc_range(tables, 1, 1, 0, 10, None),
        codec::assoc_range(tables, 1, 1, 0, 10, place),
        codec::assoc_time_range(tables, 1, 1, (9, 0), 10, None),
        codec::assoc_time_range(tables, 1, 1, (9, 0), 10, place),
        codec::assoc_type(tables, 1, Some(1)),
        codec::assoc_type(tables, 4, None),
        codec::assoc_type_get(tables, 1),
    ]
}

/// Arguments that are valid except for one error; all within one graph.
fn spoilt_calls(tables: &Tables) -> Vec<Vec<u8>> {
    let (good, mut dice, mut spoilt) = (good_calls(tables), Dice(3), Vec::new());
    for call in &good {
        spoilt.extend((16..call.len()).map(|len| call[..len].to_vec()));
        spoilt.extend([1, 7, 8, 16, 100].map(|more| [call, &dice.bytes(more)[..]].concat()));
        for _ in 0..40 {
            let mut changed = call.clone();
            for _ in 0..=dice.below(3) {
                let at = 16 + dice.below(call.len() as u64 - 16) as usize;
                changed[at] = dice.of(&[0, 1, 2, 255, dice.0 as u8]);
            }
            spoilt.push(changed);
        }
    }
    for _ in 0..400 {
        let len = dice.below(200) as usize;
        spoilt.push([&good[0][..16], &[dice.below(16) as u8], &dice.bytes(len)].concat());
    }
    let head = &good[0][..16];
    let of = |op: u8, rest: &[u8]| [head, &[op], rest].concat();
    // The most fields, ids and bytes of data, and one more.
    spoilt.push(of(8, &[0; 28 + 8 * 6_000]));
    spoilt.push(of(8, &[0; 28 + 8 * 6_001]));
    spoilt.push(of(5, &[0; 28 + MOST_DATA]));
    spoilt.push(of(5, &[0; 28 + MOST_DATA + 1]));
    spoilt.push(of(1, &[0; 300 << 10]));
    // Too many bytes of fields, of an object that does not exist.
    let large = Fields::from([("a", vec![7; oracle::MOST_FIELD_BYTES - 5])]);
    spoilt.push(codec::obj_update(tables, 99, &large, &[]));
    spoilt.push(of(1, &[&[0, 0, 0, 0, 2, 0][..], b"\x01b\x00\x00\x00\x00\x01a\x00\x00\x00\x00"].concat()));
    spoilt.push(of(1, &[&[0, 0, 0, 0, 2, 0][..], b"\x01a\x00\x00\x00\x00\x01a\x00\x00\x00\x00"].concat()));
    spoilt.push(of(1, &[&[0, 0, 0, 0, 1, 0][..], b"\x01a\xff\xff\xff\xff"].concat()));
    spoilt
}

#[test]
fn arguments_that_are_none_are_refused_and_change_nothing() {
    let plane = data_plane(2);
    let (id, tables) = graphs(&plane);
    let graph = Graph::new(&plane, id, tables[0], Placement::Invocation);
    let mut oracle = Oracle::default();
    for (atype, inverse) in DECLARED {
        graph.check(&mut oracle, &GraphQuery::Declare(atype, inverse));
    }
    graph.check(&mut oracle, &GraphQuery::ObjAdd(1, Fields::from([("name", "Ann")])));
    for id2 in 1..4 {
        graph.check(&mut oracle, &GraphQuery::Add((1, 1, id2), id2, vec![id2 as u8]));
    }
    let (mut refused, mut taken) = (0, 0);
    for args in spoilt_calls(&tables[0]) {
        let is_call = is_call(&args[16..]) == Some(true);
        if is_call && matches!(args[16], 1 | 3..=7 | 12) {
            // Its changes do not matter here.
            continue;
        }
        match graph.client.invoke("tao", &args) {
            Ok(_) if is_call => taken += 1,
            Err(Error::Failed { code: INVALID, text }) if !is_call && !text.is_empty() => refused += 1,
            other => panic!("{args:?} ({is_call}): {other:?}"),
        }
    }
    assert!(refused > 500 && taken > 100, "{refused} refused, {taken} taken");
    // Not even two tables.
    for len in 0..16 {
        let short = graph.client.invoke("tao", &vec![0; len]);
        assert!(matches!(&short, Err(Error::Failed { code: INVALID, .. })), "{len}: {short:?}");
    }
    graph.audit(&mut oracle);
    assert_eq!(graph.query(&GraphQuery::Declared(5)), GraphAnswer::Type(None), "a call that is refused notes no type");
    // Valid arguments are still accepted.
    for args in good_calls(&tables[0]) {
        graph.client.invoke("tao", &args).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    }
}

#[test]
fn tables_that_are_none_of_a_graph_are_named_as_such() {
    let plane = data_plane(1);
    let (id, tables) = graphs(&plane);
    let client = client(&plane, id);
    let swapped = Tables { objects: tables[0].lists, lists: tables[0].objects };
    let unordered = Tables { objects: tables[0].objects, lists: tables[1].objects };
    let missing = Tables { objects: 99, lists: tables[0].lists };
    let no_lists = Tables { objects: tables[0].objects, lists: 99 };
    for tables in [swapped, unordered, missing, no_lists] {
        let calls = good_calls(&tables);
        // A first edge, and the declaration of a type, read both.
        for call in [&calls[4], &calls[13], &calls[14]] {
            match client.invoke("tao", call) {
                Err(Error::Failed { text, .. }) if !text.is_empty() => {}
                other => panic!("{tables:?}, {}: {other:?}", call[16]),
            }
        }
    }
}

/// All requests about ids 1 to 3.
fn all_kinds(fields: &Fields) -> Vec<GraphQuery> {
    let (list, mut all) = ((1, 1), Vec::new());
    for pos in [0, 1, u64::MAX] {
        all.push(GraphQuery::Range { list, pos, limit: 10 });
    }
    for id in 1..4 {
        all.push(GraphQuery::ObjGet(id));
        all.push(GraphQuery::ObjUpdate(id, fields.clone(), vec![b"x".to_vec()]));
        all.push(GraphQuery::Add((1, 1, id), id + 1, b"new".to_vec()));
        all.push(GraphQuery::Change((1, 1, id), 2));
        all.push(GraphQuery::Delete((1, 2, id)));
        all.push(GraphQuery::ObjDelete(id));
    }
    all.push(GraphQuery::Get { list, ids: vec![1, 2, 3], high: None, low: Some(1) });
    all.push(GraphQuery::TimeRange { list, high: u64::MAX, low: 0, limit: 10 });
    all.push(GraphQuery::Count(list));
    all.push(GraphQuery::Declared(1));
    all.push(GraphQuery::Declare(1, Some(1)));
    all.push(GraphQuery::ObjAdd(1, fields.clone()));
    all
}

#[test]
fn records_that_are_none_of_a_graph_are_errors_and_no_crash() {
    let plane = data_plane(2);
    let (id, tables) = graphs(&plane);
    let (mut dice, tables) = (Dice(9), tables[0]);
    let graphs = PLACEMENTS.map(|placement| Graph::new(&plane, id, tables, placement));
    let client = &graphs[0].client;
    let fields = Fields::from([("name", "Ann")]);
    let mut errors = 0;
    for round in 0..60 {
        let mut keys: Vec<Vec<u8>> = vec![b"n".to_vec()];
        for id in 1..4 {
            keys.push(codec::object_key(id).to_vec());
            keys.push(codec::edge_key(1, 1, id).to_vec());
            keys.push(codec::edge_key(id, 1, 1).to_vec());
            keys.push(codec::edge_key(1, 2, id).to_vec());
            keys.push(codec::type_key(id as u32).to_vec());
            keys.push(codec::count_key(id, 1).to_vec());
            keys.push(codec::shard_key(id, 1, dice.below(9) as u8).to_vec());
        }
        for key in keys {
            let len = dice.of(&[0, 1, 2, 5, 7, 8, 9, 30]);
            let value = match dice.below(5) {
                0 => vec![255; len],
                1 => vec![0; len],
                _ => dice.bytes(len),
            };
            if dice.one_in(2) {
                client.put(tables.objects, &key, &value, &PutOptions::default()).expect("put");
            } else {
                client.delete(tables.objects, &key).expect("deleted");
            }
        }
        for _ in 0..6 {
            let len = dice.of(&[0, 11, 12, 13, 20, 27, 28, 29, 60]);
            let mut key = codec::list_key(1, 1, dice.below(3), dice.below(4)).to_vec();
            key.resize(len, dice.below(256) as u8);
            client.put(tables.lists, &key, b"", &PutOptions::default()).expect("put");
        }
        for query in all_kinds(&fields) {
            for graph in &graphs {
                match graph.try_query(&query) {
                    Ok(_) => {}
                    Err(Error::Failed { text, .. } | Error::Protocol { text }) if !text.is_empty() => errors += 1,
                    Err(error) => panic!("round {round}, {:?}, {query:?}: {error}", graph.placement),
                }
            }
        }
    }
    assert!(errors > 500, "{errors}");
    await_nothing_charged(&plane, id);
}

#[test]
fn ids_that_are_used_up_are_an_error_and_none_comes_twice() {
    let plane = data_plane(1);
    let (id, tables) = graphs(&plane);
    let graph = Graph::new(&plane, id, tables[0], Placement::Invocation);
    let add = GraphQuery::ObjAdd(1, Fields::default());
    let last = i64::MAX as u64;
    graph.client.put(tables[0].objects, b"n", (last - 2).to_string().as_bytes(), &PutOptions::default()).expect("put");
    let given: Vec<_> = (0..4).map(|_| graph.try_query(&add)).collect();
    assert_eq!(given[..2], [Ok(GraphAnswer::Id(last - 1)), Ok(GraphAnswer::Id(last))]);
    for none in &given[2..] {
        assert!(matches!(none, Err(Error::Failed { text, .. }) if !text.is_empty()), "{none:?}");
    }
    for (id, there) in [(last - 1, true), (last, true), (0, false), (1, false), (last + 1, false), (1 << 63, false)] {
        assert_eq!(matches!(graph.query(&GraphQuery::ObjGet(id)), GraphAnswer::Object(Some(_))), there, "{id}");
    }
}

#[test]
fn ids_come_once_though_objects_are_deleted_and_answers_are_given_up() {
    let plane = data_plane(2);
    let (id, tables) = graphs(&plane);
    let given = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (plane, given) = (&plane, &given);
            scope.spawn(move || {
                let graph = Graph {
                    client: client_at(plane, id, seed as usize),
                    ..Graph::new(plane, id, tables[0], Placement::Combined)
                };
                // A client with so short a timeout sends again, and often gives up.
                let hasty = graph.client.with_deadline(Duration::from_micros(400));
                let mut dice = Dice(seed);
                for _ in 0..300 {
                    let args = codec::obj_add(&graph.tables, 1, &Fields::default());
                    for client in [&hasty, &graph.client] {
                        // No answer in time, or no turn among the others.
                        let Ok(reply) = client.invoke("tao", &args) else { continue };
                        let new = codec::decode_number(&reply).expect("an id");
                        assert!(given.lock().expect("no panic").insert(new), "{new} comes twice");
                        if dice.one_in(2) {
                            assert_eq!(graph.query(&GraphQuery::ObjDelete(new)), GraphAnswer::Yes(true));
                        }
                    }
                }
            });
        }
    });
    assert!(given.lock().expect("no panic").len() > 100);
    await_nothing_charged(&plane, id);
}
