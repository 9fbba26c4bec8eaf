//! Places in a list: how they are asked for, read and written.

use sandstorm_api::prelude::*;

use crate::TaoGraph;
use crate::keys::{AssocList, decode_position_key};

const MALFORMED_POSITION_KEY: &str = "the lists table holds a key that is not one that this extension wrote";

/// What is asked of a list.
#[derive(Clone, Copy)]
pub(crate) struct ListQuery {
    pub(crate) list: AssocList,
    pub(crate) high: u64,
    pub(crate) low: u64,
    /// Begin behind this place: time and id2.
    pub(crate) after: Option<(u64, u64)>,
    pub(crate) pos: u64,
    pub(crate) limit: usize,
}

/// The keys of the places of a list, `limit` at most. A place that is being made or removed may be among them: it
/// counts by its edge.
pub(crate) async fn position_keys(graph: TaoGraph<'_>, query: ListQuery, limit: usize) -> Result<Keys, Error> {
    let first = query.list.position(query.high, 0);
    let behind = query.after.map(|(time, id2)| query.list.behind(time, id2));
    let from = behind.as_ref().map_or(&first[..], |behind| core::cmp::max(&first[..], &behind[..]));
    let end = query.list.behind(query.low, u64::MAX);
    if from >= &end[..] {
        return Ok(Keys::default());
    }
    graph.db.range_keys(graph.lists, from, &end, limit, Direction::Forward).await
}

pub(crate) fn decode_position(key: &[u8]) -> Result<(u64, u64), Error> {
    decode_position_key(key).ok_or(Error::new(MALFORMED_POSITION_KEY))
}

/// How to go on: so many edges are left to be skipped behind a place.
pub(crate) fn encode_tail(pos: u64, (time, id2): (u64, u64)) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (at, word) in [pos, time, id2].iter().enumerate() {
        bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
