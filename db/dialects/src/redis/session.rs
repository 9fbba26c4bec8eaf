//! The session of one connection: it finds whole commands, prefetches their buckets and records, and runs them in
//! order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use sandstorm_net::limits::RESP_ARGUMENTS_PER_CALL;
use sandstorm_net::resp::{RespCommand, RespParse, RespParser, RespWriter};

use super::arguments::{CommandArguments, is_word};
use super::command_call::CommandCall;
use super::commands::{self, RedisCommandSpec};
use super::dispatch::{dispatch, record_end};
use super::long_commands::{self, LongCommand, PieceOutcome};
use super::session_state::{RedisSessionState, ReplyMode, WantedCall};
use super::stripe_locks::KeyNeed;
use super::transaction_state::WatchedKeys;
use super::transactions::{is_queued, key_need};
use super::{connection, functions};
use crate::cold_command::{ColdCommand, ColdOutcome};
use crate::first_command::FirstCommand;
use crate::limits::redis::{ARGS_PER_REQUEST, BATCH, BATCH_ANSWER_BYTES, BATCH_ARGS, STEP_ARGS};
use crate::{CommandContext, ConnectionIdentity, InvocationResult, NextAction, PortService, http_detection};
use sandstorm_accounts::{CommandPreview, RequestSubject};
use sandstorm_catalog::TenantView;
use sandstorm_store::spill::SpillReadError;
use sandstorm_store::{EpochGuard, RecordTable};

/// The state of one connection.
pub struct RedisSession {
    parser: RespParser,
    pub(super) state: RedisSessionState,
    /// A running command in pieces. Its bytes are the first of the input.
    suspended: Option<Box<SuspendedCommand>>,
    /// What the first command was about since the last answers were counted.
    first: FirstCommand,
    /// The waits of the next command for records on the disk.
    pub(crate) cold: ColdCommand,
}

/// A command of which some pieces have been run.
struct SuspendedCommand {
    command: RespCommand,
    spec: &'static RedisCommandSpec,
    long: LongCommand,
    /// The identity for which it began.
    identity: Option<ConnectionIdentity>,
    /// Microseconds of its pieces so far.
    took_us: u64,
}

/// A command of a batch, and its offset.
type BatchCommand = (usize, RespCommand, Option<&'static RedisCommandSpec>);

/// The result of a command: the connection's tenant afterwards, and the rest of the command, if it continues later.
struct CommandOutcome<'w> {
    view: Option<&'w Arc<TenantView>>,
    rest: Option<(LongCommand, u64)>,
}

impl RedisSession {
    /// A new session at a port.
    pub(crate) fn new(service: &Arc<PortService>) -> RedisSession {
        RedisSession {
            parser: RespParser::default(),
            state: RedisSessionState::new(service),
            suspended: None,
            first: FirstCommand::none("redis"),
            cold: ColdCommand::default(),
        }
    }

    /// The identity that it acts for.
    pub(crate) fn identity(&self) -> Option<&ConnectionIdentity> {
        self.state.identity.as_ref()
    }

    /// Notes why records that the next command waits for could not be read.
    pub(crate) fn set_cold_error(&mut self, error: SpillReadError) {
        match &mut self.state.scan_wait {
            // Which of them is not known: it waits for each alone from there on.
            Some(wait) if !wait.is_alone => wait.is_alone = true,
            _ => self.cold.set_error(error),
        }
    }

    /// Bytes that it uses: a part of a parsed command, an open transaction.
    pub(crate) fn used_bytes(&self) -> usize {
        let multi = self.state.multi.as_ref().map_or(0, |multi| multi.used_bytes());
        let long = self.suspended.as_ref().map_or(0, |one| one.command.used_bytes() + one.long.used_bytes());
        self.parser.used_bytes() + multi + self.state.watched.used_bytes() + long
    }

    /// Sets the worker that has it, and its name there; `addresses` are its two ends.
    pub(crate) fn set_location(
        &mut self,
        location: (u32, u64),
        addresses: impl FnOnce() -> Option<(SocketAddr, SocketAddr)>,
    ) {
        self.state.location = location;
        match &self.state.registration {
            Some(registration) => registration.client.set_location(location),
            None => self.state.addresses = self.state.addresses.or_else(addresses),
        }
    }

    /// Whether another connection of its tenant has killed it.
    pub(crate) fn is_killed(&self) -> bool {
        self.state.registration.as_ref().is_some_and(|registration| registration.client.is_killed())
    }

    /// See [`super::super::ProtocolSession::first_command`].
    pub(crate) fn first_command(&self) -> RequestSubject {
        self.first.subject()
    }

    /// See [`super::super::ProtocolSession::begin_answers`].
    #[inline]
    pub(crate) fn begin_answers(&mut self) {
        self.first.begin();
    }

    /// Whether a command has run in part.
    pub(crate) fn has_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    /// Takes the connections that it has killed: the worker of each, and its name there.
    pub(crate) fn killed(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.state.kills)
    }

    /// See [`super::super::ProtocolSession::run`].
    pub(crate) fn run(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        let done = self.run_batch(context, input, out);
        self.state.publish_status();
        done
    }

    fn run_batch(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        let mut view = self.state.refresh_identity(context.snapshot);
        if !self.state.register(view, context.now_ms) {
            return (input.len(), NextAction::Close);
        }
        if let Some(next) = self.hand_over() {
            self.parser.reset();
            return (0, next);
        }
        let guard = context.participant.guard();
        if let Some(suspended) = self.suspended.take() {
            return self.continued(context, &guard, view, *suspended, input, out);
        }
        let mut batch: ArrayVec<BatchCommand, BATCH> = ArrayVec::new();
        let (parsed, next) = self.find(context, input, view.is_none(), &mut batch);
        if batch.len() > 1 {
            prefetch(&batch, input, view, &self.state, &guard);
        }
        let (begun, mut batch) = (out.len(), batch.into_iter().peekable());
        while let Some((at, command, spec)) = batch.next() {
            let end = at + command.len;
            if command.is_inline() && http_detection::is_http_request(command.args(&input[at..])) {
                http_detection::count_http_rejection(context, "a port for Redis");
                RespWriter { out, resp3: false }.error(format!("ERR {}", http_detection::HTTP_REJECTED).as_bytes());
                return (input.len(), NextAction::Close);
            }
            let (start, replies) = (out.len(), self.state.replies);
            let ran = self.one(context, &guard, view, spec, (&command, &input[at..]), out);
            view = ran.view;
            if let Some(((long, took_us), spec)) = ran.rest.zip(spec) {
                let identity = self.state.identity;
                let suspended = SuspendedCommand { command, spec, long, identity, took_us };
                self.parser.reset();
                let (used, next) = self.after_piece(context, suspended, out);
                return (at + used, next);
            }
            self.parser.recycle(command);
            match self.cold.settle(context.participant) {
                // A SCAN that has waited may be refused without a look at its table: for another token, say.
                ColdOutcome::Answered => self.state.scan_wait = None,
                ColdOutcome::Waits => {
                    out.truncate(start);
                    self.state.replies = replies;
                    foresee(batch, input, view, &self.state, (&guard, context.now_ms));
                    self.parser.reset();
                    return (at, NextAction::FetchCold);
                }
                ColdOutcome::Refused(text) => {
                    self.state.replies = replies;
                    self.refuse_cold((start, &text), out);
                }
            }
            let stop = self.stop().or_else(|| {
                let full = out.len() - begun > BATCH_ANSWER_BYTES || context.is_enough();
                (full && batch.peek().is_some()).then_some(NextAction::Yield)
            });
            if let Some(next) = stop {
                self.parser.reset();
                return (end, next);
            }
        }
        match next {
            Ok(next) => (parsed, next),
            Err(error) => {
                context.count_protocol_error();
                RespWriter { out, resp3: false }.error(format!("ERR Protocol error: {error}").as_bytes());
                (input.len(), NextAction::Close)
            }
        }
    }

    /// Continues a command of which some pieces have been run.
    fn continued<'w>(
        &mut self,
        context: &CommandContext<'w>,
        guard: &EpochGuard<'w>,
        view: Option<&'w Arc<TenantView>>,
        suspended: SuspendedCommand,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, NextAction) {
        let SuspendedCommand { command, spec, long, identity, took_us } = suspended;
        // Another tenant may have that name by now.
        let view = view.filter(|_| self.state.identity == identity);
        let (start, begun) = (out.len(), Instant::now());
        let (left, took_us) = {
            let arguments = CommandArguments { command: &command, input };
            let args: ArrayVec<&[u8], STEP_ARGS> = command.args(input).take(STEP_ARGS).collect();
            let reply = RespWriter { out: &mut *out, resp3: self.state.resp3 };
            let mut call =
                CommandCall { context, guard, view, state: &mut self.state, locked: None, args: &args, reply };
            let left = long_commands::run_pieces(&mut call, long, &arguments);
            let took_us = took_us + begun.elapsed().as_micros() as u64;
            if let (PieceOutcome::Finished, Some(view)) = (&left, view) {
                log_slow(&mut call, took_us, view);
            }
            if matches!(left, PieceOutcome::Finished) {
                record_end(&mut call, spec, &arguments, (start, took_us));
            }
            (left, took_us)
        };
        match left {
            PieceOutcome::Suspended(long) => {
                if self.state.replies != ReplyMode::On {
                    out.truncate(start);
                }
                self.after_piece(context, SuspendedCommand { command, spec, long, identity, took_us }, out)
            }
            PieceOutcome::Finished => {
                // What it has waited for does not count against the next command.
                self.cold = ColdCommand::default();
                self.suppress_reply(start, out);
                (command.len, self.stop().unwrap_or(NextAction::Yield))
            }
        }
    }

    /// What comes after a piece of a command that goes on: the bytes of it if it has ended, and the next action.
    fn after_piece(
        &mut self,
        context: &CommandContext<'_>,
        suspended: SuspendedCommand,
        out: &mut Vec<u8>,
    ) -> (usize, NextAction) {
        self.cold.note_position(suspended.long.position());
        let next = match self.cold.settle(context.participant) {
            ColdOutcome::Answered => NextAction::Yield,
            ColdOutcome::Waits => NextAction::FetchCold,
            ColdOutcome::Refused(text) if !suspended.long.has_answered() => {
                self.refuse_cold((out.len(), &text), out);
                return (suspended.command.len, self.stop().unwrap_or(NextAction::Yield));
            }
            // A part of the answer may have left: a client that waits for the rest must learn that there is none.
            ColdOutcome::Refused(_) => NextAction::Close,
        };
        self.suspended = Some(Box::new(suspended));
        (0, next)
    }

    /// Answers a command whose cold records cannot be had.
    #[cold]
    fn refuse_cold(&mut self, (start, text): (usize, &str), out: &mut Vec<u8>) {
        out.truncate(start);
        // Within a transaction only EXEC is run, which ends it.
        let is_exec = self.state.multi.take().is_some();
        if is_exec {
            self.state.watched = WatchedKeys::default();
        }
        // A record that cannot be read keeps no client from those behind it.
        let behind = self.state.scan_wait.take().map(|wait| format!("; SCAN {} goes on behind it", wait.behind));
        let behind = behind.unwrap_or_default();
        let kind = if is_exec { "EXECABORT Transaction discarded because of:" } else { "ERR" };
        RespWriter { out: &mut *out, resp3: false }.error(format!("{kind} {text}{behind}").as_bytes());
        self.suppress_reply(start, out);
    }

    /// Removes an answer that the client does not want, after a command has ended.
    fn suppress_reply(&mut self, start: usize, out: &mut Vec<u8>) {
        self.state.reply_suppressed = self.state.replies != ReplyMode::On;
        match self.state.replies {
            ReplyMode::On => {}
            ReplyMode::Off => out.truncate(start),
            ReplyMode::SkipTwo | ReplyMode::SkipOne => {
                out.truncate(start);
                let skips = self.state.replies == ReplyMode::SkipTwo;
                self.state.replies = if skips { ReplyMode::SkipOne } else { ReplyMode::On };
            }
        }
    }

    /// Finds the commands of a batch. Returns the bytes that they take, and the next action after them.
    fn find(
        &mut self,
        context: &CommandContext<'_>,
        input: &[u8],
        unauthenticated: bool,
        batch: &mut ArrayVec<BatchCommand, BATCH>,
    ) -> (usize, Result<NextAction, sandstorm_net::resp::ProtocolError>) {
        let (mut at, mut args, mut empty) = (0, 0, 0);
        loop {
            // A command of an unauthenticated client may change what is allowed next. If there are many arguments, no
            // more are parsed than are run now.
            if batch.is_full() || unauthenticated && !batch.is_empty() || args >= BATCH_ARGS || empty >= BATCH_ARGS {
                context.work((empty / ARGS_PER_REQUEST) as u64);
                return (at, Ok(NextAction::Yield));
            }
            match self.parser.parse(&input[at..], unauthenticated) {
                RespParse::Command(command) if command.count() == 0 => {
                    empty += 1;
                    at += command.len;
                }
                RespParse::Command(command) => {
                    args += command.count();
                    let spec = command.args(&input[at..]).next().and_then(commands::find);
                    let len = command.len;
                    batch.push((at, command, spec));
                    at += len;
                }
                RespParse::Incomplete(needed) => return (at, Ok(NextAction::NeedMore(needed))),
                RespParse::Paused => {
                    context.work((RESP_ARGUMENTS_PER_CALL / ARGS_PER_REQUEST) as u64);
                    return (at, Ok(NextAction::Yield));
                }
                RespParse::Invalid(error) => return (at, Err(error)),
            }
        }
    }

    /// The action before the next command.
    fn stop(&mut self) -> Option<NextAction> {
        if let Some(invokes) = self.state.invokes.take() {
            let WantedCall { extension, version, args, key, with_cost } = *invokes;
            return Some(NextAction::Invoke { extension, version, args, key, with_cost });
        }
        if let Some(wanted) = self.state.makes.take() {
            self.state.making = Some(wanted.number);
            return Some(NextAction::MakeDatabase(wanted));
        }
        if self.state.close_after_reply {
            return Some(NextAction::Close);
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> Option<NextAction> {
        let identity = self.state.identity.filter(|_| !self.state.handed_over)?;
        self.state.handed_over = true;
        Some(NextAction::HandOver(identity.tenant()))
    }

    /// Runs one command, or the first piece of it.
    fn one<'w>(
        &mut self,
        context: &CommandContext<'w>,
        guard: &EpochGuard<'w>,
        view: Option<&'w Arc<TenantView>>,
        spec: Option<&'static RedisCommandSpec>,
        (command, input): (&RespCommand, &[u8]),
        out: &mut Vec<u8>,
    ) -> CommandOutcome<'w> {
        let (few, many): (ArrayVec<&[u8], 8>, Vec<&[u8]>);
        let count = command.count();
        let args = match count {
            0..=8 => {
                few = command.args(input).collect();
                &*few
            }
            _ => {
                let queued = spec.is_some_and(|spec| is_queued(&self.state, spec));
                let all = count <= long_commands::max_collected(spec, queued);
                many = command.args(input).take(if all { count } else { STEP_ARGS }).collect();
                &*many
            }
        };
        let (start, identity) = (out.len(), self.state.identity);
        // A transaction is named by the first of its commands that is about a key.
        if self.state.multi.is_some() && self.first.is_without_key() {
            self.first.begin();
        }
        self.first.note(|| subject_of(spec, args, &self.state));
        let reply = RespWriter { out, resp3: self.state.resp3 };
        let state = &mut self.state;
        let mut call = CommandCall { context, guard, view, state, locked: None, args, reply };
        let begun = spec.is_some_and(|spec| !spec.is_quick(count, command.len)).then(Instant::now);
        let left = dispatch(&mut call, spec, &CommandArguments { command, input });
        context.work((args.len() / ARGS_PER_REQUEST) as u64);
        let took_us = begun.map_or(0, |begun| begun.elapsed().as_micros() as u64);
        let mut view = call.view;
        if let PieceOutcome::Suspended(long) = left {
            if self.state.replies != ReplyMode::On {
                out.truncate(start);
            }
            return CommandOutcome { view, rest: Some((long, took_us)) };
        }
        if let (Some(_), Some(view)) = (begun, view) {
            log_slow(&mut call, took_us, view);
        }
        self.suppress_reply(start, out);
        if self.state.seen_generation != context.snapshot.generation() {
            view = self.state.refresh_identity(context.snapshot);
        }
        if self.state.identity != identity {
            // The answers of this batch count for the new tenant, which must not see keys of the one before.
            self.first = FirstCommand::none("redis");
        }
        CommandOutcome { view, rest: None }
    }

    /// See [`super::super::ProtocolSession::answered`].
    pub(crate) fn answered(&mut self, ended: &InvocationResult<'_>, out: &mut Vec<u8>) {
        let typed = self.state.typed_reply.take();
        if let Some(pending_slow_log) = self.state.pending_slow_log.take() {
            let (begun, (usage, command, metrics)) = *pending_slow_log;
            let took_us = begun.elapsed().as_micros() as u64;
            if took_us.saturating_mul(1000) >= metrics.slow.ns() {
                usage.slow.note(took_us, command, &self.state.more().name.clone());
            }
        }
        if let Some(number) = self.state.making.take() {
            connection::answer_select(&mut self.state, number, ended, out);
        } else if !self.state.reply_suppressed {
            functions::answer(ended, typed.as_deref(), &mut RespWriter { out, resp3: self.state.resp3 });
        }
    }
}

/// What a command is about: its first key, if it has any, and the selected table, if it reads or changes one.
#[inline]
fn subject_of(spec: Option<&'static RedisCommandSpec>, args: &[&[u8]], state: &RedisSessionState) -> RequestSubject {
    let Some(spec) = spec else { return RequestSubject::of("redis") };
    let has_table = spec.first != 0 || spec.is(commands::READONLY | commands::WRITE | commands::WHOLE_TABLE);
    let table = if has_table { state.table_id().unwrap_or(0) } else { 0 };
    let key = if spec.first == 0 { None } else { args.get(spec.first) };
    RequestSubject::new(spec.name, table, key.copied().unwrap_or_default())
}

/// Notes a command in the tenant's log if it took long.
fn log_slow(call: &mut CommandCall<'_, '_>, took_us: u64, view: &TenantView) {
    // The time of an invocation is known when it has ended.
    if call.context.facts.is_slow(took_us) && call.state.invokes.is_none() && !is_word(call.arg(0), "SLOWLOG") {
        let name = call.state.more().name.clone();
        view.tenant.usage.slow.note(took_us, CommandPreview::of(call.args), &name);
    }
}

/// The table that a batch's commands are about, if it can be looked into beforehand.
fn batch_table<'w>(view: Option<&'w Arc<TenantView>>, state: &RedisSessionState) -> Option<&'w RecordTable> {
    view?.reach(state.table_id()?, false).ok().map(|entry| &entry.table)
}

/// Notes what the further commands of a batch will meet that is not in memory: all of it is fetched together.
#[cold]
fn foresee(
    batch: impl Iterator<Item = BatchCommand>,
    input: &[u8],
    view: Option<&Arc<TenantView>>,
    state: &RedisSessionState,
    (guard, now_ms): (&EpochGuard<'_>, u64),
) {
    let Some(table) = batch_table(view, state) else { return };
    for (at, command, spec) in batch {
        // What a write needs of a cold record is read when it is its turn: often that is nothing.
        let needs = |spec: &RedisCommandSpec| match spec.is(commands::WRITE) {
            true => table.has_backing() && key_need(spec, command.count()) != KeyNeed::Nothing,
            false => true,
        };
        if spec.is_some_and(|spec| spec.first == 1 && needs(spec))
            && let Some(key) = command.args(&input[at..]).nth(1)
        {
            table.foresee(guard, crate::hash_key(table, key), key, now_ms);
        }
    }
}

/// Prefetches the buckets of a batch's first keys, then their records.
fn prefetch(
    batch: &[BatchCommand],
    input: &[u8],
    view: Option<&Arc<TenantView>>,
    state: &RedisSessionState,
    guard: &EpochGuard<'_>,
) {
    let Some(table) = batch_table(view, state) else { return };
    let mut hashes: ArrayVec<u64, BATCH> = ArrayVec::new();
    for (at, command, spec) in batch {
        if spec.is_some_and(|spec| spec.first == 1)
            && let Some(key) = command.args(&input[*at..]).nth(1)
        {
            let hash = crate::hash_key(table, key);
            table.prefetch_bucket(hash);
            hashes.push(hash);
        }
    }
    table.prefetch_records(guard, hashes.iter().copied());
}
