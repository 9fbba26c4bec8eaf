//! Reads on the client: plain gets and multigets of the extension's records.

use super::codec::Count;
use super::{Assoc, List, Tao, codec, read};
use crate::{Error, Record};

/// Keys of one multiget: the most that a server answers at a time.
const PAGE: usize = 1_000;

impl Tao {
    /// The count of a list, if it is kept in one record, or the client may read more than one.
    pub(super) async fn get_count(&self, (id1, atype): List) -> Result<Option<u64>, Error> {
        let record = self.client.get(self.tables.objects, &codec::count_key(id1, atype)).await?;
        match read(codec::count(record.as_ref().map(|record| &record.value[..])))? {
            Count::Whole(count) => Ok(Some(count)),
            Count::Sharded(_) if self.placement == super::Placement::Combined => Ok(None),
            Count::Sharded(shards) => {
                let keys: Vec<_> = (0..shards).map(|shard| codec::shard_key(id1, atype, shard)).collect();
                let mut sum = 0_i64;
                for part in self.client.snapshot(self.tables.objects, &keys).await? {
                    let part = read(codec::count_part(part.as_ref().map(|part| &part.value[..])))?;
                    sum = read(sum.checked_add(part))?;
                }
                read(u64::try_from(sum).ok()).map(Some)
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
            let Some(edge) = record.map(|record| assoc(*id2, &record)).transpose()? else { continue };
            if low <= edge.time && edge.time <= high {
                found.push(edge);
            }
        }
        Ok(found)
    }

    /// The records of edges of a list, in the order of the ids. Where they do not fit one answer, they come in several.
    async fn get_records(&self, (id1, atype): List, ids: &[u64]) -> Result<Vec<Option<Record>>, Error> {
        let mut records = Vec::with_capacity(ids.len());
        let mut step = ids.len().min(PAGE);
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

fn assoc(id2: u64, record: &Record) -> Result<Assoc, Error> {
    let (time, data) = read(codec::edge(&record.value))?;
    Ok(Assoc { id2, time, data: record.value.slice_ref(data) })
}
