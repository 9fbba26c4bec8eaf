//! Requests about a graph, and what their replies have to be.

use super::super::ask::{Ask, Seen};
use super::super::compute::take_member;
use super::super::keys::{check_value, mix};
use super::super::{Class, Data};
use super::{ADDED_TIME, EDGE, Graph, OBJECT, OTHER, edge_id};
use crate::message::{Direction, Message};
use crate::tao::Placement;
use crate::tao::codec::{self, Count, Fields};
use sandstorm_net::rpc::Rows;

/// Edges that one request names at most, and how many loaded edges lie between two times that are asked for.
const NAMED: u32 = 3;
const BETWEEN: u32 = 10;

/// The keys of the edges that a client has read in a list, until it has read the edges.
#[derive(Debug, Default)]
pub(in crate::load) struct Held {
    slots: Vec<Vec<[u8; 21]>>,
    free: Vec<u32>,
}

impl Held {
    fn hold(&mut self, keys: impl Iterator<Item = [u8; 21]>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Vec::new());
            self.slots.len() as u32 - 1
        });
        if let Some(held) = self.slots.get_mut(slot as usize) {
            held.clear();
            held.extend(keys);
        }
        slot
    }

    fn get(&self, slot: u32) -> &[[u8; 21]] {
        self.slots.get(slot as usize).map_or(&[], Vec::as_slice)
    }

    /// The request has ended, well or not.
    pub(in crate::load) fn release(&mut self, ask: &Ask) {
        if ask.step > 0 && matches!(ask.class, Class::AssocRange | Class::AssocTimeRange) {
            self.free.push(ask.step - 1);
        }
    }
}

/// An edge as a reply has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge<'r> {
    id2: u64,
    time: u64,
    data: &'r [u8],
}

/// What a request is about.
struct About<'g> {
    data: &'g Data,
    graph: &'g Graph,
    id: u64,
    edges: u32,
    twist: u64,
}

impl<'g> About<'g> {
    fn new(data: &'g Data, graph: &'g Graph, ask: &Ask) -> About<'g> {
        let id = ask.id + 1;
        About { data, graph, id, edges: graph.edges(id, data.records), twist: u64::from(ask.twist) }
    }

    /// Any loaded edge.
    fn edge(&self) -> u64 {
        let at = mix(self.twist) % u64::from(self.edges.max(1));
        Graph::edge_to(self.id, at as u32, self.data.records)
    }

    /// Ids to which edges are asked for: some loaded ones, and one that may be none.
    fn ids(&self) -> Vec<u64> {
        let edges = self.twist as u32 % NAMED;
        let loaded = (0..edges.min(self.edges)).map(|n| {
            let at = (mix(self.twist) + u64::from(n)) % u64::from(self.edges);
            Graph::edge_to(self.id, at as u32, self.data.records)
        });
        let any = mix(!self.twist) % self.data.records.max(1) + 1;
        let mut ids: Vec<u64> = loaded.filter(|id| *id != any).collect();
        ids.push(any);
        ids
    }

    /// Latest and earliest time that is asked for.
    fn times(&self, class: Class) -> (u64, u64) {
        if class != Class::AssocTimeRange {
            return (u64::MAX, 0);
        }
        let first = (mix(self.twist) % u64::from(self.edges.max(1))) as u32;
        (Graph::edge_time(first + BETWEEN - 1), Graph::edge_time(first))
    }

    /// What a query gives as the graph was loaded, newest first.
    fn expected(&self, class: Class) -> Vec<(u64, u64)> {
        let all =
            (0..self.edges).rev().map(|at| (Graph::edge_to(self.id, at, self.data.records), Graph::edge_time(at)));
        match class {
            Class::AssocGet => {
                let ids = self.ids();
                all.filter(|(id2, _)| ids.contains(id2)).collect()
            }
            class => {
                let (high, low) = self.times(class);
                all.filter(|(_, time)| (low..=high).contains(time)).take(self.graph.limit as usize).collect()
            }
        }
    }

    /// Whether a query may be answered by these edges.
    fn are_right(&self, class: Class, edges: &[Edge<'_>], as_loaded: bool) -> bool {
        if as_loaded {
            let expected = self.expected(class);
            if !edges.iter().map(|edge| (edge.id2, edge.time)).eq(expected) {
                return false;
            }
        }
        let (high, low) = self.times(class);
        let ids = if class == Class::AssocGet { self.ids() } else { Vec::new() };
        let ordered = edges.windows(2).all(|pair| match pair {
            [a, b] => (b.time, a.id2) < (a.time, b.id2),
            _ => true,
        });
        let limit = if class == Class::AssocGet { ids.len() } else { self.graph.limit as usize };
        ordered
            && edges.len() <= limit
            && edges.iter().all(|edge| {
                let its_own = edge.data.len() < 16 || edge.data.starts_with(&edge.time.to_le_bytes());
                (low..=high).contains(&edge.time)
                    && (ids.is_empty() || ids.contains(&edge.id2))
                    && edge.data.len() == self.graph.edge_bytes
                    && its_own
                    && check_value(edge_id(self.id, edge.id2), edge.data)
            })
    }

    fn is_object(&self, record: &[u8]) -> bool {
        let Some((otype, Fields(fields))) = codec::object(record) else { return false };
        let field = fields.get(super::FIELD);
        let right = |value: &Vec<u8>| value.len() == self.graph.object_bytes && check_value(self.id, value);
        otype == OBJECT && fields.len() == 1 && field.is_some_and(right)
    }
}

impl Data {
    /// Appends the operation of a graph's request.
    pub(in crate::load) fn write_graph_ask(&self, ask: &Ask, salt: u64, message: &mut Message, held: &Held) {
        let Some(graph) = &self.graph else { return };
        let about = About::new(self, graph, ask);
        let tables = graph.tables(self.table);
        let id = about.id;
        let by_client = graph.placement == Placement::Client;
        let (high, low) = about.times(ask.class);
        let args = match ask.class {
            Class::ObjGet if graph.placement != Placement::Invocation => {
                return message.get(self.table, &codec::object_key(id));
            }
            Class::AssocCount if graph.placement != Placement::Invocation && ask.step == 0 => {
                return message.get(self.table, &codec::count_key(id, EDGE));
            }
            Class::AssocCount if by_client => {
                let shards: Vec<[u8; 14]> = (0..ask.step as u8).map(|at| codec::shard_key(id, EDGE, at)).collect();
                return message.snapshot(self.table, &shards);
            }
            Class::AssocGet if by_client => {
                let keys: Vec<[u8; 21]> = about.ids().iter().map(|id2| codec::edge_key(id, EDGE, *id2)).collect();
                return message.multi_get(self.table, &keys);
            }
            Class::AssocRange | Class::AssocTimeRange if by_client && ask.step == 0 => {
                let from = codec::list_key(id, EDGE, high, 0);
                // The end is left out: one byte behind the last key that is not.
                let to = [&codec::list_key(id, EDGE, low, u64::MAX)[..], &[0]].concat();
                return message.range(graph.lists, &from, &to, graph.limit, Direction::Forward, false);
            }
            Class::AssocRange | Class::AssocTimeRange if by_client => {
                return message.multi_get(self.table, held.get(ask.step - 1));
            }
            Class::ObjGet => codec::obj_get(&tables, id),
            Class::ObjAdd => codec::obj_add(&tables, OBJECT, &graph.fields(id, salt)),
            Class::ObjUpdate => codec::obj_update(&tables, id, &graph.fields(id, salt), &[]),
            Class::ObjDelete => codec::obj_delete(&tables, id),
            Class::AssocGet => codec::assoc_get(&tables, id, EDGE, &about.ids(), high, low),
            Class::AssocCount => codec::assoc_count(&tables, id, EDGE),
            Class::AssocRange => codec::assoc_range(&tables, id, EDGE, 0, graph.limit, None),
            Class::AssocTimeRange => codec::assoc_time_range(&tables, id, EDGE, (high, low), graph.limit, None),
            Class::AssocAdd => {
                let (id2, time) = (mix(about.twist) % self.records.max(1) + 1, ADDED_TIME + (salt >> 24));
                let mut data = Vec::new();
                graph.write_edge_data(id, id2, time, &mut data);
                codec::assoc_add(&tables, id, EDGE, id2, time, &data)
            }
            Class::AssocDelete => codec::assoc_delete(&tables, id, EDGE, about.edge()),
            Class::AssocChangeType => codec::assoc_change_type(&tables, id, EDGE, about.edge(), OTHER),
            _ => return,
        };
        ask.class.call(&args, message);
    }

    /// Looks at a successful reply to a graph's request. `as_loaded`: nobody changes the graph.
    pub(in crate::load) fn see_graph(
        &self,
        ask: &mut Ask,
        found: bool,
        reply: &[u8],
        as_loaded: bool,
        held: &mut Held,
    ) -> Seen {
        let Some(graph) = &self.graph else { return Seen::Wrong };
        let by_client = graph.placement == Placement::Client;
        let is_count = graph.placement != Placement::Invocation && ask.class == Class::AssocCount && ask.step == 0;
        if is_count && let Some(Count::Sharded(shards)) = codec::count(found.then_some(reply)) {
            ask.step = u32::from(shards);
            return Seen::Again;
        }
        if by_client && ask.step == 0 && matches!(ask.class, Class::AssocRange | Class::AssocTimeRange) {
            let id = ask.id + 1;
            let places = range_keys(reply).filter_map(codec::place);
            let slot = held.hold(places.map(|place| codec::edge_key(id, EDGE, place.id2)));
            if !held.get(slot).is_empty() {
                ask.step = slot + 1;
                return Seen::Again;
            }
            held.free.push(slot);
        }
        let right = !ask.verify || self.graph_is_right(graph, ask, (found, reply), as_loaded, held);
        held.release(ask);
        if right { Seen::Done } else { Seen::Wrong }
    }

    fn graph_is_right(
        &self,
        graph: &Graph,
        ask: &Ask,
        (found, reply): (bool, &[u8]),
        as_loaded: bool,
        held: &Held,
    ) -> bool {
        let about = About::new(self, graph, ask);
        let by_client = graph.placement == Placement::Client;
        match ask.class {
            Class::ObjGet => {
                let absent = if graph.placement == Placement::Invocation { reply.is_empty() } else { !found };
                if absent { !as_loaded } else { about.is_object(reply) }
            }
            Class::AssocCount => {
                let count = match (graph.placement, ask.step) {
                    (Placement::Invocation, _) => codec::number(reply),
                    (_, 0) => match codec::count(found.then_some(reply)) {
                        Some(Count::Whole(count)) => Some(count),
                        _ => None,
                    },
                    (Placement::Client, _) => sum_of_shards(reply),
                    (Placement::Combined, _) => codec::number(reply),
                };
                count.is_some_and(|count| !as_loaded || count == u64::from(about.edges))
            }
            Class::AssocGet | Class::AssocRange | Class::AssocTimeRange => {
                let keys: Vec<[u8; 21]> = match ask.class {
                    Class::AssocGet => about.ids().iter().map(|id2| codec::edge_key(about.id, EDGE, *id2)).collect(),
                    _ if ask.step > 0 => held.get(ask.step - 1).to_vec(),
                    _ => Vec::new(),
                };
                let (high, low) = about.times(ask.class);
                let edges = if by_client { edges_of(&keys, reply, ask) } else { edges_in(reply, as_loaded) };
                // Between a client's two steps an edge may have got another time.
                let edges = edges.map(|mut edges| {
                    edges.retain(|edge| !by_client || (low..=high).contains(&edge.time));
                    edges
                });
                edges.is_some_and(|edges| about.are_right(ask.class, &edges, as_loaded))
            }
            Class::ObjAdd => codec::number(reply).is_some_and(|id| id > self.records),
            Class::AssocAdd | Class::AssocDelete | Class::AssocChangeType | Class::ObjUpdate | Class::ObjDelete => {
                codec::yes(reply).is_some()
            }
            _ => false,
        }
    }
}

/// The sum of a multi-get's parts of a count.
fn sum_of_shards(mut reply: &[u8]) -> Option<u64> {
    let mut sum = 0i64;
    while !reply.is_empty() {
        let (part, rest) = take_member(reply)?;
        sum += codec::count_part(part)?;
        reply = rest;
    }
    u64::try_from(sum).ok()
}

/// The edges of a call's reply. Only where others take edges away may it end before what was asked for: [`Graph::check`].
fn edges_in(reply: &[u8], as_loaded: bool) -> Option<Vec<Edge<'_>>> {
    let (edges, more) = codec::list(reply)?;
    let edges = edges.into_iter().map(|codec::Edge { id2, time, data }| Edge { id2, time, data });
    (more.is_none() || !as_loaded).then(|| edges.collect())
}

/// The edges of a multi-get's reply, newest first as a client hands them on; those that were deleted meanwhile are not there, and
/// those that were written anew have another time.
fn edges_of<'r>(keys: &[[u8; 21]], mut reply: &'r [u8], ask: &Ask) -> Option<Vec<Edge<'r>>> {
    let mut edges = Vec::new();
    if ask.class != Class::AssocGet && ask.step == 0 {
        // Nothing was in the list.
        return reply.is_empty().then_some(edges);
    }
    for key in keys {
        let (value, rest) = take_member(reply)?;
        if let Some(value) = value {
            let (time, data) = codec::edge(value)?;
            edges.push(Edge { id2: u64::from_be_bytes(*key.last_chunk()?), time, data });
        }
        reply = rest;
    }
    edges.sort_by_key(|edge| (std::cmp::Reverse(edge.time), edge.id2));
    reply.is_empty().then_some(edges)
}

/// The keys in a range's answer.
fn range_keys(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    Rows::new(reply).map_while(Result::ok).map(|row| row.key)
}
