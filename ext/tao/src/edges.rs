//! Changes of edges: each with its inverse, its places in the lists and their counts, in one transaction.

use sandstorm_api::prelude::*;

use crate::args::ArgReader;
use crate::keys::{AssocEdge, AssocList};
use crate::{MAX_DATA, TaoGraph, schema};

const ADD: &str = "assoc_add: id1 u64, atype u32, id2 u64, time u64, data (the rest)";
const DELETE: &str = "assoc_delete: id1 u64, atype u32, id2 u64";
const CHANGE_TYPE: &str = "assoc_change_type: id1 u64, atype u32, id2 u64, newtype u32";
const MALFORMED_EDGE: &str = "the record under the edge's key is not one that this extension wrote";
const INCONSISTENT_COUNT: &str =
    "the count of the list does not agree with its edges: others write to the graph's tables";

/// Edges of a list beyond which its count is kept in shards, so that writers of a popular list do not all write
/// to one record.
const SHARD_ABOVE: u64 = 2_048;
/// Shards of a count. Each has to be read for the count of such a list.
const SHARDS: u8 = 8;

/// Adds an edge, or gives it a new time and data.
pub(crate) async fn add(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(ADD);
    let edge = read_edge(&mut args)?;
    let (time, data) = (args.u64()?, args.rest());
    if data.len() > MAX_DATA {
        return Err(Error::invalid("assoc_add: an association's data have 64 KiB at most: keep more in an object"));
    }
    let value = [&time.to_le_bytes()[..], data].concat();
    let is_new = insert_with_inverse(graph, edge, &value).await?;
    graph.db.reply(&[u8::from(is_new)])
}

/// Deletes an edge and its inverse.
pub(crate) async fn delete(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(DELETE);
    let edge = read_edge(&mut args)?;
    args.end()?;
    let was = remove_with_inverse(graph, edge).await?;
    graph.db.reply(&[u8::from(was.is_some())])
}

/// Makes an edge one of another type, with its time and data; so its inverse, as the types have it.
pub(crate) async fn change_type(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(CHANGE_TYPE);
    let edge = read_edge(&mut args)?;
    let newtype = args.u32()?;
    args.end()?;
    let was = if newtype == edge.list.atype {
        graph.db.transaction().get(graph.objects, &edge.key()).await?.is_some()
    } else if let Some(value) = remove_with_inverse(graph, edge).await? {
        insert_with_inverse(graph, edge.of_type(newtype), &value).await?;
        true
    } else {
        false
    };
    graph.db.reply(&[u8::from(was)])
}

fn read_edge(args: &mut ArgReader<'_>) -> Result<AssocEdge, Error> {
    let list = AssocList { id1: args.u64()?, atype: args.u32()? };
    Ok(AssocEdge { list, id2: args.u64()? })
}

/// The time in an edge's record.
pub(crate) fn decode_edge_time(value: &[u8]) -> Result<u64, Error> {
    let (time, _data) = value.split_first_chunk::<8>().ok_or(Error::new(MALFORMED_EDGE))?;
    Ok(u64::from_le_bytes(*time))
}

/// Writes an edge and its inverse; whether the edge is new.
async fn insert_with_inverse(graph: TaoGraph<'_>, edge: AssocEdge, value: &[u8]) -> Result<bool, Error> {
    let is_new = insert(graph, edge, value).await?;
    if let Some(inverse) = schema::fix_inverse(graph, edge.list.atype).await? {
        insert(graph, edge.reversed(inverse), value).await?;
    }
    Ok(is_new)
}

/// Removes an edge and its inverse; gives what was in its record.
async fn remove_with_inverse(graph: TaoGraph<'_>, edge: AssocEdge) -> Result<Option<Vec<u8>>, Error> {
    let Some(value) = remove(graph, edge).await? else { return Ok(None) };
    if let Some(inverse) = schema::inverse(graph, edge.list.atype).await? {
        remove(graph, edge.reversed(inverse)).await?;
    }
    Ok(Some(value))
}

async fn insert(graph: TaoGraph<'_>, edge: AssocEdge, value: &[u8]) -> Result<bool, Error> {
    let (tx, key, time) = (graph.db.transaction(), edge.key(), decode_edge_time(value)?);
    let was = match tx.get(graph.objects, &key).await? {
        Some(old) => Some(decode_edge_time(old.value())?),
        None => None,
    };
    if was != Some(time) {
        if let Some(was) = was {
            tx.delete(graph.lists, &edge.list.position(was, edge.id2)).await?;
        }
        tx.put(graph.lists, &edge.list.position(time, edge.id2), b"")?;
        add_to_count(graph, edge, i64::from(was.is_none())).await?;
    }
    tx.put(graph.objects, &key, value)?;
    Ok(was.is_none())
}

async fn remove(graph: TaoGraph<'_>, edge: AssocEdge) -> Result<Option<Vec<u8>>, Error> {
    let (tx, key) = (graph.db.transaction(), edge.key());
    let Some(old) = tx.get(graph.objects, &key).await? else { return Ok(None) };
    tx.delete(graph.lists, &edge.list.position(decode_edge_time(old.value())?, edge.id2)).await?;
    tx.delete(graph.objects, &key).await?;
    add_to_count(graph, edge, -1).await?;
    Ok(Some(old.value().to_vec()))
}

/// Adds to the count of an edge's list. It is written where the edge only moves, too: its version tells a reader that
/// the list is still as it was.
async fn add_to_count(graph: TaoGraph<'_>, edge: AssocEdge, by: i64) -> Result<(), Error> {
    let (tx, list) = (graph.db.transaction(), edge.list);
    let key = list.count_key();
    let record = tx.get(graph.objects, &key).await?;
    match StoredCount::read(record.map(|record| record.value()))? {
        StoredCount::Whole(count) => {
            let count = count.checked_add_signed(by).ok_or(Error::new(INCONSISTENT_COUNT))?;
            if count > SHARD_ABOVE {
                tx.put(graph.objects, &key, &[SHARDS])?;
                tx.put(graph.objects, &list.shard_key(0), &count.to_le_bytes())
            } else if count > 0 {
                tx.put(graph.objects, &key, &count.to_le_bytes())
            } else {
                tx.delete(graph.objects, &key).await.map(drop)
            }
        }
        StoredCount::Sharded(shards) => {
            let key = list.shard_key((mix_bits(edge.id2) % u64::from(shards)) as u8);
            let record = tx.get(graph.objects, &key).await?;
            let count = read_shard(record.map(|record| record.value()))?;
            let count = count.checked_add(by).ok_or(Error::new(INCONSISTENT_COUNT))?;
            tx.put(graph.objects, &key, &count.to_le_bytes())
        }
    }
}

/// A number with its upper bits all over it: ids are often in a row.
fn mix_bits(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// How the count of a list is kept.
#[derive(Clone, Copy)]
pub(crate) enum StoredCount {
    Whole(u64),
    Sharded(u8),
}

impl StoredCount {
    /// Reads the record of a list's count.
    pub(crate) fn read(value: Option<&[u8]>) -> Result<StoredCount, Error> {
        match value {
            None => Ok(StoredCount::Whole(0)),
            Some([shards]) if *shards > 0 => Ok(StoredCount::Sharded(*shards)),
            Some(value) => {
                let whole = value.try_into().map_err(|_| Error::new(INCONSISTENT_COUNT))?;
                Ok(StoredCount::Whole(u64::from_le_bytes(whole)))
            }
        }
    }
}

/// Reads the record of a part of a count, which may be below 0: what was counted elsewhere may be deleted here.
pub(crate) fn read_shard(value: Option<&[u8]>) -> Result<i64, Error> {
    let value = value.map_or(Ok([0; 8]), |value| value.try_into()).map_err(|_| Error::new(INCONSISTENT_COUNT))?;
    Ok(i64::from_le_bytes(value))
}
