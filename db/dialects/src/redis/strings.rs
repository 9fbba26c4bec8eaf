//! Commands on values: reading, writing, parts of them.

use super::arguments::is_word;
use super::backed_keys;
use super::command_call::CommandCall;
use super::errors::{ANSWER_TOO_LONG, CommandError, CommandResult, SYNTAX, TOO_LONG};
use super::expiry::{ExpiryUnit, expiry_option};
use crate::limits::PLAN_OPERATIONS;
use crate::limits::redis::{ATOMIC_BYTES, ATOMIC_KEYS};
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use sandstorm_store::{NewValue, RecordRef, RecordUpdate, StoreError, UpdateValue};

pub(super) fn get(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let found = call.get(call.arg(1))?;
    call.reply.optional(found.as_ref().map(RecordRef::value));
    Ok(())
}

/// The options of SET and GETEX.
#[derive(Default)]
struct SetOptions {
    absent: bool,
    present: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    /// The unit of the time, and the number of its argument.
    expiry: Option<(ExpiryUnit, usize)>,
}

impl SetOptions {
    /// Reads the options from an argument on. As in Redis one may be repeated, and the last one counts; contradictions
    /// are errors.
    fn read(call: &CommandCall<'_, '_>, from: usize, set: bool) -> Result<SetOptions, CommandError> {
        let (mut options, mut at) = (SetOptions::default(), from);
        while at < call.args.len() {
            let word = call.arg(at);
            let before = options.expiry.map(|(kind, _)| kind);
            if set && is_word(word, "NX") && !options.present {
                options.absent = true;
            } else if set && is_word(word, "XX") && !options.absent {
                options.present = true;
            } else if set && is_word(word, "GET") {
                options.get = true;
            } else if set && is_word(word, "KEEPTTL") && before.is_none() {
                options.keep_ttl = true;
            } else if !set && is_word(word, "PERSIST") && before.is_none() {
                options.persist = true;
            } else if let Some(kind) = expiry_option(word)
                && before.is_none_or(|before| before == kind)
                && !options.keep_ttl
                && !options.persist
                && at + 1 < call.args.len()
            {
                at += 1;
                options.expiry = Some((kind, at));
            } else {
                return Err(SYNTAX.into());
            }
            at += 1;
        }
        Ok(options)
    }

    /// The moment of the expiry, as the store has it; 0: none.
    fn expires_at_ms(&self, call: &CommandCall<'_, '_>, name: &str) -> Result<u64, CommandError> {
        self.expiry.map_or(Ok(0), |(kind, at)| kind.at_ms(call, at, name))
    }
}

pub(super) fn set(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let options = if call.args.len() == 3 { SetOptions::default() } else { SetOptions::read(call, 3, true)? };
    let new_ms = options.expires_at_ms(call, "set")?;
    let (value, now_ms) = (call.arg(2), call.now_ms());
    if !options.get {
        return set_by_head(call, &options, new_ms);
    }
    let old = call.update(call.arg(1), |old| {
        if old.is_some() && options.absent || old.is_none() && options.present {
            return RecordUpdate::Keep(old);
        }
        let old_expiry = old.filter(|_| options.keep_ttl).map(|record| record.expires_at_ms());
        let expires_at_ms = old_expiry.unwrap_or(new_ms);
        if expires_at_ms != 0 && expires_at_ms <= now_ms {
            return RecordUpdate::Delete(old);
        }
        RecordUpdate::Put { value: value.into(), flags: 0, expires_at_ms, answer: old }
    })?;
    call.reply.optional(old.as_ref().map(RecordRef::value));
    Ok(())
}

/// SET without GET: the old value need not be in memory.
fn set_by_head(call: &mut CommandCall<'_, '_>, options: &SetOptions, new_ms: u64) -> CommandResult {
    let (value, now_ms) = (call.arg(2), call.now_ms());
    let is_past = new_ms != 0 && new_ms <= now_ms;
    if !(options.absent || options.present || options.keep_ttl || is_past) {
        call.replace(call.table(true)?, call.arg(1), &new_value(value, new_ms))?;
        call.reply.ok();
        return Ok(());
    }
    let is_done = call.update_by_head(call.table(true)?, call.arg(1), |old| {
        if old.is_some() && options.absent || old.is_none() && options.present {
            return RecordUpdate::Keep(false);
        }
        let old_expiry = old.filter(|_| options.keep_ttl).map(|head| head.expires_at_ms);
        let expires_at_ms = old_expiry.unwrap_or(new_ms);
        if expires_at_ms != 0 && expires_at_ms <= now_ms {
            return RecordUpdate::Delete(true);
        }
        RecordUpdate::Put { value: value.into(), flags: 0, expires_at_ms, answer: true }
    })?;
    match is_done {
        true => call.reply.ok(),
        false => call.reply.null(),
    }
    Ok(())
}

/// A record without flags.
fn new_value(value: &[u8], expires_at_ms: u64) -> NewValue<'_> {
    NewValue { value: value.into(), flags: 0, expires_at_ms }
}

fn put_change<'c, R>(value: &'c [u8], answer: R) -> RecordUpdate<'c, R> {
    RecordUpdate::Put { value: value.into(), flags: 0, expires_at_ms: 0, answer }
}

pub(super) fn setnx(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let value = call.arg(2);
    let done = call.update_by_head(call.table(true)?, call.arg(1), |old| match old {
        Some(_) => RecordUpdate::Keep(false),
        None => put_change(value, true),
    })?;
    call.reply.integer(done.into());
    Ok(())
}

fn set_with_expiry(call: &mut CommandCall<'_, '_>, kind: ExpiryUnit, name: &str) -> CommandResult {
    let (expires_at_ms, value) = (kind.at_ms(call, 2, name)?, call.arg(3));
    call.replace(call.table(true)?, call.arg(1), &new_value(value, expires_at_ms))?;
    call.reply.ok();
    Ok(())
}

pub(super) fn setex(call: &mut CommandCall<'_, '_>) -> CommandResult {
    set_with_expiry(call, ExpiryUnit::InSeconds, "setex")
}

pub(super) fn psetex(call: &mut CommandCall<'_, '_>) -> CommandResult {
    set_with_expiry(call, ExpiryUnit::InMillis, "psetex")
}

pub(super) fn getset(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let value = call.arg(2);
    let old = call.update(call.arg(1), |old| put_change(value, old))?;
    call.reply.optional(old.as_ref().map(RecordRef::value));
    Ok(())
}

pub(super) fn getdel(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let old = call.update(call.arg(1), RecordUpdate::Delete)?;
    call.reply.optional(old.as_ref().map(RecordRef::value));
    Ok(())
}

pub(super) fn getex(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let options = SetOptions::read(call, 2, false)?;
    if options.expiry.is_none() && !options.persist {
        return get(call);
    }
    // As Redis, it looks up the key before it checks the time.
    if call.get(call.arg(1))?.is_none() {
        call.reply.null();
        return Ok(());
    }
    let expires_at_ms = options.expires_at_ms(call, "getex")?;
    let past_ms = call.clock_ms().saturating_add(1);
    let old = call.update(call.arg(1), |old| match old {
        None => RecordUpdate::Keep(None),
        // For watchers of the key, nothing has happened.
        Some(record) if options.persist && record.expires_at_ms() == 0 => RecordUpdate::Keep(old),
        Some(_) if expires_at_ms != 0 && expires_at_ms <= past_ms => RecordUpdate::Delete(old),
        Some(record) => RecordUpdate::Put {
            value: UpdateValue::unchanged(&record),
            flags: record.flags(),
            expires_at_ms,
            answer: Some(record),
        },
    })?;
    call.reply.optional(old.as_ref().map(RecordRef::value));
    Ok(())
}

/// MGET of one key, or in a transaction, which is not cut.
pub(super) fn mget(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let keys = call.rest(1);
    call.admit_keys(keys.len())?;
    let table = &call.table(false)?.table;
    let start = call.reply.out.len();
    call.reply.array(keys.len());
    for batch in keys.chunks(PLAN_OPERATIONS) {
        if keys.len() > 1 {
            table.prefetch_keys(call.guard, batch);
        }
        for key in batch {
            let found = call.get_in(table, key);
            call.reply.optional(found.as_ref().map(RecordRef::value));
            if call.reply.out.len() - start > ATOMIC_BYTES {
                return Err(ANSWER_TOO_LONG.into());
            }
        }
    }
    Ok(())
}

fn admit_pairs(call: &CommandCall<'_, '_>, name: &str) -> CommandResult {
    match call.args.len() % 2 {
        1 if call.args.len() / 2 > ATOMIC_KEYS => Err(too_many_pairs(name)),
        1 if call.args.iter().map(|arg| arg.len()).sum::<usize>() > ATOMIC_BYTES => Err(too_many_pairs(name)),
        1 => call.admit_keys(call.args.len() / 2),
        _ => Err(format!("ERR wrong number of arguments for '{name}' command").into()),
    }
}

#[cold]
fn too_many_pairs(name: &str) -> CommandError {
    format!(
        "ERR '{name}' stores all at once: no more than {ATOMIC_KEYS} keys, of {ATOMIC_BYTES} bytes with their values"
    )
    .into()
}

// Pairs are not split.
const _: () = assert!(PLAN_OPERATIONS.is_multiple_of(2));

fn put_pairs(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let entry = call.table(true)?;
    // All or nothing: a foreseeable error is returned before anything is written.
    for pair in call.rest(1).chunks(2) {
        if pair[0].len() > MAX_KEY_BYTES {
            return Err(StoreError::KeyTooLarge.into());
        }
        if pair.get(1).is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
            return Err(StoreError::ValueTooLarge.into());
        }
    }
    let pairs = call.rest(1);
    call.reserve_log(pairs.len() / 2, pairs.iter().map(|word| word.len()).sum())?;
    call.admit_backed(entry, |table| {
        pairs.chunks_exact(2).map(|pair| backed_keys::put(table, pair[0], pair[1].len(), 0)).collect()
    })?;
    for batch in pairs.chunks(PLAN_OPERATIONS) {
        batch.iter().step_by(2).for_each(|key| entry.table.prefetch_bucket(crate::hash_key(&entry.table, key)));
        for pair in batch.chunks(2) {
            if let [key, value] = *pair {
                call.replace(entry, key, &new_value(value, 0))?;
            }
        }
    }
    Ok(())
}

pub(super) fn mset(call: &mut CommandCall<'_, '_>) -> CommandResult {
    admit_pairs(call, "mset")?;
    put_pairs(call)?;
    call.reply.ok();
    Ok(())
}

pub(super) fn msetnx(call: &mut CommandCall<'_, '_>) -> CommandResult {
    admit_pairs(call, "msetnx")?;
    let table = &call.table(true)?.table;
    let keys = call.rest(1).iter().step_by(2);
    if keys.clone().any(|key| call.head_in(table, key).is_some()) {
        call.reply.integer(0);
        return Ok(());
    }
    put_pairs(call)?;
    call.reply.integer(1);
    Ok(())
}

pub(super) fn append(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let more = call.arg(2);
    let len = call.update(call.arg(1), |old| {
        let before = old.map_or(&b""[..], |record| record.value());
        RecordUpdate::Put {
            value: UpdateValue::Parts([before, more, b""]),
            flags: old.map_or(0, |record| record.flags()),
            expires_at_ms: old.map_or(0, |record| record.expires_at_ms()),
            answer: before.len() + more.len(),
        }
    })?;
    call.reply.integer(len as i64);
    Ok(())
}

pub(super) fn strlen(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let found = call.get(call.arg(1))?;
    call.reply.integer(found.map_or(0, |record| record.value().len()) as i64);
    Ok(())
}

/// The part of a value between two numbers; negative ones count from the end.
pub(super) fn byte_range(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let from_end = |index: i64| if index < 0 { index.saturating_add(len).max(0) } else { index };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if len == 0 || start > end { b"" } else { value.get(start as usize..=end as usize).unwrap_or_default() }
}

pub(super) fn getrange(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let found = call.get(call.arg(1))?;
    call.reply.bulk(byte_range(found.as_ref().map_or(&b""[..], |record| record.value()), start, end));
    Ok(())
}

/// The zeros between the end of a value and a write behind it. They take no memory until they are read.
pub(super) static ZEROS: [u8; MAX_VALUE_BYTES] = [0; MAX_VALUE_BYTES];

pub(super) fn setrange(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (offset, new) = (call.integer(2)?, call.arg(3));
    let Ok(offset) = usize::try_from(offset) else { return Err("ERR offset is out of range".into()) };
    if !new.is_empty() && offset.saturating_add(new.len()) > sandstorm_store::limits::MAX_VALUE_BYTES {
        return Err(TOO_LONG.into());
    }
    let len = call.update(call.arg(1), |old| {
        let before = old.map_or(&b""[..], |record| record.value());
        if new.is_empty() {
            return RecordUpdate::Keep(before.len());
        }
        let len = before.len().max(offset + new.len());
        let value = match before.get(..offset) {
            Some(head) => UpdateValue::Parts([head, new, before.get(offset + new.len()..).unwrap_or_default()]),
            None => UpdateValue::Parts([before, ZEROS.get(..offset - before.len()).unwrap_or_default(), new]),
        };
        RecordUpdate::Put {
            value,
            flags: old.map_or(0, |record| record.flags()),
            expires_at_ms: old.map_or(0, |record| record.expires_at_ms()),
            answer: len,
        }
    })?;
    call.reply.integer(len as i64);
    Ok(())
}
