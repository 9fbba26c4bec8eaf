//! Classic commands, each on one record, under the answers that memcached gives.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use sandstorm_net::memcached::text::push_number;
use sandstorm_net::memcached::{BAD_CHUNK, MetaCommand, StoreMode, StoreRequest, TOO_LARGE, TextRequest};

use super::arithmetic::ArithmeticRequest;
use super::expiry::expires_at_ms;
use super::stats::{self, StatWriter};
use crate::CommandContext;
use crate::limits::protocols::{MEMCACHED_VERSION, REWRITTEN_PER_REQUEST_BYTES, STATISTICS_PER_REQUEST_BYTES};
use sandstorm_accounts::{Tally, WorkerMemcachedCounts};
use sandstorm_catalog::{AccessError, TableEntry, TenantView};
use sandstorm_store::limits::MAX_VALUE_BYTES;
use sandstorm_store::{
    EpochGuard, RecordMarks, RecordRef, RecordTable, RecordUpdate, StoreCondition, StoreError, UpdateValue,
    WriteOptions,
};

/// Appends a line.
pub(super) fn push_line(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) const NOT_FOUND: &str = "NOT_FOUND";
pub(super) const NOT_STORED: &str = "NOT_STORED";
pub(super) const EXISTS: &str = "EXISTS";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
/// What memcached has no words for; it begins as its own do, for clients that compare.
const STILL_READ: &str = "SERVER_ERROR out of memory storing object: too many replaced records are still being read, write again in a moment";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object: the server's machine has no memory left, the table's quota is not reached";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const OVER_QUOTA: &str = "SERVER_ERROR quota requests_per_s: too many requests a second";
pub(super) const NO_TENANT: &str = "SERVER_ERROR the tenant that this port speaks for is not there";
pub(super) const NO_TABLE: &str = "SERVER_ERROR the tenant has no such table";
pub(super) const READ_ONLY: &str = "SERVER_ERROR the table was granted for reading only";
pub(super) const NOT_OWNER: &str = "SERVER_ERROR only a table's owner may empty it";

/// What the store did not do.
pub(super) fn store_error_text(error: StoreError) -> &'static str {
    match error {
        StoreError::OutOfMemory => OUT_OF_MEMORY,
        StoreError::NoMemory => NO_MEMORY,
        StoreError::ReclaimPressure => STILL_READ,
        StoreError::ValueTooLarge | StoreError::KeyTooLarge => TOO_LARGE,
        StoreError::Conflict => EXISTS,
        StoreError::NotANumber => NOT_NUMERIC,
        StoreError::WrongServer => "SERVER_ERROR another server owns this part of the table",
    }
}

/// What the requests of one call of a session run on.
pub(super) struct MemcachedContext<'w> {
    pub(super) context: &'w CommandContext<'w>,
    pub(super) view: Option<&'w TenantView>,
    /// Whether the client had to show a token.
    pub(super) by_token: bool,
    table: u64,
    /// The table, if it may be read.
    entry: Option<&'w TableEntry>,
    guard: EpochGuard<'w>,
    /// What `stats` shows.
    pub(super) tallies: Option<&'w WorkerMemcachedCounts>,
    /// Bytes of values that were written, beside those that were sent.
    written: Cell<usize>,
    /// Bytes of answers that were there when this began.
    pub(super) begun: usize,
}

impl<'w> MemcachedContext<'w> {
    pub(super) fn new(
        context: &'w CommandContext<'w>,
        view: Option<&'w TenantView>,
        table: u64,
        by_token: bool,
        begun: usize,
    ) -> MemcachedContext<'w> {
        let entry = view.and_then(|view| view.reach(table, false).ok());
        if let Some(entry) = entry {
            entry.flush_if_due(context.participant, context.now_ms, |table| context.empties(table));
        }
        let (guard, written) = (context.participant.guard(), Cell::new(0));
        let tallies = view.map(|view| view.tenant.usage.tallies(context.worker));
        MemcachedContext { context, view, by_token, table, entry, guard, tallies, written, begun }
    }

    /// Hashes a key and has its bucket fetched; 0: there is no table.
    #[inline]
    pub(super) fn prefetch_key(&self, key: &[u8]) -> u64 {
        let Some(entry) = self.entry else { return 0 };
        let hash = entry.table.hash(key);
        entry.table.prefetch_bucket(hash);
        hash
    }

    /// The same for a request; 0: it has no key, or not as it stands there.
    #[inline]
    pub(super) fn prefetch_request(&self, request: &TextRequest<'_>) -> u64 {
        match request {
            TextRequest::Get { key, .. }
            | TextRequest::TooLarge { key, .. }
            | TextRequest::Delete { key, .. }
            | TextRequest::Arithmetic { key, .. }
            | TextRequest::Touch { key, .. } => self.prefetch_key(key),
            TextRequest::Store(store) => self.prefetch_key(store.key),
            TextRequest::Meta(meta) if !meta.flags.base64 => self.prefetch_key(meta.key),
            _ => 0,
        }
    }

    /// Has the records fetched that the buckets of these hashes name.
    #[inline]
    pub(super) fn prefetch_records(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let Some(entry) = self.entry {
            // 0, which is no key's, finds nothing.
            entry.table.prefetch_records(&self.guard, hashes);
        }
    }

    /// The table, to read or to write in, for one request. Else what is to be told.
    pub(super) fn reach(&self, write: bool) -> Result<&'w TableEntry, &'static str> {
        let view = self.view.ok_or(NO_TENANT)?;
        if !self.context.admit(view, 1) {
            return Err(OVER_QUOTA);
        }
        match self.entry {
            Some(entry) if !write => Ok(entry),
            _ => view.reach(self.table, write).map_err(|error| match error {
                AccessError::ReadOnly => READ_ONLY,
                AccessError::Unknown => NO_TABLE,
            }),
        }
    }

    /// Notes that statistics of so many bytes were put together.
    pub(super) fn tells(&self, bytes: usize) {
        self.context.work((bytes / STATISTICS_PER_REQUEST_BYTES) as u64);
    }

    /// Notes that a value of so many bytes is written again, which takes the tenant's time as so many requests do.
    pub(super) fn rewrites(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes);
        let requests = &self.context.requests;
        requests.set(requests.get().saturating_add((bytes / REWRITTEN_PER_REQUEST_BYTES) as u32));
    }

    /// Bytes of values that were written, beside those that were sent.
    pub(super) fn written(&self) -> usize {
        self.written.get()
    }

    /// Whether the table may be written. (A win is a mark on the record: who may only read cannot leave one.)
    pub(super) fn may_write(&self) -> bool {
        self.view.is_some_and(|view| view.reach(self.table, true).is_ok())
    }

    pub(super) fn guard(&self) -> &EpochGuard<'w> {
        &self.guard
    }

    /// Longest value that may be stored.
    pub(super) fn max_value(&self) -> usize {
        self.entry.map_or(MAX_VALUE_BYTES, |entry| entry.table.max_value_len())
    }

    /// Counts a key that was asked for.
    pub(super) fn count_read(&self, found: bool) {
        if let Some(view) = self.view {
            let counters = view.tenant.usage.worker(self.context.worker);
            counters.connection_reads.add(1);
            counters.connection_misses.add(u64::from(!found));
        }
        self.context.counters.records_read.add(u64::from(found));
    }

    /// Counts a value that was to be written.
    pub(super) fn count_write(&self) {
        if let Some(view) = self.view {
            view.tenant.usage.worker(self.context.worker).connection_writes.add(1);
        }
    }

    /// Runs a request and appends its answer.
    pub(super) fn run(&self, request: &TextRequest<'_>, hash: u64, out: &mut Vec<u8>) {
        let (text, noreply) = match *request {
            TextRequest::Get { key, cas, exptime } => {
                if self.get(key, hash, cas, exptime, out) {
                    out.extend_from_slice(b"END\r\n");
                }
                return;
            }
            TextRequest::Store(ref store) => {
                (self.store(store, hash, 0).map_or_else(|text| text, |_| "STORED"), store.noreply)
            }
            TextRequest::TooLarge { key, set, noreply } => (self.too_large(key, hash, set), noreply),
            TextRequest::Delete { key, noreply } => (self.delete(key, hash, 0), noreply),
            TextRequest::Touch { key, exptime, noreply } => {
                let touched = self.touch(key, hash, exptime.into());
                let text = |found: Option<_>| if found.is_some() { "TOUCHED" } else { NOT_FOUND };
                (touched.map_or_else(|text| text, text), noreply)
            }
            TextRequest::Arithmetic { key, delta, up, noreply } => {
                match self.arithmetic(key, hash, &ArithmeticRequest::plain(delta, up)) {
                    Ok((sum, _)) if !noreply => {
                        push_number(sum, out);
                        out.extend_from_slice(b"\r\n");
                        return;
                    }
                    Ok(_) => return,
                    Err(text) => (text, noreply),
                }
            }
            TextRequest::FlushAll { delay, noreply } => (self.flush_all(delay.into()), noreply),
            TextRequest::Stats(words) => {
                let before = out.len();
                stats::stats(self, words, StatWriter::text(out));
                return self.tells(out.len() - before);
            }
            TextRequest::Version => {
                out.extend_from_slice(b"VERSION ");
                return push_line(MEMCACHED_VERSION, out);
            }
            TextRequest::Noop { noreply } => ("OK", noreply),
            TextRequest::MetaNoop => ("MN", false),
            TextRequest::MetaTooLarge { key, base64 } => (self.meta_too_large(key, base64), false),
            TextRequest::Meta(ref meta) => return self.meta(meta, hash, out),
            TextRequest::Invalid { text, noreply } => {
                if text == BAD_CHUNK {
                    self.tally(Tally::Sets);
                }
                (text, noreply)
            }
            // These end a batch; they do not come here.
            TextRequest::GetMany { .. } | TextRequest::Quit => return,
        };
        if !noreply {
            push_line(text, out);
        }
    }

    /// Appends a record, if there is one. False: an error was appended, behind which there is no end of a list.
    #[inline]
    pub(super) fn get(&self, key: &[u8], hash: u64, cas: bool, exptime: Option<i32>, out: &mut Vec<u8>) -> bool {
        match self.look(key, hash, exptime.map(i64::from)) {
            Ok(Some((record, number))) => {
                push_value(&record, cas.then_some(number), out);
                record.note_fetched();
                true
            }
            Ok(None) => true,
            Err(text) => {
                push_line(text, out);
                false
            }
        }
    }

    /// A record that is asked for, and its number; with a time of expiry that it gets, and a new number.
    #[inline]
    pub(super) fn look<'s>(&'s self, key: &[u8], hash: u64, exptime: Option<i64>) -> LookupResult<'s> {
        let found = match exptime {
            None => {
                let entry = self.reach(false)?;
                let record = entry.table.get(&self.guard, hash, key, self.context.now_ms);
                self.count_found(record.is_some(), Tally::GetHits, Tally::GetMisses);
                record.map(|record| (record, RecordTable::number_of(hash, record.version())))
            }
            Some(exptime) => self.touch(key, hash, exptime)?,
        };
        self.count_read(found.is_some());
        if let Some((record, _)) = &found {
            self.context.bytes(record.value().len());
        }
        Ok(found)
    }

    /// Gives a record a new time of expiry; what it was, and its number now.
    fn update_expiry(&self, entry: &'w TableEntry, key: &[u8], hash: u64, exptime: i64) -> LookupResult<'w> {
        let now_ms = self.context.now_ms;
        let touched = entry.table.update_marked(self.context.participant, hash, key, now_ms, |found| {
            let Some(record) = found else { return (RecordUpdate::Keep(None), RecordMarks::default()) };
            let value = UpdateValue::unchanged(&record);
            self.rewrites(value.copied_bytes());
            let put = RecordUpdate::Put {
                value,
                flags: record.flags(),
                expires_at_ms: expires_at_ms(exptime, now_ms),
                answer: Some(record),
            };
            (put, RecordMarks { fetched: true, ..record.marks() })
        });
        let number = |version| RecordTable::number_of(hash, version);
        touched
            .map(|(record, version)| record.map(|record| (record, number(version))))
            .map_err(|error| self.refused(error))
    }

    /// Gives a record a new time of expiry, where there is one.
    pub(super) fn touch(&self, key: &[u8], hash: u64, exptime: i64) -> LookupResult<'w> {
        let found = self.update_expiry(self.reach(true)?, key, hash, exptime)?;
        self.count_found(found.is_some(), Tally::TouchHits, Tally::TouchMisses);
        Ok(found)
    }

    /// Stores a value; tells its number. `cas`: the number that a record has to have which is appended to; 0: any.
    pub(super) fn store(&self, store: &StoreRequest<'_>, hash: u64, cas: u64) -> Result<u64, &'static str> {
        let entry = self.reach(true)?;
        self.count_write();
        self.tally(Tally::Sets);
        let StoreRequest { key, value, flags, .. } = *store;
        self.context.bytes(value.len());
        let (participant, now_ms) = (self.context.participant, self.context.now_ms);
        let expires_at_ms = expires_at_ms(store.exptime, now_ms);
        let put = |condition| {
            let write = WriteOptions { condition, flags, expires_at_ms };
            entry.table.put(participant, hash, key, value, &write, now_ms).map(|version| (Ok(()), version))
        };
        let stored = match store.verb {
            StoreMode::Set => put(StoreCondition::Always),
            StoreMode::Add => put(StoreCondition::Absent),
            StoreMode::Replace => put(StoreCondition::Present),
            StoreMode::Append | StoreMode::Prepend => {
                let parts = |old| if store.verb == StoreMode::Append { [old, value, b""] } else { [value, old, b""] };
                entry.table.update(participant, hash, key, now_ms, |found| match found {
                    None => RecordUpdate::Keep(Err(NOT_STORED)),
                    Some(record) if cas != 0 && cas != RecordTable::number_of(hash, record.version()) => {
                        RecordUpdate::Keep(Err(EXISTS))
                    }
                    Some(record) => {
                        self.rewrites(record.value().len());
                        RecordUpdate::Put {
                            value: UpdateValue::Parts(parts(record.value())),
                            flags: record.flags(),
                            expires_at_ms: record.expires_at_ms(),
                            answer: Ok(()),
                        }
                    }
                })
            }
            StoreMode::Cas(number) => {
                let swapped = entry.table.update(participant, hash, key, now_ms, |found| match found {
                    None => RecordUpdate::Keep(Err(NOT_FOUND)),
                    Some(record) if RecordTable::number_of(hash, record.version()) != number => {
                        RecordUpdate::Keep(Err(EXISTS))
                    }
                    Some(_) => RecordUpdate::Put { value: value.into(), flags, expires_at_ms, answer: Ok(()) },
                });
                if let Ok((stored, _)) = &swapped {
                    self.count_cas(stored.err());
                }
                swapped
            }
        };
        match stored {
            Ok((stored, version)) => {
                stored?;
                self.tally(Tally::Stored);
                Ok(RecordTable::number_of(hash, version))
            }
            Err(StoreError::Conflict) => Err(NOT_STORED),
            Err(error) => {
                if store.verb == StoreMode::Set {
                    self.delete_stale(entry, key, hash);
                }
                Err(self.refused(error))
            }
        }
    }

    /// A set that failed for lack of room leaves nothing old behind: a client may believe that it was written.
    pub(super) fn delete_stale(&self, entry: &TableEntry, key: &[u8], hash: u64) {
        let context = self.context;
        let _was_there = entry.table.delete(context.participant, hash, key, StoreCondition::Always, context.now_ms);
    }

    pub(super) fn too_large(&self, key: &[u8], hash: u64, set: bool) -> &'static str {
        match self.reach(true) {
            Ok(entry) => {
                self.tally(Tally::StoreTooLarge);
                if set {
                    self.delete_stale(entry, key, hash);
                }
                TOO_LARGE
            }
            Err(text) => text,
        }
    }

    /// Deletes a record. `cas`: the number that it has to have; 0: any.
    pub(super) fn delete(&self, key: &[u8], hash: u64, cas: u64) -> &'static str {
        let entry = match self.reach(true) {
            Ok(entry) => entry,
            Err(text) => return text,
        };
        let condition =
            if cas == 0 { StoreCondition::Always } else { StoreCondition::Version(RecordTable::version_of(hash, cas)) };
        let (participant, now_ms) = (self.context.participant, self.context.now_ms);
        match entry.table.delete(participant, hash, key, condition, now_ms) {
            Ok(there) => {
                self.count_found(there, Tally::DeleteHits, Tally::DeleteMisses);
                if there { "DELETED" } else { NOT_FOUND }
            }
            Err(StoreError::Conflict) if entry.table.get(&self.guard, hash, key, now_ms).is_some() => EXISTS,
            Err(StoreError::Conflict) => {
                self.tally(Tally::DeleteMisses);
                NOT_FOUND
            }
            Err(error) => store_error_text(error),
        }
    }

    pub(super) fn flush_all(&self, delay: i64) -> &'static str {
        let entry = match self.reach(true) {
            Ok(entry) => entry,
            Err(text) => return text,
        };
        let own = self.view.and_then(|view| view.table(entry.id));
        if own.is_none_or(|own| !std::ptr::eq(&**own, entry)) {
            return NOT_OWNER;
        }
        self.tally(Tally::Flushes);
        let now_ms = self.context.now_ms;
        let at_ms = expires_at_ms(delay.max(0), now_ms);
        if at_ms <= now_ms {
            entry.flush_at_ms.store(0, Relaxed);
            self.context.empties(&entry.table);
            entry.table.clear(self.context.participant);
        } else {
            entry.flush_at_ms.store(at_ms, Relaxed);
        }
        "OK"
    }
}

/// A record that was found, and its number; or what is to be told.
pub(super) type LookupResult<'w> = Result<Option<(RecordRef<'w>, u64)>, &'static str>;

/// Appends a record as `get` does, with its number as `gets` does.
#[inline]
fn push_value(record: &RecordRef<'_>, version: Option<u64>, out: &mut Vec<u8>) {
    let (key, value) = (record.key(), record.value());
    out.reserve(key.len() + value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_number(u64::from(record.flags()), out);
    out.push(b' ');
    push_number(value.len() as u64, out);
    if let Some(version) = version {
        out.push(b' ');
        push_number(version, out);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a meta command writes by its nature.
pub(super) fn writes(verb: MetaCommand) -> bool {
    !matches!(verb, MetaCommand::Get | MetaCommand::Debug)
}
