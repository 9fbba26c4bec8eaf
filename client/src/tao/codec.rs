//! The messages to and from the extension `tao`, and the format of its records, byte by byte: for callers that build
//! messages of their own. The module comments of `ext/tao/src/lib.rs` say what each means; the extension's tests go
//! through here.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Most entries that a list can be asked for at a time: a higher limit counts as this one.
pub const LIMIT: u32 = 6_000;

/// The tables of a graph, by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    /// Objects, edges and counts.
    pub objects: u64,
    /// The lists' order; an ordered table.
    pub lists: u64,
}

/// An object's fields: values by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl Fields {
    /// The value of a field.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.0.get(name.as_ref()).map(Vec::as_slice)
    }

    /// Returns the bytes as they travel and are stored: count u16, then by ascending name: name_len u8, name, value_len
    /// u32, value. Fields that do not fit (over 65,535, or a name over 255 bytes) are written with a length that the
    /// extension refuses.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = u16::try_from(self.0.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
        for (name, value) in &self.0 {
            // 0 is no length of a name.
            bytes.push(u8::try_from(name.len()).unwrap_or(0));
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// Reads what [`Fields::to_bytes`] wrote; `None` for anything else.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Fields> {
        let mut fields = BTreeMap::new();
        for _ in 0..u16::from_le_bytes(take(&mut bytes)?) {
            let [len] = take(&mut bytes)?;
            let name = take_slice(&mut bytes, usize::from(len))?.to_vec();
            let len = u32::from_le_bytes(take(&mut bytes)?);
            let value = take_slice(&mut bytes, usize::try_from(len).ok()?)?.to_vec();
            fields.insert(name, value);
        }
        bytes.is_empty().then_some(Fields(fields))
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Fields {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(fields: T) -> Fields {
        Fields(fields.into_iter().map(|(name, value)| (name.as_ref().to_vec(), value.as_ref().to_vec())).collect())
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>, const COUNT: usize> From<[(N, V); COUNT]> for Fields {
    fn from(fields: [(N, V); COUNT]) -> Fields {
        fields.into_iter().collect()
    }
}

fn encode_args(tables: &Tables, op: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut args = Vec::with_capacity(17 + parts.iter().map(|part| part.len()).sum::<usize>());
    args.extend_from_slice(&tables.objects.to_le_bytes());
    args.extend_from_slice(&tables.lists.to_le_bytes());
    args.push(op);
    parts.iter().for_each(|part| args.extend_from_slice(part));
    args
}

/// Arguments of `obj_add`; the reply: [`decode_number`], the id.
pub fn obj_add(tables: &Tables, otype: u32, fields: &Fields) -> Vec<u8> {
    encode_args(tables, 1, &[&otype.to_le_bytes(), &fields.to_bytes()])
}

/// Arguments of `obj_get`; the reply is empty where there is none, else an [`decode_object`].
pub fn obj_get(tables: &Tables, id: u64) -> Vec<u8> {
    encode_args(tables, 2, &[&id.to_le_bytes()])
}

/// Arguments of `obj_update`: fields to set, names of fields to remove; the reply: [`decode_bool`], whether there is
/// such an object.
pub fn obj_update(tables: &Tables, id: u64, set: &Fields, remove: &[&[u8]]) -> Vec<u8> {
    let mut names = u16::try_from(remove.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    for name in remove {
        names.push(u8::try_from(name.len()).unwrap_or(0));
        names.extend_from_slice(name);
    }
    encode_args(tables, 3, &[&id.to_le_bytes(), &set.to_bytes(), &names])
}

/// Arguments of `obj_delete`; the reply: [`decode_bool`], whether there was one.
pub fn obj_delete(tables: &Tables, id: u64) -> Vec<u8> {
    encode_args(tables, 4, &[&id.to_le_bytes()])
}

/// Arguments of `assoc_add`; the reply: [`decode_bool`], whether it is new.
pub fn assoc_add(tables: &Tables, id1: u64, atype: u32, id2: u64, time: u64, data: &[u8]) -> Vec<u8> {
    encode_args(tables, 5, &[&id1.to_le_bytes(), &atype.to_le_bytes(), &id2.to_le_bytes(), &time.to_le_bytes(), data])
}

/// Arguments of `assoc_delete`; the reply: [`decode_bool`], whether there was one.
pub fn assoc_delete(tables: &Tables, id1: u64, atype: u32, id2: u64) -> Vec<u8> {
    encode_args(tables, 6, &[&id1.to_le_bytes(), &atype.to_le_bytes(), &id2.to_le_bytes()])
}

/// Arguments of `assoc_change_type`; the reply: [`decode_bool`], whether there was one of the old type.
pub fn assoc_change_type(tables: &Tables, id1: u64, atype: u32, id2: u64, newtype: u32) -> Vec<u8> {
    encode_args(tables, 7, &[&id1.to_le_bytes(), &atype.to_le_bytes(), &id2.to_le_bytes(), &newtype.to_le_bytes()])
}

/// Arguments of `assoc_get` for at most [`LIMIT`] ids; the reply: a [`decode_list`] that may end at an id
/// ([`ListContinuation::Ids`]).
pub fn assoc_get(tables: &Tables, id1: u64, atype: u32, id2set: &[u64], high: u64, low: u64) -> Vec<u8> {
    let ids: Vec<u8> = id2set.iter().flat_map(|id| id.to_le_bytes()).collect();
    encode_args(tables, 8, &[&id1.to_le_bytes(), &atype.to_le_bytes(), &high.to_le_bytes(), &low.to_le_bytes(), &ids])
}

/// Arguments of `assoc_count`; the reply: [`decode_number`].
pub fn assoc_count(tables: &Tables, id1: u64, atype: u32) -> Vec<u8> {
    encode_args(tables, 9, &[&id1.to_le_bytes(), &atype.to_le_bytes()])
}

/// Arguments of `assoc_range`, from behind a position on if there is one; the reply: a [`decode_list`].
pub fn assoc_range(
    tables: &Tables,
    id1: u64,
    atype: u32,
    pos: u64,
    limit: u32,
    after: Option<ListPosition>,
) -> Vec<u8> {
    let after = after.map(ListPosition::to_bytes).unwrap_or_default();
    encode_args(
        tables,
        10,
        &[&id1.to_le_bytes(), &atype.to_le_bytes(), &pos.to_le_bytes(), &limit.to_le_bytes(), &after],
    )
}

/// Arguments of `assoc_time_range`, from behind a position on if there is one; the reply: a [`decode_list`].
pub fn assoc_time_range(
    tables: &Tables,
    id1: u64,
    atype: u32,
    (high, low): (u64, u64),
    limit: u32,
    after: Option<ListPosition>,
) -> Vec<u8> {
    let (after, times) =
        (after.map(ListPosition::to_bytes).unwrap_or_default(), [high.to_le_bytes(), low.to_le_bytes()]);
    encode_args(tables, 11, &[&id1.to_le_bytes(), &atype.to_le_bytes(), &times.concat(), &limit.to_le_bytes(), &after])
}

/// Arguments of `assoc_type`; the reply is empty.
pub fn assoc_type(tables: &Tables, atype: u32, inverse: Option<u32>) -> Vec<u8> {
    let inverse = inverse.map(|inverse| inverse.to_le_bytes().to_vec()).unwrap_or_default();
    encode_args(tables, 12, &[&atype.to_le_bytes(), &inverse])
}

/// Arguments of `assoc_type_get`; the reply: a [`decode_type`] type.
pub fn assoc_type_get(tables: &Tables, atype: u32) -> Vec<u8> {
    encode_args(tables, 13, &[&atype.to_le_bytes()])
}

/// A position in a list. The first one is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPosition {
    /// The edge's time.
    pub time: u64,
    /// The id that the edge goes to.
    pub id2: u64,
}

impl Ord for ListPosition {
    fn cmp(&self, other: &ListPosition) -> Ordering {
        other.time.cmp(&self.time).then(self.id2.cmp(&other.id2))
    }
}

impl PartialOrd for ListPosition {
    fn partial_cmp(&self, other: &ListPosition) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl ListPosition {
    fn to_bytes(self) -> Vec<u8> {
        [self.time.to_le_bytes(), self.id2.to_le_bytes()].concat()
    }
}

/// The way to continue after a reply that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListContinuation {
    /// This number of the ids of an `assoc_get` is answered.
    Ids(u32),
    /// Continue behind this list position, from this index there; the limit less the edges that have come.
    After(u64, ListPosition),
}

/// An edge in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedEdge<'r> {
    /// The id that it goes to.
    pub id2: u64,
    /// Its time.
    pub time: u64,
    /// Its data.
    pub data: &'r [u8],
}

/// Reads the reply to a query of a list; `None` if it is malformed.
pub fn decode_list(mut reply: &[u8]) -> Option<(Vec<EncodedEdge<'_>>, Option<ListContinuation>)> {
    let [more] = take(&mut reply)?;
    let count = u32::from_le_bytes(take(&mut reply)?);
    let mut edges = Vec::with_capacity(usize::try_from(count.min(LIMIT)).ok()?);
    for _ in 0..count {
        let (id2, time) = (u64::from_le_bytes(take(&mut reply)?), u64::from_le_bytes(take(&mut reply)?));
        let len = u32::from_le_bytes(take(&mut reply)?);
        edges.push(EncodedEdge { id2, time, data: take_slice(&mut reply, usize::try_from(len).ok()?)? });
    }
    let more = match (more, reply.len()) {
        (0, 0) => None,
        (1, 4) => Some(ListContinuation::Ids(u32::from_le_bytes(take(&mut reply)?))),
        (1, 24) => {
            let [pos, time, id2] = [take(&mut reply)?, take(&mut reply)?, take(&mut reply)?].map(u64::from_le_bytes);
            Some(ListContinuation::After(pos, ListPosition { time, id2 }))
        }
        _ => return None,
    };
    Some((edges, more))
}

/// Reads a reply, or an object's record: its type and its fields.
pub fn decode_object(mut reply: &[u8]) -> Option<(u32, Fields)> {
    let otype = u32::from_le_bytes(take(&mut reply)?);
    Some((otype, Fields::from_bytes(reply)?))
}

/// Reads a reply that is a number.
pub fn decode_number(reply: &[u8]) -> Option<u64> {
    reply.try_into().ok().map(u64::from_le_bytes)
}

/// Reads a reply that is yes or no.
pub fn decode_bool(reply: &[u8]) -> Option<bool> {
    match reply {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

/// Reads the declaration of a type: nothing, or its inverse, or that it has none.
pub fn decode_type(reply: &[u8]) -> Option<Option<Option<u32>>> {
    match reply {
        [] => Some(None),
        [0] => Some(Some(None)),
        [1, inverse @ ..] => Some(Some(Some(u32::from_le_bytes(inverse.try_into().ok()?)))),
        _ => None,
    }
}

/// The key of an object's record in the objects table; its value is an [`decode_object`].
pub fn object_key(id: u64) -> [u8; 9] {
    encode_key(b'o', &[&id.to_be_bytes()])
}

/// The key of an edge's record in the objects table; its value is an [`decode_edge`].
pub fn edge_key(id1: u64, atype: u32, id2: u64) -> [u8; 21] {
    encode_key(b'e', &[&id1.to_be_bytes(), &atype.to_be_bytes(), &id2.to_be_bytes()])
}

/// The key of a list's count in the objects table; its value is a [`decode_count`].
pub fn count_key(id1: u64, atype: u32) -> [u8; 13] {
    encode_key(b'c', &[&id1.to_be_bytes(), &atype.to_be_bytes()])
}

/// The key of a part of a list's count; its value is a [`decode_count_shard`].
pub fn shard_key(id1: u64, atype: u32, shard: u8) -> [u8; 14] {
    encode_key(b'c', &[&id1.to_be_bytes(), &atype.to_be_bytes(), &[shard]])
}

/// The key of a type's record in the objects table; its value is a [`decode_type`] type.
pub fn type_key(atype: u32) -> [u8; 5] {
    encode_key(b's', &[&atype.to_be_bytes()])
}

/// The key of an edge's position in the lists table; its value is empty.
pub fn list_key(id1: u64, atype: u32, time: u64, id2: u64) -> [u8; 28] {
    let mut key = [0; 28];
    key[..8].copy_from_slice(&id1.to_be_bytes());
    key[8..12].copy_from_slice(&atype.to_be_bytes());
    key[12..20].copy_from_slice(&(!time).to_be_bytes());
    key[20..].copy_from_slice(&id2.to_be_bytes());
    key
}

/// Returns the position that a key of the lists table encodes.
pub fn decode_list_key(key: &[u8]) -> Option<ListPosition> {
    let (time, id2) = key.get(12..)?.split_first_chunk::<8>()?;
    Some(ListPosition { time: !u64::from_be_bytes(*time), id2: u64::from_be_bytes(id2.try_into().ok()?) })
}

/// Time and data of an edge's record.
pub fn decode_edge(mut value: &[u8]) -> Option<(u64, &[u8])> {
    let time = u64::from_le_bytes(take(&mut value)?);
    Some((time, value))
}

/// The stored form of a list's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListCount {
    /// The list has this number of edges.
    Whole(u64),
    /// This number of parts under [`shard_key`], from 0 on, make it up.
    Sharded(u8),
}

/// Reads the record of a list's count; there is none for an empty list.
pub fn decode_count(value: Option<&[u8]>) -> Option<ListCount> {
    match value {
        None => Some(ListCount::Whole(0)),
        Some([shards]) if *shards > 0 => Some(ListCount::Sharded(*shards)),
        Some(value) => decode_number(value).map(ListCount::Whole),
    }
}

/// Reads the record of a part of a count; one that is not there is 0.
pub fn decode_count_shard(value: Option<&[u8]>) -> Option<i64> {
    value.map_or(Some(0), |value| value.try_into().ok().map(i64::from_le_bytes))
}

fn encode_key<const LEN: usize>(kind: u8, parts: &[&[u8]]) -> [u8; LEN] {
    let mut key = [kind; LEN];
    let mut at = 1;
    for part in parts {
        key[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    key
}

fn take<const LEN: usize>(bytes: &mut &[u8]) -> Option<[u8; LEN]> {
    let (head, rest) = bytes.split_first_chunk::<LEN>()?;
    *bytes = rest;
    Some(*head)
}

fn take_slice<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}
