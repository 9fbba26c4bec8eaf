//! The expected answers of a graph store, in the simplest implementation; random requests, and a check that a graph is
//! sound.
#![allow(dead_code, unreachable_pub)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub type Fields = BTreeMap<Vec<u8>, Vec<u8>>;
/// id2, time, data.
pub type Edge = (u64, u64, Vec<u8>);

/// Edges that one query gives at most.
pub const LIMIT: usize = 6_000;

/// A request to a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    ObjAdd { otype: u32, fields: Fields },
    ObjGet { id: u64 },
    ObjUpdate { id: u64, set: Fields, remove: Vec<Vec<u8>> },
    ObjDelete { id: u64 },
    AssocAdd { id1: u64, atype: u32, id2: u64, time: u64, data: Vec<u8> },
    AssocDelete { id1: u64, atype: u32, id2: u64 },
    AssocChangeType { id1: u64, atype: u32, id2: u64, newtype: u32 },
    AssocGet { id1: u64, atype: u32, id2set: Vec<u64>, high: Option<u64>, low: Option<u64> },
    AssocCount { id1: u64, atype: u32 },
    AssocRange { id1: u64, atype: u32, pos: u64, limit: u32 },
    AssocTimeRange { id1: u64, atype: u32, high: u64, low: u64, limit: u32 },
    AssocType { atype: u32, inverse: Option<u32> },
    AssocTypeGet { atype: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Id(u64),
    Object(Option<(u32, Fields)>),
    Done(bool),
    List(Vec<Edge>),
    Count(u64),
    Type(Option<Option<u32>>),
    Nothing,
    /// The arguments were refused.
    Invalid,
}

/// A store that answers requests.
pub trait Graph {
    fn run(&mut self, op: &Op) -> Answer;
}

type List = BTreeMap<u64, (u64, Vec<u8>)>;

/// The simplest graph store.
#[derive(Debug, Default)]
pub struct Model {
    /// Every id that was ever assigned, in that order.
    pub ids: Vec<u64>,
    objects: BTreeMap<u64, (u32, Fields)>,
    lists: BTreeMap<(u64, u32), List>,
    types: BTreeMap<u32, Option<u32>>,
}

impl Model {
    /// Returns whether the answer is right; new ids may be any that are unused. Applies the request's changes here,
    /// too.
    pub fn check(&mut self, op: &Op, answer: &Answer) {
        if let Op::ObjAdd { otype, fields } = op {
            let Answer::Id(id) = answer else { panic!("{op:?}: {answer:?}") };
            assert!(!self.ids.contains(id), "id {id} comes twice");
            self.ids.push(*id);
            self.objects.insert(*id, (*otype, fields.clone()));
            return;
        }
        let expected = self.answer(op);
        assert_eq!(*answer, expected, "{op:?}");
    }

    fn answer(&mut self, op: &Op) -> Answer {
        match op {
            Op::ObjAdd { .. } => unreachable!("its id is the graph's choice"),
            Op::ObjGet { id } => Answer::Object(self.objects.get(id).cloned()),
            Op::ObjUpdate { set, remove, .. } if remove.iter().any(|name| set.contains_key(name)) => Answer::Invalid,
            Op::ObjUpdate { id, set, remove } => {
                let Some((_, fields)) = self.objects.get_mut(id) else { return Answer::Done(false) };
                fields.extend(set.clone());
                fields.retain(|name, _| !remove.contains(name));
                Answer::Done(true)
            }
            Op::ObjDelete { id } => Answer::Done(self.objects.remove(id).is_some()),
            Op::AssocAdd { id1, atype, id2, time, data } => {
                Answer::Done(self.insert_both(*id1, *atype, *id2, (*time, data.clone())))
            }
            Op::AssocDelete { id1, atype, id2 } => Answer::Done(self.remove_both(*id1, *atype, *id2).is_some()),
            Op::AssocChangeType { id1, atype, id2, newtype } => {
                let Some(what) = self.remove_both(*id1, *atype, *id2) else { return Answer::Done(false) };
                self.insert_both(*id1, *newtype, *id2, what);
                Answer::Done(true)
            }
            Op::AssocGet { id1, atype, id2set, high, low } => {
                let (high, low) = (high.unwrap_or(u64::MAX), low.unwrap_or(0));
                let ids: BTreeSet<u64> = id2set.iter().copied().collect();
                let wanted = |edge: &Edge| ids.contains(&edge.0) && low <= edge.1 && edge.1 <= high;
                Answer::List(self.list(*id1, *atype).into_iter().filter(wanted).collect())
            }
            Op::AssocCount { id1, atype } => Answer::Count(self.list(*id1, *atype).len() as u64),
            Op::AssocRange { id1, atype, pos, limit } => {
                let (pos, limit) = (usize::try_from(*pos).unwrap(), LIMIT.min(*limit as usize));
                Answer::List(self.list(*id1, *atype).into_iter().skip(pos).take(limit).collect())
            }
            Op::AssocTimeRange { id1, atype, high, low, limit } => {
                let wanted = |edge: &Edge| *low <= edge.1 && edge.1 <= *high;
                let limit = LIMIT.min(*limit as usize);
                Answer::List(self.list(*id1, *atype).into_iter().filter(wanted).take(limit).collect())
            }
            Op::AssocType { atype, inverse } => self.declare(*atype, *inverse),
            Op::AssocTypeGet { atype } => Answer::Type(self.types.get(atype).copied()),
        }
    }

    fn declare(&mut self, atype: u32, inverse: Option<u32>) -> Answer {
        let mut declarations = vec![(atype, inverse)];
        declarations.extend(inverse.map(|other| (other, Some(atype))));
        if declarations.iter().any(|(atype, inverse)| self.types.get(atype).is_some_and(|known| known != inverse)) {
            return Answer::Invalid;
        }
        self.types.extend(declarations);
        Answer::Nothing
    }

    fn insert_both(&mut self, id1: u64, atype: u32, id2: u64, what: (u64, Vec<u8>)) -> bool {
        let was = self.lists.entry((id1, atype)).or_default().insert(id2, what.clone());
        if let Some(inverse) = *self.types.entry(atype).or_insert(None) {
            self.lists.entry((id2, inverse)).or_default().insert(id1, what);
        }
        was.is_none()
    }

    fn remove_both(&mut self, id1: u64, atype: u32, id2: u64) -> Option<(u64, Vec<u8>)> {
        let was = self.lists.get_mut(&(id1, atype))?.remove(&id2)?;
        if let Some(inverse) = self.types.get(&atype).copied().flatten() {
            self.lists.entry((id2, inverse)).or_default().remove(&id1);
        }
        Some(was)
    }

    /// A list, newest first; equal times are ordered by ascending id2.
    fn list(&self, id1: u64, atype: u32) -> Vec<Edge> {
        let edges = self.lists.get(&(id1, atype)).into_iter().flatten();
        let mut edges: Vec<Edge> = edges.map(|(id2, (time, data))| (*id2, *time, data.clone())).collect();
        edges.sort_by_key(|(id2, time, _)| (Reverse(*time), *id2));
        edges
    }
}

/// Pseudo-random numbers, the same from the same seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len() as u64) as usize]
    }
}

/// Ids that edges join: few, so that they meet, and the smallest and largest.
pub const ENDS: [u64; 7] = [0, 1, 2, 3, 255, 256, u64::MAX];
/// Types of edges: 1 and 2 are declared as each other's inverse, 3 as its own, 4 without; the others are random.
pub const TYPES: [u32; 7] = [1, 2, 3, 4, 5, 0, u32::MAX];
const TIMES: [u64; 7] = [0, 1, 2, 3, 1_000, u64::MAX - 1, u64::MAX];

/// The requests before the random ones.
pub fn declarations() -> Vec<Op> {
    let declare = |atype, inverse| Op::AssocType { atype, inverse };
    vec![declare(1, Some(2)), declare(3, Some(3)), declare(4, None)]
}

/// A question at random.
pub fn random(random: &mut Random, model: &Model) -> Op {
    let (id1, atype, id2) = (random.of(&ENDS), random.of(&TYPES), random.of(&ENDS));
    let id = if model.ids.is_empty() || random.below(8) == 0 { id1 } else { random.of(&model.ids) };
    let (high, low) = (random.of(&TIMES), random.of(&TIMES));
    let limit = random.of(&[0, 1, 2, 3, 10, 6_000, 6_001, u32::MAX]);
    match random.below(26) {
        0..=1 => Op::ObjAdd { otype: random.next() as u32, fields: some_fields(random) },
        2..=3 => Op::ObjGet { id },
        4..=5 => {
            let names: Vec<Vec<u8>> = some_fields(random).into_keys().collect();
            let set = some_fields(random);
            let keep = random.below(20) == 0;
            let remove = names.into_iter().filter(|name| keep || !set.contains_key(name)).collect();
            Op::ObjUpdate { id, set, remove }
        }
        6 => Op::ObjDelete { id },
        7..=12 => {
            let data = vec![random.next() as u8; random.of(&[0, 1, 8, 100])];
            Op::AssocAdd { id1, atype, id2, time: random.of(&TIMES), data }
        }
        13..=14 => Op::AssocDelete { id1, atype, id2 },
        15 => Op::AssocChangeType { id1, atype, id2, newtype: random.of(&TYPES) },
        16..=18 => {
            let id2set = (0..random.below(8)).map(|_| random.of(&ENDS)).collect();
            let bound = |random: &mut Random| (random.below(2) == 0).then(|| random.of(&TIMES));
            Op::AssocGet { id1, atype, id2set, high: bound(random), low: bound(random) }
        }
        19..=20 => Op::AssocCount { id1, atype },
        21..=22 => Op::AssocRange { id1, atype, pos: random.of(&[0, 0, 1, 2, 3, 100, u64::MAX]), limit },
        23..=24 => Op::AssocTimeRange { id1, atype, high: high.max(low), low: high.min(low), limit },
        _ if random.below(4) > 0 => Op::AssocTimeRange { id1, atype, high, low, limit },
        _ if random.below(2) == 0 => Op::AssocTypeGet { atype },
        _ => Op::AssocType { atype, inverse: (random.below(3) > 0).then(|| random.of(&TYPES)) },
    }
}

fn some_fields(random: &mut Random) -> Fields {
    let names: [&[u8]; 6] = [b"name", b"n", b"na", b"\0", b"\xff\xff", &[b'x'; 255]];
    let count = random.below(5);
    (0..count).map(|_| (random.of(&names).to_vec(), vec![random.next() as u8; random.of(&[0, 1, 30])])).collect()
}

/// Checks that the lists of a graph at rest are sound: each edge once, in order, as often as it is counted, with its
/// inverse of the same time and data. Returns the number of edges.
pub fn audit(graph: &mut impl Graph, ids: &[u64], types: &[u32]) -> usize {
    let mut lists: BTreeMap<(u64, u32), Vec<Edge>> = BTreeMap::new();
    for (id1, atype) in ids.iter().flat_map(|id1| types.iter().map(move |atype| (*id1, *atype))) {
        let Answer::List(edges) = graph.run(&Op::AssocRange { id1, atype, pos: 0, limit: u32::MAX }) else {
            panic!("a list of {id1}, {atype}")
        };
        let distinct: BTreeSet<u64> = edges.iter().map(|edge| edge.0).collect();
        assert_eq!(distinct.len(), edges.len(), "each id once in {id1}, {atype}: {edges:?}");
        assert!(edges.is_sorted_by_key(|(id2, time, _)| (Reverse(*time), *id2)), "{id1}, {atype}: {edges:?}");
        assert_eq!(graph.run(&Op::AssocCount { id1, atype }), Answer::Count(edges.len() as u64), "{id1}, {atype}");
        let all = Op::AssocGet { id1, atype, id2set: ids.to_vec(), high: None, low: None };
        assert_eq!(graph.run(&all), Answer::List(edges.clone()), "{id1}, {atype}");
        lists.insert((id1, atype), edges);
    }
    for atype in types {
        let Answer::Type(declared) = graph.run(&Op::AssocTypeGet { atype: *atype }) else { panic!("type {atype}") };
        let Some(inverse) = declared.flatten() else { continue };
        for id1 in ids {
            for (id2, time, data) in &lists[&(*id1, *atype)] {
                let other = lists[&(*id2, inverse)].iter().find(|edge| edge.0 == *id1);
                assert_eq!(other, Some(&(*id1, *time, data.clone())), "the inverse of {id1}, {atype}, {id2}");
            }
        }
    }
    lists.values().map(Vec::len).sum()
}
