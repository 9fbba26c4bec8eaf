//! Calling a tenant's extensions: `FCALL name numkeys key... arg...` (`name@7`: a kept version of it), and
//! `FCALL_COST`, whose answer tells what the call cost besides.

use std::sync::Arc;
use std::time::Instant;

use sandstorm_api::redis::encode;
use sandstorm_net::resp::RespWriter;
use sandstorm_net::rpc::{CallCost, KillCause, RpcStatus, failure_name};

use super::arguments::{is_word, lossy_text, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandError, CommandResult};
use super::glob::GlobPattern;
use super::session_state::{TypedReply, WantedCall};
use super::typed_calls::{self, CalledName};
use crate::InvocationResult;
use crate::limits::redis::PATTERN_STEPS_PER_REQUEST;
use sandstorm_accounts::CommandPreview;
use sandstorm_catalog::VersionRefusal;
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::cause_name;

const PUSH_REQUIRED: &str = "ERR extensions are pushed and unloaded over the control port: `sandstorm ext push DIR`";

pub(super) fn fcall(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let keys = key_count(call, call.args.len())?;
    let (keys, args) = call.rest(3).split_at(keys);
    let (extension, function) = named(call)?;
    let Some(schema) = extension.library.schema().cloned() else {
        return match function {
            None => invoke(call, encode(keys, args)),
            Some(_) => Err(typed_calls::no_function(&extension.name, "it has no typed functions")),
        };
    };
    let function = schema.find_function(function);
    let function = function.map_err(|error| typed_calls::no_function(&extension.name, &error.to_string()))?;
    let (encoded, reply) = (typed_calls::arguments(call, &schema, function, args)?, function.reply.clone());
    let key = keys.first().map(|key| key.to_vec());
    invoke(call, encoded)?;
    if let Some(invokes) = &mut call.state.invokes {
        invokes.key = key;
    }
    call.state.typed_reply = Some(Box::new((schema, reply)));
    Ok(())
}

/// The extension that a call names, and the function in it.
fn named<'w, 'a>(call: &CommandCall<'a, 'w>) -> Result<(&'w LoadedExtension, Option<&'a str>), CommandError> {
    let name = std::str::from_utf8(call.arg(1)).map_err(|_| "ERR Function not found")?;
    let CalledName { extension, function, version } = typed_calls::split_name(name);
    let view = call.view()?;
    let newest = view.extension(extension).ok_or("ERR Function not found")?;
    let called = match version {
        0 => newest,
        version => view.callable_version(extension, version).map_err(|refusal| not_called(version, refusal))?,
    };
    Ok((called, function))
}

/// The error for a version that is not called.
fn not_called(version: u64, refusal: VersionRefusal<'_>) -> CommandError {
    match refusal {
        VersionRefusal::Rule(why) => format!("SUSPENDED {why}").into(),
        VersionRefusal::NotLoaded => {
            format!("ERR Version not found: {version} is not kept; `sandstorm ext versions` shows those that are")
                .into()
        }
        VersionRefusal::OtherTier => format!(
            "ERR Version not found: {version} was built for another tier; `sandstorm ext rollback` builds it again"
        )
        .into(),
    }
}

/// The number of keys of a call with `count` arguments.
fn key_count(call: &CommandCall<'_, '_>, count: usize) -> Result<usize, CommandError> {
    let view = call.view()?;
    if let Some(refusal) = view.tenant.code.refusal() {
        return Err(format!("SUSPENDED {}", refusal.text).into());
    }
    named(call)?;
    let keys = parse_integer(call.arg(2)).ok_or("ERR Bad number of keys provided")?;
    if keys > count as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative".into())
}

/// Begins the output of [`encode`] for `count` arguments, with capacity for a command of `bytes`.
pub(super) fn begin_encoding(call: &CommandCall<'_, '_>, count: usize, bytes: usize) -> Result<Vec<u8>, CommandError> {
    let keys = key_count(call, count)?;
    if named(call)?.0.library.schema().is_some() {
        return Err("ERR a typed function takes one argument, its JSON, and a few keys".into());
    }
    // An encoded length takes no more here than in the command.
    let mut out = Vec::with_capacity(bytes + 8);
    for count in [keys, count - 3] {
        out.extend_from_slice(&(count as u32).to_le_bytes());
    }
    Ok(out)
}

/// Requests a call of the extension that the command names.
pub(super) fn invoke(call: &mut CommandCall<'_, '_>, args: Vec<u8>) -> CommandResult {
    let metrics = Arc::clone(&call.context.facts.metrics);
    let log = (Arc::clone(&call.view()?.tenant.usage), CommandPreview::of(call.args), metrics);
    call.state.pending_slow_log = Some(Box::new((Instant::now(), log)));
    let name = std::str::from_utf8(call.arg(1)).map_err(|_| "ERR Function not found")?;
    let CalledName { extension, version, .. } = typed_calls::split_name(name);
    let extension = extension.as_bytes().to_vec();
    let with_cost = is_word(call.arg(0), "FCALL_COST");
    call.state.invokes = Some(Box::new(WantedCall { extension, version, args, key: None, with_cost }));
    Ok(())
}

/// Writes the result of an invocation.
pub(super) fn answer(ended: &InvocationResult<'_>, typed: Option<&TypedReply>, reply: &mut RespWriter<'_>) {
    if let Some(cost) = &ended.cost {
        reply.array(2);
        answer_cost(cost, reply);
    }
    let word = match ended.status {
        RpcStatus::Ok => {
            return match typed {
                Some(typed) => typed_calls::answer(typed, ended.value, reply),
                None => reply.bulk(ended.value),
            };
        }
        RpcStatus::UnknownExtension => return reply.error(b"ERR Function not found"),
        RpcStatus::Failed => "FAILED",
        RpcStatus::Conflict => "CONFLICT",
        RpcStatus::Killed => "KILLED",
        RpcStatus::Suspended => "SUSPENDED",
        RpcStatus::OverQuota => "OVERQUOTA",
        RpcStatus::Overloaded => "BUSY",
        RpcStatus::OutOfMemory => "OOM",
        RpcStatus::TooLarge => "TOOLARGE",
        _ => "ERR",
    };
    let cause = || u8::try_from(ended.number).ok().and_then(KillCause::from_byte).map_or("unknown", cause_name);
    let what = match ended.status {
        RpcStatus::Failed => format!(" ({})", failure_name(ended.number).unwrap_or("other")),
        RpcStatus::Killed => format!(" ({})", cause()),
        RpcStatus::Overloaded => " the server has no room for the call now; it was not run".to_owned(),
        _ => String::new(),
    };
    let why = lossy_text(ended.value);
    let why = if why.is_empty() { format!("{:?}", ended.status) } else { why };
    reply.error(format!("{word}{what} {why}").as_bytes());
}

/// Writes what a call cost.
fn answer_cost(cost: &CallCost, reply: &mut RespWriter<'_>) {
    let CallCost { cpu_ns, wall_ns, first_turn_ns, turns, switches, reads, read_bytes, commit_tries } = *cost;
    let fields = [
        ("cpu_ns", cpu_ns),
        ("wall_ns", wall_ns),
        ("first_turn_ns", first_turn_ns),
        ("turns", turns.into()),
        ("switches", switches.into()),
        ("reads", reads),
        ("read_bytes", read_bytes),
        ("commit_tries", commit_tries),
    ];
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// Checks the mode of FUNCTION and SCRIPT FLUSH.
pub(super) fn check_flush_mode(call: &CommandCall<'_, '_>, otherwise: &'static str) -> CommandResult {
    match call.rest(2) {
        [] => Ok(()),
        [options] if is_word(options, "ASYNC") || is_word(options, "SYNC") => Ok(()),
        _ => Err(otherwise.into()),
    }
}

/// Runs the subcommands that would change extensions. Those without an effect succeed: test suites of other projects
/// begin with them.
fn run_library_command(call: &mut CommandCall<'_, '_>, word: &[u8]) -> Option<CommandResult> {
    let view = match call.view() {
        Ok(view) => view,
        Err(error) => return Some(Err(error)),
    };
    let known = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| view.extension(name).is_some());
    Some(match word.to_ascii_uppercase().as_slice() {
        b"FLUSH" => check_flush_mode(call, "ERR FUNCTION FLUSH only supports SYNC|ASYNC option").and_then(|()| {
            match view.extensions.is_empty() {
                true => {
                    call.reply.ok();
                    Ok(())
                }
                false => Err(PUSH_REQUIRED.into()),
            }
        }),
        b"DELETE" if !known(call.arg(2)) => Err("ERR Library not found".into()),
        b"KILL" => Err("NOTBUSY No scripts in execution right now.".into()),
        b"LOAD" | b"DELETE" | b"RESTORE" | b"DUMP" => Err(PUSH_REQUIRED.into()),
        _ => return None,
    })
}

pub(super) fn function(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let word = call.arg(1);
    if let Some(answer) = run_library_command(call, word) {
        return answer;
    }
    if is_word(word, "STATS") {
        call.reply.map(2);
        call.reply.bulk(b"running_script");
        call.reply.null();
        call.reply.bulk(b"engines");
        call.reply.map(1);
        call.reply.bulk(b"RUST");
        call.reply.map(2);
        let extensions = call.view()?.sorted_extensions();
        let functions = extensions.iter().map(|one| one.library.schema().map_or(1, |schema| schema.functions.len()));
        let functions: usize = functions.sum();
        for (name, count) in [("libraries_count", extensions.len()), ("functions_count", functions)] {
            call.reply.bulk(name.as_bytes());
            call.reply.integer(count as i64);
        }
        return Ok(());
    }
    if is_word(word, "HELP") {
        return super::server::help(
            call,
            &["FUNCTION <subcommand> [<arg> ...]. Subcommands are:", "FLUSH, LIST, STATS."],
        );
    }
    if !is_word(word, "LIST") {
        return Err(super::errors::unknown_subcommand(word, "FUNCTION"));
    }
    let (mut pattern, mut at) = (&b"*"[..], 2);
    while at < call.args.len() {
        if is_word(call.arg(at), "LIBRARYNAME") {
            at += 1;
            pattern = call.args.get(at).ok_or("ERR library name argument was not given")?;
        } else if !is_word(call.arg(at), "WITHCODE") {
            return Err(format!("ERR Unknown argument {}", lossy_text(call.arg(at))).into());
        }
        at += 1;
    }
    let extensions = call.view()?.sorted_extensions();
    let mut pattern = GlobPattern::new(pattern);
    let shown: Vec<_> = extensions.iter().filter(|one| pattern.matches(one.name.as_bytes())).collect();
    call.context.work(pattern.steps() / PATTERN_STEPS_PER_REQUEST);
    let reply = &mut call.reply;
    reply.array(shown.len());
    for extension in shown {
        let json = extension.library.schema_json();
        call.context.bytes(json.map_or(0, str::len));
        reply.map(3 + usize::from(json.is_some()));
        reply.bulk(b"library_name");
        reply.bulk(extension.name.as_bytes());
        reply.bulk(b"engine");
        reply.bulk(b"RUST");
        reply.bulk(b"functions");
        let schema = extension.library.schema();
        typed_calls::list(&extension.name, extension.version, schema.map(|schema| &**schema), reply);
        if let Some(json) = json {
            reply.bulk(b"schema");
            reply.bulk(json.as_bytes());
        }
    }
    Ok(())
}
