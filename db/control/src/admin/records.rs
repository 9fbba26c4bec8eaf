//! The records of a table, page by page, for exports. A page is copied while the table serves: a bounded number of
//! records under one guard, so no reclamation of memory waits for a slow client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::Response;
use serde::Deserialize;

use super::caller::RequestCaller;
use super::error::ApiError;
use super::request_limiter::RequestPermit;
use super::types::{RecordPageResponse, RecordResponse};
use super::{ControlState, now_ms};
use crate::limits::{
    RECORD_PAGE_BYTES, RECORD_PAGE_QUOTA_MS, RECORD_PAGE_READ_MS, RECORD_PAGE_SCANS, RECORD_SCAN_RECORDS,
};
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_store::spill::SpillReadError;
use sandstorm_store::{ColdRecord, Participant, RecordTable, ScannedRecord};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordsQuery {
    /// Where to go on, as the last page said it.
    #[serde(default)]
    cursor: Option<u64>,
}

/// The bytes of a page, which count as long as a connection has them.
struct PageBytes {
    json: Vec<u8>,
    _permit: RequestPermit,
}

impl AsRef<[u8]> for PageBytes {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

pub(super) async fn page(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(query): Query<RecordsQuery>,
) -> Result<Response, ApiError> {
    let view = caller.reach(&control, &tenant)?;
    // Unknown tables are told before anything is counted.
    if with_table(&view, &name, RecordTable::has_backing)? {
        return Err(DirectoryError::CannotList(name).into());
    }
    let permit = begin_page(&control, &view)?;
    let made = tokio::task::spawn_blocking(move || {
        let mut participant = control.directory.participant();
        let from = query.cursor.unwrap_or(0);
        let page =
            with_table(&view, &name, |table| copy_page(table, (&mut participant, view.tenant.id), from, now_ms()))??;
        let shown = participant.shown().take();
        drop(participant);
        // No client is shown what a crash may take back.
        control.directory.wait_for_disk(shown)?;
        let json = serde_json::to_vec(&page).map_err(|error| ApiError::internal(error.to_string()))?;
        Ok::<_, ApiError>(PageBytes { json, _permit: permit })
    });
    let page = made.await.map_err(|error| ApiError::internal(format!("the page was not made: {error}")))??;
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response
        .body(Body::from(Bytes::from_owner(page)))
        .map_err(|error| ApiError::internal(format!("the page was not made: {error}")))
}

/// Begins a page, which takes as much memory as any and a thread for as long.
pub(super) fn begin_page(control: &ControlState, view: &TenantView) -> Result<RequestPermit, ApiError> {
    let permit = control.record_pages.begin(view.tenant.id);
    permit.ok_or_else(|| ApiError::busy("too many pages of records are under way"))
}

/// Shows `read` an own table of the tenant, or one that is granted to it.
fn with_table<T>(view: &TenantView, name: &str, read: impl FnOnce(&RecordTable) -> T) -> Result<T, ApiError> {
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.to_owned() };
    if let Some(entry) = view.table_by_name(name) {
        return Ok(read(&entry.table));
    }
    let grant = view.granted_by_name(name).ok_or_else(unknown)?;
    let entry = grant.reach(false).map_err(|_| unknown())?;
    Ok(read(&entry.table))
}

/// A record that a page has met.
enum MetRecord {
    Copied(u64, RecordResponse),
    Cold(ColdRecord),
}

impl MetRecord {
    /// Where a page that begins with it begins.
    fn hash(&self) -> u64 {
        match self {
            MetRecord::Copied(hash, _) => *hash,
            MetRecord::Cold(record) => record.hash(),
        }
    }
}

/// Returns the cursor of a page that begins with the record of a hash, behind one that began at `from`.
fn cursor_at(hash: u64, from: u64) -> u64 {
    // A cursor that stood still would never end.
    if hash == from { hash.saturating_add(1) } else { hash }
}

/// Copies records from a cursor on: those that fit into a page, and one at least if there are any nearby. Those on the
/// disk are read from there one by one within the quota of the tenant that reads, which need not be the table's; the
/// page ends early when that takes long.
fn copy_page(
    table: &RecordTable,
    (participant, reader): (&mut Participant, u32),
    from: u64,
    now_ms: u64,
) -> Result<RecordPageResponse, ApiError> {
    let (met, mut next) = meet_records(table, participant, from, now_ms);
    let (begun, mut records, mut unreadable) = (Instant::now(), Vec::with_capacity(met.len()), 0);
    for record in met {
        let hash = record.hash();
        let cold = match record {
            MetRecord::Copied(_, record) => {
                records.push(record);
                continue;
            }
            MetRecord::Cold(cold) => cold,
        };
        let has_some = !records.is_empty() || unreadable > 0;
        let is_slow = has_some && begun.elapsed() >= Duration::from_millis(RECORD_PAGE_READ_MS);
        let until = Instant::now() + Duration::from_millis(RECORD_PAGE_QUOTA_MS);
        if is_slow || !table.may_read_cold(&cold, reader, until) {
            if !has_some {
                return Err(ApiError::busy("the tenant's quota of cold reads is used up"));
            }
            next = Some(cursor_at(hash, from));
            break;
        }
        let read = table.read_cold_now(participant, &cold, &mut |record| {
            if record.expires_at_ms == 0 || record.expires_at_ms > now_ms {
                records.push(RecordResponse::of_read(record));
            }
        });
        match read {
            Ok(_) => {}
            Err(SpillReadError::Checksum | SpillReadError::Misdirected | SpillReadError::Missing) => unreadable += 1,
            Err(error) => return Err(ApiError::not_read(format!("a record cannot be read from the disk: {error}"))),
        }
    }
    // What was read from the disk may be of later writes than those that the scan has met.
    table.note_all_read(participant.shown());
    Ok(RecordPageResponse { records, next: next.map(|at| at.to_string()), unreadable })
}

/// Copies the records in memory, and notes those on the disk, of a page; returns them in the order of their hashes, and
/// where the next page begins.
fn meet_records(
    table: &RecordTable,
    participant: &Participant,
    from: u64,
    now_ms: u64,
) -> (Vec<MetRecord>, Option<u64>) {
    let (mut met, mut bytes) = (Vec::new(), 0);
    let mut cursor = Some(from);
    let guard = participant.guard();
    for _ in 0..RECORD_PAGE_SCANS {
        let Some(at) = cursor else { break };
        let mut rest = None;
        cursor = table.scan_each(&guard, (at, RECORD_SCAN_RECORDS), now_ms, &mut |record| {
            let hash = match &record {
                ScannedRecord::InMemory(record) => table.hash(record.key()),
                ScannedRecord::Cold(record) => record.hash(),
            };
            if bytes >= RECORD_PAGE_BYTES {
                rest = rest.or(Some(hash));
                return;
            }
            match record {
                ScannedRecord::InMemory(record) => {
                    bytes += record.key().len() + record.value().len() + RecordResponse::FRAME_BYTES;
                    met.push(MetRecord::Copied(hash, RecordResponse::of(record)));
                }
                ScannedRecord::Cold(record) => {
                    bytes += record.read_bytes();
                    met.push(MetRecord::Cold(record));
                }
            }
        });
        if let Some(rest) = rest {
            cursor = Some(cursor_at(rest, from));
            break;
        }
        if bytes >= RECORD_PAGE_BYTES {
            break;
        }
    }
    (met, cursor)
}

#[cfg(test)]
mod tests {
    //! Promise: pages have each record once, with what belongs to it, and a bounded number of bytes.

    use std::collections::BTreeMap;

    use sandstorm_store::{Epochs, TableConfig, WriteOptions};

    use super::*;

    #[test]
    fn pages_have_all_records_and_few_bytes() {
        const VALUE_BYTES: usize = 300_000;
        let epochs = Epochs::new();
        let mut participant = epochs.register();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
        for number in 0..5_000_u32 {
            let value = vec![b'v'; if number < 50 { VALUE_BYTES } else { 30 }];
            let options = WriteOptions {
                flags: number % 2,
                expires_at_ms: u64::from(number % 3) * 1_000,
                ..WriteOptions::default()
            };
            let key = format!("key{number}");
            table.put(&participant, table.hash(key.as_bytes()), key.as_bytes(), &value, &options, 1).expect("room");
        }
        let (mut found, mut cursor, mut pages) = (BTreeMap::new(), Some(0), 0);
        while let Some(at) = cursor {
            let page = copy_page(&table, (&mut participant, 1), at, 1_500).expect("a page");
            let bytes = serde_json::to_vec(&page).expect("JSON").len();
            assert!(bytes < RECORD_PAGE_BYTES + 2 * VALUE_BYTES, "{bytes} bytes");
            for record in page.records {
                let key = record.key.expect("text");
                assert!(record.key_base64.is_none() && record.value_base64.is_none());
                let about = (record.value.expect("text").len(), record.flags, record.expires_at_ms);
                assert_eq!(found.insert(key, about), None, "each once");
            }
            cursor = page.next.map(|next| next.parse().expect("a number"));
            pages += 1;
        }
        let expected: BTreeMap<_, _> = (0..5_000_u32)
            .filter(|number| number % 3 != 1)
            .map(|number| {
                let bytes = if number < 50 { VALUE_BYTES } else { 30 };
                (format!("key{number}"), (bytes, number % 2, u64::from(number % 3) * 1_000))
            })
            .collect();
        assert!(found == expected && pages > 5, "{} records in {pages} pages", found.len());
    }
}
