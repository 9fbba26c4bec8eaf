//! Runs a command: whether it is allowed, by which function, and whether now or at EXEC.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sandstorm_net::resp::RespWriter;

use super::arguments::CommandArguments;
use super::command_call::{CommandCall, no_auth_error};
use super::commands::{self, COMMANDS, RedisCommandSpec, command_rows};
use super::errors::{CommandError, CommandResult, NO_AUTH, OVER_RATE, unknown_command};
use super::long_commands::{self, LongCommand, PieceOutcome};
use super::stripe_locks::{StripeLockRequest, room_of};
use super::transactions::is_queued;
use super::{
    bits, cluster, connection, expiry, functions, info, introspect, keys, lcs, numbers, server, settings, strings,
    tracking, transactions, unsupported,
};
use crate::limits::redis::ATOMIC_BYTES;

/// What a command does: writes its answer, or returns its error.
type CommandHandler = fn(&mut CommandCall<'_, '_>) -> CommandResult;

macro_rules! handlers {
    ($($name:literal $arity:literal [$($flag:ident)*] $first:literal $last:literal $step:literal
       $group:literal $since:literal $family:ident::$run:ident $summary:literal;)*) => {
        &[$($family::$run),*]
    };
}

/// The handler of each command, in the order of [`COMMANDS`].
static HANDLERS: &[CommandHandler] = command_rows!(handlers);

/// What is called from here itself: EXEC runs other commands.
mod queued {
    use super::{CommandCall, CommandResult, run_command, transactions};

    pub(super) fn exec(call: &mut CommandCall<'_, '_>) -> CommandResult {
        transactions::exec(call, run_command)
    }
}

/// Runs a command that is allowed, and writes its error if it fails.
pub(super) fn run_command(call: &mut CommandCall<'_, '_>, spec: &RedisCommandSpec) {
    let start = call.reply.out.len();
    let number = spec.number();
    let counted = call.view.map(|view| view.tenant.usage.command(call.context.worker, number, COMMANDS.len()));
    let quick = call.is_quick(spec);
    let begun = counted.is_some_and(|counted| counted.begin(quick)).then(Instant::now);
    if let Err(CommandError(text)) = HANDLERS[number](call) {
        call.reply.out.truncate(start);
        call.reply.error(text.as_bytes());
        counted.inspect(|counted| counted.failed.add(u64::from(!call.has_cold())));
    }
    if let Some((begun, counted)) = begun.zip(counted) {
        counted.end(quick, begun.elapsed().as_nanos() as u64);
    }
    tracking::push_invalidation(call, spec);
    if let Some(registration) = &call.state.registration {
        registration.client.command.store(number as u32, Ordering::Relaxed);
    }
    call.context.bytes(call.reply.out.len() - start);
}

/// Answers a command: runs it, queues it for EXEC, or returns an error.
pub(super) fn dispatch(
    call: &mut CommandCall<'_, '_>,
    spec: Option<&'static RedisCommandSpec>,
    arguments: &CommandArguments<'_>,
) -> PieceOutcome {
    let refusal = match spec {
        None => {
            call.context.work(1);
            Some(unsupported::hint(call.args).unwrap_or_else(|| unknown_command(call.args)))
        }
        Some(spec) => commands::arity_error(spec, call.args).or_else(|| match call.view {
            // Its right to act has ended, and the connection ends with it.
            None if call.state.close_after_reply => Some(NO_AUTH.into()),
            _ if spec.is(commands::NO_AUTH) => check_size(call, spec, arguments),
            None => Some(no_auth_error(call)),
            Some(view) if !call.context.admit(view, 1) => Some(OVER_RATE.into()),
            Some(_) => check_size(call, spec, arguments).or_else(|| cluster::refusal(call, spec, arguments)),
        }),
    };
    if let (None, Some(spec)) = (&refusal, spec) {
        return queue_or_run(call, spec, arguments);
    }
    transactions::mark_aborted(call.state);
    if let (Some(spec), Some(view)) = (spec, call.view) {
        view.tenant.usage.command(call.context.worker, spec.number(), COMMANDS.len()).rejected.add(1);
    }
    if let Some(CommandError(mut text)) = refusal {
        if spec.is_some_and(|spec| spec.name == "exec") {
            text = transactions::abort_exec(call, &text).0;
        }
        call.reply.error(text.as_bytes());
    }
    PieceOutcome::Finished
}

/// The error of a command with more arguments, or more bytes, than are processed in one go.
#[inline]
fn check_size(
    call: &CommandCall<'_, '_>,
    spec: &RedisCommandSpec,
    arguments: &CommandArguments<'_>,
) -> Option<CommandError> {
    if arguments.len() == call.args.len() && arguments.command.len <= ATOMIC_BYTES {
        return None;
    }
    long_commands::size_error(spec, arguments, is_queued(call.state, spec))
}

fn queue_or_run(
    call: &mut CommandCall<'_, '_>,
    spec: &'static RedisCommandSpec,
    arguments: &CommandArguments<'_>,
) -> PieceOutcome {
    if is_queued(call.state, spec) {
        if let Err(CommandError(text)) = transactions::queue(call, spec) {
            call.reply.error(text.as_bytes());
        }
        return PieceOutcome::Finished;
    }
    let start = call.reply.out.len();
    match LongCommand::begin(call, spec, arguments) {
        Ok(None) if spec.is(commands::ATOMIC) => run_atomic(call, spec),
        Ok(None) => run_command(call, spec),
        Ok(Some(long)) => {
            let begun = Instant::now();
            let left = long_commands::run_pieces(call, long, arguments);
            if matches!(left, PieceOutcome::Finished) {
                record_end(call, spec, arguments, (start, begun.elapsed().as_micros() as u64));
            }
            return left;
        }
        Err(CommandError(text)) => {
            call.reply.error(text.as_bytes());
            record_end(call, spec, arguments, (start, 0));
        }
    }
    PieceOutcome::Finished
}

/// Notes for an ended command in pieces what [`run_command`] notes for others: the beginning of the last
/// piece's answer, and the time of all pieces.
pub(super) fn record_end(
    call: &mut CommandCall<'_, '_>,
    spec: &RedisCommandSpec,
    arguments: &CommandArguments<'_>,
    (start, took_us): (usize, u64),
) {
    let failed = call.reply.out.get(start) == Some(&b'-');
    if let Some(view) = call.view {
        let counted = view.tenant.usage.command(call.context.worker, spec.number(), COMMANDS.len());
        counted.begin(false);
        counted.end(false, took_us.saturating_mul(1_000));
        counted.failed.add(failed.into());
    }
    tracking::push_invalidation_of_all(call, spec, arguments);
    if let Some(registration) = &call.state.registration {
        registration.client.command.store(spec.number() as u32, Ordering::Relaxed);
    }
}

/// Runs a command while no other thread writes its keys.
fn run_atomic(call: &mut CommandCall<'_, '_>, spec: &'static RedisCommandSpec) {
    let mut request = StripeLockRequest::default();
    if let Err(CommandError(text)) = transactions::collect_locks(call, spec, &mut request) {
        return call.reply.error(text.as_bytes());
    }
    let room = if spec.is(commands::WRITE) { room_of(call.args) } else { 0 };
    request.make_room(call.context.participant, room);
    let mut locked = request.lock(call.context.participant);
    if let Some(CommandError(text)) = cluster::moved_meanwhile(call, &locked) {
        return call.reply.error(text.as_bytes());
    }
    if locked.meet_missing(call.guard, call.now_ms()) {
        // The session runs it again once they are in memory.
        return;
    }
    let begun = call.reply.out.len();
    let reply = RespWriter { out: &mut *call.reply.out, resp3: call.reply.resp3 };
    let (context, guard, view, args) = (call.context, call.guard, call.view, call.args);
    let state = &mut *call.state;
    let mut inner = CommandCall { context, guard, view, state, locked: Some(&mut locked), args, reply };
    run_command(&mut inner, spec);
    inner.refuse_if_cold(begun);
}
