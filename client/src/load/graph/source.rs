//! A graph as records: a loader writes them in the form in which `tao` keeps them.

use super::super::Data;
use super::super::record_source::RecordSource;
use super::{CHANGED_EDGE, CHANGED_INVERSE, EDGE, Graph, INVERSE, OBJECT};
use crate::tao::codec;

/// Bits of an item that say which one of its object's it is.
const PART_BITS: u32 = 20;
/// Items of an object before its edges: itself, its count of edges, that of edges to it.
const OBJECT_HEADER_ITEMS: u64 = 3;
/// Items of an edge: itself and its list entry, and both of its inverse.
const ITEMS_PER_EDGE: u64 = 4;
/// The records that all objects need: the declared types, and the number of the last object.
const DECLARED_TYPES: [(u32, u32); 4] =
    [(EDGE, INVERSE), (INVERSE, EDGE), (CHANGED_EDGE, CHANGED_INVERSE), (CHANGED_INVERSE, CHANGED_EDGE)];
const LAST_ID: &[u8] = b"n";

/// All records of a graph, one after another.
pub(in crate::load) struct GraphRecordSource<'d> {
    data: &'d Data,
    graph: &'d Graph,
    /// Edges that go to each object.
    incoming: Vec<u32>,
    total: u64,
}

impl<'d> GraphRecordSource<'d> {
    pub(in crate::load) fn new(data: &'d Data, graph: &'d Graph) -> GraphRecordSource<'d> {
        let mut incoming = vec![0u32; data.records as usize];
        let mut total = DECLARED_TYPES.len() as u64 + 1 + data.records;
        for id in 1..=data.records {
            let edges = graph.edges(id, data.records);
            total += u64::from(edges > 0) + ITEMS_PER_EDGE * u64::from(edges);
            for at in 0..edges {
                if let Some(count) = incoming.get_mut(Graph::edge_to(id, at, data.records) as usize - 1) {
                    *count += 1;
                }
            }
        }
        total += incoming.iter().filter(|count| **count > 0).count() as u64;
        GraphRecordSource { data, graph, incoming, total }
    }

    fn incoming(&self, id: u64) -> u32 {
        self.incoming.get(id as usize - 1).copied().unwrap_or(0)
    }
}

impl RecordSource for GraphRecordSource<'_> {
    fn total(&self) -> u64 {
        self.total
    }

    fn first(&self) -> Option<u64> {
        Some(0)
    }

    fn after(&self, item: u64) -> Option<u64> {
        let (id, part) = (item >> PART_BITS, item & ((1 << PART_BITS) - 1));
        let parts = match id {
            0 => DECLARED_TYPES.len() as u64 + 1,
            id => OBJECT_HEADER_ITEMS + ITEMS_PER_EDGE * u64::from(self.graph.edges(id, self.data.records)),
        };
        let is_there = |part: &u64| match (id, part) {
            (0, _) => true,
            (_, 1) => self.graph.edges(id, self.data.records) > 0,
            (_, 2) => self.incoming(id) > 0,
            _ => true,
        };
        match (part + 1..parts).find(is_there) {
            Some(part) => Some(id << PART_BITS | part),
            None => (id < self.data.records).then_some((id + 1) << PART_BITS),
        }
    }

    fn write(&self, item: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) -> u64 {
        let (id, part) = (item >> PART_BITS, item & ((1 << PART_BITS) - 1));
        let (objects, lists) = (self.data.table, self.graph.lists);
        key.clear();
        value.clear();
        if id == 0 {
            match DECLARED_TYPES.get(part as usize) {
                Some((atype, inverse)) => {
                    key.extend_from_slice(&codec::type_key(*atype));
                    value.push(1);
                    value.extend_from_slice(&inverse.to_le_bytes());
                }
                None => {
                    key.extend_from_slice(LAST_ID);
                    value.extend_from_slice(self.data.records.to_string().as_bytes());
                }
            }
            return objects;
        }
        let count = match part {
            0 => {
                key.extend_from_slice(&codec::object_key(id));
                value.extend_from_slice(&OBJECT.to_le_bytes());
                value.extend_from_slice(&self.graph.fields(id, Data::first_salt(id)).to_bytes());
                return objects;
            }
            1 => Some((EDGE, self.graph.edges(id, self.data.records))),
            2 => Some((INVERSE, self.incoming(id))),
            _ => None,
        };
        if let Some((atype, count)) = count {
            key.extend_from_slice(&codec::count_key(id, atype));
            value.extend_from_slice(&u64::from(count).to_le_bytes());
            return objects;
        }
        let (at, which) =
            (((part - OBJECT_HEADER_ITEMS) / ITEMS_PER_EDGE) as u32, (part - OBJECT_HEADER_ITEMS) % ITEMS_PER_EDGE);
        let (to, time) = (Graph::edge_to(id, at, self.data.records), Graph::edge_time(at));
        let (id1, atype, id2) = if which < 2 { (id, EDGE, to) } else { (to, INVERSE, id) };
        if which.is_multiple_of(2) {
            self.graph.write_edge_data(id1, id2, time, value);
            value.splice(0..0, time.to_le_bytes());
            key.extend_from_slice(&codec::edge_key(id1, atype, id2));
            return objects;
        }
        key.extend_from_slice(&codec::list_key(id1, atype, time, id2));
        lists
    }
}
