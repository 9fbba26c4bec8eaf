//! Reads on the client: plain gets, multigets and ranges of the extension's records.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::codec::{ListCount, ListPosition};
use super::{Assoc, List, Tao, codec, require_decoded};
use crate::{Direction, Error, Record, Reply};

/// Most times that a list is read while its edges do not agree with their positions, since others change it. After that
/// each edge is as it was at some moment of the call.
const LIST_READ_ATTEMPTS: u32 = 4;
/// Records of one range, and keys of one multiget: the most that a server answers at a time.
pub(super) const PAGE_RECORDS: u64 = 1_000;

impl Tao {
    /// The count of a list, if it is kept in one record, or the client may read more than one.
    pub(super) async fn get_count(&self, (id1, atype): List) -> Result<Option<u64>, Error> {
        let record = self.client.get(self.tables.objects, &codec::count_key(id1, atype)).await?;
        match require_decoded(codec::decode_count(record.as_ref().map(|record| &record.value[..])))? {
            ListCount::Whole(count) => Ok(Some(count)),
            ListCount::Sharded(_) if self.placement == super::Placement::Combined => Ok(None),
            ListCount::Sharded(shards) => {
                let keys: Vec<_> = (0..shards).map(|shard| codec::shard_key(id1, atype, shard)).collect();
                let mut sum = 0_i64;
                for part in self.client.snapshot(self.tables.objects, &keys).await? {
                    let part = require_decoded(codec::decode_count_shard(part.as_ref().map(|part| &part.value[..])))?;
                    sum = require_decoded(sum.checked_add(part))?;
                }
                require_decoded(u64::try_from(sum).ok()).map(Some)
            }
        }
    }

    /// The edges of a list that go to these ids, each once, at times from `low` to `high`.
    pub(super) async fn get_edges(
        &self,
        list: List,
        ids: &[u64],
        (high, low): (u64, u64),
    ) -> Result<Vec<Assoc>, Error> {
        let records = self.get_records(list, ids).await?;
        let mut found = Vec::new();
        for (id2, record) in ids.iter().zip(records) {
            let Some(edge) = record.map(|record| record_to_assoc(*id2, &record)).transpose()? else { continue };
            if low <= edge.time && edge.time <= high {
                found.push(edge);
            }
        }
        Ok(found)
    }

    /// The edges of a list at times from `low` to `high`, from a position on.
    pub(super) async fn get_list(
        &self,
        list: List,
        times: (u64, u64),
        pos: u64,
        limit: u32,
    ) -> Result<Vec<Assoc>, Error> {
        if limit == 0 || times.0 < times.1 {
            return Ok(Vec::new());
        }
        let mut tries = 0;
        loop {
            let (positions, mut agree) = self.get_positions(list, times, pos, u64::from(limit)).await?;
            let ids: Vec<u64> = positions.iter().map(|position| position.id2).collect();
            let records = self.get_records(list, &ids).await?;
            let mut found = Vec::with_capacity(positions.len());
            for (position, record) in positions.iter().zip(records) {
                let Some(edge) = record.map(|record| record_to_assoc(position.id2, &record)).transpose()? else {
                    agree = false;
                    continue;
                };
                let is_there = edge.time == position.time;
                agree &= is_there;
                // An edge that was moved in the meantime is where its own record says, which may be before a position.
                if is_there || pos == 0 {
                    found.push(edge);
                }
            }
            tries += 1;
            if agree {
                return Ok(found);
            }
            if tries == LIST_READ_ATTEMPTS {
                // If the list goes on, so does the caller, from behind the last position.
                let last = positions.last().filter(|_| positions.len() as u64 >= u64::from(limit));
                return Ok(reconcile(found, times, last));
            }
        }
    }

    /// Reads the positions of a list, `limit` of them after the first `skip`. Also returns whether they are of one
    /// moment, as far as one record tells.
    async fn get_positions(
        &self,
        (id1, atype): List,
        (high, low): (u64, u64),
        mut skip: u64,
        mut limit: u64,
    ) -> Result<(Vec<ListPosition>, bool), Error> {
        let mut from = codec::list_key(id1, atype, high, 0).to_vec();
        let to = [&codec::list_key(id1, atype, low, u64::MAX)[..], &[0]].concat();
        let (mut positions, mut first, count_key) = (Vec::new(), None, codec::count_key(id1, atype));
        loop {
            let want = PAGE_RECORDS.min(skip.saturating_add(limit)) as u32;
            // The count's record is written whenever the list changes.
            let batch = self.client.batch().get(self.tables.objects, &count_key);
            let batch = batch.range(self.tables.lists, &from, &to, want, Direction::Forward);
            let replies = batch.get(self.tables.objects, &count_key).send().await?;
            let Ok([before, page, after]) = <[_; 3]>::try_from(replies) else { return require_decoded(None) };
            let (Reply::Record(before), Reply::Range(page), Reply::Record(after)) = (before?, page?, after?) else {
                return require_decoded(None);
            };
            let version = |record: Option<Record>| record.map_or(0, |record| record.version);
            let (before, after) = (*first.get_or_insert(version(before)), version(after));
            let skipped = skip.min(page.records.len() as u64);
            for record in page.records.iter().skip(skipped as usize) {
                positions.push(require_decoded(codec::decode_list_key(&record.key))?);
            }
            limit = limit.saturating_sub(page.records.len() as u64 - skipped);
            skip -= skipped;
            match page.on {
                Some(on) if limit > 0 => from = [&on[..], &[0]].concat(),
                _ => return Ok((positions, before == after)),
            }
        }
    }

    /// The records of edges of a list, in the order of the ids. If they do not fit one answer, they come in several.
    async fn get_records(&self, (id1, atype): List, ids: &[u64]) -> Result<Vec<Option<Record>>, Error> {
        let mut records = Vec::with_capacity(ids.len());
        let mut step = ids.len().min(PAGE_RECORDS as usize);
        while records.len() < ids.len() {
            let some = &ids[records.len()..ids.len().min(records.len() + step)];
            let keys: Vec<_> = some.iter().map(|id2| codec::edge_key(id1, atype, *id2)).collect();
            match self.client.multi_get(self.tables.objects, &keys).await {
                Ok(more) => records.extend(more),
                Err(Error::TooLarge { .. }) if step > 1 => step = step.div_ceil(2),
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }
}

/// Sorts edges of a list that others change, each where its own record has it. An edge that was moved may have been
/// read twice. It may also be out of the bounds now, or behind the last position that was asked for.
pub(super) fn reconcile(mut found: Vec<Assoc>, (high, low): (u64, u64), last: Option<&ListPosition>) -> Vec<Assoc> {
    let (mut met, order) = (BTreeSet::new(), |time, id2| (Reverse(time), id2));
    found.retain(|edge| {
        let is_of_page = last.is_none_or(|last| order(edge.time, edge.id2) <= order(last.time, last.id2));
        is_of_page && (low..=high).contains(&edge.time) && met.insert(edge.id2)
    });
    found.sort_by_key(|edge| order(edge.time, edge.id2));
    found
}

fn record_to_assoc(id2: u64, record: &Record) -> Result<Assoc, Error> {
    let (time, data) = require_decoded(codec::decode_edge(&record.value))?;
    Ok(Assoc { id2, time, data: record.value.slice_ref(data) })
}
