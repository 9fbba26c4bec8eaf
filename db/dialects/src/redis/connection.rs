//! Commands about the connection itself: its identity, its table, its name.

use sandstorm_net::resp::RespWriter;
use sandstorm_net::rpc::RpcStatus;

use super::arguments::{is_word, lossy_text, parse_integer};
use super::command_call::{CommandCall, no_auth_error};
use super::errors::{CommandError, CommandResult, NOT_AN_INTEGER, SYNTAX, unknown_subcommand};
use super::session_state::{RedisSessionState, ReplyMode};
use super::{clients, tracking};
use crate::limits::protocols::AUTH_FAILURES;
use crate::limits::redis::DATABASES;
use crate::{ConnectionIdentity, InvocationResult, WantedDatabase};

pub(super) fn ping(call: &mut CommandCall<'_, '_>) -> CommandResult {
    match call.args {
        [_] => call.reply.simple("PONG"),
        [_, message] => call.reply.bulk(message),
        _ => return Err("ERR wrong number of arguments for 'ping' command".into()),
    }
    Ok(())
}

pub(super) fn echo(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.reply.bulk(call.arg(1));
    Ok(())
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Authenticates the connection. Without a name, or as `default`, the token alone identifies the tenant.
fn authenticate(call: &mut CommandCall<'_, '_>, user: Option<&[u8]>, token: &[u8]) -> CommandResult {
    let snapshot = &**call.context.snapshot;
    let named = user.filter(|user| *user != b"default" || snapshot.by_name("default").is_some());
    let identity = match (named, &call.state.service.tenant) {
        (Some(name), port) => {
            let name = std::str::from_utf8(name).unwrap_or_default();
            let here = port.as_ref().is_none_or(|port| port == name);
            ConnectionIdentity::from_token(snapshot, name, token).filter(|_| here)
        }
        (None, Some(port)) => ConnectionIdentity::from_token(snapshot, port, token),
        (None, None) => {
            snapshot.by_token(token).and_then(|view| ConnectionIdentity::from_token(snapshot, &view.tenant.name, token))
        }
    };
    let Some(identity) = identity else {
        // A client that guesses tokens has few tries before it needs a new connection, and the number of those is
        // limited.
        let failures = &mut call.state.more().failures;
        *failures += 1;
        call.state.close_after_reply |= *failures >= AUTH_FAILURES;
        return Err(WRONG_PASSWORD.into());
    };
    match &mut call.state.identity {
        // The same tenant with another token: the selected table and the watched keys stay.
        Some(before) if before.tenant() == identity.tenant() => *before = identity,
        _ => call.state.begin(identity),
    }
    call.view = identity.view(snapshot_of(call));
    Ok(())
}

fn snapshot_of<'w>(call: &CommandCall<'_, 'w>) -> &'w sandstorm_catalog::DirectorySnapshot {
    call.context.snapshot
}

pub(super) fn auth(call: &mut CommandCall<'_, '_>) -> CommandResult {
    match *call.args {
        [_, token] => authenticate(call, None, token)?,
        [_, user, token] => authenticate(call, Some(user), token)?,
        _ => return Err(SYNTAX.into()),
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn hello(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut version, mut at) = (None, 2);
    if call.args.len() > 1 {
        let number = parse_integer(call.arg(1)).ok_or("ERR Protocol version is not an integer or out of range")?;
        if !(2..=3).contains(&number) {
            return Err("NOPROTO unsupported protocol version".into());
        }
        version = Some(number);
    }
    let (mut shown, mut name) = (None, None);
    while at < call.args.len() {
        let (word, left) = (call.arg(at), call.args.len() - at - 1);
        if is_word(word, "AUTH") && left >= 2 {
            shown = Some((call.arg(at + 1), call.arg(at + 2)));
            at += 3;
        } else if is_word(word, "SETNAME") && left >= 1 {
            name = Some(check_name(call.arg(at + 1))?);
            at += 2;
        } else {
            return Err(format!("ERR Syntax error in HELLO option '{}'", lossy_text(word)).into());
        }
    }
    if let Some((user, token)) = shown {
        authenticate(call, Some(user), token)?;
    }
    if call.view.is_none() && call.state.service.missing_tenant(call.context.snapshot).is_some() {
        return Err(no_auth_error(call));
    }
    if call.view.is_none() {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                    <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                    the same time"
            .into());
    }
    if let Some(name) = name {
        call.state.more().name = name.into();
        call.state.needs_publish = true;
    }
    if let Some(version) = version {
        call.state.resp3 = version == 3;
    }
    call.reply.resp3 = call.state.resp3;
    let id = call.state.id() as i64;
    let reply = &mut call.reply;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", super::server::REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (key, value) in [("proto", if reply.resp3 { 3 } else { 2 }), ("id", id)] {
        reply.bulk(key.as_bytes());
        reply.integer(value);
    }
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

pub(super) fn select(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let view = call.view()?;
    let number = parse_integer(call.arg(1));
    match call.state.selected(view, call.arg(1)) {
        Ok(table) => call.state.table = Some(table),
        Err(error) => {
            // A transaction does not wait, so what it selects has to be there.
            let number = number.and_then(|number| u64::try_from(number).ok()).filter(|_| !call.state.in_exec);
            let number = number.filter(|number| (1..DATABASES).contains(number)).ok_or(error)?;
            call.state.makes = Some(WantedDatabase { number, like: call.state.default_table });
            return Ok(());
        }
    }
    call.state.database = number.unwrap_or(-1);
    call.reply.ok();
    Ok(())
}

/// Answers a SELECT whose table was to be made.
pub(super) fn answer_select(
    state: &mut RedisSessionState,
    number: u64,
    ended: &InvocationResult<'_>,
    out: &mut Vec<u8>,
) {
    let made = ended.status == RpcStatus::Ok;
    if made {
        (state.table, state.database) = (Some(number), number as i64);
    }
    if state.reply_suppressed {
        return;
    }
    let mut reply = RespWriter { out, resp3: state.resp3 };
    match made {
        true => reply.ok(),
        false => reply.error(format!("ERR DB index is out of range: {}", lossy_text(ended.value)).as_bytes()),
    }
}

pub(super) fn quit(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.state.close_after_reply = true;
    call.reply.ok();
    Ok(())
}

pub(super) fn reset(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.state.reset();
    call.view = None;
    call.reply.resp3 = false;
    call.reply.simple("RESET");
    Ok(())
}

/// Checks a name for the list of clients.
fn check_name(name: &[u8]) -> Result<&[u8], CommandError> {
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(&name[..name.len().min(1024)]),
        false => Err("ERR Client names cannot contain spaces, newlines or special characters.".into()),
    }
}

pub(super) fn client(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let word = call.arg(1).to_ascii_uppercase();
    let count = call.args.len();
    match (word.as_slice(), count) {
        (b"ID", 2) => call.reply.integer(call.state.id() as i64),
        (b"GETNAME", 2) => {
            let name = call.state.more().name.clone();
            call.reply.optional((!name.is_empty()).then_some(&*name));
        }
        (b"SETNAME", 3) => {
            call.state.more().name = check_name(call.arg(2))?.into();
            call.state.needs_publish = true;
            call.reply.ok();
        }
        (b"SETINFO", 4) => set_info(call)?,
        (b"INFO", 2) => clients::info(call)?,
        (b"LIST", _) => clients::list(call)?,
        (b"NO-EVICT" | b"NO-TOUCH", 3) => match is_word(call.arg(2), "ON") || is_word(call.arg(2), "OFF") {
            true => call.reply.ok(),
            false => return Err(SYNTAX.into()),
        },
        (b"REPLY", 3) => set_reply_mode(call)?,
        (b"KILL", 3..) => clients::kill(call)?,
        (b"UNBLOCK", 3 | 4) => {
            if count == 4 && !is_word(call.arg(3), "TIMEOUT") && !is_word(call.arg(3), "ERROR") {
                return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into());
            }
            parse_integer(call.arg(2)).ok_or(NOT_AN_INTEGER)?;
            call.reply.integer(0);
        }
        (b"PAUSE" | b"UNPAUSE", _) => return Err("ERR clients of other tenants would wait, too: not here".into()),
        (b"GETREDIR", 2) => call.reply.integer(if call.state.tracked.options.is_some() { 0 } else { -1 }),
        (b"TRACKING", 3..) => tracking::tracking(call)?,
        (b"TRACKINGINFO", 2) => tracking::info(call)?,
        (b"CACHING", 3) => tracking::caching(call)?,
        (b"HELP", 2) => {
            let text = [
                "CLIENT <subcommand> [<arg> ...]. Subcommands are:",
                "GETNAME, ID, INFO, KILL, LIST, NO-EVICT, NO-TOUCH, REPLY, SETINFO, SETNAME, UNBLOCK.",
            ];
            return super::server::help(call, &text);
        }
        (b"UNBLOCK", _) => return Err(SYNTAX.into()),
        _ => return Err(unknown_subcommand(call.arg(1), "CLIENT")),
    }
    Ok(())
}

fn set_info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let value = call.arg(3);
    let (word, name) = (call.arg(2), if is_word(call.arg(2), "LIB-NAME") { "lib-name" } else { "lib-ver" });
    if !is_word(word, "LIB-NAME") && !is_word(word, "LIB-VER") {
        return Err(format!("ERR Unrecognized option '{}'", lossy_text(word)).into());
    }
    if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) || value.len() > 1024 {
        return Err(format!("ERR {name} cannot contain spaces, newlines or special characters.").into());
    }
    let library = &mut call.state.more().library;
    *if name == "lib-name" { &mut library.0 } else { &mut library.1 } = value.into();
    call.state.needs_publish = true;
    call.reply.ok();
    Ok(())
}

fn set_reply_mode(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let word = call.arg(2);
    call.state.replies = match () {
        () if is_word(word, "ON") => {
            call.reply.ok();
            ReplyMode::On
        }
        () if is_word(word, "OFF") => ReplyMode::Off,
        // In this mode nothing is answered anyway.
        () if is_word(word, "SKIP") && call.state.replies == ReplyMode::Off => ReplyMode::Off,
        () if is_word(word, "SKIP") => ReplyMode::SkipTwo,
        () => return Err(SYNTAX.into()),
    };
    Ok(())
}
