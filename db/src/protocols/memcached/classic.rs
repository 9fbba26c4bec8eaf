//! Classic commands, each on one record, under the answers that memcached gives.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use sandstorm_net::memcached::text::{push_number, unsigned};
use sandstorm_net::memcached::{MetaVerb, Request, Store, TOO_LARGE, Verb};

use super::expiry::expires_at_ms;
use super::stats;
use crate::limits::protocols::{COMPATIBLE, REWRITTEN_PER_REQUEST_BYTES};
use crate::protocols::Context;
use crate::store::{Change, Condition, Guard, Marks, RecordRef, StoreError, Value, Write};
use crate::tenants::{NoAccess, TableEntry, TenantView};

/// Appends a line.
pub(super) fn line(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) const NOT_FOUND: &str = "NOT_FOUND";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
/// What memcached has no words for; it begins as its own do, for clients that compare.
const STILL_READ: &str = "SERVER_ERROR out of memory storing object: too many replaced records are still being read, write again in a moment";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object: the server's machine has no memory left, the table's quota is not reached";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const OVER_QUOTA: &str = "SERVER_ERROR quota requests_per_s: too many requests a second";
pub(super) const NO_TENANT: &str = "SERVER_ERROR the tenant that this port speaks for is not there";
const NO_TABLE: &str = "SERVER_ERROR the tenant has no such table";
const READ_ONLY: &str = "SERVER_ERROR the table was granted for reading only";
const NOT_OWNER: &str = "SERVER_ERROR only a table's owner may empty it";

/// What the store did not do.
pub(super) fn refusal(error: StoreError) -> &'static str {
    match error {
        StoreError::OutOfMemory => OUT_OF_MEMORY,
        StoreError::NoMemory => NO_MEMORY,
        StoreError::StillRead => STILL_READ,
        StoreError::ValueTooLarge | StoreError::KeyTooLarge => TOO_LARGE,
        StoreError::Conflict => "EXISTS",
        StoreError::NotANumber => NOT_NUMERIC,
        StoreError::WrongServer => "SERVER_ERROR another server owns this part of the table",
    }
}

/// What the requests of one call of a session run on.
pub(super) struct Work<'w> {
    pub(super) context: &'w Context<'w>,
    pub(super) view: Option<&'w TenantView>,
    /// Whether the client had to show a token.
    pub(super) by_token: bool,
    table: u64,
    /// The table, if it may be read.
    entry: Option<&'w TableEntry>,
    guard: Guard<'w>,
    /// Bytes of values that were written, beside those that were sent.
    written: Cell<usize>,
    /// Bytes of answers that were there when this began.
    pub(super) begun: usize,
}

impl<'w> Work<'w> {
    pub(super) fn new(
        context: &'w Context<'w>,
        view: Option<&'w TenantView>,
        table: u64,
        by_token: bool,
        begun: usize,
    ) -> Work<'w> {
        let entry = view.and_then(|view| view.reach(table, false).ok());
        if let Some(entry) = entry {
            entry.flush_if_due(context.participant, context.now_ms);
        }
        Work { context, view, by_token, table, entry, guard: context.participant.guard(), written: Cell::new(0), begun }
    }

    /// Hashes a key and has its bucket fetched; 0: there is no table.
    #[inline]
    pub(super) fn foresee_key(&self, key: &[u8]) -> u64 {
        let Some(entry) = self.entry else { return 0 };
        let hash = entry.table.hash(key);
        entry.table.prefetch_bucket(hash);
        hash
    }

    /// The same for a request; 0: it has no key, or not as it stands there.
    #[inline]
    pub(super) fn foresee(&self, request: &Request<'_>) -> u64 {
        match request {
            Request::Get { key, .. }
            | Request::TooLarge { key, .. }
            | Request::Delete { key, .. }
            | Request::Arithmetic { key, .. }
            | Request::Touch { key, .. } => self.foresee_key(key),
            Request::Store(store) => self.foresee_key(store.key),
            Request::Meta(meta) if !meta.flags.base64 => self.foresee_key(meta.key),
            _ => 0,
        }
    }

    /// Has the records fetched that the buckets of these hashes name.
    #[inline]
    pub(super) fn foresee_records(&self, hashes: impl Iterator<Item = u64> + Clone) {
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
                NoAccess::ReadOnly => READ_ONLY,
                NoAccess::Unknown => NO_TABLE,
            }),
        }
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

    pub(super) fn guard(&self) -> &Guard<'w> {
        &self.guard
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
    pub(super) fn run(&self, request: &Request<'_>, hash: u64, out: &mut Vec<u8>) {
        let (text, noreply) = match *request {
            Request::Get { key, cas, exptime } => {
                if self.get(key, hash, cas, exptime, out) {
                    out.extend_from_slice(b"END\r\n");
                }
                return;
            }
            Request::Store(ref store) => (self.store(store, hash), store.noreply),
            Request::TooLarge { key, set, noreply } => (self.too_large(key, hash, set), noreply),
            Request::Delete { key, noreply } => (self.delete(key, hash), noreply),
            Request::Touch { key, exptime, noreply } => (self.touch(key, hash, exptime), noreply),
            Request::Arithmetic { key, delta, up, noreply } => match self.arithmetic(key, hash, delta, up) {
                Ok(sum) if !noreply => {
                    push_number(sum, out);
                    out.extend_from_slice(b"\r\n");
                    return;
                }
                Ok(_) => return,
                Err(text) => (text, noreply),
            },
            Request::FlushAll { delay, noreply } => (self.flush_all(delay), noreply),
            Request::Stats(words) => return stats::stats(self, words, out),
            Request::Version => {
                out.extend_from_slice(b"VERSION ");
                return line(COMPATIBLE, out);
            }
            Request::Nothing { noreply } => ("OK", noreply),
            Request::MetaNothing => ("MN", false),
            Request::MetaTooLarge { key, base64 } => (self.meta_too_large(key, base64), false),
            Request::Meta(ref meta) => return self.meta(meta, hash, out),
            Request::Wrong { text, noreply } => (text, noreply),
            // These end a batch; they do not come here.
            Request::GetMany { .. } | Request::Quit => return,
        };
        if !noreply {
            line(text, out);
        }
    }

    /// Appends a record, if there is one. False: an error was appended, behind which there is no end of a list.
    #[inline]
    pub(super) fn get(&self, key: &[u8], hash: u64, cas: bool, exptime: Option<i32>, out: &mut Vec<u8>) -> bool {
        let entry = match self.reach(exptime.is_some()) {
            Ok(entry) => entry,
            Err(text) => {
                line(text, out);
                return false;
            }
        };
        let now_ms = self.context.now_ms;
        let found = match exptime {
            None => entry.table.get(&self.guard, hash, key, now_ms).map(|record| (record, record.version())),
            Some(exptime) => match self.retouch(entry, key, hash, exptime) {
                Ok(found) => found,
                Err(text) => {
                    line(text, out);
                    return false;
                }
            },
        };
        self.count_read(found.is_some());
        if let Some((record, version)) = found {
            push_value(&record, cas.then_some(version), out);
            self.context.bytes(record.value().len());
            record.note_fetched();
        }
        true
    }

    /// Gives a record a new time of expiry; what it was, and its number now.
    fn retouch(
        &self,
        entry: &'w TableEntry,
        key: &[u8],
        hash: u64,
        exptime: i32,
    ) -> Result<Option<(RecordRef<'w>, u64)>, &'static str> {
        let now_ms = self.context.now_ms;
        let touched = entry.table.update_marked(self.context.participant, hash, key, now_ms, |found| {
            let Some(record) = found else { return (Change::Keep(None), Marks::default()) };
            self.rewrites(record.value().len());
            let put = Change::Put {
                value: Value::from(record.value()),
                flags: record.flags(),
                expires_at_ms: expires_at_ms(exptime, now_ms),
                answer: Some(record),
            };
            (put, Marks { fetched: true, ..record.marks() })
        });
        touched.map(|(record, version)| record.map(|record| (record, version))).map_err(refusal)
    }

    fn touch(&self, key: &[u8], hash: u64, exptime: i32) -> &'static str {
        let touched = self.reach(true).and_then(|entry| self.retouch(entry, key, hash, exptime));
        touched.map_or_else(|text| text, |found| if found.is_some() { "TOUCHED" } else { NOT_FOUND })
    }

    fn store(&self, store: &Store<'_>, hash: u64) -> &'static str {
        let entry = match self.reach(true) {
            Ok(entry) => entry,
            Err(text) => return text,
        };
        self.count_write();
        let Store { key, value, flags, .. } = *store;
        self.context.bytes(value.len());
        let (participant, now_ms) = (self.context.participant, self.context.now_ms);
        let expires_at_ms = expires_at_ms(store.exptime, now_ms);
        let put = |condition| {
            let write = Write { condition, flags, expires_at_ms };
            entry.table.put(participant, hash, key, value, &write, now_ms).map(|_| "STORED")
        };
        let stored = match store.verb {
            Verb::Set => put(Condition::Always),
            Verb::Add => put(Condition::Absent),
            Verb::Replace => put(Condition::Present),
            Verb::Append | Verb::Prepend => {
                let parts = |old| if store.verb == Verb::Append { [old, value, b""] } else { [value, old, b""] };
                let extended = entry.table.update(participant, hash, key, now_ms, |found| match found {
                    None => Change::Keep("NOT_STORED"),
                    Some(record) => {
                        self.rewrites(record.value().len());
                        Change::Put {
                            value: Value::Parts(parts(record.value())),
                            flags: record.flags(),
                            expires_at_ms: record.expires_at_ms(),
                            answer: "STORED",
                        }
                    }
                });
                extended.map(|(text, _)| text)
            }
            Verb::Cas(version) => {
                let swapped = entry.table.update(participant, hash, key, now_ms, |found| match found {
                    None => Change::Keep(NOT_FOUND),
                    Some(record) if record.version() != version => Change::Keep("EXISTS"),
                    Some(_) => Change::Put { value: value.into(), flags, expires_at_ms, answer: "STORED" },
                });
                swapped.map(|(text, _)| text)
            }
        };
        match stored {
            Ok(text) => text,
            Err(StoreError::Conflict) => "NOT_STORED",
            Err(error) => {
                if store.verb == Verb::Set {
                    self.end_old(entry, key, hash);
                }
                refusal(error)
            }
        }
    }

    /// A set that failed for lack of room leaves nothing old behind: a client may believe that it was written.
    pub(super) fn end_old(&self, entry: &TableEntry, key: &[u8], hash: u64) {
        let context = self.context;
        let _was_there = entry.table.delete(context.participant, hash, key, Condition::Always, context.now_ms);
    }

    fn too_large(&self, key: &[u8], hash: u64, set: bool) -> &'static str {
        match self.reach(true) {
            Ok(entry) => {
                if set {
                    self.end_old(entry, key, hash);
                }
                TOO_LARGE
            }
            Err(text) => text,
        }
    }

    fn delete(&self, key: &[u8], hash: u64) -> &'static str {
        let context = self.context;
        let deleted = self.reach(true).and_then(|entry| {
            entry.table.delete(context.participant, hash, key, Condition::Always, context.now_ms).map_err(refusal)
        });
        deleted.map_or_else(|text| text, |there| if there { "DELETED" } else { NOT_FOUND })
    }

    fn arithmetic(&self, key: &[u8], hash: u64, delta: u64, up: bool) -> Result<u64, &'static str> {
        let entry = self.reach(true)?;
        self.count_write();
        let context = self.context;
        let changed = entry.table.update_marked(context.participant, hash, key, context.now_ms, |found| {
            let Some(record) = found else { return (Change::Keep(Err(NOT_FOUND)), Marks::default()) };
            let Some((sum, value)) = add(record.value(), delta, up) else {
                return (Change::Keep(Err(NOT_NUMERIC)), record.marks());
            };
            self.rewrites(record.value().len());
            let (marks, flags) = (added_marks(&record, &value), record.flags());
            (Change::Put { value, flags, expires_at_ms: record.expires_at_ms(), answer: Ok(sum) }, marks)
        });
        changed.map_err(refusal).and_then(|(sum, _)| sum)
    }

    fn flush_all(&self, delay: i32) -> &'static str {
        let entry = match self.reach(true) {
            Ok(entry) => entry,
            Err(text) => return text,
        };
        let own = self.view.and_then(|view| view.table(entry.id));
        if own.is_none_or(|own| !std::ptr::eq(&**own, entry)) {
            return NOT_OWNER;
        }
        let now_ms = self.context.now_ms;
        let at_ms = expires_at_ms(delay.max(0), now_ms);
        if at_ms <= now_ms {
            entry.flush_at_ms.store(0, Relaxed);
            entry.table.clear(self.context.participant);
        } else {
            entry.flush_at_ms.store(at_ms, Relaxed);
        }
        "OK"
    }
}

/// The sum, and the value that it makes of an old one: not shorter than that, but padded with blanks, as memcached writes it.
pub(super) fn add(old: &[u8], delta: u64, up: bool) -> Option<(u64, Value<'static>)> {
    let number = if old.is_empty() { None } else { unsigned(old) }?;
    let sum = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
    let mut digits = Vec::new();
    let mut short = ArrayVec::<u8, 32>::new();
    if old.len() <= short.capacity() {
        write_number(sum, &mut short);
        while short.len() < old.len() {
            short.push(b' ');
        }
        return Some((sum, Value::Short(short)));
    }
    push_number(sum, &mut digits);
    digits.resize(old.len().max(digits.len()), b' ');
    Some((sum, Value::Owned(digits)))
}

/// The marks that stay when a number is added: memcached writes over an old value where the new one is not longer, and makes a new
/// item where it is.
pub(super) fn added_marks(record: &RecordRef<'_>, value: &Value<'_>) -> Marks {
    let len: usize = value.parts().iter().map(|part| part.len()).sum();
    if len <= record.value().len() { record.marks() } else { Marks::default() }
}

/// Writes a number in decimal; its 20 digits at most fit.
pub(super) fn write_number(mut number: u64, into: &mut ArrayVec<u8, 32>) {
    let mut digits = ArrayVec::<u8, 20>::new();
    loop {
        digits.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    into.extend(digits.into_iter().rev());
}

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
pub(super) fn writes(verb: MetaVerb) -> bool {
    !matches!(verb, MetaVerb::Get | MetaVerb::Debug)
}
