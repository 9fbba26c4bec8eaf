//! A social graph for the extension `tao`: objects with a field, edges of a type with their inverses, counts. The edges
//! of each object follow from ids alone, so that replies can be checked without remembering what was written.
//!
//! The numbers are those of TAO's authors (Bronson et al., ATC'13): 45 % of the lists that were counted were empty. Of
//! the others that were read 64 % gave one edge, and few have very many. Numbers of edges follow a power law whose
//! exponent makes them so.

mod request;
mod source;

pub(super) use self::request::EdgeKeySlots;
pub(super) use self::source::GraphRecordSource;

use super::keys::{mix64, write_value};
use super::pools::unit_hash;
use crate::limits::{RANGE_PAGE, TAO_REPLY_BYTES};
use crate::tao::Placement;
use crate::tao::codec::{Fields, Tables};

/// The type of the edges that are asked for, and that of their inverses.
const EDGE: u32 = 1;
const INVERSE: u32 = 2;
/// The type that an edge gets when it is given another one, and its inverse.
const CHANGED_EDGE: u32 = 3;
const CHANGED_INVERSE: u32 = 4;
/// The type of all objects.
const OBJECT: u32 = 1;
/// The name of their field.
const FIELD: &[u8] = b"data";
/// Bytes of an edge in a reply beside its data.
const EDGE_HEADER_BYTES: usize = 20;
/// The time of a list's first edge as it is loaded; the next one's is one more.
const FIRST_TIME: u64 = 1_600_000_000;
/// Times of edges that a load adds begin here: they are the newest.
const FIRST_ADDED_TIME: u64 = 1 << 40;

/// The shape of a graph, and where its queries run. Its objects are the plain records of [`super::Data`], and are in
/// the same table.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The id of the table of the lists' order, an ordered one.
    pub lists: u64,
    /// The placement of queries. Changes are always calls. With combined placement a read of one record is a plain get.
    pub placement: Placement,
    /// Bytes of an object's field; default 100.
    pub object_bytes: usize,
    /// Bytes of an edge's data; default 24. Data shorter than 16 bytes is checked less.
    pub edge_bytes: usize,
    /// Part of the objects that have no edges; default 0.45.
    pub empty: f64,
    /// Exponent of the power law of the others' numbers of edges, above 1; default 2.474: 64 % of them have one.
    pub exponent: f64,
    /// Edges of an object, at most; default 10,000.
    pub max_edges: u32,
    /// Edges that a query asks for, at most; default 50. They have to fit one answer: see [`Graph::check`].
    pub limit: u32,
    /// True if the graph is as it was loaded, so that replies can be checked in full while the mix changes nothing.
    /// Else the check covers only what holds after any change. Default no.
    pub exact: bool,
}

/// Edges of an object that can be asked for, at most: their numbers share 64 bits with the objects'.
pub const MAX_EDGES: u32 = 200_000;

impl Default for Graph {
    fn default() -> Graph {
        Graph {
            lists: 0,
            placement: Placement::Combined,
            object_bytes: 100,
            edge_bytes: 24,
            empty: 0.45,
            exponent: 2.474,
            max_edges: 10_000,
            limit: 50,
            exact: false,
        }
    }
}

/// An edge's ends: the same for its inverse.
fn edge_id(id1: u64, id2: u64) -> u64 {
    mix64(id1) ^ mix64(id2)
}

impl Graph {
    /// Checks that each of its queries fits one answer, since none is continued.
    ///
    /// # Errors
    /// Names the number that is too large, and its limit.
    pub fn check(&self) -> Result<(), String> {
        let limit = self.limit as usize;
        if limit > RANGE_PAGE {
            return Err(format!("a query of {limit} edges takes several answers: ask for {RANGE_PAGE} at most"));
        }
        let most = TAO_REPLY_BYTES / (EDGE_HEADER_BYTES + self.edge_bytes);
        if limit > most {
            return Err(format!(
                "a query of {limit} edges of {} bytes takes several answers: ask for {most} at most, or for smaller ones",
                self.edge_bytes
            ));
        }
        Ok(())
    }

    fn tables(&self, objects: u64) -> Tables {
        Tables { objects, lists: self.lists }
    }

    /// Returns the number of edges of the first type that object `id` of `objects` is loaded with.
    fn edges(&self, id: u64, objects: u64) -> u32 {
        let share = unit_hash(id, 3);
        if share < self.empty {
            return 0;
        }
        let left = 1.0 - (share - self.empty) / (1.0 - self.empty);
        let edges = left.powf(-1.0 / (self.exponent - 1.0).max(1e-3));
        let most = u64::from(self.max_edges.min(MAX_EDGES)).min(objects.saturating_sub(1));
        (edges as u64).clamp(u64::from(most > 0), most) as u32
    }

    /// Returns the target of edge `at` of object `id`: never the object itself, and each target at most once.
    fn edge_to(id: u64, at: u32, objects: u64) -> u64 {
        let others = objects.saturating_sub(1).max(1);
        let step = 1 + (mix64(id ^ 0x0DD5) % others + u64::from(at)) % others;
        (id - 1 + step) % objects.max(1) + 1
    }

    fn edge_time(at: u32) -> u64 {
        FIRST_TIME + u64::from(at)
    }

    /// Writes an edge's data.
    fn write_edge_data(&self, id1: u64, id2: u64, time: u64, data: &mut Vec<u8>) {
        write_value(edge_id(id1, id2), time, self.edge_bytes, data);
    }

    /// The fields of an object, as they are written with that salt.
    fn fields(&self, id: u64, salt: u64) -> Fields {
        let mut value = Vec::new();
        write_value(id, salt, self.object_bytes, &mut value);
        Fields::from([(FIELD, &value)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Class;
    use super::super::Data;
    use super::super::load_request::{LoadRequest, ReplyVerdict};
    use super::super::record_source::RecordSource;
    use super::*;
    use crate::message::Message;
    use crate::tao::codec;
    use sandstorm_net::rpc::{self, MessageHeader, OpKind};
    use std::collections::{BTreeMap, HashSet};

    const OBJECTS: u64 = 5;
    const LISTS: u64 = 6;
    type Tables = BTreeMap<(u64, Vec<u8>), Vec<u8>>;

    fn loaded(data: &Data) -> Tables {
        let source = GraphRecordSource::new(data, data.graph.as_ref().unwrap());
        let (mut tables, mut item, mut written) = (Tables::new(), source.first(), 0);
        while let Some(this) = item {
            let (mut key, mut value) = (vec![1], vec![1]);
            let table = source.write(this, &mut key, &mut value);
            assert!(tables.insert((table, key), value).is_none(), "{this:x} is written twice");
            (item, written) = (source.after(this), written + 1);
        }
        assert_eq!(written, source.total());
        tables
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    /// Returns what `tao` replies to a query, from the records.
    fn tao(tables: &Tables, args: &[u8]) -> Vec<u8> {
        assert_eq!((u64_at(args, 0), u64_at(args, 8)), (OBJECTS, LISTS));
        let (op, args) = (args[16], &args[17..]);
        let get = |key: &[u8]| tables.get(&(OBJECTS, key.to_vec())).cloned();
        let id = u64_at(args, 0);
        if op == 2 {
            return get(&codec::object_key(id)).unwrap_or_default();
        }
        let atype = u32_at(args, 8);
        if op == 9 {
            return get(&codec::count_key(id, atype)).unwrap_or_else(|| vec![0; 8]);
        }
        let keys = tables.keys().filter(|(table, _)| *table == LISTS).map(|(_, key)| key);
        let its = keys.filter(|key| key.starts_with(&codec::list_key(id, atype, 0, 0)[..12]));
        let positions: Vec<codec::ListPosition> = its.map(|key| codec::decode_list_key(key).unwrap()).collect();
        type RangeFilter = Box<dyn Fn(&codec::ListPosition) -> bool>;
        let (limit, in_range): (usize, RangeFilter) = match op {
            8 => {
                let ids: Vec<u64> = args[28..].chunks(8).map(|id| u64_at(id, 0)).collect();
                (6000, Box::new(move |position| ids.contains(&position.id2)))
            }
            10 => (u32_at(args, 20) as usize, Box::new(|_| true)),
            _ => {
                let (high, low) = (u64_at(args, 12), u64_at(args, 20));
                (u32_at(args, 28) as usize, Box::new(move |position| (low..=high).contains(&position.time)))
            }
        };
        let found: Vec<_> = positions.into_iter().filter(in_range).take(limit).collect();
        let mut reply = [&[0][..], &(found.len() as u32).to_le_bytes()].concat();
        for position in found {
            let edge = get(&codec::edge_key(id, atype, position.id2)).unwrap();
            assert_eq!(u64_at(&edge, 0), position.time);
            reply.extend_from_slice(&position.id2.to_le_bytes());
            reply.extend_from_slice(&position.time.to_le_bytes());
            reply.extend_from_slice(&(edge.len() as u32 - 8).to_le_bytes());
            reply.extend_from_slice(&edge[8..]);
        }
        reply
    }

    fn answer(tables: &Tables, message: Message) -> (bool, Vec<u8>) {
        let bytes = message.finish(1).unwrap();
        let (_, mut operations) = MessageHeader::decode(&bytes).unwrap();
        let operation = operations.next().unwrap().unwrap();
        let member = |key: &[u8]| {
            let found = tables.get(&(operation.table, key.to_vec()));
            let len = found.map_or(0, |value| value.len() as u32).to_le_bytes();
            let head = [&[u8::from(found.is_none())][..], &[0; 12], &len].concat();
            [&head[..], found.map_or(&[][..], |value| value)].concat()
        };
        match operation.op {
            OpKind::Get => {
                let found = tables.get(&(operation.table, operation.key.to_vec()));
                (found.is_some(), found.cloned().unwrap_or_default())
            }
            OpKind::MultiGet => {
                let (mut keys, mut reply) = (operation.value, Vec::new());
                while !keys.is_empty() {
                    let len = u32_at(keys, 0) as usize;
                    reply.extend(member(&keys[4..4 + len]));
                    keys = &keys[4 + len..];
                }
                (true, reply)
            }
            OpKind::Range => {
                let within = (operation.table, operation.key.to_vec())..(operation.table, operation.value.to_vec());
                let mut reply = Vec::new();
                for ((_, key), value) in tables.range(within).take(operation.number as usize) {
                    rpc::push_range_entry(&mut reply, &rpc::RangeEntry { key, user_flags: 0, version: 1, value });
                }
                (true, reply)
            }
            OpKind::Invoke => (true, tao(tables, operation.value)),
            op => panic!("{op:?}"),
        }
    }

    /// All queries of all objects; how many were right, and how many took two steps.
    fn queries(data: &Data, tables: &Tables) -> (u32, u32, u32) {
        let (mut right, mut all, mut again) = (0, 0, 0);
        let classes = [Class::ObjGet, Class::AssocGet, Class::AssocCount, Class::AssocRange, Class::AssocTimeRange];
        let mut edge_keys = EdgeKeySlots::default();
        for (class, id) in classes.into_iter().flat_map(|class| (0..data.records).map(move |id| (class, id))) {
            let twist = mix64(id) as u32;
            let mut request = LoadRequest { class, id, step: 0, twist, intended_ns: 0, verify: true, hops: 0 };
            all += 1;
            loop {
                let mut message = Message::new();
                data.write_graph_request(&request, 0, &mut message, &edge_keys);
                let (found, reply) = answer(tables, message);
                match data.check_graph_reply(
                    &mut request,
                    found,
                    &reply,
                    data.graph.as_ref().unwrap().exact,
                    &mut edge_keys,
                ) {
                    ReplyVerdict::NextStep => again += 1,
                    seen => break right += u32::from(seen == ReplyVerdict::Done),
                }
            }
        }
        (right, all, again)
    }

    #[test]
    fn all_placements_ask_for_the_same_and_wrong_replies_are_found() {
        let graph = Graph { lists: LISTS, limit: 4, max_edges: 40, exact: true, ..Graph::default() };
        let mut data = Data { graph: Some(graph), ..Data::new(OBJECTS, 300) };
        let whole = loaded(&data);
        for placement in [Placement::Client, Placement::Invocation, Placement::Combined] {
            data.graph.as_mut().unwrap().placement = placement;
            let (right, all, again) = queries(&data, &whole);
            assert_eq!(right, all, "{placement:?}");
            assert_eq!(again > 0, placement == Placement::Client);
            // A reply without the edges' data, or with other objects: a request that asks for them notices.
            let mut spoilt = whole.clone();
            spoilt.iter_mut().filter(|((_, key), _)| key[0] == b'e').for_each(|(_, value)| value[20] ^= 1);
            spoilt.iter_mut().filter(|((_, key), _)| key[0] == b'o').for_each(|(_, value)| value[30] ^= 1);
            let (right, ..) = queries(&data, &spoilt);
            assert!(right + data.records as u32 + 200 < all, "{placement:?}: {right} of {all}");
            // A list that lacks an edge is noticed where the graph is known to be whole.
            let lists = whole.iter().filter(|((table, key), _)| *table == LISTS && key[8..12] == EDGE.to_be_bytes());
            let newest: Vec<_> = lists.map(|(key, _)| key.clone()).step_by(3).collect();
            let mut lacking = whole.clone();
            newest.iter().for_each(|key| drop(lacking.remove(key)));
            assert!(queries(&data, &lacking).0 < all);
            data.graph.as_mut().unwrap().exact = false;
            assert_eq!(queries(&data, &lacking).0, all, "{placement:?}: edges may have been deleted");
            data.graph.as_mut().unwrap().exact = true;
        }
    }

    #[test]
    fn queries_of_more_than_one_answer_are_refused() {
        let check = |limit, edge_bytes| Graph { limit, edge_bytes, ..Graph::default() }.check();
        assert_eq!((check(50, 24), check(1_000, 24), check(15, 65_536)), (Ok(()), Ok(()), Ok(())));
        assert!(check(1_001, 24).unwrap_err().contains("1000 at most"));
        assert!(check(16, 65_536).unwrap_err().contains("15 at most"));
    }

    #[test]
    fn edges_follow_a_power_law_and_go_to_different_others() {
        let graph = Graph::default();
        let objects = 100_000;
        let edges: Vec<u32> = (1..=objects).map(|id| graph.edges(id, objects)).collect();
        let share =
            |holds: &dyn Fn(u32) -> bool| edges.iter().filter(|edges| holds(**edges)).count() as f64 / objects as f64;
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.01, "{found} is not {wanted}");
        near(share(&|edges| edges == 0), 0.45);
        near(share(&|edges| edges == 1), 0.55 * 0.64);
        near(share(&|edges| edges >= 10), 0.55 * 10f64.powf(-1.474));
        assert!(edges.iter().any(|edges| *edges > 500));
        for (id, edges) in (1..).zip(&edges).step_by(97) {
            let to: HashSet<u64> = (0..*edges).map(|at| Graph::edge_to(id, at, objects)).collect();
            assert!(to.len() == *edges as usize && !to.contains(&id) && to.iter().all(|id| (1..=objects).contains(id)));
        }
        for objects in 1..5 {
            for id in 1..=objects {
                let edges = Graph { empty: 0.0, ..Graph::default() }.edges(id, objects);
                assert!(u64::from(edges) < objects && (objects == 1 || edges > 0));
                assert!((0..edges).all(|at| (1..=objects).contains(&Graph::edge_to(id, at, objects))));
            }
        }
    }
}
