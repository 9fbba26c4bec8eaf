//! MULTI and EXEC: commands that are queued, and then run while no other thread writes their keys.

use super::backed_changes::admit_queued;
use super::cluster;
use super::command_call::{CommandCall, reach_table};
use super::commands::{self, RedisCommandSpec};
use super::errors::{ANSWER_TOO_LONG, CommandError, CommandResult};
use super::keys::copy_destination;
use super::session_state::RedisSessionState;
use super::stripe_locks::{KeyNeed, StripeLockRequest, StripeLocks, room_of};
use super::transaction_state::{QueuedCommand, WatchedKey, WatchedKeys};
use crate::limits::redis::{ATOMIC_BYTES, ATOMIC_KEYS, TRANSACTION_WORK, WATCHED_BYTES, WATCHED_KEYS};
use sandstorm_catalog::TenantView;
use sandstorm_store::{StoreError, WatchedState};

pub(super) fn multi(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if call.state.multi.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    call.state.multi = Some(Box::default());
    call.reply.ok();
    Ok(())
}

pub(super) fn discard(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if call.state.multi.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    call.state.watched = WatchedKeys::default();
    call.reply.ok();
    Ok(())
}

pub(super) fn watch(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if call.state.multi.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let entry = call.table(false)?;
    let id = call.state.table_id().unwrap_or_default();
    let before = (call.state.watched.keys.len(), call.state.watched.bytes);
    for key in call.rest(1) {
        let watched = &call.state.watched;
        if watched.keys.len() >= WATCHED_KEYS || watched.bytes + key.len() > WATCHED_BYTES {
            return Err(format!(
                "ERR no more than {WATCHED_KEYS} keys, of {WATCHED_BYTES} bytes together, may be watched"
            )
            .into());
        }
        let seen = match call.head_in(&entry.table, key) {
            Some(head) => WatchedState::Version(head.version),
            // It has to be loaded: the command runs again, and the further keys are looked up to be loaded with it.
            None if call.has_cold() => continue,
            None => entry.table.watch(call.context.participant, crate::hash_key(&entry.table, key), key, call.now_ms()),
        };
        let watched = &mut call.state.watched;
        watched.bytes += key.len();
        watched.keys.push(WatchedKey { table: id, key: (*key).into(), seen });
    }
    if call.has_cold() {
        call.state.watched.keys.truncate(before.0);
        call.state.watched.bytes = before.1;
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn unwatch(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.state.watched = WatchedKeys::default();
    call.reply.ok();
    Ok(())
}

/// Queues a command for EXEC.
pub(super) fn queue(call: &mut CommandCall<'_, '_>, spec: &'static RedisCommandSpec) -> CommandResult {
    let Some(multi) = &mut call.state.multi else { return Ok(()) };
    if spec.is(commands::NO_MULTI) {
        multi.broken = true;
        return Err("ERR Command not allowed inside a transaction".into());
    }
    // The work of one go is limited when it is queued, so that it is refused as a whole.
    let bytes = call.args.iter().map(|arg| arg.len()).sum::<usize>();
    let keys = multi.keys + spec.keys(call.args).count().max(1);
    if keys > ATOMIC_KEYS || multi.bytes + bytes > ATOMIC_BYTES {
        multi.broken = true;
        multi.queued = Vec::new();
        return Err(format!(
            "ERR a transaction happens at once: no more than {ATOMIC_KEYS} commands and keys, of {ATOMIC_BYTES} bytes; send \
             several, or a pipeline without MULTI"
        )
        .into());
    }
    let queued = QueuedCommand::new(spec, call.args);
    (multi.keys, multi.bytes) = (keys, multi.bytes + queued.size());
    if !multi.broken {
        multi.queued.push(queued);
    }
    call.reply.simple("QUEUED");
    Ok(())
}

/// Collects the keys of a command, in the table that is selected when it runs.
pub(super) fn collect_locks<'w>(
    call: &CommandCall<'_, 'w>,
    spec: &RedisCommandSpec,
    request: &mut StripeLockRequest<'w>,
) -> CommandResult {
    if spec.is(commands::ALL_TABLES) {
        call.view()?.tables.values().for_each(|entry| request.all(&entry.table));
    }
    if spec.first == 0 && !spec.is(commands::WHOLE_TABLE) {
        return Ok(());
    }
    let table = &call.table(false)?.table;
    if spec.is(commands::WHOLE_TABLE) {
        request.all(table);
    }
    let need = key_need(spec, call.args.len());
    spec.keys(call.args).for_each(|key| request.key(table, key, need));
    if spec.name == "copy" {
        let view: &'w TenantView = call.view()?;
        request.key(&reach_table(view, copy_destination(call)?, true)?.table, call.arg(2), KeyNeed::Head);
    }
    Ok(())
}

/// What a command with so many arguments has to know of its keys.
pub(super) fn key_need(spec: &RedisCommandSpec, args: usize) -> KeyNeed {
    match spec.name {
        "mset" | "setex" | "psetex" => KeyNeed::Nothing,
        "set" if args == 3 => KeyNeed::Nothing,
        "msetnx" | "del" | "unlink" | "exists" | "touch" | "type" | "setnx" => KeyNeed::Head,
        _ => KeyNeed::Value,
    }
}

/// The stripes for all commands of a transaction, and for the watched keys; follows each `SELECT`.
fn transaction_locks<'w>(call: &mut CommandCall<'_, 'w>, queued: &[QueuedCommand]) -> StripeLockRequest<'w> {
    let mut request = StripeLockRequest::default();
    if let Some(view) = call.view {
        for watch in &call.state.watched.keys {
            if let Ok(entry) = reach_table(view, watch.table, false) {
                // Versions are compared: nothing is fetched for that.
                request.key(&entry.table, &watch.key, KeyNeed::Nothing);
            }
        }
    }
    call.for_each_queued(queued, |call, one, args| {
        // An error here is repeated when the command runs, and answered then.
        let _ = call.with_args(args, |call| collect_locks(call, one.spec, &mut request));
    });
    request
}

/// Whether the watched keys have not changed: neither a write, nor a deletion, nor both one after the other.
fn watches_unchanged<'w>(call: &CommandCall<'_, 'w>, locked: &mut StripeLocks<'w>, watched: &WatchedKeys) -> bool {
    watched.keys.iter().all(|watch| {
        let entry = call.view.and_then(|view| reach_table(view, watch.table, false).ok());
        entry.is_some_and(|entry| {
            let hash = crate::hash_key(&entry.table, &watch.key);
            // The watched keys are among the locked ones.
            locked
                .of(&entry.table)
                .is_some_and(|locked| locked.is_unchanged(hash, &watch.key, &watch.seen, call.now_ms()))
        })
    })
}

/// EXEC: runs each queued command by `run`.
pub(super) fn exec(
    call: &mut CommandCall<'_, '_>,
    run: impl Fn(&mut CommandCall<'_, '_>, &'static RedisCommandSpec),
) -> CommandResult {
    let Some(multi) = call.state.multi.take() else { return Err("ERR EXEC without MULTI".into()) };
    if multi.broken {
        call.state.watched = WatchedKeys::default();
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    // All keys count against the tenant's rate now, so that it refuses all of it or nothing. The first of each command
    // was counted when it was queued. The work is counted as it is done, below.
    let further = |one: &QueuedCommand| one.spec.keys(&one.args()).count().saturating_sub(1);
    if let Err(CommandError(why)) = call.admit_rate(multi.queued.iter().map(further).sum()) {
        call.state.watched = WatchedKeys::default();
        return Err(format!("EXECABORT Transaction discarded because of: {why}").into());
    }
    let request = transaction_locks(call, &multi.queued);
    let writes = multi.queued.iter().filter(|one| one.spec.is(commands::WRITE));
    let room = writes.map(|one| room_of(&one.args())).sum();
    request.make_room(call.context.participant, room);
    let mut locked = request.lock(call.context.participant);
    if locked.meet_missing(call.guard, call.now_ms()) {
        // The session runs EXEC again once they are in memory.
        call.state.multi = Some(multi);
        return Ok(());
    }
    let watched = std::mem::take(&mut call.state.watched);
    cluster::moved_meanwhile(call, &locked).map_or(Ok(()), Err)?;
    if !watches_unchanged(call, &mut locked, &watched) {
        call.reply.null_array();
        return Ok(());
    }
    admit_changes(call, &mut locked, &multi.queued)?;
    let start = call.reply.out.len();
    call.reply.array(multi.queued.len());
    let mut too_long = false;
    let worked = call.context.requests.get();
    for one in &multi.queued {
        let args = one.args();
        if call.context.requests.get().saturating_sub(worked) > TRANSACTION_WORK {
            call.reply.error(TOO_MUCH_WORK.as_bytes());
            continue;
        }
        let reply = sandstorm_net::resp::RespWriter { out: &mut *call.reply.out, resp3: call.reply.resp3 };
        let mut inner = CommandCall {
            context: call.context,
            guard: call.guard,
            view: call.view,
            state: &mut *call.state,
            locked: Some(&mut locked),
            args: &args,
            reply,
        };
        inner.state.in_exec = true;
        inner.context.work(1);
        let begun = inner.reply.out.len();
        run(&mut inner, one.spec);
        inner.state.in_exec = false;
        inner.refuse_if_cold(begun);
        let resp3 = inner.reply.resp3;
        call.reply.resp3 = resp3;
        too_long |= call.reply.out.len() - start > ATOMIC_BYTES;
        if too_long {
            // The commands that ran are not undone; their answers are dropped.
            call.reply.out.truncate(start);
        }
    }
    if too_long { Err(ANSWER_TOO_LONG.into()) } else { Ok(()) }
}

/// Has the log and the backings admit what the commands say, or refuses all of them.
fn admit_changes<'w>(
    call: &mut CommandCall<'_, 'w>,
    locked: &mut StripeLocks<'w>,
    queued: &[QueuedCommand],
) -> Result<(), CommandError> {
    let admitted = reserve_log(locked, queued).and_then(|()| admit_queued(call, locked, queued));
    admitted.map_err(|why| format!("EXECABORT Transaction discarded because of: {why}").into())
}

/// Reserves room in the log for what the commands say. What they make of longer old values may still be refused, one
/// by one.
fn reserve_log(locked: &StripeLocks<'_>, queued: &[QueuedCommand]) -> Result<(), StoreError> {
    let (mut changes, mut bytes) = (0, 0);
    for one in queued.iter().filter(|one| one.spec.is(commands::WRITE)) {
        let args = one.args();
        changes += one.spec.keys(&args).count();
        bytes += args.iter().map(|word| word.len()).sum::<usize>();
    }
    // A number that is counted up may be longer than what the command says.
    if changes > 0 { locked.reserve_log(changes, bytes + changes * 24) } else { Ok(()) }
}

const TOO_MUCH_WORK: &str = "ERR the transaction takes too long: this command was not run, those before it were";

/// Ends the transaction when EXEC itself is refused.
pub(super) fn abort_exec(call: &mut CommandCall<'_, '_>, why: &str) -> CommandError {
    call.state.multi = None;
    call.state.watched = WatchedKeys::default();
    format!("EXECABORT Transaction discarded because of: {}", why.strip_prefix("ERR ").unwrap_or(why)).into()
}

/// Whether a command that came after MULTI is queued, not run.
pub(super) fn is_queued(state: &RedisSessionState, spec: &RedisCommandSpec) -> bool {
    state.multi.is_some() && !matches!(spec.name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

/// Marks the transaction of a command that cannot be run.
pub(super) fn mark_aborted(state: &mut RedisSessionState) {
    if let Some(multi) = &mut state.multi {
        multi.broken = true;
    }
}
