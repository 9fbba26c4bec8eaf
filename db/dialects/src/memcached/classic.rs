//! Classic commands, each on one record, with memcached's answers.

use std::sync::atomic::Ordering::Relaxed;

use sandstorm_net::memcached::text::push_number;
use sandstorm_net::memcached::{BAD_CHUNK, MetaCommand, StoreMode, StoreRequest, TOO_LARGE, TextRequest};

use super::answers::{EXISTS, NOT_CLEARED, NOT_FOUND, NOT_OWNER, NOT_STORED, push_line, store_error_text};
use super::arithmetic::ArithmeticRequest;
use super::context::MemcachedContext;
use super::expiry::expires_at_ms;
use super::stats::{self, StatWriter};
use crate::limits::protocols::MEMCACHED_VERSION;
use sandstorm_accounts::Tally;
use sandstorm_catalog::TableEntry;
use sandstorm_store::{
    RecordMarks, RecordRef, RecordTable, RecordUpdate, StoreCondition, StoreError, UpdateValue, WriteOptions,
};

impl<'w> MemcachedContext<'w> {
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
                return self.read_whole(out.len() - before);
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
            // These end a batch; they are not run here.
            TextRequest::GetMany { .. } | TextRequest::Quit => return,
        };
        if !noreply {
            push_line(text, out);
        }
    }

    /// Appends a record, if there is one. Returns false after an error, which ends the list without an end line.
    #[inline]
    pub(super) fn get(&self, key: &[u8], hash: u64, cas: bool, exptime: Option<i32>, out: &mut Vec<u8>) -> bool {
        match self.look_up(key, hash, exptime.map(i64::from)) {
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

    /// Reads a record and its CAS number; with `exptime` it gets a new time of expiry, and a new number.
    #[inline]
    pub(super) fn look_up<'s>(&'s self, key: &[u8], hash: u64, exptime: Option<i64>) -> LookupResult<'s> {
        let found = match exptime {
            None => {
                let entry = self.reach(false)?;
                if !entry.table.owns(key) {
                    return Err(self.wrong_server());
                }
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

    /// Gives a record a new time of expiry. Returns the old record, and its new CAS number.
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

    /// Gives a record a new time of expiry, if it exists.
    pub(super) fn touch(&self, key: &[u8], hash: u64, exptime: i64) -> LookupResult<'w> {
        let found = self.update_expiry(self.reach(true)?, key, hash, exptime)?;
        self.count_found(found.is_some(), Tally::TouchHits, Tally::TouchMisses);
        Ok(found)
    }

    /// Stores a value; returns its CAS number. `cas`: the number that an appended-to record must have; 0: any.
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
                let swapped = entry.table.update_by_head(participant, hash, key, now_ms, |found| match found {
                    None => RecordUpdate::Keep(Err(NOT_FOUND)),
                    Some(head) if RecordTable::number_of(hash, head.version) != number => {
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
                if store.verb == StoreMode::Set && error != StoreError::WrongServer {
                    self.delete_stale(entry, key, hash)?;
                }
                Err(self.refused(error))
            }
        }
    }

    /// Deletes the old record after a set that failed for lack of memory: a client may believe that it was written. Not
    /// where something is behind the table: what is refused there changes nothing.
    ///
    /// # Errors
    /// The record is another server's: nothing is deleted here.
    pub(super) fn delete_stale(&self, entry: &TableEntry, key: &[u8], hash: u64) -> Result<(), &'static str> {
        if entry.table.has_backing() {
            return Ok(());
        }
        let context = self.context;
        match entry.table.delete(context.participant, hash, key, StoreCondition::Always, context.now_ms) {
            Err(StoreError::WrongServer) => Err(self.wrong_server()),
            _ => Ok(()),
        }
    }

    pub(super) fn too_large(&self, key: &[u8], hash: u64, set: bool) -> &'static str {
        match self.reach(true) {
            Ok(entry) => {
                if set && let Err(text) = self.delete_stale(entry, key, hash) {
                    return text;
                }
                self.tally(Tally::StoreTooLarge);
                TOO_LARGE
            }
            Err(text) => text,
        }
    }

    /// Deletes a record. `cas`: the CAS number that it must have; 0: any.
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
            Err(error) => self.error_text(error),
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
        // Also where it would be emptied later.
        if entry.table.has_backing() {
            return NOT_CLEARED;
        }
        self.tally(Tally::Flushes);
        let now_ms = self.context.now_ms;
        let at_ms = expires_at_ms(delay.max(0), now_ms);
        if at_ms <= now_ms {
            entry.flush_at_ms.store(0, Relaxed);
            self.context.empties(entry.table.stats().records);
            if let Err(error) = entry.table.clear(self.context.participant) {
                return store_error_text(error);
            }
        } else {
            entry.flush_at_ms.store(at_ms, Relaxed);
        }
        "OK"
    }
}

/// A record and its CAS number, if it was found; or the text of an error.
pub(super) type LookupResult<'w> = Result<Option<(RecordRef<'w>, u64)>, &'static str>;

/// Appends a record as `get` does, with its CAS number as `gets` does.
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

/// The key by whose record a request decides; empty: by none, or the key is an encoded one.
pub(super) fn needed_key<'r>(request: &'r TextRequest<'_>) -> &'r [u8] {
    match request {
        TextRequest::Get { key, .. }
        | TextRequest::Delete { key, .. }
        | TextRequest::Arithmetic { key, .. }
        | TextRequest::Touch { key, .. } => key,
        TextRequest::Store(store) if store.verb != StoreMode::Set => store.key,
        TextRequest::Meta(meta) if !meta.flags.base64 && meta.verb != MetaCommand::Set => meta.key,
        _ => b"",
    }
}

/// Whether a meta command writes by its nature.
pub(super) fn writes(verb: MetaCommand) -> bool {
    !matches!(verb, MetaCommand::Get | MetaCommand::Debug)
}
