//! CLIENT TRACKING. Client libraries with a cache of their own begin with it; if it is refused, some fail to start or
//! retry for ever. The server remembers no key: its tracking table has no size, so each entry is evicted at once. Every
//! key that a tracked connection has read is invalidated right behind the answer. That is legal and correct: clients
//! cache nothing, so nothing stale.

use sandstorm_net::resp::RespWriter;

use super::arguments::{CommandArguments, is_word};
use super::command_call::CommandCall;
use super::commands::{self, RedisCommandSpec};
use super::errors::{CommandError, CommandResult, SYNTAX};
use super::session_state::{TrackingOptions, TrackingState};

fn parse_options(call: &CommandCall<'_, '_>) -> Result<TrackingOptions, CommandError> {
    let (mut options, mut at) = (TrackingOptions::default(), 3);
    while at < call.args.len() {
        let word = call.arg(at);
        match () {
            () if is_word(word, "BCAST") => options.broadcast = true,
            () if is_word(word, "OPTIN") => options.opt_in = true,
            () if is_word(word, "OPTOUT") => options.opt_out = true,
            () if is_word(word, "NOLOOP") => options.no_loop = true,
            () if is_word(word, "PREFIX") && at + 1 < call.args.len() => {
                options.has_prefixes = true;
                at += 1;
            }
            () if is_word(word, "REDIRECT") && at + 1 < call.args.len() => {
                return Err(
                    "ERR no redirection here, there is no publish and subscribe: track by RESP3 (HELLO 3)".into()
                );
            }
            () => return Err(SYNTAX.into()),
        }
        at += 1;
    }
    if options.has_prefixes && !options.broadcast {
        return Err("ERR PREFIX option requires BCAST mode to be enabled".into());
    }
    if options.broadcast && (options.opt_in || options.opt_out) {
        return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".into());
    }
    if options.opt_in && options.opt_out {
        return Err("ERR You can't use both OPTIN and OPTOUT".into());
    }
    Ok(options)
}

pub(super) fn tracking(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let options = match () {
        () if is_word(call.arg(2), "ON") => Some(parse_options(call)?),
        () if is_word(call.arg(2), "OFF") => None,
        () => return Err(SYNTAX.into()),
    };
    if options.is_some() && !call.reply.resp3 {
        return Err("ERR tracking needs RESP3's pushes: send HELLO 3 first, or turn client-side caching off".into());
    }
    call.state.tracked = TrackingState { options, keys: Vec::new() };
    call.reply.ok();
    Ok(())
}

pub(super) fn caching(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let options = call.state.tracked.options.unwrap_or_default();
    if !options.opt_in && !options.opt_out {
        return Err("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled".into());
    }
    match () {
        () if is_word(call.arg(2), "YES") && options.opt_in || is_word(call.arg(2), "NO") && options.opt_out => {
            call.reply.ok()
        }
        () if is_word(call.arg(2), "YES") => {
            return Err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.".into());
        }
        () if is_word(call.arg(2), "NO") => {
            return Err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.".into());
        }
        () => return Err(SYNTAX.into()),
    }
    Ok(())
}

pub(super) fn info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let options = call.state.tracked.options;
    let (on, options) = (options.is_some(), options.unwrap_or_default());
    let flags = [
        (!on, "off"),
        (on, "on"),
        (options.broadcast, "bcast"),
        (options.opt_in, "optin"),
        (options.opt_out, "optout"),
        (options.no_loop, "noloop"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).collect();
    let reply = &mut call.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|(_, flag)| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(if on { 0 } else { -1 });
    reply.bulk(b"prefixes");
    reply.array(0);
    Ok(())
}

/// Sends a tracked connection, behind an answer, the invalidation of the keys that it has read.
pub(super) fn push_invalidation(call: &mut CommandCall<'_, '_>, spec: &RedisCommandSpec) {
    if call.state.tracked.options.is_none() {
        return;
    }
    if call.state.in_exec {
        if spec.is(commands::READONLY) {
            call.state.tracked.keys.extend(spec.keys(call.args).map(Box::from));
        }
        return;
    }
    let ran = std::mem::take(&mut call.state.tracked.keys);
    if spec.name == "exec" {
        write_invalidation(&mut call.reply, ran.iter().map(|key| &**key), ran.len());
    } else if spec.is(commands::READONLY) {
        write_invalidation(&mut call.reply, spec.keys(call.args), spec.keys(call.args).count());
    }
}

/// The same behind the answer of a command in pieces: all its arguments are keys.
pub(super) fn push_invalidation_of_all(
    call: &mut CommandCall<'_, '_>,
    spec: &RedisCommandSpec,
    arguments: &CommandArguments<'_>,
) {
    let names_keys = spec.first == 1 && spec.last == -1 && spec.is(commands::READONLY);
    if call.state.tracked.options.is_some() && names_keys {
        write_invalidation(&mut call.reply, arguments.after_name(), arguments.len() - 1);
    }
}

fn write_invalidation<'k>(reply: &mut RespWriter<'_>, keys: impl Iterator<Item = &'k [u8]>, count: usize) {
    if count > 0 && reply.resp3 {
        reply.push(2);
        reply.bulk(b"invalidate");
        reply.array(count);
        keys.for_each(|key| reply.bulk(key));
    }
}
