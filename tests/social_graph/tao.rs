//! Promise: the extension `tao` answers over the wire as a model of its interface does, in all three placements alike.
//! However calls among concurrent writers end, every edge has its inverse, counts are those of the lists, and no id is
//! assigned twice.

mod model;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{
    PATIENT, Stop, await_nothing_charged, client, client_at, data_plane, library_of, load_with, rounds, tenant,
};
use model::{Answer, ENDS, Edge, Graph, Model, Op, Random, TYPES};
use sandstorm_catalog::NewTable;
use sandstorm_client::tao::{Assoc, Fields, Placement, Tables, Tao, codec};
use sandstorm_client::{Error, blocking};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;

const PLACEMENTS: [Placement; 3] = [Placement::Client, Placement::Invocation, Placement::Combined];
const TABLES: Tables = Tables { objects: 2, lists: 3 };

/// Begins to change a graph, by halves, then ends in one of several ways.
const CULPRIT: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (objects, lists, tx) = (db.table("tao")?, db.table("tao_lists")?, db.transaction());
    let mut key = vec![b'e'];
    key.extend_from_slice(&1_u64.to_be_bytes());
    key.extend_from_slice(&3_u32.to_be_bytes());
    key.extend_from_slice(&77_u64.to_be_bytes());
    tx.put(objects, &key, &[0; 8])?;
    for record in tx.range(lists, &[], &[], 10, Direction::Forward).await? {
        tx.delete(lists, record.key()).await?;
    }
    match args {
        b"loop" => loop { core::hint::black_box(args); },
        b"panic" => panic!("as asked"),
        b"yields" => loop { yield_now().await; },
        _ => Err(Error::new("as asked")),
    }
}
"#;

/// A tenant with the two tables of a graph, and the extension.
fn graph(plane: &DataPlane) -> u32 {
    let (id, _) = tenant(plane, "friends", true);
    let table = |id, name, ordered| NewTable { id: Some(id), ordered, ..NewTable::named(name) };
    for table in [table(TABLES.objects, "tao", false), table(TABLES.lists, "tao_lists", true)] {
        plane.directory.create_table("friends", table).expect("a table");
    }
    // A page in the middle of a long list takes milliseconds, on a slow machine more than a call has by default.
    load_with(plane, "friends", "tao", 1, BudgetOverride { total_us: Some(1_000_000), ..BudgetOverride::default() });
    id
}

/// A client of a graph, by one of the placements.
struct Placed {
    client: blocking::Client,
    placement: Placement,
}

impl Placed {
    fn new(plane: &DataPlane, tenant: u32, placement: Placement) -> Placed {
        Placed { client: client(plane, tenant), placement }
    }

    /// As [`Self::new`], through this worker.
    fn at(plane: &DataPlane, tenant: u32, placement: Placement, worker: usize) -> Placed {
        Placed { client: client_at(plane, tenant, worker), placement }
    }

    fn tao<T>(&self, work: impl AsyncFnOnce(Tao) -> T) -> T {
        let placement = self.placement;
        self.client.run(|client| work(Tao::new(client, TABLES, placement)))
    }

    fn declare(&mut self) -> Model {
        let mut model = Model::default();
        for op in model::declarations() {
            let answer = self.run(&op);
            model.check(&op, &answer);
        }
        model
    }
}

fn edges(found: Vec<Assoc>) -> Answer {
    Answer::List(found.into_iter().map(|edge| (edge.id2, edge.time, edge.data.to_vec())).collect())
}

async fn answer(tao: &Tao, op: &Op) -> Result<Answer, Error> {
    Ok(match op {
        Op::ObjAdd { otype, fields } => Answer::Id(tao.obj_add(*otype, &Fields(fields.clone())).await?),
        Op::ObjGet { id } => Answer::Object(tao.obj_get(*id).await?.map(|object| (object.otype, object.fields.0))),
        Op::ObjUpdate { id, set, remove } => {
            let names: Vec<&[u8]> = remove.iter().map(Vec::as_slice).collect();
            Answer::Done(tao.obj_update_removing(*id, &Fields(set.clone()), &names).await?)
        }
        Op::ObjDelete { id } => Answer::Done(tao.obj_delete(*id).await?),
        Op::AssocAdd { id1, atype, id2, time, data } => {
            Answer::Done(tao.assoc_add(*id1, *atype, *id2, *time, data).await?)
        }
        Op::AssocDelete { id1, atype, id2 } => Answer::Done(tao.assoc_delete(*id1, *atype, *id2).await?),
        Op::AssocChangeType { id1, atype, id2, newtype } => {
            Answer::Done(tao.assoc_change_type(*id1, *atype, *id2, *newtype).await?)
        }
        Op::AssocGet { id1, atype, id2set, high, low } => {
            edges(tao.assoc_get(*id1, *atype, id2set, *high, *low).await?)
        }
        Op::AssocCount { id1, atype } => Answer::Count(tao.assoc_count(*id1, *atype).await?),
        Op::AssocRange { id1, atype, pos, limit } => edges(tao.assoc_range(*id1, *atype, *pos, *limit).await?),
        Op::AssocTimeRange { id1, atype, high, low, limit } => {
            edges(tao.assoc_time_range(*id1, *atype, *high, *low, *limit).await?)
        }
        Op::AssocType { atype, inverse } => tao.assoc_type(*atype, *inverse).await.map(|()| Answer::Nothing)?,
        Op::AssocTypeGet { atype } => Answer::Type(tao.assoc_type_get(*atype).await?),
    })
}

impl Graph for Placed {
    fn run(&mut self, op: &Op) -> Answer {
        match self.tao(async |tao| answer(&tao, op).await) {
            Ok(answer) => answer,
            // 8: invalid.
            Err(Error::Failed { code: 8, .. }) => Answer::Invalid,
            Err(error) => panic!("{op:?}: {error}"),
        }
    }
}

fn reads(op: &Op) -> bool {
    matches!(
        op,
        Op::ObjGet { .. }
            | Op::AssocGet { .. }
            | Op::AssocCount { .. }
            | Op::AssocRange { .. }
            | Op::AssocTimeRange { .. }
            | Op::AssocTypeGet { .. }
    )
}

#[test]
fn all_placements_answer_as_the_model_does() {
    let plane = data_plane(2);
    let id = graph(&plane);
    let mut graphs = PLACEMENTS.map(|placement| Placed::new(&plane, id, placement));
    let (mut random, mut model) = (Random(7), graphs[0].declare());
    for number in 0..rounds(3_000) as usize {
        let op = model::random(&mut random, &model);
        if reads(&op) {
            for graph in &mut graphs {
                let answer = graph.run(&op);
                model.check(&op, &answer);
            }
        } else {
            let answer = graphs[number % graphs.len()].run(&op);
            model.check(&op, &answer);
        }
    }
    for graph in &mut graphs {
        model::audit(graph, &ENDS, &TYPES);
    }
}

/// Ids between which the writers of one test add edges.
const IDS: [u64; 6] = [1, 2, 3, 4, 5, 6];

/// The data contain the time of their write.
fn added(id1: u64, atype: u32, id2: u64, time: u64) -> Op {
    Op::AssocAdd { id1, atype, id2, time, data: time.to_le_bytes().to_vec() }
}

/// Checks the invariants of any query's answer while other clients write to the list.
fn check_list(op: &Op, found: &[Edge], limit: usize, (high, low): (u64, u64)) {
    let distinct: BTreeSet<u64> = found.iter().map(|edge| edge.0).collect();
    assert_eq!(distinct.len(), found.len(), "{op:?}: each id once: {found:?}");
    assert!(found.len() <= limit, "{op:?}: {found:?}");
    assert!(found.is_sorted_by_key(|(id2, time, _)| (Reverse(*time), *id2)), "{op:?}: in order: {found:?}");
    for (id2, time, data) in found {
        assert_eq!(time.to_le_bytes()[..], data[..], "{op:?}: time and data of one moment, of {id2}");
        assert!((low..=high).contains(time), "{op:?}: {id2} at {time}");
    }
}

fn random_write(random: &mut Random) -> Op {
    let (id1, atype, id2) = (random.of(&IDS), random.of(&[1, 2, 3, 4]), random.of(&IDS));
    match random.below(8) {
        0 => Op::AssocDelete { id1, atype, id2 },
        1 => Op::AssocChangeType { id1, atype, id2, newtype: random.of(&[1, 2, 3, 4]) },
        2 => Op::ObjAdd { otype: 1, fields: model::Fields::new() },
        _ => added(id1, atype, id2, random.below(50)),
    }
}

/// Writes at random; stores the ids that it received.
fn write(plane: &DataPlane, tenant: u32, seed: u64, ids: &Mutex<BTreeSet<u64>>) {
    let graph = Placed::at(plane, tenant, Placement::Combined, seed as usize);
    let mut random = Random(seed << 32);
    for _ in 0..rounds(1_200) {
        let op = random_write(&mut random);
        match graph.tao(async |tao| answer(&tao, &op).await) {
            Ok(Answer::Id(id)) => assert!(ids.lock().expect("no panic").insert(id), "{id} comes twice"),
            // Nothing was written.
            Ok(_) | Err(Error::Conflict) => {}
            Err(error) => panic!("{op:?}: {error}"),
        }
    }
}

/// Reads a list in which one edge is moved all the time, and one that is small.
fn read_lists(graph: &mut Placed, random: &mut Random) {
    let limit = random.of(&[1, 3, 20, 100]);
    for ((id1, atype), times) in [((99, 3), 3_000), ((random.of(&IDS), random.of(&[1, 2, 3, 4])), 50)] {
        let (pos, low) = (random.of(&[0, 0, 2]), random.below(times));
        let high = low + random.below(times);
        let (range, all) = (Op::AssocRange { id1, atype, pos, limit }, (u64::MAX, 0));
        for (op, times) in [(range, all), (Op::AssocTimeRange { id1, atype, high, low, limit }, (high, low))] {
            let Answer::List(found) = graph.run(&op) else { panic!("{op:?}") };
            check_list(&op, &found, limit as usize, times);
        }
    }
}

#[test]
fn edges_inverses_counts_and_ids_agree_whatever_ends_the_calls_among_the_writers() {
    let plane = data_plane(2);
    let id = graph(&plane);
    let budget = BudgetOverride { total_us: Some(1_000), ..BudgetOverride::default() };
    let culprit = crate::common::loaded("culprit", 1, library_of("culprit", CULPRIT), budget);
    plane.directory.put_extension("friends", culprit.into()).expect("an extension is loaded");
    let mut graph = Placed::new(&plane, id, Placement::Combined);
    graph.declare();
    // One edge that is only ever moved: it is always in its list.
    let moved = |time| added(99, 3, 98, time);
    graph.run(&moved(0));
    for id2 in 200..240 {
        graph.run(&added(99, 3, id2, 1_000 + id2));
    }
    let (writing, ids, over) = (AtomicUsize::new(3), Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        for seed in 0..3 {
            let (plane, writing, ids, over) = (&plane, &writing, &ids, &over);
            scope.spawn(move || {
                let _stop = Stop(over);
                write(plane, id, seed + 1, ids);
                if writing.fetch_sub(1, Ordering::SeqCst) > 1 {
                    std::mem::forget(_stop);
                }
            });
        }
        scope.spawn(|| {
            let client = client(&plane, id);
            while !over.load(Ordering::SeqCst) {
                for kind in ["loop", "panic", "yields", "fail"] {
                    let ended = client.invoke("culprit", kind.as_bytes());
                    let expected = matches!(ended, Err(Error::Killed { .. } | Error::Failed { .. } | Error::Conflict));
                    assert!(expected, "{kind}: {ended:?}");
                }
            }
        });
        scope.spawn(|| {
            let mut graph = Placed::at(&plane, id, Placement::Combined, 1);
            for time in 1.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                graph.run(&moved(time % 3_000));
            }
        });
        let mut readers = PLACEMENTS.map(|placement| Placed::new(&plane, id, placement));
        let mut random = Random(1);
        while !over.load(Ordering::SeqCst) {
            for graph in &mut readers {
                read_lists(graph, &mut random);
                let one = graph.run(&Op::AssocGet { id1: 99, atype: 3, id2set: vec![98], high: None, low: None });
                assert!(matches!(&one, Answer::List(edges) if edges.len() == 1), "{one:?}");
                assert_eq!(graph.run(&Op::AssocCount { id1: 99, atype: 3 }), Answer::Count(41));
            }
        }
    });
    let of_all: Vec<u64> = IDS.into_iter().chain([77, 98, 99]).chain(200..240).collect();
    for placement in PLACEMENTS {
        let seen = model::audit(&mut Placed::new(&plane, id, placement), &of_all, &[1, 2, 3, 4]);
        assert!(seen > 41, "the writers have written: {seen}");
    }
    assert!(!ids.lock().expect("no panic").is_empty());
    await_nothing_charged(&plane, id);
}

/// Number of operations that the tenant has requested.
fn requests(plane: &DataPlane, tenant: u32) -> u64 {
    let snapshot = plane.directory.snapshot();
    let usage = &snapshot.tenant(tenant).expect("the tenant is there").tenant.usage;
    (0..plane.metrics.workers()).map(|worker| usage.worker(worker).requests.get()).sum()
}

/// Adds edges to one list, many at a time; data are the id.
fn add_edges(plane: &DataPlane, tenant: u32, list: (u64, u32), numbers: impl Iterator<Item = u64>, count: u64) {
    let numbers: Vec<u64> = numbers.collect();
    let client = client_at(plane, tenant, numbers.first().map_or(0, |number| *number as usize));
    for some in numbers.chunks(128) {
        let mut left: Vec<u64> = some.to_vec();
        // A call that conflicts each time gets that error, and is repeated.
        while !left.is_empty() {
            let mut batch = client.batch();
            for number in &left {
                let edge = edge_of(*number, count);
                let args = codec::assoc_add(&TABLES, list.0, list.1, edge.0, edge.1, &edge.2);
                batch = batch.invoke("tao", &args);
            }
            let answers = client.with_deadline(PATIENT).send(batch).expect("answers");
            left = left.into_iter().zip(answers).filter_map(|(number, answer)| again(answer, number)).collect();
        }
    }
}

fn again(answer: Result<sandstorm_client::Reply, Error>, number: u64) -> Option<u64> {
    match answer {
        Ok(_) => None,
        Err(Error::Conflict | Error::Overloaded | Error::OverQuota { .. }) => Some(number),
        Err(error) => panic!("edge {number}: {error}"),
    }
}

/// The `number`th edge of a list of `count`: ids not in the order of times, and two of each time.
fn edge_of(number: u64, count: u64) -> Edge {
    let id2 = number * 7_919 % count;
    (id2, id2 / 2, id2.to_le_bytes().to_vec())
}

#[test]
fn a_list_of_a_hundred_thousand_edges_that_many_write_to_at_a_time_is_right() {
    let count = rounds(100_000);
    let plane = data_plane(2);
    let id = graph(&plane);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let plane = &plane;
            scope.spawn(move || add_edges(plane, id, (1, 9), (0..count).filter(move |n| n % 4 == part), count));
        }
    });
    let (mut random, mut model) = (Random(3), Model::default());
    for number in 0..count {
        let (id2, time, data) = edge_of(number, count);
        model.check(&Op::AssocAdd { id1: 1, atype: 9, id2, time, data }, &Answer::Done(true));
    }
    let mut graphs = PLACEMENTS.map(|placement| Placed::new(&plane, id, placement));
    let many: Vec<u64> = (count - 2_000..count + 5_000).rev().collect();
    for graph in &mut graphs {
        // More ids than one call takes, and more than one multiget.
        let op = Op::AssocGet { id1: 1, atype: 9, id2set: many.clone(), high: None, low: Some(count / 2 - 900) };
        let answer = graph.run(&op);
        model.check(&op, &answer);
    }
    for round in 0..12 {
        let (pos, limit) = (random.below(count + 100), random.of(&[1, 10, 6_000]));
        let (high, low) = (random.below(count / 2), random.below(count / 2));
        for op in [
            Op::AssocCount { id1: 1, atype: 9 },
            Op::AssocRange { id1: 1, atype: 9, pos, limit },
            Op::AssocTimeRange { id1: 1, atype: 9, high, low, limit },
            Op::AssocGet { id1: 1, atype: 9, id2set: vec![pos, high, low, pos], high: Some(high), low: None },
        ] {
            for graph in &mut graphs {
                let answer = graph.run(&op);
                model.check(&op, &answer);
            }
        }
        let op = Op::AssocDelete { id1: 1, atype: 9, id2: random.below(count) };
        let answer = graphs[round % 3].run(&op);
        model.check(&op, &answer);
    }
    // A request near the end does not read all edges before it.
    for graph in &mut graphs {
        let before = requests(&plane, id);
        let op = Op::AssocRange { id1: 1, atype: 9, pos: count - 500, limit: 10 };
        let answer = graph.run(&op);
        model.check(&op, &answer);
        let sent = requests(&plane, id) - before;
        assert!(sent < 20, "{:?}: {sent} requests", graph.placement);
    }
}
