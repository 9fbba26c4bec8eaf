//! The context of the requests of one call of a session.

use std::cell::Cell;

use sandstorm_net::memcached::TextRequest;

use super::answers::{NO_TABLE, NO_TENANT, OVER_QUOTA, READ_ONLY, WRONG_SERVER};
use crate::CommandContext;
use crate::limits::protocols::{REWRITTEN_PER_REQUEST_BYTES, STATISTICS_PER_REQUEST_BYTES};
use sandstorm_accounts::WorkerMemcachedCounts;
use sandstorm_catalog::{AccessError, TableEntry, TenantView};
use sandstorm_store::EpochGuard;
use sandstorm_store::limits::MAX_VALUE_BYTES;

/// The context of the requests of one call of a session.
pub(super) struct MemcachedContext<'w> {
    pub(super) context: &'w CommandContext<'w>,
    pub(super) view: Option<&'w TenantView>,
    /// Whether the client had to show a token.
    pub(super) by_token: bool,
    table: u64,
    /// The table, if it may be read.
    entry: Option<&'w TableEntry>,
    pub(super) guard: EpochGuard<'w>,
    /// The counts that `stats` shows.
    pub(super) tallies: Option<&'w WorkerMemcachedCounts>,
    /// Bytes of values that were written, beside those that were received.
    written: Cell<usize>,
    /// Bytes of answers that existed when this began.
    pub(super) begun: usize,
    /// Whether the last request was refused for such a key.
    pub(super) met_elsewhere: Cell<bool>,
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
            entry.flush_if_due(context.participant, context.now_ms, |records| context.empties(records));
        }
        let (guard, written) = (context.participant.guard(), Cell::new(0));
        let tallies = view.map(|view| view.tenant.usage.tallies(context.worker));
        let met_elsewhere = Cell::new(false);
        MemcachedContext { context, view, by_token, table, entry, guard, tallies, written, begun, met_elsewhere }
    }

    /// The id of the table; 0: there is none.
    #[inline]
    pub(super) fn table_id(&self) -> u64 {
        self.table
    }

    /// The table, if there may be keys of other servers.
    #[inline]
    pub(super) fn divided_table(&self) -> Option<&'w TableEntry> {
        self.entry.filter(|entry| !entry.table.owns_all())
    }

    /// The answer to a request for a key that another server owns. It is never sent: the request is looked at anew.
    #[cold]
    pub(super) fn wrong_server(&self) -> &'static str {
        self.met_elsewhere.set(true);
        WRONG_SERVER
    }

    /// Hashes a key and prefetches its bucket; 0: there is no table.
    #[inline]
    pub(super) fn prefetch_key(&self, key: &[u8]) -> u64 {
        let Some(entry) = self.entry else { return 0 };
        let hash = entry.table.hash(key);
        entry.table.prefetch_bucket(hash);
        hash
    }

    /// The same for a request; 0: it has no key, or an encoded one.
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

    /// Whether the request has met a cold record: what it has found says nothing.
    #[inline]
    pub(super) fn has_cold(&self) -> bool {
        self.context.participant.shown().has_cold()
    }

    /// Notes what later requests for these keys will meet that is not in memory: all of it is fetched together. A
    /// request that needs nothing has an empty key here.
    #[cold]
    pub(super) fn foresee<'k>(&self, keys: impl Iterator<Item = (&'k [u8], u64)>) {
        let Some(entry) = self.entry else { return };
        for (key, hash) in keys.filter(|(key, hash)| !key.is_empty() && *hash != 0) {
            entry.table.foresee(&self.guard, hash, key, self.context.now_ms);
        }
    }

    /// Prefetches the records in the buckets of these hashes.
    #[inline]
    pub(super) fn prefetch_records(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let Some(entry) = self.entry {
            // 0, which is no key's hash, finds nothing.
            entry.table.prefetch_records(&self.guard, hashes);
        }
    }

    /// The table, for reading or writing by one request; else the text of an error.
    pub(super) fn reach(&self, write: bool) -> Result<&'w TableEntry, &'static str> {
        let view = self.view.ok_or(NO_TENANT)?;
        if !self.context.admit(view, 1) {
            return Err(OVER_QUOTA);
        }
        match self.entry {
            Some(entry) if !write => Ok(entry),
            _ => match view.reach(self.table, write) {
                Ok(entry) => Ok(entry),
                Err(AccessError::ReadOnly) => Err(READ_ONLY),
                Err(AccessError::Unknown) => Err(NO_TABLE),
            },
        }
    }

    /// Notes that statistics of `bytes` were written.
    pub(super) fn read_whole(&self, bytes: usize) {
        self.context.work((bytes / STATISTICS_PER_REQUEST_BYTES) as u64);
    }

    /// Notes that a value of `bytes` is written again, and charges the tenant for as many requests.
    pub(super) fn rewrites(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes);
        let requests = &self.context.requests;
        requests.set(requests.get().saturating_add((bytes / REWRITTEN_PER_REQUEST_BYTES) as u32));
    }

    /// Bytes of values that were written, beside those that were received.
    pub(super) fn written(&self) -> usize {
        self.written.get()
    }

    /// Whether the table may be written. (A win is a mark on the record: a client with read access cannot leave one.)
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

    /// Counts a key that was read.
    pub(super) fn count_read(&self, found: bool) {
        if self.has_cold() {
            return;
        }
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
}
