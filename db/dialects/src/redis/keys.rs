//! Commands on keys, for any value.

use super::arguments::{is_word, parse_integer};
use super::backed_keys;
use super::command_call::{CommandCall, listed, reach_table, scanned};
use super::errors::{ANSWER_TOO_LONG, CommandError, CommandResult, NO_KEY, NOT_AN_INTEGER, SYNTAX, unknown_subcommand};
use super::glob::GlobPattern;
use super::session_state::ScanWait;
use crate::limits::PLAN_OPERATIONS;
use crate::limits::redis::{
    ATOMIC_BYTES, ATOMIC_KEYS, PATTERN_STEPS, PATTERN_STEPS_PER_REQUEST, SCAN_COLD_RECORDS, SCAN_MATCH_CHUNK,
    SCAN_RECORDS, TRANSACTION_RANDOM_SCANS,
};
use sandstorm_catalog::TableEntry;
use sandstorm_store::{RecordRef, RecordTable, RecordUpdate, ScannedRecord, StoreError};

/// Counts the keys for which `f` returns true.
fn count_keys(
    call: &mut CommandCall<'_, '_>,
    write: bool,
    mut f: impl FnMut(&mut CommandCall<'_, '_>, &[u8]) -> Result<bool, CommandError>,
) -> CommandResult {
    let keys = call.rest(1);
    call.admit_keys(keys.len())?;
    let table = &call.table(write)?.table;
    let mut counted = 0;
    for batch in keys.chunks(PLAN_OPERATIONS) {
        if keys.len() > 1 {
            table.prefetch_keys(call.guard, batch);
        }
        for key in batch {
            counted += i64::from(f(call, key)?);
        }
    }
    call.reply.integer(counted);
    Ok(())
}

pub(super) fn del(call: &mut CommandCall<'_, '_>) -> CommandResult {
    count_keys(call, true, |call, key| {
        call.update_by_head(call.table(true)?, key, |old| RecordUpdate::Delete(old.is_some()))
    })
}

pub(super) fn exists(call: &mut CommandCall<'_, '_>) -> CommandResult {
    count_keys(call, false, |call, key| Ok(call.head_in(&call.table(false)?.table, key).is_some()))
}

pub(super) fn type_of(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let there = call.head_in(&call.table(false)?.table, call.arg(1)).is_some();
    call.reply.simple(if there { "string" } else { "none" });
    Ok(())
}

/// Copies a record to another key.
fn copy_to<'c, 'w>(
    call: &mut CommandCall<'c, 'w>,
    record: RecordRef<'c>,
    to: &'w TableEntry,
    key: &[u8],
) -> CommandResult {
    let (value, flags, expires_at_ms) = (record.value().into(), record.flags(), record.expires_at_ms());
    call.update_by_head(to, key, |_| RecordUpdate::Put { value, flags, expires_at_ms, answer: () })
}

fn rename_if(call: &mut CommandCall<'_, '_>, absent: bool) -> CommandResult {
    let (from, to) = (call.arg(1), call.arg(2));
    let entry = call.table(true)?;
    let Some(record) = call.get(from)? else { return Err(NO_KEY.into()) };
    let refused = absent && call.head_in(&entry.table, to).is_some();
    if !refused && from != to {
        call.reserve_log(2, from.len() + to.len() + record.value().len())?;
        call.admit_backed(entry, |table| {
            let put = backed_keys::put(table, to, record.value().len(), record.expires_at_ms());
            vec![put, backed_keys::delete(table, from)]
        })?;
        copy_to(call, record, entry, to)?;
        call.update_by_head(entry, from, |_| RecordUpdate::Delete(()))?;
    }
    match absent {
        true => call.reply.integer((!refused).into()),
        false => call.reply.ok(),
    }
    Ok(())
}

pub(super) fn rename(call: &mut CommandCall<'_, '_>) -> CommandResult {
    rename_if(call, false)
}

pub(super) fn renamenx(call: &mut CommandCall<'_, '_>) -> CommandResult {
    rename_if(call, true)
}

/// The destination table of COPY.
pub(super) fn copy_destination(call: &CommandCall<'_, '_>) -> Result<u64, CommandError> {
    let view = call.view()?;
    let (mut id, mut at) = (call.state.table_id().unwrap_or(0), 3);
    while at < call.args.len() {
        if is_word(call.arg(at), "DB") && at + 1 < call.args.len() {
            let number = parse_integer(call.arg(at + 1)).ok_or(NOT_AN_INTEGER)?;
            id =
                call.state.selected(view, number.to_string().as_bytes()).map_err(|_| "ERR DB index is out of range")?;
            at += 1;
        } else if !is_word(call.arg(at), "REPLACE") {
            return Err(SYNTAX.into());
        }
        at += 1;
    }
    Ok(id)
}

pub(super) fn copy(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let to = reach_table(call.view()?, copy_destination(call)?, true)?;
    let from = call.table(false)?;
    let (source, target) = (call.arg(1), call.arg(2));
    let replace = call.rest(3).iter().any(|word| is_word(word, "REPLACE"));
    if std::ptr::eq(from, to) && source == target {
        return Err("ERR source and destination objects are the same".into());
    }
    let Some(record) = call.get_in(&from.table, source) else {
        call.reply.integer(0);
        return Ok(());
    };
    let refused = !replace && call.head_in(&to.table, target).is_some();
    if !refused {
        copy_to(call, record, to, target)?;
    }
    call.reply.integer((!refused).into());
    Ok(())
}

/// The error of a RANDOMKEY that has found no record for long.
pub(super) const TABLE_TOO_SPARSE: &str = "ERR too few of the table's places are taken to come upon one: use SCAN";

/// A live record from a random position on, for a transaction.
pub(super) fn randomkey(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let table = &listed(call.table(false)?)?.table;
    let mut found: Option<RecordRef<'_>> = None;
    let start: u64 = rand::random();
    // Around the table once: some buckets a call; more records mean fewer calls.
    let (mut cursor, mut wrapped, mut scans) = (start, false, 0);
    while found.is_none() && table.stats().records > 0 {
        scans += 1;
        call.context.work(SCAN_WORK);
        if scans > TRANSACTION_RANDOM_SCANS {
            return Err(TABLE_TOO_SPARSE.into());
        }
        match table.scan(call.guard, cursor, 1, call.now_ms(), &mut |record| found = Some(record)) {
            Some(next) if !(wrapped && next > start) => cursor = next,
            Some(_) => break,
            None if wrapped => break,
            None => (wrapped, cursor) = (true, 0),
        }
    }
    call.reply.optional(found.as_ref().map(RecordRef::key));
    Ok(())
}

pub(super) fn dbsize(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let table = &call.table(false)?.table;
    let records = table.stats().records;
    table.note_all_read(call.context.participant.shown());
    call.reply.integer(records as i64);
    Ok(())
}

/// Work of one call of a scan, whatever it finds, in plain requests.
pub(super) const SCAN_WORK: u64 = 50;

pub(super) const SLOW_PATTERN: &str =
    "ERR the pattern takes too long to match: make it simpler, or look at fewer keys at once";

/// The error of KEYS in a table with too many records.
#[cold]
pub(super) fn too_many_records(most: u64) -> CommandError {
    format!("ERR KEYS looks at every record, and there are more than {most}: use SCAN").into()
}

/// Charges the work of a pattern; an error if that was too much.
fn charge_pattern(call: &CommandCall<'_, '_>, pattern: &GlobPattern<'_>) -> CommandResult {
    call.context.work(pattern.steps() / PATTERN_STEPS_PER_REQUEST);
    if pattern.is_exhausted() { Err(SLOW_PATTERN.into()) } else { Ok(()) }
}

/// Bits of a cursor that clients do not see: many store it as a number with 53 bits.
const HIDDEN_BITS: u32 = 11;

/// The hash of the first record from a position on, which is cold.
#[cold]
fn first_cold(call: &CommandCall<'_, '_>, table: &RecordTable, from: u64) -> Option<u64> {
    let mut first = None;
    table.scan_each(call.guard, (from, 1), call.now_ms(), &mut |record| {
        if let ScannedRecord::Cold(cold) = record {
            first = first.or_else(|| Some(cold.hash()));
        }
    });
    first
}

pub(super) fn scan(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let is_alone = call.state.scan_wait.take().is_some_and(|wait| wait.is_alone);
    let cursor = std::str::from_utf8(call.arg(1)).ok().and_then(|cursor| cursor.parse::<u64>().ok());
    let Some(cursor) = cursor else { return Err("ERR invalid cursor".into()) };
    let (mut pattern, mut limit, mut strings, mut at) = (None, 10, true, 2);
    while at < call.args.len() {
        let (word, value) = (call.arg(at), call.arg(at + 1));
        if at + 1 == call.args.len() {
            return Err(SYNTAX.into());
        } else if is_word(word, "COUNT") {
            limit = parse_integer(value).ok_or(NOT_AN_INTEGER)?;
            if limit < 1 {
                return Err(SYNTAX.into());
            }
        } else if is_word(word, "MATCH") {
            pattern = Some(value);
        } else if is_word(word, "TYPE") {
            strings = is_word(value, "string");
        } else {
            return Err(SYNTAX.into());
        }
        at += 2;
    }
    let entry = call.table(false)?;
    // A transaction does not wait for the disk.
    let entry = if call.locked.is_some() { listed(entry)? } else { scanned(entry)? };
    let most = if entry.table.is_larger_than_memory() { SCAN_COLD_RECORDS } else { SCAN_RECORDS };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(if is_alone { 1 } else { most });
    let (mut shown, mut pattern) = (Vec::<RecordRef<'_>>::new(), pattern.map(GlobPattern::new));
    let mut next = cursor.checked_shl(HIDDEN_BITS).filter(|from| from >> HIDDEN_BITS == cursor);
    let (mut scanned, mut goes_on) = (0, true);
    // Rounded down, so that no record is left out; so it goes on until that differs from the beginning.
    while let Some(from) = next
        && (goes_on || from >> HIDDEN_BITS == cursor)
    {
        // With a pattern a few at a time, so that an expensive one ends the call early and still makes progress.
        let (before, step) = (scanned, if pattern.is_some() { SCAN_MATCH_CHUNK } else { limit });
        let (by, at) = ((call.guard, call.context.participant.shown()), (from, step.min(limit)));
        next = entry.table.scan_awaited(by, at, call.now_ms(), &mut |record| {
            scanned += 1;
            if strings && pattern.as_mut().is_none_or(|pattern| pattern.matches(record.key())) {
                shown.push(record);
            }
        });
        // A step that finds the maximum of records has not scanned many buckets.
        let is_dense = scanned - before >= step.min(limit);
        call.context.work(if is_dense { SCAN_WORK / 10 } else { SCAN_WORK } + (scanned - before) as u64 / 2);
        let steps = pattern.as_ref().map_or(0, GlobPattern::steps);
        goes_on = scanned < limit && is_dense && steps < PATTERN_STEPS / 2;
        if call.has_cold() {
            if from >> HIDDEN_BITS == cursor {
                let first = first_cold(call, &entry.table, from);
                call.state.scan_wait = first.map(|hash| ScanWait { behind: (hash >> HIDDEN_BITS) + 1, is_alone });
                return Err(StoreError::Cold.into());
            }
            // What was found before is answered, and the next SCAN waits for these: memory need not have all at once.
            drop(call.context.participant.shown().take_cold());
            next = Some(from);
            break;
        }
    }
    pattern.map_or(Ok(()), |pattern| charge_pattern(call, &pattern))?;
    let next = next.map_or(0, |next| next >> HIDDEN_BITS);
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(shown.len());
    shown.iter().for_each(|record| call.reply.bulk(record.key()));
    Ok(())
}

/// KEYS in a transaction, which is not cut.
pub(super) fn keys(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (entry, mut pattern) = (listed(call.table(false)?)?, GlobPattern::new(call.arg(1)));
    if entry.table.stats().records > ATOMIC_KEYS as u64 {
        return Err(too_many_records(ATOMIC_KEYS as u64));
    }
    let (mut cursor, mut found, mut bytes) = (Some(0), Vec::new(), 0);
    while let Some(at) = cursor {
        let mut scanned = 0;
        cursor = entry.table.scan(call.guard, at, SCAN_RECORDS, call.now_ms(), &mut |record: RecordRef<'_>| {
            scanned += 1;
            if pattern.matches(record.key()) && bytes < ATOMIC_BYTES {
                bytes += record.key().len() + 16;
                found.push(record);
            }
        });
        call.context.work(SCAN_WORK + scanned / 2);
    }
    charge_pattern(call, &pattern)?;
    if bytes >= ATOMIC_BYTES {
        return Err(ANSWER_TOO_LONG.into());
    }
    found.sort_by(|a, b| a.key().cmp(b.key()));
    found.dedup_by(|a, b| a.key() == b.key());
    call.reply.array(found.len());
    found.iter().for_each(|record| call.reply.bulk(record.key()));
    Ok(())
}

pub(super) fn check_flush_mode(call: &CommandCall<'_, '_>) -> CommandResult {
    match call.args.len() {
        1 => Ok(()),
        2 if is_word(call.arg(1), "ASYNC") || is_word(call.arg(1), "SYNC") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}

/// Refuses to empty all tables where one cannot be, before any is.
pub(super) fn check_all_emptied(call: &CommandCall<'_, '_>) -> CommandResult {
    match call.view()?.tables.values().any(|entry| entry.table.has_backing()) {
        true => {
            Err("ERR one of the tables is in front of a backing, and is not emptied as a whole: FLUSHDB those that \
                     are not"
                .into())
        }
        false => Ok(()),
    }
}

/// Empties a table. Its records are freed in pieces, later.
pub(super) fn clear<'w>(call: &mut CommandCall<'_, 'w>, entry: &'w TableEntry) -> CommandResult {
    call.context.empties(entry.table.stats().records);
    match call.locked.as_deref_mut().map(|locked| locked.of(&entry.table)) {
        Some(locked) => {
            if !locked.map_or(Ok(false), sandstorm_store::ExclusiveStripes::clear)? {
                return Err("ERR a table that the transaction did not name".into());
            }
        }
        None => entry.table.clear(call.context.participant)?,
    }
    Ok(())
}

pub(super) fn flushdb(call: &mut CommandCall<'_, '_>) -> CommandResult {
    check_flush_mode(call)?;
    let entry = call.table(true)?;
    if call.view()?.table(entry.id).is_none_or(|own| !std::ptr::eq(&**own, entry)) {
        return Err("NOPERM only a table's owner may empty it".into());
    }
    clear(call, entry)?;
    call.reply.ok();
    Ok(())
}

pub(super) fn flushall(call: &mut CommandCall<'_, '_>) -> CommandResult {
    check_flush_mode(call)?;
    check_all_emptied(call)?;
    let view = call.view()?;
    for entry in view.tables.values() {
        clear(call, entry)?;
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn object(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let word = call.arg(1);
    if is_word(word, "HELP") {
        return super::server::help(
            call,
            &["OBJECT <subcommand> [<arg> ...]. Subcommands are:", "ENCODING, FREQ, IDLETIME, REFCOUNT <key>."],
        );
    }
    let known = ["ENCODING", "FREQ", "IDLETIME", "REFCOUNT"].iter().find(|known| is_word(word, known));
    let Some(known) = known else { return Err(unknown_subcommand(word, "OBJECT")) };
    let Some(record) = call.get(call.arg(2))? else {
        call.reply.null();
        return Ok(());
    };
    match *known {
        "ENCODING" => call.reply.bulk(encoding(record.value())),
        "FREQ" => {
            return Err(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                        switching between policies at runtime LRU and LFU data will take some time to adjust."
                    .into(),
            );
        }
        "IDLETIME" => call.reply.integer(0),
        _ => call.reply.integer(1),
    }
    Ok(())
}

/// The encoding that Redis would have for such a value.
fn encoding(value: &[u8]) -> &'static [u8] {
    match value {
        number if number.len() <= 20 && parse_integer(number).is_some() => b"int",
        short if short.len() <= 44 => b"embstr",
        _ => b"raw",
    }
}

pub(super) fn memory(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let word = call.arg(1);
    if is_word(word, "USAGE") && call.args.len() >= 3 {
        if call.args.len() != 3 && !(call.args.len() == 5 && is_word(call.arg(3), "SAMPLES")) {
            return Err(SYNTAX.into());
        }
        match call.get(call.arg(2))? {
            None => call.reply.null(),
            Some(record) => call.reply.integer(record.charged_bytes() as i64),
        }
        return Ok(());
    }
    match word.to_ascii_uppercase().as_slice() {
        b"PURGE" => call.reply.ok(),
        b"DOCTOR" => call.reply.verbatim("Nothing is wrong: a table keeps to its quota, see INFO memory.\n"),
        b"MALLOC-STATS" => call.reply.verbatim("The allocator is the server's, not a tenant's.\n"),
        b"STATS" => memory_stats(call)?,
        b"HELP" => {
            return super::server::help(
                call,
                &[
                    "MEMORY <subcommand> [<arg> ...]. Subcommands are:",
                    "DOCTOR, MALLOC-STATS, PURGE, STATS, USAGE <key>.",
                ],
            );
        }
        _ => return Err(unknown_subcommand(word, "MEMORY")),
    }
    Ok(())
}

fn memory_stats(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let stats = call.table(false)?.table.stats();
    let numbers = [("total.allocated", stats.bytes), ("keys.count", stats.records), ("quota.bytes", stats.quota_bytes)];
    call.reply.map(numbers.len());
    for (name, number) in numbers {
        call.reply.bulk(name.as_bytes());
        call.reply.integer(number as i64);
    }
    Ok(())
}
