//! Queries of association lists.
//!
//! A page of a list is read in two steps, its places and then the records of their edges, between which others may
//! write. What is promised, and how it is kept ([`answer`]):
//!
//! | case | promise | how |
//! |---|---|---|
//! | no write to the list meanwhile | as it is at one moment | its count, which each change writes, has the version that it had before |
//! | others write, again and again | each edge once, as it was at some moment of the call; none that was there all the time is missing | [`reconcile_page`] |
//! | a position beyond [`PAGE_POSITIONS`] | the second; others' changes move what a position means | [`skip_to_position`] |
//! | more than a reply holds | the next call goes on behind a place, not at a position | the reply's tail |

use core::cmp::Reverse;

use sandstorm_api::prelude::*;

use crate::args::ArgReader;
use crate::edges::{StoredCount, read_shard};
use crate::keys::{AssocEdge, AssocList};
use crate::list_state::ListState;
use crate::page::{PageEdge, read_page, reconcile_page, reply_edges, reply_page};
use crate::positions::{ListQuery, decode_position, encode_tail, position_keys};
use crate::{LIMIT, MAX_SKIPPED_EDGES, REPLY_BYTES, TaoGraph};

const GET: &str = "assoc_get: id1 u64, atype u32, high u64, low u64, then id2 u64 up to 6,000 times";
const COUNT: &str = "assoc_count: id1 u64, atype u32";
const RANGE: &str = "assoc_range: id1 u64, atype u32, pos u64, limit u32; to go on also time u64, id2 u64";
const TIME_RANGE: &str =
    "assoc_time_range: id1 u64, atype u32, high u64, low u64, limit u32; to go on also time u64, id2 u64";
const MALFORMED_COUNT: &str = "the count of the list is not one that this extension wrote";

/// Edges that are skipped in one go, and the position up to which an answer is that of one moment.
const PAGE_POSITIONS: u64 = 1_024;
/// What one call reads, in places of a list, an edge counting as two: so many, each a cache miss or two, take some
/// milliseconds. A list that others change meanwhile is read again within this; after that each edge is as it was at
/// some moment of the call.
const MAX_READ_COST: u64 = 14_000;
/// Places from the end up to which a position is counted off from there: each costs about four times one that is met
/// forward.
const NEAR_END_POSITIONS: u64 = 2_000;

/// The edges that go to some ids, newest first.
pub(crate) async fn get(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(GET);
    let list = AssocList { id1: args.u64()?, atype: args.u32()? };
    let (high, low) = (args.u64()?, args.u64()?);
    let (ids, odd) = args.rest().as_chunks::<8>();
    if !odd.is_empty() || ids.len() > LIMIT {
        return Err(args.wrong());
    }
    let edge = |id: &[u8; 8]| AssocEdge { list, id2: u64::from_le_bytes(*id) };
    let keys: Vec<[u8; 21]> = ids.iter().map(|id| edge(id).key()).collect();
    let records = graph.db.get_many(graph.objects, &keys).await?;
    let (mut found, mut done, mut bytes) = (Vec::new(), 0, 0);
    for (id, record) in ids.iter().zip(records) {
        if bytes >= REPLY_BYTES {
            break;
        }
        done += 1;
        let Some(record) = record else { continue };
        let edge = PageEdge::of(u64::from_le_bytes(*id), record)?;
        if edge.time <= high && edge.time >= low {
            bytes += edge.data.len() + 20;
            found.push(edge);
        }
    }
    // An id may have been asked for twice.
    found.sort_by_key(|edge| edge.id2);
    found.dedup_by_key(|edge| edge.id2);
    found.sort_by_key(|edge| Reverse(edge.time));
    let tail = (done as u32).to_le_bytes();
    reply_edges(graph, &found, (done < ids.len()).then_some(&tail))
}

/// How many edges a list has.
pub(crate) async fn count(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(COUNT);
    let list = AssocList { id1: args.u64()?, atype: args.u32()? };
    args.end()?;
    let record = graph.db.get(graph.objects, &list.count_key()).await?;
    let count = match StoredCount::read(record.map(|record| record.value()))? {
        StoredCount::Whole(count) => count,
        StoredCount::Sharded(shards) => {
            // As they are at one moment.
            let shards = graph.db.transaction().get_many(graph.objects, &shard_keys(list, shards)).await?;
            sum_shards(shards.iter().map(|shard| shard.map(|shard| shard.value())))?
        }
    };
    graph.db.reply(&count.to_le_bytes())
}

/// Edges of a list by their position.
pub(crate) async fn range(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(RANGE);
    let list = AssocList { id1: args.u64()?, atype: args.u32()? };
    let (pos, limit) = (args.u64()?, read_limit(&mut args)?);
    let after = read_after(&mut args)?;
    answer(graph, ListQuery { list, high: u64::MAX, low: 0, after, pos, limit }).await
}

/// Edges of a list by their time.
pub(crate) async fn time_range(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(TIME_RANGE);
    let list = AssocList { id1: args.u64()?, atype: args.u32()? };
    let (high, low, limit) = (args.u64()?, args.u64()?, read_limit(&mut args)?);
    let after = read_after(&mut args)?;
    answer(graph, ListQuery { list, high, low, after, pos: 0, limit }).await
}

fn read_limit(args: &mut ArgReader<'_>) -> Result<usize, Error> {
    Ok(usize::try_from(args.u32()?).unwrap_or(LIMIT).min(LIMIT))
}

fn read_after(args: &mut ArgReader<'_>) -> Result<Option<(u64, u64)>, Error> {
    let after = if args.is_empty() { None } else { Some((args.u64()?, args.u64()?)) };
    args.end()?;
    Ok(after)
}

async fn read_state(graph: TaoGraph<'_>, list: AssocList) -> Result<ListState, Error> {
    let record = graph.db.get(graph.objects, &list.count_key()).await?;
    match StoredCount::read(record.map(|record| record.value()))? {
        StoredCount::Whole(size) => Ok(ListState::from_single_record(size, record)),
        StoredCount::Sharded(shards) => {
            let shards = graph.db.get_many(graph.objects, &shard_keys(list, shards)).await?;
            let version = |shard: &Option<Record<'_>>| shard.map_or(0, |shard| shard.version());
            let versions =
                shards.iter().map(version).fold(record.map_or(0, |record| record.version()), u64::wrapping_add);
            // Of several moments, so it may even be below 0; if the versions are the same afterwards, of one.
            let size = sum_shards_signed(shards.iter().map(|shard| shard.map(|shard| shard.value())))?;
            Ok(ListState { size: u64::try_from(size).unwrap_or(0), is_single_record: false, versions })
        }
    }
}

fn shard_keys(list: AssocList, shards: u8) -> Vec<[u8; 14]> {
    (0..shards).map(|shard| list.shard_key(shard)).collect()
}

fn sum_shards_signed<'a>(shards: impl Iterator<Item = Option<&'a [u8]>>) -> Result<i64, Error> {
    let mut sum = 0_i64;
    for shard in shards {
        sum = sum.checked_add(read_shard(shard)?).ok_or(Error::new(MALFORMED_COUNT))?;
    }
    Ok(sum)
}

fn sum_shards<'a>(shards: impl Iterator<Item = Option<&'a [u8]>>) -> Result<u64, Error> {
    u64::try_from(sum_shards_signed(shards)?).map_err(|_| Error::new(MALFORMED_COUNT))
}

/// Replies with edges of a list as it is at one moment, if others leave it alone for so long.
async fn answer(graph: TaoGraph<'_>, query: ListQuery) -> Result<(), Error> {
    let (mut used, mut met) = (0, BTreeSet::new());
    loop {
        let before = read_state(graph, query.list).await?;
        let is_empty = query.limit == 0 || query.low > query.high;
        if is_empty
            || query.pos >= before.size && (before.is_single_record || read_state(graph, query.list).await? == before)
        {
            return reply_edges(graph, &[], None);
        }
        let from = match skip_to_position(graph, query, before.size).await? {
            SkipOutcome::Reached { skip, after } => ListQuery { pos: skip, after, ..query },
            SkipOutcome::PastEnd => return reply_edges(graph, &[], None),
            SkipOutcome::Suspended { left, at } => return reply_edges(graph, &[], Some(&encode_tail(left, at))),
        };
        let page = read_page(graph, from).await?;
        // What the page itself knows of the list was read together with its edges.
        let is_as_before = query.pos <= PAGE_POSITIONS
            && match page.state {
                Some(state) if page.is_complete => state == before,
                _ => read_state(graph, query.list).await? == before,
            };
        if is_as_before {
            return reply_page(graph, &page, query.limit);
        }
        used += page.cost;
        if query.pos > PAGE_POSITIONS || used + page.cost > MAX_READ_COST {
            let page = reconcile_page(graph, from, page, &met).await?;
            return reply_page(graph, &page, query.limit);
        }
        met.extend(page.found.iter().chain(&page.moved).map(|edge| edge.id2));
    }
}

/// Where a walk towards a position has come to.
enum SkipOutcome {
    /// So many are left to be skipped, behind a place.
    Reached { skip: u64, after: Option<(u64, u64)> },
    /// The list ends before.
    PastEnd,
    /// Another call has to go on.
    Suspended { left: u64, at: (u64, u64) },
}

/// Skips whole pages on the way to a position; from the end of the list where that is near, and much nearer.
async fn skip_to_position(graph: TaoGraph<'_>, query: ListQuery, size: u64) -> Result<SkipOutcome, Error> {
    let from_end = size.saturating_sub(query.pos);
    if query.pos > PAGE_POSITIONS && from_end <= NEAR_END_POSITIONS && from_end * 4 < query.pos && query.after.is_none()
    {
        let after = nth_from_end(graph, query.list, from_end + 1).await?;
        if after.is_some() {
            return Ok(SkipOutcome::Reached { skip: 0, after });
        }
    }
    let (mut left, mut after, mut skipped) = (query.pos, query.after, 0);
    while left > PAGE_POSITIONS {
        let positions = position_keys(graph, ListQuery { after, ..query }, PAGE_POSITIONS as usize).await?;
        let Some(last) = positions.last().filter(|_| positions.len() as u64 == PAGE_POSITIONS) else {
            return Ok(SkipOutcome::PastEnd);
        };
        let last = decode_position(last)?;
        (left, after, skipped) = (left - PAGE_POSITIONS, Some(last), skipped + PAGE_POSITIONS);
        let is_near = left <= PAGE_POSITIONS && skipped + left + 2 * query.limit as u64 <= MAX_READ_COST;
        if !is_near && (skipped >= MAX_SKIPPED_EDGES || left <= PAGE_POSITIONS) {
            return Ok(SkipOutcome::Suspended { left, at: last });
        }
    }
    Ok(SkipOutcome::Reached { skip: left, after })
}

/// The `nth` place of a list from its end, 1 being the last; `None` if the list has become shorter.
async fn nth_from_end(graph: TaoGraph<'_>, list: AssocList, nth: u64) -> Result<Option<(u64, u64)>, Error> {
    let (first, mut end, mut left) = (list.position(u64::MAX, 0), list.behind(0, u64::MAX).to_vec(), nth);
    loop {
        let page = left.min(PAGE_POSITIONS);
        let positions = graph.db.range_keys(graph.lists, &first, &end, page as usize, Direction::Backward).await?;
        let Some(last) = positions.last().filter(|_| positions.len() as u64 == page) else { return Ok(None) };
        left -= page;
        if left == 0 {
            return decode_position(last).map(Some);
        }
        end = last.to_vec();
    }
}
