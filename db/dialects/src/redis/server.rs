//! Commands about the server, as far as a tenant may know it.

use super::arguments::{lossy_text, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandResult, unknown_subcommand};

/// The version of Redis whose commands are supported.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// Answers with lines for a person.
pub(super) fn help(call: &mut CommandCall<'_, '_>, lines: &[&str]) -> CommandResult {
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.simple(line));
    Ok(())
}

pub(super) fn time(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let now_ms = call.now_ms();
    call.reply.array(2);
    call.reply.bulk((now_ms / 1000).to_string().as_bytes());
    call.reply.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub(super) fn lastsave(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.reply.integer((call.context.facts.started_ms / 1000) as i64);
    Ok(())
}

pub(super) fn wait(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (replicas, timeout) = (call.integer(1)?, call.arg(2));
    if parse_integer(timeout).ok_or("ERR timeout is not an integer or out of range")? < 0 {
        return Err("ERR timeout is negative".into());
    }
    let _ = replicas;
    call.reply.integer(0);
    Ok(())
}

pub(super) fn role(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.reply.array(3);
    call.reply.bulk(b"master");
    call.reply.integer(0);
    call.reply.array(0);
    Ok(())
}

pub(super) fn debug(_call: &mut CommandCall<'_, '_>) -> CommandResult {
    Err("ERR DEBUG command not allowed. Other tenants would notice.".into())
}

const SLOWLOG_COUNT: &str = "ERR count should be greater than or equal to -1";

pub(super) fn slowlog(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let log = &call.view()?.tenant.usage.slow;
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" => {
            let count = match call.args.len() {
                2 => 10,
                3 => parse_integer(call.arg(2)).filter(|count| *count >= -1).ok_or(SLOWLOG_COUNT)?,
                _ => {
                    let text = "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.";
                    return Err(text.into());
                }
            };
            let entries = log.recent(usize::try_from(count).unwrap_or(usize::MAX));
            call.reply.array(entries.len());
            for entry in entries {
                call.reply.array(6);
                for number in [entry.id, entry.at_s, entry.took_us] {
                    call.reply.integer(number as i64);
                }
                call.reply.array(entry.command.args().len());
                entry.command.args().for_each(|arg| call.reply.bulk(arg));
                call.reply.bulk(b"");
                call.reply.bulk(&entry.name);
            }
        }
        b"LEN" => call.reply.integer(log.count() as i64),
        b"RESET" => {
            log.clear();
            call.reply.ok();
        }
        b"HELP" => {
            return help(call, &["SLOWLOG <subcommand> [<arg> ...]. Subcommands are:", "GET [<count>], LEN, RESET."]);
        }
        _ => return Err(unknown_subcommand(call.arg(1), "SLOWLOG")),
    }
    Ok(())
}

pub(super) fn acl(call: &mut CommandCall<'_, '_>) -> CommandResult {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"WHOAMI" => {
            let name = call.view()?.tenant.name.as_bytes();
            call.reply.bulk(name);
            Ok(())
        }
        _ => {
            Err(format!("ERR unknown subcommand '{}'. Users are tenants: `sandstorm tenant`", lossy_text(call.arg(1)))
                .into())
        }
    }
}
