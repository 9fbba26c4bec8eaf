//! The route of a table's largest records: a small table is read whole, a large one at random places.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::caller::RequestCaller;
use super::error::ApiError;
use super::key_digest::key_digest;
use super::records::begin_page;
use super::response::ApiResult;
use super::types::{BigRecordResponse, BigResponse};
use super::{ControlState, now_ms};
use crate::limits::{BIG_KEYS, BIG_KEYS_MAX, BIG_PLACES, BIG_RECORDS};
use crate::record_sample::{SampleSize, random_seed, visit_sample};
use sandstorm_catalog::DirectoryError;
use sandstorm_store::{Participant, RecordTable};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BigParameters {
    limit: Option<usize>,
}

/// Bytes of a key that are shown.
const KEY_BYTES: usize = 64;

/// A large record: bytes of its value, the beginning of its key, bytes of that, and its table's hash of it.
type LargeRecord = (usize, Vec<u8>, usize, u64);

/// What was seen of a table.
#[derive(Debug, Default)]
struct SizeSample {
    sizes: Vec<u32>,
    largest: BinaryHeap<Reverse<LargeRecord>>,
}

impl SizeSample {
    fn add(&mut self, table: &RecordTable, key: &[u8], value_bytes: usize, top: usize) {
        self.sizes.push(u32::try_from(key.len() + value_bytes).unwrap_or(u32::MAX));
        let is_larger = self.largest.peek().is_none_or(|Reverse(least)| value_bytes > least.0);
        if self.largest.len() < top || is_larger {
            let prefix = key[..key.len().min(KEY_BYTES)].to_vec();
            self.largest.push(Reverse((value_bytes, prefix, key.len(), table.hash(key))));
            if self.largest.len() > top {
                self.largest.pop();
            }
        }
    }
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(BigParameters { limit }): Query<BigParameters>,
) -> ApiResult<BigResponse> {
    let view = caller.reach(&control, &tenant)?;
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.clone() };
    let entry = view.table_by_name(&name).cloned().ok_or_else(unknown)?;
    let permit = begin_page(&control, &view)?;
    let top = limit.unwrap_or(BIG_KEYS).min(BIG_KEYS_MAX);
    let made = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let participant = control.directory.participant();
        let sample = sample_sizes(&entry.table, &participant, (top, random_seed()), now_ms());
        let records = entry.table.stats().records;
        let shown = participant.shown().take();
        drop(participant);
        // No client is shown what a crash may take back.
        control.directory.wait_for_disk(shown)?;
        Ok::<_, ApiError>((sample, records))
    });
    let (sample, records) = made.await.map_err(|error| ApiError::internal(format!("it was not made: {error}")))??;
    Ok(Json(answer(sample, records, !caller.is_operator())))
}

/// Looks at all records, or at some behind each of many places.
fn sample_sizes(table: &RecordTable, participant: &Participant, (top, seed): (usize, u64), now_ms: u64) -> SizeSample {
    let mut sample = SizeSample::default();
    let size = SampleSize { records: BIG_RECORDS, places: BIG_PLACES, seed };
    visit_sample(table, participant, size, now_ms, &mut |record| {
        sample.add(table, record.key(), record.value().len(), top)
    });
    sample
}

fn answer(sample: SizeSample, records: u64, shows_keys: bool) -> BigResponse {
    let SizeSample { mut sizes, largest } = sample;
    sizes.sort_unstable();
    let quantile = |per_cent: usize| {
        let rank = (sizes.len() * per_cent).div_ceil(100).max(1);
        sizes.get(rank - 1).copied().unwrap_or(0).into()
    };
    let largest =
        largest.into_sorted_vec().into_iter().map(|Reverse((value_bytes, prefix, key_len, hash))| BigRecordResponse {
            key: shows_keys.then(|| String::from_utf8_lossy(&prefix).into_owned()),
            key_digest: key_digest(hash, key_len),
            key_bytes: key_len as u64,
            value_bytes: value_bytes as u64,
        });
    BigResponse {
        records: records.max(sizes.len() as u64),
        looked_at: sizes.len() as u64,
        p50_bytes: quantile(50),
        p99_bytes: quantile(99),
        max_bytes: quantile(100),
        sum_bytes: sizes.iter().map(|size| u64::from(*size)).sum(),
        largest: largest.collect(),
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_store::{Epochs, TableConfig, WriteOptions};

    use super::*;

    fn table_of(records: u64) -> (Arc<Epochs>, RecordTable) {
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 5);
        let participant = epochs.register();
        for number in 0..records {
            let key = format!("key{number}");
            // One in a hundred is longer, and twenty are much longer.
            let bytes = if number < 20 { 5_000 - number as usize } else { 10 + usize::from(number % 100 == 0) * 90 };
            let value = vec![b'v'; bytes];
            table
                .put(&participant, table.hash(key.as_bytes()), key.as_bytes(), &value, &WriteOptions::default(), 1)
                .expect("room");
        }
        drop(participant);
        (epochs, table)
    }

    #[test]
    fn all_of_a_small_table_is_looked_at() {
        let (epochs, table) = table_of(3_000);
        let participant = epochs.register();
        let shown = answer(sample_sizes(&table, &participant, (5, 1), 1), 3_000, true);
        assert_eq!((shown.records, shown.looked_at, shown.max_bytes), (3_000, 3_000, 5_004));
        let values: Vec<u64> = shown.largest.iter().map(|record| record.value_bytes).collect();
        assert_eq!(values, [5_000, 4_999, 4_998, 4_997, 4_996]);
        assert_eq!(shown.largest[0].key.as_deref(), Some("key0"));
        let hidden = answer(sample_sizes(&table, &participant, (5, 1), 1), 3_000, false);
        assert!(hidden.largest.iter().all(|record| record.key.is_none()));
        assert_eq!(hidden.largest[0].key_digest, shown.largest[0].key_digest);
    }

    #[test]
    fn a_part_of_a_large_table_is_looked_at_and_stands_for_the_rest() {
        const RECORDS: u64 = 3 * BIG_RECORDS;
        let (epochs, table) = table_of(RECORDS);
        let participant = epochs.register();
        let shown = answer(sample_sizes(&table, &participant, (3, 7), 1), RECORDS, true);
        assert!((BIG_RECORDS / 2..=2 * BIG_RECORDS).contains(&shown.looked_at), "{shown:?}");
        let mean = shown.sum_bytes as f64 / shown.looked_at as f64;
        let keys: usize = (0..RECORDS).map(|number| format!("key{number}").len()).sum();
        let exact = keys as f64 / RECORDS as f64 + 10.0 + 0.9 + 20.0 * 4_990.0 / RECORDS as f64;
        assert!((mean - exact).abs() < 1.0, "{mean} and {exact}: {shown:?}");
        assert_eq!(shown.largest.len(), 3);
    }
}
