//! The answers of a social graph according to TAO's paper (Bronson et al., USENIX ATC 2013, section 3) and docs/tao.md:
//! maps of objects, edges and types; a list is sorted when it is read. Nothing here is taken from the extension's
//! sources.
#![allow(unreachable_pub)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sandstorm_client::tao::Fields;

/// Most edges that one query returns.
const LIMIT: usize = 6_000;
/// Most bytes of an association's data.
pub const MOST_DATA: usize = 64 << 10;
/// Most fields of an object, and most bytes of them together: names, values, and 5 for each.
pub const MOST_FIELDS: usize = 1_024;
pub const MOST_FIELD_BYTES: usize = 256 << 10;

/// From, type, to.
pub type Edge = (u64, u32, u64);
/// To, time, data.
pub type Hit = (u64, u64, Vec<u8>);

/// A request to a graph.
#[derive(Clone, Debug)]
pub enum GraphQuery {
    ObjAdd(u32, Fields),
    ObjGet(u64),
    ObjUpdate(u64, Fields, Vec<Vec<u8>>),
    ObjDelete(u64),
    Add(Edge, u64, Vec<u8>),
    Delete(Edge),
    Change(Edge, u32),
    Get { list: (u64, u32), ids: Vec<u64>, high: Option<u64>, low: Option<u64> },
    Count((u64, u32)),
    Range { list: (u64, u32), pos: u64, limit: u32 },
    TimeRange { list: (u64, u32), high: u64, low: u64, limit: u32 },
    Declare(u32, Option<u32>),
    Declared(u32),
}

/// A graph's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphAnswer {
    Id(u64),
    Object(Option<(u32, Fields)>),
    Yes(bool),
    Count(u64),
    Hits(Vec<Hit>),
    Nothing,
    Type(Option<Option<u32>>),
    Refused,
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub objects: BTreeMap<u64, (u32, Fields)>,
    /// All ids that were ever assigned.
    pub given: BTreeSet<u64>,
    pub edges: BTreeMap<Edge, (u64, Vec<u8>)>,
    types: BTreeMap<u32, Option<u32>>,
    /// The events so far, and their counts: a run without the hard cases would prove little.
    pub met: BTreeMap<&'static str, u64>,
}

impl Oracle {
    /// Compares an answer with the expected one.
    pub fn check(&mut self, query: &GraphQuery, answered: &GraphAnswer) {
        let expected = self.expect(query, answered);
        assert!(*answered == expected, "{query:?}\nis answered {answered:?}\nnot {expected:?}");
    }

    fn expect(&mut self, query: &GraphQuery, answered: &GraphAnswer) -> GraphAnswer {
        match query {
            GraphQuery::ObjAdd(..) | GraphQuery::ObjUpdate(..) | GraphQuery::ObjDelete(_) => {
                self.write_object(query, answered)
            }
            GraphQuery::ObjGet(id) => GraphAnswer::Object(self.objects.get(id).cloned()),
            GraphQuery::Add(edge, time, data) => self.add(*edge, *time, data),
            GraphQuery::Delete(edge) => GraphAnswer::Yes(self.remove(*edge).is_some()),
            GraphQuery::Change(edge, newtype) => self.change(*edge, *newtype),
            GraphQuery::Get { list, ids, high, low } => {
                let mut hits = self.list(*list);
                hits.retain(|hit| ids.contains(&hit.0));
                hits.retain(|hit| high.is_none_or(|high| hit.1 <= high) && low.is_none_or(|low| hit.1 >= low));
                GraphAnswer::Hits(hits)
            }
            GraphQuery::Count((id1, atype)) => GraphAnswer::Count(self.edges_of(*id1, *atype).count() as u64),
            GraphQuery::Range { list, pos, limit } => {
                let skipped = usize::try_from(*pos).unwrap_or(usize::MAX);
                let hits = self.list(*list).into_iter().skip(skipped);
                GraphAnswer::Hits(hits.take(LIMIT.min(*limit as usize)).collect())
            }
            GraphQuery::TimeRange { list, high, low, limit } => {
                let mut hits = self.list(*list);
                hits.retain(|hit| *low <= hit.1 && hit.1 <= *high);
                hits.truncate(LIMIT.min(*limit as usize));
                GraphAnswer::Hits(hits)
            }
            GraphQuery::Declare(atype, inverse) => self.declare(*atype, *inverse),
            GraphQuery::Declared(atype) => GraphAnswer::Type(self.types.get(atype).copied()),
        }
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn write_object(&mut self, query: &GraphQuery, answered: &GraphAnswer) -> GraphAnswer {
        match query {
            GraphQuery::ObjAdd(_, fields) | GraphQuery::ObjUpdate(_, fields, _) if !fit(fields) => {
                return GraphAnswer::Refused;
            }
            GraphQuery::ObjUpdate(_, fields, away) if away.iter().any(|name| fields.0.contains_key(name)) => {
                return GraphAnswer::Refused;
            }
            GraphQuery::ObjAdd(otype, fields) => {
                let GraphAnswer::Id(id) = answered else { panic!("{query:?} is answered {answered:?}") };
                assert!(self.given.insert(*id), "{id} is given out a second time");
                self.objects.insert(*id, (*otype, fields.clone()));
                return answered.clone();
            }
            _ => {}
        }
        match query {
            GraphQuery::ObjUpdate(id, fields, away) => {
                let Some((_, old)) = self.objects.get_mut(id) else { return GraphAnswer::Yes(false) };
                let mut new = old.clone();
                new.0.extend(fields.0.clone());
                new.0.retain(|name, _| !away.contains(name));
                if !fit(&new) {
                    self.meet("an update that makes an object too large");
                    return GraphAnswer::Refused;
                }
                *old = new;
                GraphAnswer::Yes(true)
            }
            GraphQuery::ObjDelete(id) => GraphAnswer::Yes(self.objects.remove(id).is_some()),
            _ => unreachable!("no write of an object"),
        }
    }

    fn inverse(&self, (id1, atype, id2): Edge) -> Option<Edge> {
        self.types.get(&atype).copied().flatten().map(|inverse| (id2, inverse, id1))
    }

    /// Once a type has an edge, its inverse (or having none) is fixed.
    fn put(&mut self, edge: Edge, value: (u64, Vec<u8>)) -> bool {
        self.types.entry(edge.1).or_insert(None);
        if let Some(inverse) = self.inverse(edge) {
            self.edges.insert(inverse, value.clone());
        }
        self.edges.insert(edge, value).is_none()
    }

    fn remove(&mut self, edge: Edge) -> Option<(u64, Vec<u8>)> {
        let value = self.edges.remove(&edge)?;
        if let Some(inverse) = self.inverse(edge) {
            self.edges.remove(&inverse);
        }
        Some(value)
    }

    fn add(&mut self, edge: Edge, time: u64, data: &[u8]) -> GraphAnswer {
        if data.len() > MOST_DATA {
            return GraphAnswer::Refused;
        }
        if edge.0 == edge.2 {
            self.meet("an edge to itself");
        }
        // By hand, since a self-edge of a symmetric type is its own inverse.
        let is_new = !self.edges.contains_key(&edge);
        if !is_new {
            self.meet("an edge that is there is added");
        }
        self.put(edge, (time, data.to_vec()));
        GraphAnswer::Yes(is_new)
    }

    fn change(&mut self, edge: Edge, newtype: u32) -> GraphAnswer {
        let (id1, atype, id2) = edge;
        let changed = (id1, newtype, id2);
        if !self.edges.contains_key(&edge) {
            return GraphAnswer::Yes(false);
        }
        if atype == newtype {
            self.meet("a change to the same type");
        } else if self.inverse(edge) == Some(changed) {
            self.meet("an edge changed to its own inverse");
        } else if self.edges.contains_key(&changed) {
            self.meet("a change onto an edge that is there");
        }
        let inverses = (self.inverse(edge).is_some(), self.types.get(&newtype).copied().flatten().is_some());
        match inverses {
            (true, false) => self.meet("a change that loses the inverse"),
            (false, true) => self.meet("a change that gains an inverse"),
            _ => {}
        }
        let value = self.remove(edge).expect("it is there");
        self.put(changed, value);
        GraphAnswer::Yes(true)
    }

    fn declare(&mut self, atype: u32, inverse: Option<u32>) -> GraphAnswer {
        let mut wanted = vec![(atype, inverse)];
        wanted.extend(inverse.map(|inverse| (inverse, Some(atype))));
        if wanted.iter().any(|(atype, inverse)| self.types.get(atype).is_some_and(|was| was != inverse)) {
            self.meet("a type declared otherwise");
            return GraphAnswer::Refused;
        }
        self.types.extend(wanted);
        GraphAnswer::Nothing
    }

    fn edges_of(&self, id1: u64, atype: u32) -> impl Iterator<Item = (&Edge, &(u64, Vec<u8>))> {
        self.edges.range((id1, atype, 0)..=(id1, atype, u64::MAX))
    }

    /// A whole list, newest first; equal times are ordered by ascending id2.
    pub fn list(&self, (id1, atype): (u64, u32)) -> Vec<Hit> {
        let edges = self.edges_of(id1, atype);
        let mut hits: Vec<Hit> = edges.map(|(edge, (time, data))| (edge.2, *time, data.clone())).collect();
        hits.sort_by_key(|hit| (Reverse(hit.1), hit.0));
        hits
    }
}

/// Returns whether an object may have these fields.
fn fit(fields: &Fields) -> bool {
    let bytes: usize = fields.0.iter().map(|(name, value)| name.len() + value.len() + 5).sum();
    let named = fields.0.keys().all(|name| (1..=255).contains(&name.len()));
    named && fields.0.len() <= MOST_FIELDS && bytes <= MOST_FIELD_BYTES
}
