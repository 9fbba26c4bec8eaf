//! One page of an association list: how it is read, made sound where others write to it, and replied.

use core::cmp::Reverse;

use sandstorm_api::prelude::*;

use crate::edges::{StoredCount, decode_edge_time};
use crate::keys::{AssocEdge, AssocList, EdgeOrCountKey};
use crate::list_state::ListState;
use crate::positions::{ListQuery, decode_position, encode_tail, position_keys};
use crate::{REPLY_BYTES, TaoGraph};

/// What a try costs beside its edges, in places: the count, read twice, and the way down to the first place.
const ATTEMPT_COST: u64 = 24;
/// Bytes of an edge in a reply beside its data.
const EDGE_HEADER_BYTES: usize = 20;
/// Bytes of a reply that are handed over at a time: each costs a call of the host.
const REPLY_CHUNK_BYTES: usize = 4 << 10;

/// An edge of a list, with its data.
#[derive(Clone, Copy)]
pub(crate) struct PageEdge<'a> {
    pub(crate) time: u64,
    pub(crate) id2: u64,
    pub(crate) data: &'a [u8],
}

impl<'a> PageEdge<'a> {
    /// The edge to `id2` that a record holds.
    pub(crate) fn of(id2: u64, record: Record<'a>) -> Result<PageEdge<'a>, Error> {
        Ok(PageEdge { time: decode_edge_time(record.value())?, id2, data: record.value().get(8..).unwrap_or_default() })
    }
}

/// What was read of a list from a position on.
pub(crate) struct ListPage<'a> {
    /// Edges with the time of the place where they were met.
    pub(crate) found: Vec<PageEdge<'a>>,
    /// Edges whose records have another time than the place where they were met: that of the record is here.
    pub(crate) moved: Vec<PageEdge<'a>>,
    /// Every place that was met has its edge, with that time.
    pub(crate) is_complete: bool,
    /// The list as it was, after the places were met, if its count is in one record.
    pub(crate) state: Option<ListState>,
    /// The first place that was met.
    pub(crate) first: Option<(u64, u64)>,
    /// The last place that was met, where there may be more behind it.
    pub(crate) last: Option<(u64, u64)>,
    /// What it cost, in places.
    pub(crate) cost: u64,
}

/// Reads the edges at the places from the position on.
pub(crate) async fn read_page<'a>(graph: TaoGraph<'a>, query: ListQuery) -> Result<ListPage<'a>, Error> {
    let skip = query.pos as usize;
    let positions = position_keys(graph, query, skip + query.limit).await?;
    let is_full = positions.len() == skip + query.limit;
    let mut met = Vec::with_capacity(positions.len().saturating_sub(skip));
    for position in positions.iter().skip(skip) {
        met.push(decode_position(position)?);
    }
    let cost = ATTEMPT_COST + (positions.len() + met.len()) as u64;
    drop(positions);
    let (records, count) = read_edge_records(graph, query.list, met.iter().map(|(_, id2)| *id2)).await?;
    let state = match StoredCount::read(count.map(|count| count.value()))? {
        StoredCount::Whole(size) => Some(ListState::from_single_record(size, count)),
        StoredCount::Sharded(_) => None,
    };
    let (mut found, mut moved) = (Vec::with_capacity(met.len()), Vec::new());
    for ((time, id2), record) in met.iter().zip(records) {
        // An edge that is gone meanwhile is none.
        let Some(record) = record else { continue };
        let edge = PageEdge::of(*id2, record)?;
        if edge.time == *time { found.push(edge) } else { moved.push(edge) }
    }
    let is_complete = found.len() == met.len();
    let (first, last) = (met.first().copied(), met.last().copied().filter(|_| is_full));
    Ok(ListPage { found, moved, is_complete, state, first, last, cost })
}

/// The records of edges of a list, for each id; and that of the list's count, read together with them.
async fn read_edge_records<'a>(
    graph: TaoGraph<'a>,
    list: AssocList,
    ids: impl ExactSizeIterator<Item = u64>,
) -> Result<(Vec<Option<Record<'a>>>, Option<Record<'a>>), Error> {
    let mut keys = Vec::with_capacity(ids.len() + 1);
    keys.extend(ids.map(|id2| EdgeOrCountKey::edge(AssocEdge { list, id2 })));
    keys.push(EdgeOrCountKey::count(list));
    let mut records = graph.db.get_many(graph.objects, &keys).await?;
    let count = records.pop().flatten();
    Ok((records, count))
}

/// Makes a page of a list that others change sound: each edge comes once, where its own record has it. Those that
/// earlier tries met and this one did not are looked up again: they may have been moved past the reader.
pub(crate) async fn reconcile_page<'a>(
    graph: TaoGraph<'a>,
    query: ListQuery,
    mut page: ListPage<'a>,
    met: &BTreeSet<u64>,
) -> Result<ListPage<'a>, Error> {
    let (mut has, mut missed) = (BTreeSet::new(), met.clone());
    for edge in page.found.iter().chain(&page.moved) {
        missed.remove(&edge.id2);
    }
    let missed: Vec<u64> = missed.into_iter().collect();
    let (records, _count) = read_edge_records(graph, query.list, missed.iter().copied()).await?;
    let mut found_again = Vec::new();
    for (id2, record) in missed.iter().zip(records) {
        found_again.extend(record.map(|record| PageEdge::of(*id2, record)).transpose()?);
    }
    let order = |position: (u64, u64)| (Reverse(position.0), position.1);
    let is_of_page = |edge: &PageEdge<'_>| {
        let position = order((edge.time, edge.id2));
        // What is before a position is not asked for; what is behind the last place comes when one goes on from there.
        query.low <= edge.time
            && edge.time <= query.high
            && query.after.is_none_or(|after| order(after) < position)
            && (query.pos == 0 || page.first.is_none_or(|first| order(first) < position))
            && page.last.is_none_or(|last| position < order(last))
    };
    let moved = core::mem::take(&mut page.moved).into_iter().chain(found_again);
    let moved: Vec<PageEdge<'a>> = moved.filter(is_of_page).collect();
    page.found.extend(moved);
    page.found.sort_by_key(|edge| order((edge.time, edge.id2)));
    // One that was moved may have been met twice.
    page.found.retain(|edge| has.insert(edge.id2));
    page.found.truncate(query.limit);
    Ok(page)
}

/// As many of the edges as a reply holds, and how to go on, if there may be more of so many that are asked for.
pub(crate) fn reply_page(graph: TaoGraph<'_>, page: &ListPage<'_>, limit: usize) -> Result<(), Error> {
    let mut bytes = 0;
    let fits = |edge: &&PageEdge<'_>| {
        let fits = bytes < REPLY_BYTES;
        bytes += edge.data.len() + EDGE_HEADER_BYTES;
        fits
    };
    let count = page.found.iter().take_while(fits).count();
    let (now, later) = page.found.split_at(count);
    let behind = match now.last() {
        Some(last) if !later.is_empty() => Some((last.time, last.id2)),
        // Some of its places had no edge any more.
        _ => page.last.filter(|_| now.len() < limit),
    };
    match behind {
        Some(position) => reply_edges(graph, now, Some(&encode_tail(0, position))),
        None => reply_edges(graph, now, None),
    }
}

/// Replies with edges and, where there may be more, with a tail that tells how to go on.
pub(crate) fn reply_edges(graph: TaoGraph<'_>, edges: &[PageEdge<'_>], tail: Option<&[u8]>) -> Result<(), Error> {
    let bytes = edges
        .iter()
        .map(|edge| EDGE_HEADER_BYTES + edge.data.len())
        .fold(5 + tail.map_or(0, <[u8]>::len), usize::saturating_add);
    let mut piece = Vec::with_capacity(bytes.min(REPLY_CHUNK_BYTES));
    piece.push(u8::from(tail.is_some()));
    piece.extend_from_slice(&(edges.len() as u32).to_le_bytes());
    for edge in edges {
        if piece.len() + EDGE_HEADER_BYTES + edge.data.len() > REPLY_CHUNK_BYTES {
            graph.db.reply(&piece)?;
            piece.clear();
        }
        piece.extend_from_slice(&edge.id2.to_le_bytes());
        piece.extend_from_slice(&edge.time.to_le_bytes());
        piece.extend_from_slice(&(edge.data.len() as u32).to_le_bytes());
        piece.extend_from_slice(edge.data);
    }
    piece.extend_from_slice(tail.unwrap_or_default());
    graph.db.reply(&piece)
}
