//! The keys of records: numbers are big-endian, so that they sort as they count.

/// Bytes of a key in the lists table.
pub(crate) const LIST_KEY_LEN: usize = 28;
/// The record of the last id that was given out.
pub(crate) const LAST_ID: &[u8] = b"n";

/// An association list: all edges of one type that begin at one id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AssocList {
    pub(crate) id1: u64,
    pub(crate) atype: u32,
}

/// An edge of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AssocEdge {
    pub(crate) list: AssocList,
    pub(crate) id2: u64,
}

impl AssocEdge {
    /// The same edge as one of another type.
    pub(crate) fn of_type(self, atype: u32) -> AssocEdge {
        AssocEdge { list: AssocList { atype, ..self.list }, ..self }
    }

    /// The edge the other way round, of that type.
    pub(crate) fn reversed(self, atype: u32) -> AssocEdge {
        AssocEdge { list: AssocList { id1: self.id2, atype }, id2: self.list.id1 }
    }

    /// The key of its record.
    pub(crate) fn key(self) -> [u8; 21] {
        let mut key = [b'e'; 21];
        key[1..9].copy_from_slice(&self.list.id1.to_be_bytes());
        key[9..13].copy_from_slice(&self.list.atype.to_be_bytes());
        key[13..].copy_from_slice(&self.id2.to_be_bytes());
        key
    }
}

impl AssocList {
    /// The key of its count.
    pub(crate) fn count_key(self) -> [u8; 13] {
        let mut key = [b'c'; 13];
        key[1..9].copy_from_slice(&self.id1.to_be_bytes());
        key[9..].copy_from_slice(&self.atype.to_be_bytes());
        key
    }

    /// The key of a part of its count.
    pub(crate) fn shard_key(self, shard: u8) -> [u8; 14] {
        let mut key = [shard; 14];
        key[..13].copy_from_slice(&self.count_key());
        key
    }

    /// The key of a place in it: what is newer sorts before.
    pub(crate) fn position(self, time: u64, id2: u64) -> [u8; LIST_KEY_LEN] {
        let mut key = [0; LIST_KEY_LEN];
        key[..8].copy_from_slice(&self.id1.to_be_bytes());
        key[8..12].copy_from_slice(&self.atype.to_be_bytes());
        key[12..20].copy_from_slice(&(!time).to_be_bytes());
        key[20..].copy_from_slice(&id2.to_be_bytes());
        key
    }

    /// The first key behind a place in it.
    pub(crate) fn behind(self, time: u64, id2: u64) -> [u8; LIST_KEY_LEN + 1] {
        let mut key = [0; LIST_KEY_LEN + 1];
        key[..LIST_KEY_LEN].copy_from_slice(&self.position(time, id2));
        key
    }
}

/// The key of an edge's record or of its list's count, which are read together.
pub(crate) struct EdgeOrCountKey {
    bytes: [u8; 21],
    len: usize,
}

impl EdgeOrCountKey {
    pub(crate) fn edge(edge: AssocEdge) -> EdgeOrCountKey {
        EdgeOrCountKey { bytes: edge.key(), len: 21 }
    }

    pub(crate) fn count(list: AssocList) -> EdgeOrCountKey {
        let (mut bytes, key) = ([0; 21], list.count_key());
        bytes[..key.len()].copy_from_slice(&key);
        EdgeOrCountKey { bytes, len: key.len() }
    }
}

impl AsRef<[u8]> for EdgeOrCountKey {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Time and id2 of the edge at a place.
pub(crate) fn decode_position_key(key: &[u8]) -> Option<(u64, u64)> {
    let (_list, rest) = key.split_first_chunk::<12>()?;
    let (time, id2) = rest.split_first_chunk::<8>()?;
    Some((!u64::from_be_bytes(*time), u64::from_be_bytes(id2.try_into().ok()?)))
}

pub(crate) fn object_key(id: u64) -> [u8; 9] {
    let mut key = [b'o'; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(crate) fn schema_key(atype: u32) -> [u8; 5] {
    let mut key = [b's'; 5];
    key[1..].copy_from_slice(&atype.to_be_bytes());
    key
}
