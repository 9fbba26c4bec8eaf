//! Requests about a graph, and their expected replies.

use super::super::keys::{check_value, mix64};
use super::super::load_request::{LoadRequest, ReplyVerdict};
use super::super::multi_get::split_multi_get_entry;
use super::super::{Class, Data};
use super::{CHANGED_EDGE, EDGE, FIRST_ADDED_TIME, Graph, OBJECT, edge_id};
use crate::message::{Direction, Message};
use crate::tao::Placement;
use crate::tao::codec::{self, Fields, ListCount};
use sandstorm_net::rpc::RangeEntries;

/// Edges that one request names at most, and how many loaded edges lie between two times that are asked for.
const MAX_NAMED_EDGES: u32 = 3;
const EDGES_PER_TIME_RANGE: u32 = 10;

/// The keys of the edges that a client has read in a list, until it has read the edges.
#[derive(Debug, Default)]
pub(in crate::load) struct EdgeKeySlots {
    slots: Vec<Vec<[u8; 21]>>,
    free: Vec<u32>,
}

impl EdgeKeySlots {
    fn store(&mut self, keys: impl Iterator<Item = [u8; 21]>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Vec::new());
            self.slots.len() as u32 - 1
        });
        if let Some(edge_keys) = self.slots.get_mut(slot as usize) {
            edge_keys.clear();
            edge_keys.extend(keys);
        }
        slot
    }

    fn get(&self, slot: u32) -> &[[u8; 21]] {
        self.slots.get(slot as usize).map_or(&[], Vec::as_slice)
    }

    /// The request has ended, well or not.
    pub(in crate::load) fn release(&mut self, request: &LoadRequest) {
        if request.step > 0 && matches!(request.class, Class::AssocRange | Class::AssocTimeRange) {
            self.free.push(request.step - 1);
        }
    }
}

/// An edge as a reply has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReplyEdge<'r> {
    id2: u64,
    time: u64,
    data: &'r [u8],
}

/// A query of the graph.
struct GraphQuery<'g> {
    data: &'g Data,
    graph: &'g Graph,
    id: u64,
    edges: u32,
    twist: u64,
}

impl<'g> GraphQuery<'g> {
    fn new(data: &'g Data, graph: &'g Graph, request: &LoadRequest) -> GraphQuery<'g> {
        let id = request.id + 1;
        GraphQuery { data, graph, id, edges: graph.edges(id, data.records), twist: u64::from(request.twist) }
    }

    /// Any loaded edge.
    fn edge(&self) -> u64 {
        let at = mix64(self.twist) % u64::from(self.edges.max(1));
        Graph::edge_to(self.id, at as u32, self.data.records)
    }

    /// Ids to which edges are asked for: some loaded ones, and one that may be none.
    fn ids(&self) -> Vec<u64> {
        let edges = self.twist as u32 % MAX_NAMED_EDGES;
        let loaded = (0..edges.min(self.edges)).map(|n| {
            let at = (mix64(self.twist) + u64::from(n)) % u64::from(self.edges);
            Graph::edge_to(self.id, at as u32, self.data.records)
        });
        let any = mix64(!self.twist) % self.data.records.max(1) + 1;
        let mut ids: Vec<u64> = loaded.filter(|id| *id != any).collect();
        ids.push(any);
        ids
    }

    /// Latest and earliest time that is asked for.
    fn times(&self, class: Class) -> (u64, u64) {
        if class != Class::AssocTimeRange {
            return (u64::MAX, 0);
        }
        let first = (mix64(self.twist) % u64::from(self.edges.max(1))) as u32;
        (Graph::edge_time(first + EDGES_PER_TIME_RANGE - 1), Graph::edge_time(first))
    }

    /// Returns a query's result for the graph as it was loaded, newest first.
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

    /// Returns whether a query may be answered by these edges.
    fn are_correct_edges(&self, class: Class, edges: &[ReplyEdge<'_>], as_loaded: bool) -> bool {
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
        let Some((otype, Fields(fields))) = codec::decode_object(record) else { return false };
        let field = fields.get(super::FIELD);
        let right = |value: &Vec<u8>| value.len() == self.graph.object_bytes && check_value(self.id, value);
        otype == OBJECT && fields.len() == 1 && field.is_some_and(right)
    }
}

impl Data {
    /// Appends the operation of a graph's request.
    pub(in crate::load) fn write_graph_request(
        &self,
        request: &LoadRequest,
        salt: u64,
        message: &mut Message,
        edge_keys: &EdgeKeySlots,
    ) {
        let Some(graph) = &self.graph else { return };
        let about = GraphQuery::new(self, graph, request);
        let tables = graph.tables(self.table);
        let id = about.id;
        let by_client = graph.placement == Placement::Client;
        let (high, low) = about.times(request.class);
        let args = match request.class {
            Class::ObjGet if graph.placement != Placement::Invocation => {
                return message.get(self.table, &codec::object_key(id));
            }
            Class::AssocCount if graph.placement != Placement::Invocation && request.step == 0 => {
                return message.get(self.table, &codec::count_key(id, EDGE));
            }
            Class::AssocCount if by_client => {
                let shards: Vec<[u8; 14]> = (0..request.step as u8).map(|at| codec::shard_key(id, EDGE, at)).collect();
                return message.snapshot(self.table, &shards);
            }
            Class::AssocGet if by_client => {
                let keys: Vec<[u8; 21]> = about.ids().iter().map(|id2| codec::edge_key(id, EDGE, *id2)).collect();
                return message.multi_get(self.table, &keys);
            }
            Class::AssocRange | Class::AssocTimeRange if by_client && request.step == 0 => {
                let from = codec::list_key(id, EDGE, high, 0);
                // The end is left out: one byte behind the last key that is not.
                let to = [&codec::list_key(id, EDGE, low, u64::MAX)[..], &[0]].concat();
                return message.range(graph.lists, &from, &to, graph.limit, Direction::Forward, false);
            }
            Class::AssocRange | Class::AssocTimeRange if by_client => {
                return message.multi_get(self.table, edge_keys.get(request.step - 1));
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
                let (id2, time) = (mix64(about.twist) % self.records.max(1) + 1, FIRST_ADDED_TIME + (salt >> 24));
                let mut data = Vec::new();
                graph.write_edge_data(id, id2, time, &mut data);
                codec::assoc_add(&tables, id, EDGE, id2, time, &data)
            }
            Class::AssocDelete => codec::assoc_delete(&tables, id, EDGE, about.edge()),
            Class::AssocChangeType => codec::assoc_change_type(&tables, id, EDGE, about.edge(), CHANGED_EDGE),
            _ => return,
        };
        request.class.call(&args, message);
    }

    /// Checks a successful reply to a graph's request. `as_loaded`: no tenant changes the graph.
    pub(in crate::load) fn check_graph_reply(
        &self,
        request: &mut LoadRequest,
        found: bool,
        reply: &[u8],
        as_loaded: bool,
        edge_keys: &mut EdgeKeySlots,
    ) -> ReplyVerdict {
        let Some(graph) = &self.graph else { return ReplyVerdict::Wrong };
        let by_client = graph.placement == Placement::Client;
        let is_count =
            graph.placement != Placement::Invocation && request.class == Class::AssocCount && request.step == 0;
        if is_count && let Some(ListCount::Sharded(shards)) = codec::decode_count(found.then_some(reply)) {
            request.step = u32::from(shards);
            return ReplyVerdict::NextStep;
        }
        if by_client && request.step == 0 && matches!(request.class, Class::AssocRange | Class::AssocTimeRange) {
            let id = request.id + 1;
            let positions = decode_range_keys(reply).filter_map(codec::decode_list_key);
            let slot = edge_keys.store(positions.map(|position| codec::edge_key(id, EDGE, position.id2)));
            if !edge_keys.get(slot).is_empty() {
                request.step = slot + 1;
                return ReplyVerdict::NextStep;
            }
            edge_keys.free.push(slot);
        }
        let right =
            !request.verify || self.is_correct_graph_reply(graph, request, (found, reply), as_loaded, edge_keys);
        edge_keys.release(request);
        if right { ReplyVerdict::Done } else { ReplyVerdict::Wrong }
    }

    fn is_correct_graph_reply(
        &self,
        graph: &Graph,
        request: &LoadRequest,
        (found, reply): (bool, &[u8]),
        as_loaded: bool,
        edge_keys: &EdgeKeySlots,
    ) -> bool {
        let about = GraphQuery::new(self, graph, request);
        let by_client = graph.placement == Placement::Client;
        match request.class {
            Class::ObjGet => {
                let absent = if graph.placement == Placement::Invocation { reply.is_empty() } else { !found };
                if absent { !as_loaded } else { about.is_object(reply) }
            }
            Class::AssocCount => {
                let count = match (graph.placement, request.step) {
                    (Placement::Invocation, _) => codec::decode_number(reply),
                    (_, 0) => match codec::decode_count(found.then_some(reply)) {
                        Some(ListCount::Whole(count)) => Some(count),
                        _ => None,
                    },
                    (Placement::Client, _) => sum_count_shards(reply),
                    (Placement::Combined, _) => codec::decode_number(reply),
                };
                count.is_some_and(|count| !as_loaded || count == u64::from(about.edges))
            }
            Class::AssocGet | Class::AssocRange | Class::AssocTimeRange => {
                let keys: Vec<[u8; 21]> = match request.class {
                    Class::AssocGet => about.ids().iter().map(|id2| codec::edge_key(about.id, EDGE, *id2)).collect(),
                    _ if request.step > 0 => edge_keys.get(request.step - 1).to_vec(),
                    _ => Vec::new(),
                };
                let (high, low) = about.times(request.class);
                let edges = if by_client {
                    decode_multi_get_edges(&keys, reply, request)
                } else {
                    decode_list_edges(reply, as_loaded)
                };
                // Between a client's two steps an edge may have got another time.
                let edges = edges.map(|mut edges| {
                    edges.retain(|edge| !by_client || (low..=high).contains(&edge.time));
                    edges
                });
                edges.is_some_and(|edges| about.are_correct_edges(request.class, &edges, as_loaded))
            }
            Class::ObjAdd => codec::decode_number(reply).is_some_and(|id| id > self.records),
            Class::AssocAdd | Class::AssocDelete | Class::AssocChangeType | Class::ObjUpdate | Class::ObjDelete => {
                codec::decode_bool(reply).is_some()
            }
            _ => false,
        }
    }
}

/// The sum of a multi-get's parts of a count.
fn sum_count_shards(mut reply: &[u8]) -> Option<u64> {
    let mut sum = 0i64;
    while !reply.is_empty() {
        let (part, rest) = split_multi_get_entry(reply)?;
        sum += codec::decode_count_shard(part)?;
        reply = rest;
    }
    u64::try_from(sum).ok()
}

/// The edges of a call's reply. Only where others remove edges may it end early: [`Graph::check`].
fn decode_list_edges(reply: &[u8], as_loaded: bool) -> Option<Vec<ReplyEdge<'_>>> {
    let (edges, more) = codec::decode_list(reply)?;
    let edges = edges.into_iter().map(|codec::EncodedEdge { id2, time, data }| ReplyEdge { id2, time, data });
    (more.is_none() || !as_loaded).then(|| edges.collect())
}

/// The edges of a multi-get's reply, newest first, as a client hands them on. Edges that were deleted in the meantime
/// are absent, and those that were written anew have another time.
fn decode_multi_get_edges<'r>(
    keys: &[[u8; 21]],
    mut reply: &'r [u8],
    request: &LoadRequest,
) -> Option<Vec<ReplyEdge<'r>>> {
    let mut edges = Vec::new();
    if request.class != Class::AssocGet && request.step == 0 {
        // Nothing was in the list.
        return reply.is_empty().then_some(edges);
    }
    for key in keys {
        let (value, rest) = split_multi_get_entry(reply)?;
        if let Some(value) = value {
            let (time, data) = codec::decode_edge(value)?;
            edges.push(ReplyEdge { id2: u64::from_be_bytes(*key.last_chunk()?), time, data });
        }
        reply = rest;
    }
    edges.sort_by_key(|edge| (std::cmp::Reverse(edge.time), edge.id2));
    reply.is_empty().then_some(edges)
}

/// The keys in a range's answer.
fn decode_range_keys(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    RangeEntries::new(reply).map_while(Result::ok).map(|row| row.key)
}
