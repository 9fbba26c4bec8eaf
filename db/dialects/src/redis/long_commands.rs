//! Commands that are run in pieces. Other connections, packets and invocations have their turn in between.
//!
//! A command that can take longer than a slice is a [`LongCommand`]. It begins once, and each [`LongCommand::step`]
//! takes about as long as 64 keys, or one largest value. When the budget of the context is spent, the session stores
//! the command with its position, and continues there in the next call. Its arguments stay in the connection's input
//! meanwhile. It stores only ids, numbers and bytes. Tenant and table are looked up in each step, since they may be
//! deleted in between, and nothing is locked or pinned between two pieces. So the rest of the command sees writes of
//! other clients.
//!
//! A new command on many keys is one more arm of [`LongCommand::begin`] and of [`LongCommand::step`]. A command without
//! such arms has [`SINGLE_STEP_ARGS`] arguments at most.

use std::collections::VecDeque;
use std::time::Instant;

use sandstorm_net::resp::RespWriter;

use super::arguments::CommandArguments;
use super::command_call::{CommandCall, listed, reach_table, scanned};
use super::commands::{self, RedisCommandSpec};
use super::errors::{ANSWER_TOO_LONG, CommandError, CommandResult, TOO_LONG};
use super::glob::GlobPattern;
use super::keys::{SCAN_WORK, SLOW_PATTERN, TABLE_TOO_SPARSE, too_many_records};
use super::{functions, keys};
use crate::limits::bits::BITFIELD_OPS;
use crate::limits::protocols::ANSWERS_FULL_BYTES;
use crate::limits::redis::{
    ANSWER_BYTES, ATOMIC_BYTES, ATOMIC_KEYS, GATHERED_BYTES, KEYS_CHUNK_BYTES, KEYS_PATTERN_STEPS, KEYS_RECORDS,
    KEYS_STEP_RECORDS, PATTERN_STEPS, PATTERN_STEPS_PER_REQUEST, RANDOM_SCANS, SINGLE_STEP_ARGS, STEP_ARGS,
    WATCHED_KEYS,
};
use sandstorm_catalog::TableEntry;
use sandstorm_store::{RecordRef, RecordUpdate, StoreError};

/// The limit of a command's arguments, queued or run now. A command in pieces that is run now has no limit here.
fn max_arguments(spec: Option<&RedisCommandSpec>, queued: bool) -> usize {
    match spec {
        Some(spec) if runs_in_pieces(spec) => {
            if queued {
                ATOMIC_KEYS + 1
            } else {
                usize::MAX
            }
        }
        // One more, so that the command itself can report the error.
        Some(spec) if spec.is(commands::ATOMIC) => 2 * ATOMIC_KEYS + 3,
        Some(spec) if spec.name == "watch" => WATCHED_KEYS + 2,
        // Up to four words an operation.
        Some(spec) if matches!(spec.name, "bitfield" | "bitfield_ro") => 4 * (BITFIELD_OPS + 1) + 2,
        _ => SINGLE_STEP_ARGS,
    }
}

/// The number of arguments up to which all are collected for a command; of more, only the first [`STEP_ARGS`] are.
pub(super) fn max_collected(spec: Option<&RedisCommandSpec>, queued: bool) -> usize {
    match max_arguments(spec, queued) {
        usize::MAX => STEP_ARGS,
        most => most,
    }
}

/// The error of a command with too many arguments, or too many bytes for one that is run in one go.
#[cold]
pub(super) fn size_error(
    spec: &RedisCommandSpec,
    arguments: &CommandArguments<'_>,
    queued: bool,
) -> Option<CommandError> {
    let (name, most) = (spec.name, max_arguments(Some(spec), queued));
    if arguments.len() > most {
        return Some(format!("ERR '{name}' takes {most} arguments at most here: ask for less at once").into());
    }
    (!runs_in_pieces(spec) && !spec.is(commands::ATOMIC) && arguments.command.len > ATOMIC_BYTES)
        .then(|| TOO_LONG.into())
}

/// Whether a command is run in pieces if it has many arguments.
fn runs_in_pieces(spec: &RedisCommandSpec) -> bool {
    matches!(spec.name, "mget" | "del" | "unlink" | "exists" | "touch" | "fcall" | "fcall_ro" | "fcall_cost")
}

/// A running command.
pub(super) enum LongCommand {
    /// One action for each key.
    PerKey(PerKeyCommand),
    /// KEYS.
    Keys(Box<KeysCommand>),
    /// RANDOMKEY.
    RandomKey(RandomKeyCommand),
    /// FLUSHALL: the remaining tables.
    Flush(VecDeque<u64>),
    /// The arguments of an FCALL.
    FcallArguments(FcallEncoder),
}

/// The action for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    /// Returns its value.
    Get,
    /// Deletes it.
    Delete,
    /// Counts it.
    Count,
}

/// A command with one action for each key.
pub(super) struct PerKeyCommand {
    action: KeyAction,
    table: u64,
    /// The number of the next key among the arguments.
    at: usize,
    counted: i64,
    /// The number of the next key to be looked for in what is behind the table, before anything is done.
    looked: usize,
    /// What is answered so far, as long as nothing of it has left: of a table that does not have all in memory.
    gathered: Option<Vec<u8>>,
}

/// The results of KEYS so far.
pub(super) struct KeysCommand {
    table: u64,
    /// The hash at which the scan continues; none: it has ended.
    cursor: Option<u64>,
    /// The remaining steps of the pattern.
    steps: u64,
    found: usize,
    bytes: usize,
    /// The answers, without the line before them.
    chunks: VecDeque<Vec<u8>>,
    has_answered: bool,
}

/// A search of a table for any record.
pub(super) struct RandomKeyCommand {
    table: u64,
    start: u64,
    cursor: u64,
    wrapped: bool,
    scans: usize,
}

/// The arguments that are encoded for an extension.
pub(super) struct FcallEncoder {
    at: usize,
    bytes: Vec<u8>,
}

/// Commands with fewer arguments take one step anyway.
const MIN_ARGS: usize = 3;

impl LongCommand {
    /// Begins a command, if it is one that may take long. An error here means that it has not begun.
    pub(super) fn begin(
        call: &mut CommandCall<'_, '_>,
        spec: &RedisCommandSpec,
        arguments: &CommandArguments<'_>,
    ) -> Result<Option<LongCommand>, CommandError> {
        let count = arguments.len();
        Ok(match spec.name {
            // Most commands: one key.
            _ if spec.first == 1 && spec.last == 1 => None,
            "mget" if count >= MIN_ARGS => Some(begin_per_key(call, count, KeyAction::Get)?),
            "del" | "unlink" if count >= MIN_ARGS => Some(begin_per_key(call, count, KeyAction::Delete)?),
            "exists" | "touch" if count >= MIN_ARGS => Some(begin_per_key(call, count, KeyAction::Count)?),
            "fcall" | "fcall_ro" | "fcall_cost" if count > STEP_ARGS => {
                Some(LongCommand::FcallArguments(FcallEncoder {
                    at: 3,
                    bytes: functions::begin_encoding(call, count, arguments.command.len)?,
                }))
            }
            "keys" => {
                let entry = listed(call.table(false)?)?;
                if entry.table.stats().records > KEYS_RECORDS {
                    return Err(too_many_records(KEYS_RECORDS));
                }
                Some(LongCommand::Keys(Box::new(KeysCommand {
                    table: entry.id,
                    cursor: Some(0),
                    steps: KEYS_PATTERN_STEPS,
                    found: 0,
                    bytes: 0,
                    chunks: VecDeque::new(),
                    has_answered: false,
                })))
            }
            "randomkey" => {
                let start: u64 = rand::random();
                let table = scanned(call.table(false)?)?.id;
                Some(LongCommand::RandomKey(RandomKeyCommand { table, start, cursor: start, wrapped: false, scans: 0 }))
            }
            "flushall" => {
                keys::check_flush_mode(call)?;
                keys::check_all_emptied(call)?;
                Some(LongCommand::Flush(call.view()?.tables.values().map(|entry| entry.id).collect()))
            }
            _ => None,
        })
    }

    /// Runs a part of the command. Returns whether it was the last. An error ends the command, and is answered if
    /// nothing has been answered yet.
    pub(super) fn step(
        &mut self,
        call: &mut CommandCall<'_, '_>,
        arguments: &CommandArguments<'_>,
    ) -> Result<bool, CommandError> {
        match self {
            LongCommand::PerKey(each) => each.step(call, arguments),
            LongCommand::Keys(keys) => keys.step(call),
            LongCommand::RandomKey(random) => random.step(call),
            LongCommand::Flush(tables) => {
                let Some(id) = tables.pop_front() else {
                    call.reply.ok();
                    return Ok(true);
                };
                // A table that was dropped meanwhile needs no emptying.
                if let Some(entry) = call.view()?.table(id) {
                    keys::clear(call, entry)?;
                }
                Ok(false)
            }
            LongCommand::FcallArguments(encode) => encode.step(call, arguments),
        }
    }

    /// Whether a part of the answer may have left, so that no error can replace it.
    pub(super) fn has_answered(&self) -> bool {
        match self {
            LongCommand::PerKey(each) => each.action == KeyAction::Get && each.gathered.is_none(),
            LongCommand::Keys(keys) => keys.has_answered,
            LongCommand::RandomKey(_) | LongCommand::Flush(_) | LongCommand::FcallArguments(_) => false,
        }
    }

    /// Returns how far it is among its keys.
    pub(super) fn position(&self) -> usize {
        match self {
            LongCommand::PerKey(each) => each.at + each.looked,
            _ => 0,
        }
    }

    /// Bytes that it uses.
    pub(super) fn used_bytes(&self) -> usize {
        match self {
            LongCommand::Keys(keys) => keys.chunks.iter().map(Vec::capacity).sum(),
            LongCommand::FcallArguments(encode) => encode.bytes.capacity(),
            LongCommand::PerKey(each) => each.gathered.as_ref().map_or(0, Vec::capacity),
            LongCommand::RandomKey(_) | LongCommand::Flush(_) => 0,
        }
    }
}

fn begin_per_key(call: &mut CommandCall<'_, '_>, count: usize, action: KeyAction) -> Result<LongCommand, CommandError> {
    if call.state.tracked.options.is_some() && count > ATOMIC_KEYS + 1 {
        return Err(format!(
            "ERR a tracked connection may name {ATOMIC_KEYS} keys at once: turn tracking off, or ask for less"
        )
        .into());
    }
    // The first was counted with the command.
    call.admit_rate(count - 2)?;
    let entry = call.table(action == KeyAction::Delete)?;
    let mut gathered = (action == KeyAction::Get && entry.table.is_partial()).then(Vec::new);
    if action == KeyAction::Get {
        answer_to(call, &mut gathered).array(count - 1);
    }
    Ok(LongCommand::PerKey(PerKeyCommand { action, table: entry.id, at: 1, counted: 0, looked: 1, gathered }))
}

/// Where an answer is written: among what is gathered of it, or to the client.
fn answer_to<'a>(call: &'a mut CommandCall<'_, '_>, gathered: &'a mut Option<Vec<u8>>) -> RespWriter<'a> {
    let resp3 = call.reply.resp3;
    match gathered {
        Some(out) => RespWriter { out, resp3 },
        None => RespWriter { out: &mut *call.reply.out, resp3 },
    }
}

impl PerKeyCommand {
    fn step(&mut self, call: &mut CommandCall<'_, '_>, arguments: &CommandArguments<'_>) -> Result<bool, CommandError> {
        let entry = reach_table(call.view()?, self.table, self.action == KeyAction::Delete)?;
        if self.action != KeyAction::Get && self.looked < arguments.len() && entry.table.has_backing() {
            self.look_behind(call, entry, arguments);
            return Ok(false);
        }
        let batch = arguments.from(self.at);
        // They may have got another server between two pieces.
        if batch.iter().any(|key| !entry.table.owns(key)) {
            return Err(StoreError::WrongServer.into());
        }
        // Each key is hashed.
        #[cfg(test)]
        crate::hashed::note(batch.len());
        entry.table.prefetch_keys(call.guard, &batch);
        let (start, before) = (self.answered_bytes(call), self.at);
        let mut cold = None;
        for key in &batch {
            self.at += 1;
            if cold.is_some() {
                // It goes on there; the further keys are looked up so that all are fetched together.
                entry.table.foresee(call.guard, crate::hash_key(&entry.table, key), key, call.now_ms());
                continue;
            }
            let found = self.look_at(call, entry, key)?;
            if call.has_cold() {
                cold = Some(self.at - 1);
                continue;
            }
            match self.action {
                KeyAction::Get => {
                    let value = found.value.as_ref().map(RecordRef::value);
                    answer_to(call, &mut self.gathered).optional(value);
                    if self.answered_bytes(call) - start >= ANSWERS_FULL_BYTES {
                        break;
                    }
                }
                KeyAction::Delete | KeyAction::Count => self.counted += i64::from(found.is_there),
            }
        }
        self.at = cold.unwrap_or(self.at);
        let done = self.at - before;
        call.context.work(done as u64);
        call.context.bytes(self.answered_bytes(call) - start);
        call.context.bytes(batch.iter().take(done).map(|key| key.len()).sum());
        let ended = self.at >= arguments.len() && cold.is_none();
        if ended && self.action != KeyAction::Get {
            call.reply.integer(self.counted);
        }
        if let Some(gathered) = self.gathered.take_if(|gathered| ended || gathered.len() >= GATHERED_BYTES) {
            call.reply.out.extend_from_slice(&gathered);
        }
        Ok(ended)
    }

    /// Bytes of the answer that are there.
    fn answered_bytes(&self, call: &CommandCall<'_, '_>) -> usize {
        self.gathered.as_ref().map_or(call.reply.out.len(), Vec::len)
    }

    /// Finds out whether the next keys have to be loaded from what is behind the table, before any is deleted: so a
    /// command whose keys cannot be loaded is refused as a whole.
    fn look_behind(&mut self, call: &mut CommandCall<'_, '_>, entry: &TableEntry, arguments: &CommandArguments<'_>) {
        let batch = arguments.from(self.looked);
        let now_ms = call.now_ms();
        let missing =
            |key: &&[u8]| entry.table.note_if_missing(call.guard, crate::hash_key(&entry.table, key), key, now_ms);
        let is_missing = batch.iter().fold(false, |met, key| missing(key) | met);
        call.context.work(batch.len() as u64);
        if !is_missing {
            self.looked += batch.len();
        }
    }

    /// Does what is to be done with one key. What it returns says nothing where something has to be fetched.
    fn look_at<'c, 'w>(
        &self,
        call: &mut CommandCall<'c, 'w>,
        entry: &'w TableEntry,
        key: &[u8],
    ) -> Result<VisitedKey<'c>, CommandError> {
        let value = match self.action {
            KeyAction::Get => call.get_in(&entry.table, key),
            KeyAction::Delete | KeyAction::Count => None,
        };
        let is_there = match self.action {
            KeyAction::Get => value.is_some(),
            KeyAction::Count => call.head_in(&entry.table, key).is_some(),
            KeyAction::Delete => match call.update_by_head(entry, key, |old| RecordUpdate::Delete(old.is_some())) {
                Err(_) if call.has_cold() => false,
                done => done?,
            },
        };
        Ok(VisitedKey { value, is_there })
    }
}

/// What has become of one key.
struct VisitedKey<'c> {
    value: Option<RecordRef<'c>>,
    is_there: bool,
}

impl KeysCommand {
    fn step(&mut self, call: &mut CommandCall<'_, '_>) -> Result<bool, CommandError> {
        match self.cursor {
            Some(cursor) => self.scan(call, cursor)?,
            None if !self.has_answered => {
                call.reply.array(self.found);
                self.has_answered = true;
            }
            None => {
                if let Some(chunk) = self.chunks.pop_front() {
                    call.reply.out.extend_from_slice(&chunk);
                    call.context.bytes(chunk.len());
                }
            }
        }
        Ok(self.has_answered && self.chunks.is_empty())
    }

    fn scan(&mut self, call: &mut CommandCall<'_, '_>, cursor: u64) -> CommandResult {
        let entry = reach_table(call.view()?, self.table, false)?;
        let (mut shown, mut next) = (Vec::new(), None);
        for records in KEYS_STEP_RECORDS {
            let most = if records == 1 { PATTERN_STEPS } else { PATTERN_STEPS / 4 };
            let mut pattern = GlobPattern::within(call.arg(1), self.steps.min(most));
            let mut scanned = 0;
            shown.clear();
            next = entry.table.scan(call.guard, cursor, records, call.now_ms(), &mut |record| {
                scanned += 1;
                if pattern.matches(record.key()) {
                    shown.push(record);
                }
            });
            call.context.work(SCAN_WORK + scanned / 2 + pattern.steps() / PATTERN_STEPS_PER_REQUEST);
            self.steps -= pattern.steps();
            match pattern.is_exhausted() {
                false => break,
                true if records == 1 || self.steps == 0 => return Err(SLOW_PATTERN.into()),
                true => {}
            }
        }
        // Records come in the order of their hashes; those at the beginning of the next step are returned again there.
        for record in shown.iter().filter(|record| Some(crate::hash_key(&entry.table, record.key())) != next) {
            self.push(record.key());
        }
        self.cursor = next;
        if self.bytes >= ANSWER_BYTES { Err(ANSWER_TOO_LONG.into()) } else { Ok(()) }
    }

    fn push(&mut self, key: &[u8]) {
        let is_full = |chunk: &Vec<u8>| chunk.len() + key.len() + 16 > chunk.capacity();
        if self.chunks.back().is_none_or(is_full) {
            self.chunks.push_back(Vec::with_capacity(KEYS_CHUNK_BYTES.max(key.len() + 32)));
        }
        if let Some(out) = self.chunks.back_mut() {
            // Both versions of the protocol have this form.
            RespWriter { out, resp3: false }.bulk(key);
        }
        self.found += 1;
        self.bytes += key.len() + 16;
    }
}

impl RandomKeyCommand {
    /// Around the table once: some buckets a call; more records mean fewer calls.
    fn step(&mut self, call: &mut CommandCall<'_, '_>) -> Result<bool, CommandError> {
        let table = &reach_table(call.view()?, self.table, false)?.table;
        let (mut found, mut ended): (Option<RecordRef<'_>>, _) = (None, table.stats().records == 0);
        if !ended {
            self.scans += 1;
            call.context.work(SCAN_WORK);
            if self.scans > RANDOM_SCANS {
                return Err(TABLE_TOO_SPARSE.into());
            }
            let (by, at) = ((call.guard, call.context.participant.shown()), (self.cursor, 1));
            let next = table.scan_awaited(by, at, call.now_ms(), &mut |record| found = Some(record));
            if call.has_cold() {
                // The same record again, once it is in memory.
                return Ok(false);
            }
            match next {
                Some(next) if !(self.wrapped && next > self.start) => self.cursor = next,
                Some(_) => ended = true,
                None if self.wrapped => ended = true,
                None => (self.wrapped, self.cursor) = (true, 0),
            }
        }
        if found.is_some() || ended {
            call.reply.optional(found.as_ref().map(RecordRef::key));
            return Ok(true);
        }
        Ok(false)
    }
}

impl FcallEncoder {
    fn step(&mut self, call: &mut CommandCall<'_, '_>, arguments: &CommandArguments<'_>) -> Result<bool, CommandError> {
        let batch = arguments.from(self.at);
        for part in &batch {
            self.bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.bytes.extend_from_slice(part);
        }
        self.at += batch.len();
        call.context.work(batch.len() as u64 / 4 + 1);
        call.context.bytes(batch.iter().map(|part| part.len()).sum());
        if self.at < arguments.len() {
            return Ok(false);
        }
        functions::invoke(call, std::mem::take(&mut self.bytes))?;
        Ok(true)
    }
}

/// The state of a command after a call.
pub(super) enum PieceOutcome {
    /// It has ended.
    Finished,
    /// It continues after other turns.
    Suspended(LongCommand),
}

/// Runs a command until it has ended, or the session should yield.
pub(super) fn run_pieces(
    call: &mut CommandCall<'_, '_>,
    mut long: LongCommand,
    arguments: &CommandArguments<'_>,
) -> PieceOutcome {
    let mut begun = None;
    let start = call.reply.out.len();
    loop {
        match long.step(call, arguments) {
            Ok(true) => return PieceOutcome::Finished,
            // It goes on there once the records are in memory.
            Ok(false) if call.has_cold() => return PieceOutcome::Suspended(long),
            Ok(false) => {}
            Err(_) if long.has_answered() => {
                // A client that waits for the rest must learn that there is none.
                call.state.close_after_reply = true;
                return PieceOutcome::Finished;
            }
            Err(CommandError(why)) => {
                call.reply.error(why.as_bytes());
                return PieceOutcome::Finished;
            }
        }
        let begun = *begun.get_or_insert_with(Instant::now);
        if call.reply.out.len() - start >= ANSWERS_FULL_BYTES || call.context.is_over_budget_since(begun) {
            return PieceOutcome::Suspended(long);
        }
    }
}
