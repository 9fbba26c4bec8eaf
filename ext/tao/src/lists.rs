//! Queries of association lists.

use core::cmp::Reverse;

use sandstorm_api::prelude::*;

use crate::args::Args;
use crate::edges::{Count, read_shard, time_of};
use crate::keys::{Edge, List, read_place};
use crate::{Graph, LIMIT, REPLY_BYTES, SKIPPED};

const GET: &str = "assoc_get: id1 u64, atype u32, high u64, low u64, then id2 u64 up to 6,000 times";
const COUNT: &str = "assoc_count: id1 u64, atype u32";
const RANGE: &str = "assoc_range: id1 u64, atype u32, pos u64, limit u32; to go on also time u64, id2 u64";
const TIME_RANGE: &str =
    "assoc_time_range: id1 u64, atype u32, high u64, low u64, limit u32; to go on also time u64, id2 u64";
const BROKEN: &str = "the count of the list is not one that this extension wrote";
const BROKEN_PLACE: &str = "the lists table holds a key that is not one that this extension wrote";

/// Edges that are skipped in one go, and the position up to which an answer is that of one moment.
const PAGE: u64 = 1_024;
/// How often a list is read while others change it at the same time. After that each edge is as it was at some moment of the call.
const TRIES: u32 = 4;
/// Edges of an answer above which a list is read once: the tries together are to stay within the budget of CPU time.
const TRIED: usize = 1_024;
/// What one call reads, in places of a list, an edge counting as two: so many, each a cache miss or two, take some milliseconds.
const WORK: u64 = 14_000;

/// An edge of a list, with its data.
#[derive(Clone, Copy)]
struct Found<'a> {
    time: u64,
    id2: u64,
    data: &'a [u8],
}

/// What is asked of a list.
#[derive(Clone, Copy)]
struct Ask {
    list: List,
    high: u64,
    low: u64,
    /// Begin behind this place: time and id2.
    after: Option<(u64, u64)>,
    pos: u64,
    limit: usize,
}

/// The edges that go to some ids, newest first.
pub(crate) async fn get(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(GET);
    let list = List { id1: args.u64()?, atype: args.u32()? };
    let (high, low) = (args.u64()?, args.u64()?);
    let (ids, odd) = args.rest().as_chunks::<8>();
    if !odd.is_empty() || ids.len() > LIMIT {
        return Err(args.wrong());
    }
    let edge = |id: &[u8; 8]| Edge { list, id2: u64::from_le_bytes(*id) };
    let keys: Vec<[u8; 21]> = ids.iter().map(|id| edge(id).key()).collect();
    let records = graph.db.get_many(graph.objects, &keys).await?;
    let (mut found, mut done, mut bytes) = (Vec::new(), 0, 0);
    for (id, record) in ids.iter().zip(records) {
        if bytes >= REPLY_BYTES {
            break;
        }
        done += 1;
        let Some(record) = record else { continue };
        let (time, data) = (time_of(record.value())?, record.value().get(8..).unwrap_or_default());
        if time <= high && time >= low {
            bytes += data.len() + 20;
            found.push(Found { time, id2: u64::from_le_bytes(*id), data });
        }
    }
    // An id may have been asked for twice.
    found.sort_by_key(|edge| edge.id2);
    found.dedup_by_key(|edge| edge.id2);
    found.sort_by_key(|edge| Reverse(edge.time));
    let more = done < ids.len();
    reply(graph, more, &found)?;
    if more { graph.db.reply(&(done as u32).to_le_bytes()) } else { Ok(()) }
}

/// How many edges a list has.
pub(crate) async fn count(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(COUNT);
    let list = List { id1: args.u64()?, atype: args.u32()? };
    args.end()?;
    let record = graph.db.get(graph.objects, &list.count_key()).await?;
    let count = match Count::read(record.map(|record| record.value()))? {
        Count::Whole(count) => count,
        Count::Sharded(shards) => {
            // As they are at one moment.
            let shards = graph.db.transaction().get_many(graph.objects, &shard_keys(list, shards)).await?;
            sum(shards.iter().map(|shard| shard.map(|shard| shard.value())))?
        }
    };
    graph.db.reply(&count.to_le_bytes())
}

/// Edges of a list by their position.
pub(crate) async fn range(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(RANGE);
    let list = List { id1: args.u64()?, atype: args.u32()? };
    let (pos, limit) = (args.u64()?, read_limit(&mut args)?);
    let after = read_after(&mut args)?;
    answer(graph, Ask { list, high: u64::MAX, low: 0, after, pos, limit }).await
}

/// Edges of a list by their time.
pub(crate) async fn time_range(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(TIME_RANGE);
    let list = List { id1: args.u64()?, atype: args.u32()? };
    let (high, low, limit) = (args.u64()?, args.u64()?, read_limit(&mut args)?);
    let after = read_after(&mut args)?;
    answer(graph, Ask { list, high, low, after, pos: 0, limit }).await
}

fn read_limit(args: &mut Args<'_>) -> Result<usize, Error> {
    Ok(usize::try_from(args.u32()?).unwrap_or(LIMIT).min(LIMIT))
}

fn read_after(args: &mut Args<'_>) -> Result<Option<(u64, u64)>, Error> {
    let after = if args.is_empty() { None } else { Some((args.u64()?, args.u64()?)) };
    args.end()?;
    Ok(after)
}

/// What tells whether a list has changed, and its size.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    size: u64,
    /// The sum of the versions of what keeps the count, which is written whenever the list changes: none of them ever falls.
    versions: u64,
}

async fn state(graph: Graph<'_>, list: List) -> Result<State, Error> {
    let Some(record) = graph.db.get(graph.objects, &list.count_key()).await? else {
        return Ok(State { size: 0, versions: 0 });
    };
    match Count::read(Some(record.value()))? {
        Count::Whole(size) => Ok(State { size, versions: record.version() }),
        Count::Sharded(shards) => {
            let shards = graph.db.get_many(graph.objects, &shard_keys(list, shards)).await?;
            let version = |shard: &Option<Record<'_>>| shard.map_or(0, |shard| shard.version());
            let versions = shards.iter().map(version).fold(record.version(), u64::wrapping_add);
            // Of several moments; if the versions are the same afterwards, of one.
            let size = sum(shards.iter().map(|shard| shard.map(|shard| shard.value()))).unwrap_or(0);
            Ok(State { size, versions })
        }
    }
}

fn shard_keys(list: List, shards: u8) -> Vec<[u8; 14]> {
    (0..shards).map(|shard| list.shard_key(shard)).collect()
}

fn sum<'a>(shards: impl Iterator<Item = Option<&'a [u8]>>) -> Result<u64, Error> {
    let mut sum = 0_i64;
    for shard in shards {
        sum = sum.checked_add(read_shard(shard)?).ok_or(Error::new(BROKEN))?;
    }
    u64::try_from(sum).map_err(|_| Error::new(BROKEN))
}

/// Replies with edges of a list as it is at one moment, if others leave it alone for so long.
async fn answer(graph: Graph<'_>, ask: Ask) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        let before = state(graph, ask.list).await?;
        let mut found = if ask.pos < before.size && ask.limit > 0 && ask.low <= ask.high {
            match skip(graph, ask, before.size).await? {
                Skip::Done { skip, after } => edges(graph, Ask { pos: skip, after, ..ask }).await?,
                Skip::End => Vec::new(),
                Skip::Enough { left, at } => {
                    reply(graph, true, &[])?;
                    return tail(graph, left, at);
                }
            }
        } else {
            Vec::new()
        };
        tries += 1;
        let at_one_moment = ask.pos <= PAGE && state(graph, ask.list).await? == before;
        if at_one_moment || ask.pos > PAGE || tries == TRIES || found.len() > TRIED {
            if !at_one_moment {
                // An edge that was moved may have been met twice.
                let mut met = BTreeSet::new();
                found.retain(|edge| met.insert(edge.id2));
            }
            return reply_edges(graph, &found);
        }
    }
}

/// Where a walk towards a position has come to.
enum Skip {
    /// So many are left to be skipped, behind a place.
    Done { skip: u64, after: Option<(u64, u64)> },
    /// The list ends before.
    End,
    /// Another call has to go on.
    Enough { left: u64, at: (u64, u64) },
}

/// Skips whole pages on the way to a position, from the nearer end of the list if that is near.
async fn skip(graph: Graph<'_>, ask: Ask, size: u64) -> Result<Skip, Error> {
    let from_end = size.saturating_sub(ask.pos);
    if ask.pos > PAGE && ask.pos > from_end && from_end <= SKIPPED / 2 && ask.after.is_none() {
        let after = nth_from_end(graph, ask.list, from_end + 1).await?;
        if after.is_some() {
            return Ok(Skip::Done { skip: 0, after });
        }
    }
    let (mut left, mut after, mut skipped) = (ask.pos, ask.after, 0);
    while left > PAGE {
        let places = places(graph, Ask { after, ..ask }, PAGE as usize).await?;
        let last = places.last().and_then(|place| read_place(place.key()));
        let Some(last) = last.filter(|_| places.len() as u64 == PAGE) else { return Ok(Skip::End) };
        (left, after, skipped) = (left - PAGE, Some(last), skipped + PAGE);
        let is_near = left <= PAGE && skipped + left + 2 * ask.limit as u64 <= WORK;
        if !is_near && (skipped >= SKIPPED || left <= PAGE) {
            return Ok(Skip::Enough { left, at: last });
        }
    }
    Ok(Skip::Done { skip: left, after })
}

/// The `nth` place of a list from its end, 1 being the last; `None` if the list has become shorter.
async fn nth_from_end(graph: Graph<'_>, list: List, nth: u64) -> Result<Option<(u64, u64)>, Error> {
    let (first, mut end, mut left) = (list.place(u64::MAX, 0), list.behind(0, u64::MAX).to_vec(), nth);
    loop {
        let page = left.min(PAGE);
        let places = graph.db.range(graph.lists, &first, &end, page as usize, Direction::Backward).await?;
        let Some(last) = places.last().filter(|_| places.len() as u64 == page) else { return Ok(None) };
        left -= page;
        if left == 0 {
            return Ok(read_place(last.key()));
        }
        end = last.key().to_vec();
    }
}

/// The records of the places of a list, `limit` at most.
async fn places<'a>(graph: Graph<'a>, ask: Ask, limit: usize) -> Result<Vec<Record<'a>>, Error> {
    let first = ask.list.place(ask.high, 0);
    let behind = ask.after.map(|(time, id2)| ask.list.behind(time, id2));
    let from = behind.as_ref().map_or(&first[..], |behind| core::cmp::max(&first[..], &behind[..]));
    let end = ask.list.behind(ask.low, u64::MAX);
    if from >= &end[..] {
        return Ok(Vec::new());
    }
    graph.db.range(graph.lists, from, &end, limit, Direction::Forward).await
}

/// The edges at the places from the position on.
async fn edges<'a>(graph: Graph<'a>, ask: Ask) -> Result<Vec<Found<'a>>, Error> {
    let skip = ask.pos as usize;
    let places = places(graph, ask, skip + ask.limit).await?;
    let mut found = Vec::with_capacity(places.len().saturating_sub(skip));
    for place in places.iter().skip(skip) {
        let (time, id2) = read_place(place.key()).ok_or(Error::new(BROKEN_PLACE))?;
        found.push(Found { time, id2, data: &[] });
    }
    drop(places);
    let keys: Vec<[u8; 21]> = found.iter().map(|edge| Edge { list: ask.list, id2: edge.id2 }.key()).collect();
    let records = graph.db.get_many(graph.objects, &keys).await?;
    let mut records = records.into_iter();
    // An edge that is gone meanwhile is none; one that was moved meanwhile is where it was found.
    found.retain_mut(|edge| match records.next().flatten() {
        Some(record) => {
            edge.data = record.value().get(8..).unwrap_or_default();
            true
        }
        None => false,
    });
    Ok(found)
}

/// As many of the edges as a reply holds, and how to go on.
fn reply_edges(graph: Graph<'_>, found: &[Found<'_>]) -> Result<(), Error> {
    let mut bytes = 0;
    let fits = |edge: &&Found<'_>| {
        let fits = bytes < REPLY_BYTES;
        bytes += edge.data.len() + 20;
        fits
    };
    let count = found.iter().take_while(fits).count();
    let (now, later) = found.split_at(count);
    reply(graph, !later.is_empty(), now)?;
    match now.last() {
        Some(last) if !later.is_empty() => tail(graph, 0, (last.time, last.id2)),
        _ => Ok(()),
    }
}

fn reply(graph: Graph<'_>, more: bool, edges: &[Found<'_>]) -> Result<(), Error> {
    let mut bytes = vec![u8::from(more)];
    bytes.extend_from_slice(&(edges.len() as u32).to_le_bytes());
    graph.db.reply(&bytes)?;
    for edge in edges {
        bytes.clear();
        bytes.extend_from_slice(&edge.id2.to_le_bytes());
        bytes.extend_from_slice(&edge.time.to_le_bytes());
        bytes.extend_from_slice(&(edge.data.len() as u32).to_le_bytes());
        bytes.extend_from_slice(edge.data);
        graph.db.reply(&bytes)?;
    }
    Ok(())
}

fn tail(graph: Graph<'_>, pos: u64, (time, id2): (u64, u64)) -> Result<(), Error> {
    let bytes = [pos.to_le_bytes(), time.to_le_bytes(), id2.to_le_bytes()].concat();
    graph.db.reply(&bytes)
}
