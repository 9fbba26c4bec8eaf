//! COMMAND: the properties of commands, for clients and tools.

use std::collections::HashSet;

use sandstorm_net::resp::RespWriter;

use super::arguments::{is_word, parse_integer};
use super::command_call::CommandCall;
use super::commands::{self, COMMANDS, RedisCommandSpec};
use super::errors::{ANSWER_TOO_LONG, CommandResult, SYNTAX, unknown_subcommand};
use super::glob::GlobPattern;
use crate::limits::redis::{ANSWER_BYTES, PATTERN_STEPS_PER_REQUEST};

pub(super) fn command(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (word, names) = (call.arg(1).to_ascii_uppercase(), call.rest(2));
    // Each is looked up, and answered with some hundred bytes.
    call.admit_keys(names.len())?;
    let reply = &mut call.reply;
    match word.as_slice() {
        b"" => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| describe(spec, reply));
        }
        b"COUNT" => reply.integer(COMMANDS.len() as i64),
        b"INFO" if names.is_empty() => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| describe(spec, reply));
        }
        b"INFO" => return describe_each(names, reply),
        b"LIST" => {
            let mut pattern = match *names {
                [] => GlobPattern::new(b"*"),
                [by, kind, pattern] if is_word(by, "FILTERBY") && is_word(kind, "PATTERN") => GlobPattern::new(pattern),
                _ => return Err(SYNTAX.into()),
            };
            let shown: Vec<_> = COMMANDS.iter().filter(|spec| pattern.matches(spec.name.as_bytes())).collect();
            call.context.work(pattern.steps() / PATTERN_STEPS_PER_REQUEST);
            reply.array(shown.len());
            shown.iter().for_each(|spec| reply.bulk(spec.name.as_bytes()));
        }
        b"DOCS" => {
            let named: HashSet<_> =
                names.iter().filter_map(|name| commands::find(name)).map(|spec| spec.name).collect();
            let is_shown = |spec: &&RedisCommandSpec| names.is_empty() || named.contains(spec.name);
            let shown: Vec<_> = COMMANDS.iter().filter(is_shown).collect();
            reply.map(shown.len());
            for spec in shown {
                document(spec, reply);
            }
        }
        b"HELP" => {
            return super::server::help(
                call,
                &[
                    "COMMAND [<subcommand> ...]. Subcommands are:",
                    "COUNT, DOCS, GETKEYS, INFO, LIST [FILTERBY PATTERN <pattern>].",
                ],
            );
        }
        b"GETKEYS" if !names.is_empty() => return keys(names, reply),
        _ => return Err(unknown_subcommand(call.arg(1), "COMMAND")),
    }
    Ok(())
}

/// Describes the commands of those names; null for an unknown one.
fn describe_each(names: &[&[u8]], reply: &mut RespWriter<'_>) -> CommandResult {
    let start = reply.out.len();
    reply.array(names.len());
    for name in names {
        match commands::find(name) {
            Some(spec) => describe(spec, reply),
            None => reply.null(),
        }
        if reply.out.len() - start > ANSWER_BYTES {
            return Err(ANSWER_TOO_LONG.into());
        }
    }
    Ok(())
}

/// Name, arity, flags, positions of the keys; categories, hints, key specifications and subcommands stay empty.
fn describe(spec: &RedisCommandSpec, reply: &mut RespWriter<'_>) {
    let names = [
        (commands::WRITE, "write"),
        (commands::READONLY, "readonly"),
        (commands::DENYOOM, "denyoom"),
        (commands::ADMIN, "admin"),
        (commands::FAST, "fast"),
        (commands::NO_AUTH, "no_auth"),
        (commands::NO_MULTI, "no_multi"),
    ];
    let flags: Vec<_> = names.iter().filter(|(flag, _)| spec.is(*flag)).collect();
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(spec.arity.into());
    reply.set(flags.len());
    flags.iter().for_each(|(_, name)| reply.simple(name));
    reply.integer(spec.first as i64);
    reply.integer(spec.last.into());
    reply.integer(spec.step as i64);
    reply.set(0);
    (0..3).for_each(|_| reply.array(0));
}

fn document(spec: &RedisCommandSpec, reply: &mut RespWriter<'_>) {
    reply.bulk(spec.name.as_bytes());
    reply.map(3);
    for (name, text) in [("summary", spec.summary), ("since", spec.since), ("group", spec.group)] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
}

fn keys(args: &[&[u8]], reply: &mut RespWriter<'_>) -> CommandResult {
    let spec = args.first().and_then(|name| commands::find(name)).ok_or("ERR Invalid command specified")?;
    if !spec.takes(args.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys: Vec<_> = match spec.name {
        "fcall" | "fcall_ro" | "fcall_cost" => {
            let count = args.get(2).and_then(|count| usize::try_from(parse_integer(count)?).ok()).unwrap_or(0);
            let keys = args.get(3..).and_then(|rest| rest.get(..count));
            keys.ok_or("ERR Invalid arguments specified for command")?.to_vec()
        }
        _ => spec.keys(args).collect(),
    };
    if keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key));
    Ok(())
}
