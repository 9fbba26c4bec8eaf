//! Meta commands. Two properties of an item are marks of its record: that it is stale, and that a client was told to
//! renew it.

use sandstorm_net::memcached::text::{decode_base64, push_base64, push_number};
use sandstorm_net::memcached::{BAD_FORMAT, BAD_KEY, MetaCommand, MetaFlags, MetaRequest, TOO_LARGE};

use super::answers::{self, NOT_NUMERIC, push_line};
use super::arithmetic::{add_to_value, marks_of_sum, write_number};
use super::classic::writes;
use super::context::MemcachedContext;
use super::expiry::{expires_at_ms, remaining_s};
use sandstorm_accounts::Tally;
use sandstorm_catalog::TableEntry;
use sandstorm_store::{
    NewValue, RecordMarks, RecordRef, RecordTable, RecordUpdate, StoreCondition, StoreError, UpdateValue,
};

/// One meta command under way.
struct MetaExecution<'w, 'i> {
    work: &'i MemcachedContext<'w>,
    entry: &'w TableEntry,
    meta: &'i MetaRequest<'i>,
    key: &'i [u8],
    hash: u64,
    now_ms: u64,
}

/// The item that an answer describes.
struct MetaItem<'a> {
    /// The record as it was found; none if it was just created.
    record: Option<RecordRef<'a>>,
    /// Its earlier expiry.
    expired_at_ms_before: u64,
    number: u64,
    /// Its earlier marks.
    marks: RecordMarks,
    /// Whether this client is to renew it.
    is_winner: bool,
    /// The sum, for an arithmetic command.
    sum: Option<u64>,
    /// Whether it was just created.
    made: bool,
}

/// The result of a command that returns no item.
type MetaCode = &'static str;

const DONE: MetaCode = "HD";
const NOT_STORED: MetaCode = "NS";
const EXISTS: MetaCode = "EX";
const NOT_FOUND: MetaCode = "NF";

impl<'w> MemcachedContext<'w> {
    /// The answer for a value that was too long.
    pub(super) fn meta_too_large(&self, key: &[u8], base64: bool) -> MetaCode {
        let mut buffer = [0; sandstorm_net::memcached::MAX_KEY_LEN];
        let key = if base64 { decode_base64(key, &mut buffer) } else { Some(key) };
        let Some(key) = key else { return BAD_KEY };
        match self.reach(true) {
            Ok(entry) => {
                if let Err(text) = self.delete_stale(entry, key, entry.table.hash(key)) {
                    return text;
                }
                self.tally(Tally::StoreTooLarge);
                TOO_LARGE
            }
            Err(text) => text,
        }
    }

    /// Runs a meta command and appends its answer.
    pub(super) fn meta(&self, meta: &MetaRequest<'_>, hash: u64, out: &mut Vec<u8>) {
        let mut buffer = [0; sandstorm_net::memcached::MAX_KEY_LEN];
        let key = match meta.flags.base64 {
            true => decode_base64(meta.key, &mut buffer),
            false => Some(meta.key),
        };
        let Some(key) = key else {
            let debug = meta.verb == MetaCommand::Debug;
            return push_line(if debug { BAD_FORMAT } else { BAD_KEY }, out);
        };
        let wins = meta.flags.vivify.is_some() || meta.flags.ttl.is_some();
        let entry = match self.reach(writes(meta.verb) || wins) {
            Ok(entry) => entry,
            Err(text) => return push_line(text, out),
        };
        if !entry.table.owns(key) {
            return push_line(self.wrong_server(), out);
        }
        let hash = if meta.flags.base64 { entry.table.hash(key) } else { hash };
        let hash = if hash == 0 { entry.table.hash(key) } else { hash };
        if meta.flags.new_cas.is_some() {
            return push_line("CLIENT_ERROR numbers of items are the server's own", out);
        }
        self.tally(Tally::Metas);
        let step = MetaExecution { work: self, entry, meta, key, hash, now_ms: self.context.now_ms };
        let failed = match meta.verb {
            MetaCommand::Get => step.get(out),
            MetaCommand::Set => step.set(out),
            MetaCommand::Delete => step.delete(out),
            MetaCommand::Arithmetic => step.arithmetic(out),
            MetaCommand::Debug => step.debug(out),
        };
        if let Err(text) = failed {
            push_line(text, out);
        }
    }
}

impl<'w> MetaExecution<'w, '_> {
    fn flags(&self) -> &MetaFlags {
        &self.meta.flags
    }

    /// The CAS number of a record with this version.
    fn number(&self, version: u64) -> u64 {
        RecordTable::number_of(self.hash, version)
    }

    /// Appends a code and the fields that the command asks for; nothing if the code is expected and no answer is
    /// wanted. `number` is the CAS number of a stored record; 0, as in memcached, if none was stored.
    fn end(&self, code: MetaCode, expected: bool, number: u64, out: &mut Vec<u8>) {
        if expected && self.flags().quiet {
            return;
        }
        out.extend_from_slice(code.as_bytes());
        for word in self.meta.written {
            match word[0] {
                b'c' if self.meta.verb == MetaCommand::Set => push_named(b'c', number, out),
                _ => self.push_back(word, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Appends a flag that is returned as it was sent.
    fn push_back(&self, word: &[u8], out: &mut Vec<u8>) {
        match word[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(self.meta.key);
                if self.flags().base64 {
                    out.extend_from_slice(b" b");
                }
            }
            _ => {}
        }
    }

    /// Appends an item: its value, if requested, and the fields of the flags, in their order.
    fn push_item(&self, item: &MetaItem<'_>, out: &mut Vec<u8>) {
        let mut digits = arrayvec::ArrayVec::new();
        let value = match (item.sum, &item.record) {
            (Some(sum), _) => {
                write_number(sum, &mut digits);
                &digits[..]
            }
            (None, Some(record)) => record.value(),
            (None, None) => b"",
        };
        if self.flags().value {
            out.extend_from_slice(b"VA ");
            push_number(value.len() as u64, out);
        } else {
            out.extend_from_slice(b"HD");
        }
        let arithmetic = self.meta.verb == MetaCommand::Arithmetic;
        // Fields before the flag that sets a new time show the old one.
        let mut expires_at_ms = item.expired_at_ms_before;
        for word in self.meta.written {
            match word[0] {
                b'T' => expires_at_ms = self.expires(self.flags().ttl.unwrap_or(0)),
                b'N' if item.made => expires_at_ms = self.expires(self.flags().vivify.unwrap_or(0)),
                b't' => match remaining_s(expires_at_ms, self.now_ms) {
                    -1 => out.extend_from_slice(b" t-1"),
                    left_s => push_named(b't', left_s.unsigned_abs(), out),
                },
                b'c' => push_named(b'c', item.number, out),
                b's' if !arithmetic => push_named(b's', value.len() as u64, out),
                b'f' if !arithmetic => push_named(b'f', item.record.map_or(0, |record| record.flags()).into(), out),
                b'h' if !arithmetic => push_named(b'h', item.marks.fetched.into(), out),
                b'l' if !arithmetic => push_named(b'l', 0, out),
                _ => self.push_back(word, out),
            }
        }
        if item.marks.sent {
            out.extend_from_slice(b" Z");
        }
        if item.marks.stale {
            out.extend_from_slice(b" X");
        }
        if item.is_winner {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        if self.flags().value {
            self.work.context.bytes(value.len());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// The expiry of a record written with that time.
    fn expires(&self, exptime: i32) -> u64 {
        expires_at_ms(exptime, self.now_ms)
    }

    /// Whether this client is to renew the record. A new time counts for the fields behind it.
    fn wins_recache(&self, record: &RecordRef<'_>, marks: RecordMarks) -> bool {
        let (mut at_ms, mut soon) = (record.expires_at_ms(), false);
        for word in self.meta.written {
            match word[0] {
                b'T' => at_ms = self.expires(self.flags().ttl.unwrap_or(0)),
                b'R' => soon |= at_ms != 0 && at_ms < self.expires(self.flags().recache.unwrap_or(0)),
                _ => {}
            }
        }
        !marks.sent && (soon || marks.stale)
    }

    fn get(&self, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        let flags = self.flags();
        let found = self.entry.table.get(self.work.guard(), self.hash, self.key, self.now_ms);
        let wins = |record: &RecordRef<'_>| self.wins_recache(record, record.marks()) && self.work.may_write();
        let plain = found.filter(|record| flags.ttl.is_none() && !wins(record));
        let item = match (plain, found) {
            (Some(record), _) => {
                let marks = record.marks();
                Some(MetaItem {
                    expired_at_ms_before: record.expires_at_ms(),
                    number: self.number(record.version()),
                    record: Some(record),
                    marks,
                    is_winner: false,
                    sum: None,
                    made: false,
                })
            }
            (None, None) if flags.vivify.is_none() || self.work.has_cold() => None,
            (None, _) => self.get_locked()?,
        };
        let found = item.as_ref().is_some_and(|item| item.record.is_some());
        self.work.count_read(found);
        match flags.ttl {
            Some(_) => self.work.count_found(item.is_some(), Tally::TouchHits, Tally::TouchMisses),
            None => self.work.count_found(item.is_some(), Tally::GetHits, Tally::GetMisses),
        }
        match item {
            Some(item) => {
                self.push_item(&item, out);
                if let Some(record) = &item.record {
                    record.note_fetched();
                }
            }
            None => self.end("EN", true, 0, out),
        }
        Ok(())
    }

    /// The same if the item changes: it is created, gets a new time, or this client, which may write, wins the right to
    /// renew it.
    fn get_locked(&self) -> Result<Option<MetaItem<'w>>, MetaCode> {
        let flags = *self.flags();
        let participant = self.work.context.participant;
        let updated = self.entry.table.update_marked(participant, self.hash, self.key, self.now_ms, |found| {
            let Some(record) = found else {
                let Some(vivify) = flags.vivify else { return (RecordUpdate::Keep(None), RecordMarks::default()) };
                let expires_at_ms = self.expires(self.last_time(vivify));
                let item = MetaItem {
                    record: None,
                    expired_at_ms_before: 0,
                    number: 0,
                    marks: RecordMarks::default(),
                    is_winner: true,
                    sum: None,
                    made: true,
                };
                let value = UpdateValue::from(&b""[..]);
                let made = RecordUpdate::Put { value, flags: 0, expires_at_ms, answer: Some(item) };
                return (made, RecordMarks { sent: true, fetched: true, ..RecordMarks::default() });
            };
            let marks = record.marks();
            let is_winner = self.wins_recache(&record, marks);
            let after = RecordMarks { sent: marks.sent || is_winner, fetched: true, ..marks };
            let expires_at_ms = flags.ttl.map_or(record.expires_at_ms(), |ttl| self.expires(ttl));
            let item = MetaItem {
                record: Some(record),
                expired_at_ms_before: record.expires_at_ms(),
                number: 0,
                marks,
                is_winner,
                sum: None,
                made: false,
            };
            if flags.ttl.is_some() {
                let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
                self.work.rewrites(value.copied_bytes());
                return (RecordUpdate::Put { value, flags, expires_at_ms, answer: Some(item) }, after);
            }
            record.set_marks(after);
            (RecordUpdate::Keep(Some(item)), after)
        });
        let (item, version) = updated.map_err(|error| self.work.error_text(error))?;
        Ok(item.map(|item| MetaItem { number: self.number(version), ..item }))
    }

    /// The last of the times of N and T, for a new item.
    fn last_time(&self, vivify: i32) -> i32 {
        let last = self.meta.written.filter(|word| matches!(word[0], b'N' | b'T')).last();
        match last {
            Some([b'T', ..]) => self.flags().ttl.unwrap_or(vivify),
            _ => vivify,
        }
    }

    fn set(&self, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        let flags = *self.flags();
        self.work.count_write();
        self.work.tally(Tally::Sets);
        let value = self.meta.block;
        self.work.context.bytes(value.len());
        let expires_at_ms = self.expires(flags.ttl.unwrap_or(0));
        let put = |answer| RecordUpdate::Put { value: value.into(), flags: flags.flags, expires_at_ms, answer };
        let participant = self.work.context.participant;
        let (table, plain) = (&self.entry.table, RecordMarks::default());
        let mode = flags.mode.to_ascii_uppercase();
        if matches!(mode, 0 | b'S') && flags.cas.is_none() {
            let put = NewValue { value: value.into(), flags: flags.flags, expires_at_ms };
            let stored = table.replace(participant, self.hash, self.key, self.now_ms, &put);
            return self.end_set(stored.map(|version| (DONE, version)), out);
        }
        let stored = table.update_marked(participant, self.hash, self.key, self.now_ms, |found| {
            let wrong_cas =
                found.is_some_and(|record| flags.cas.is_some_and(|cas| cas != self.number(record.version())));
            match (mode, found) {
                (b'E', None) => (put(DONE), plain),
                (b'E', Some(_)) => (RecordUpdate::Keep(NOT_STORED), plain),
                // For an append, a 0 is no condition; for a write, it matches no record.
                (b'A' | b'P', Some(_)) if wrong_cas && flags.cas != Some(0) => (RecordUpdate::Keep(EXISTS), plain),
                (b'A' | b'P', Some(record)) => {
                    let old = record.value();
                    self.work.rewrites(old.len());
                    let parts = if mode == b'A' { [old, value, b""] } else { [value, old, b""] };
                    let (flags, expires_at_ms) = (record.flags(), record.expires_at_ms());
                    (RecordUpdate::Put { value: UpdateValue::Parts(parts), flags, expires_at_ms, answer: DONE }, plain)
                }
                (b'A' | b'P', None) => match flags.vivify {
                    Some(vivify) => {
                        let expires_at_ms = self.expires(vivify);
                        (
                            RecordUpdate::Put { value: value.into(), flags: flags.flags, expires_at_ms, answer: DONE },
                            plain,
                        )
                    }
                    None => (RecordUpdate::Keep(NOT_STORED), plain),
                },
                (_, None) if flags.cas.is_some() => (RecordUpdate::Keep(NOT_FOUND), plain),
                (b'R', None) => (RecordUpdate::Keep(NOT_STORED), plain),
                (_, Some(record)) if wrong_cas => {
                    let older = flags.cas.is_some_and(|cas| cas != 0 && cas < self.number(record.version()));
                    if !(flags.invalidate && older) {
                        return (RecordUpdate::Keep(EXISTS), plain);
                    }
                    let expires_at_ms = record.expires_at_ms();
                    let stale = RecordMarks { stale: true, sent: record.marks().sent, fetched: false };
                    (RecordUpdate::Put { value: value.into(), flags: flags.flags, expires_at_ms, answer: DONE }, stale)
                }
                _ => (put(DONE), plain),
            }
        });
        self.end_set(stored, out)
    }

    /// Counts and answers a set.
    fn end_set(&self, stored: Result<(MetaCode, u64), StoreError>, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        match stored {
            Ok((code, version)) => {
                self.tally_set(code);
                let is_stored = code == DONE;
                self.end(code, is_stored, if is_stored { self.number(version) } else { 0 }, out);
                Ok(())
            }
            // It is run again, and needs what is there.
            Err(StoreError::Cold) => Err(answers::COLD),
            Err(StoreError::WrongServer) => Err(self.work.wrong_server()),
            Err(error) => {
                self.work.delete_stale(self.entry, self.key, self.hash)?;
                Err(self.work.refused(error))
            }
        }
    }

    /// Counts a value that was to be stored, and the result for its CAS number.
    fn tally_set(&self, code: MetaCode) {
        let appends = matches!(self.flags().mode.to_ascii_uppercase(), b'A' | b'P');
        if self.flags().cas.is_some() && !appends && code != NOT_STORED {
            let error = (code != DONE).then_some(if code == NOT_FOUND { answers::NOT_FOUND } else { answers::EXISTS });
            self.work.count_cas(error);
        }
        if code == DONE {
            self.work.tally(Tally::Stored);
        }
    }

    fn delete(&self, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        let flags = *self.flags();
        let (participant, table) = (self.work.context.participant, &self.entry.table);
        if !flags.invalidate && !flags.remove_value {
            let version = |number| StoreCondition::Version(RecordTable::version_of(self.hash, number));
            let condition = flags.cas.map_or(StoreCondition::Always, version);
            let there = || table.get(self.work.guard(), self.hash, self.key, self.now_ms).is_some();
            let code = match table.delete(participant, self.hash, self.key, condition, self.now_ms) {
                Ok(true) => DONE,
                Err(StoreError::Conflict) if there() => EXISTS,
                Ok(false) | Err(StoreError::Conflict) => NOT_FOUND,
                Err(error) => return Err(self.work.error_text(error)),
            };
            self.work.count_found(code == DONE, Tally::DeleteHits, Tally::DeleteMisses);
            self.end(code, code == DONE, 0, out);
            return Ok(());
        }
        let marked = table.update_marked(participant, self.hash, self.key, self.now_ms, |found| {
            let Some(record) = found else { return (RecordUpdate::Keep(NOT_FOUND), RecordMarks::default()) };
            let marks = record.marks();
            if flags.cas.is_some_and(|cas| cas != self.number(record.version())) {
                return (RecordUpdate::Keep(EXISTS), marks);
            }
            let value = if flags.remove_value { b""[..].into() } else { UpdateValue::unchanged(&record) };
            self.work.rewrites(value.copied_bytes());
            let new_flags = if flags.remove_value { 0 } else { record.flags() };
            let expires_at_ms = flags.ttl.map_or(record.expires_at_ms(), |ttl| self.expires(ttl));
            let after = if flags.invalidate { RecordMarks { stale: true, sent: false, ..marks } } else { marks };
            (RecordUpdate::Put { value, flags: new_flags, expires_at_ms, answer: DONE }, after)
        });
        let (code, _) = marked.map_err(|error| self.work.refused(error))?;
        match code {
            DONE if flags.invalidate => {}
            _ => self.work.count_found(code == DONE, Tally::DeleteHits, Tally::DeleteMisses),
        }
        self.end(code, code == DONE, 0, out);
        Ok(())
    }

    fn arithmetic(&self, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        let flags = *self.flags();
        let up = match flags.mode {
            0 | b'I' | b'i' | b'+' => true,
            b'D' | b'd' | b'-' => false,
            _ => return Err("CLIENT_ERROR invalid mode for ma M token"),
        };
        self.work.count_write();
        let (participant, table) = (self.work.context.participant, &self.entry.table);
        let item = |made, expired_at_ms_before, sum| {
            let marks = RecordMarks::default();
            MetaItem { record: None, expired_at_ms_before, number: 0, marks, is_winner: false, sum: Some(sum), made }
        };
        let changed = table.update_marked(participant, self.hash, self.key, self.now_ms, |found| {
            let plain = RecordMarks::default();
            let Some(record) = found else {
                let Some(vivify) = flags.vivify else { return (RecordUpdate::Keep(Err(NOT_FOUND)), plain) };
                let expires_at_ms = self.expires(self.last_time(vivify));
                let mut digits = arrayvec::ArrayVec::new();
                write_number(flags.initial, &mut digits);
                let answer = Ok(item(true, 0, flags.initial));
                return (
                    RecordUpdate::Put { value: UpdateValue::Short(digits), flags: 0, expires_at_ms, answer },
                    plain,
                );
            };
            // Here a 0 is no condition.
            if flags.cas.is_some_and(|cas| cas != 0 && cas != self.number(record.version())) {
                return (RecordUpdate::Keep(Err(EXISTS)), plain);
            }
            let Some((sum, value)) = add_to_value(record.value(), flags.delta.unwrap_or(1), up) else {
                return (RecordUpdate::Keep(Err(NOT_NUMERIC)), plain);
            };
            self.work.rewrites(record.value().len());
            let expires_at_ms = flags.ttl.map_or(record.expires_at_ms(), |ttl| self.expires(ttl));
            let answer = Ok(item(false, record.expires_at_ms(), sum));
            let marks = marks_of_sum(&record, &value);
            (RecordUpdate::Put { value, flags: record.flags(), expires_at_ms, answer }, marks)
        });
        let (changed, version) = changed.map_err(|error| self.work.refused(error))?;
        let made = changed.as_ref().map(|item| item.made);
        self.work.count_arithmetic(up, made.map_err(|code| if *code == NOT_FOUND { answers::NOT_FOUND } else { code }));
        match (changed, version) {
            // A new item is returned in any case.
            (Ok(item), _) if flags.quiet && !item.made => {}
            (Ok(item), version) => self.push_item(&MetaItem { number: self.number(version), ..item }, out),
            (Err(NOT_NUMERIC), _) => return Err(NOT_NUMERIC),
            (Err(code), _) => self.end(code, false, 0, out),
        }
        Ok(())
    }

    fn debug(&self, out: &mut Vec<u8>) -> Result<(), MetaCode> {
        let Some(record) = self.entry.table.get(self.work.guard(), self.hash, self.key, self.now_ms) else {
            push_line("EN", out);
            return Ok(());
        };
        out.extend_from_slice(b"ME ");
        match self.flags().base64 {
            true => push_base64(record.key(), out),
            false => out.extend_from_slice(record.key()),
        }
        let fetched = if record.marks().fetched { "yes" } else { "no" };
        let expires = remaining_s(record.expires_at_ms(), self.now_ms);
        let size = record.key().len() + record.value().len();
        push_line(
            &format!(" exp={expires} la=0 cas={} fetch={fetched} cls=1 size={size}", self.number(record.version())),
            out,
        );
        Ok(())
    }
}

/// Appends a flag with a number.
fn push_named(letter: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    push_number(number, out);
}
