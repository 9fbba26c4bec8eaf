//! CONFIG: settings that tools read and write. Settings of the server belong to its operator, those of a table to its
//! tenant, so a connection changes none of them. A CONFIG SET succeeds if the value is the current one already, or has
//! no effect that a client can see.

use super::arguments::{is_word, lossy_text, parse_integer};
use super::cluster::is_enabled;
use super::command_call::CommandCall;
use super::errors::{CommandError, CommandResult, unknown_subcommand};
use super::glob::GlobPattern;
use crate::limits::redis::{DATABASES, PATTERN_STEPS, PATTERN_STEPS_PER_REQUEST};
use sandstorm_accounts::limits::SLOW_ENTRIES;

/// The settings that tools read, with their current values.
pub(super) fn settings(call: &CommandCall<'_, '_>) -> Vec<(&'static str, String)> {
    let table = call.table(false).ok();
    let policy = match table.map(|table| table.mode()) {
        Some(sandstorm_store::StorageMode::Cache) => "allkeys-lfu",
        _ => "noeviction",
    };
    let databases = call.view.map_or(0, |view| view.tables.keys().max().copied().unwrap_or(0)) + 1;
    let databases = databases.max(DATABASES);
    vec![
        ("save", String::new()),
        ("appendonly", "no".into()),
        ("maxmemory", table.map_or(0, |table| table.quota_bytes()).to_string()),
        ("maxmemory-policy", policy.into()),
        ("databases", databases.to_string()),
        ("maxclients", call.context.facts.connections.to_string()),
        ("proto-max-bulk-len", sandstorm_store::limits::MAX_VALUE_BYTES.to_string()),
        ("timeout", "0".into()),
        ("tcp-keepalive", "0".into()),
        ("cluster-enabled", if is_enabled(call) { "yes" } else { "no" }.into()),
        ("notify-keyspace-events", String::new()),
        ("slowlog-max-len", SLOW_ENTRIES.to_string()),
        ("slowlog-log-slower-than", slower_than(call)),
        ("latency-monitor-threshold", "0".into()),
    ]
}

/// Microseconds from which a command is in the slow log; -1: none is.
fn slower_than(call: &CommandCall<'_, '_>) -> String {
    match call.context.facts.metrics.slow.us() {
        0 => "-1".to_owned(),
        us => us.to_string(),
    }
}

/// Settings without an effect on answers: how a Redis stores small collections, when it frees, forks, logs and samples.
/// A name that ends in `-` stands for all that begin with it.
const WITHOUT_EFFECT: [&str; 33] = [
    "list-",
    "hash-",
    "set-",
    "zset-",
    "stream-",
    "hll-",
    "lazyfree-",
    "lfu-",
    "latency-",
    "slowlog-",
    "repl-",
    "rdb-",
    "rdbcompression",
    "rdbchecksum",
    "aof-",
    "auto-aof-",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "active-",
    "activedefrag",
    "activerehashing",
    "hz",
    "dynamic-hz",
    "jemalloc-",
    "loglevel",
    "maxmemory-samples",
    "maxmemory-eviction-tenacity",
    "lua-time-limit",
    "busy-reply-threshold",
    "tracking-",
    "oom-score-",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
];

/// Settings that would have an effect, and the reasons that they cannot be changed here.
const FIXED_SETTINGS: [(&str, &str); 16] = [
    ("save", "what a crash takes of a table is its durability: `sandstorm table set --durability`"),
    ("appendonly", "what a crash takes of a table is its durability: `sandstorm table set --durability`"),
    ("maxmemory", "a table's memory is its quota: `sandstorm table create --quota`"),
    ("maxmemory-policy", "a table refuses or evicts at its quota as it was made: `sandstorm table create --mode`"),
    ("maxmemory-clients", "connections' memory is bounded by the server"),
    ("client-output-buffer-limit", "connections' memory is bounded by the server"),
    ("notify-keyspace-events", "there is no publish and subscribe here, so nothing would be told"),
    ("timeout", "idle connections are not closed, and take no buffer"),
    ("maxclients", "the number of connections is the operator's setting"),
    ("databases", "tables stand for databases: `sandstorm table create`"),
    ("proto-max-bulk-len", "the length of values is the server's limit"),
    ("requirepass", "tokens are changed over the control port: `sandstorm token rotate`"),
    ("masterauth", "there are no replicas"),
    ("dir", "the log of all tables is in the server's state directory"),
    ("dbfilename", "the log of all tables is in the server's state directory"),
    ("cluster-enabled", "the operator makes clusters: docs/cluster.md"),
];

/// Whether a value equals the current one.
fn is_same_value(now: &str, wanted: &[u8]) -> bool {
    is_word(wanted, now) || parse_integer(wanted).is_some_and(|number| now.parse() == Ok(number))
}

/// The reason that this cannot be set.
fn set_error(name: &[u8], value: &[u8], now: &[(&str, String)]) -> Option<CommandError> {
    if now.iter().any(|(known, now)| is_word(name, known) && is_same_value(now, value)) {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let without_effect = |known: &&str| match known.ends_with('-') {
        true => lower.starts_with(known.as_bytes()),
        false => lower == known.as_bytes(),
    };
    if WITHOUT_EFFECT.iter().any(without_effect) {
        return None;
    }
    Some(match FIXED_SETTINGS.iter().find(|(known, _)| is_word(name, known)) {
        Some((known, why)) => {
            let now = now.iter().find(|(name, _)| name == known).map(|(_, now)| format!(" (it is '{now}')"));
            format!("ERR CONFIG SET failed - '{known}' cannot be set here{}: {why}", now.unwrap_or_default()).into()
        }
        None => format!("ERR Unknown option or number of arguments for CONFIG SET - '{}'", lossy_text(name)).into(),
    })
}

fn set(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let pairs = call.rest(2);
    if !pairs.len().is_multiple_of(2) {
        return Err("ERR wrong number of arguments for 'config|set' command".into());
    }
    if pairs.len() > 2 * SETTINGS_AT_ONCE {
        return Err(format!("ERR CONFIG SET takes {SETTINGS_AT_ONCE} settings at most").into());
    }
    let now = settings(call);
    for (at, pair) in pairs.chunks(2).enumerate() {
        let [name, value] = *pair else { continue };
        if pairs.chunks(2).take(at).any(|before| before[0].eq_ignore_ascii_case(name)) {
            return Err(format!(
                "ERR CONFIG SET failed (possibly related to argument '{}') - duplicate parameter",
                lossy_text(name)
            )
            .into());
        }
        if let Some(objection) = set_error(name, value, &now) {
            return Err(objection);
        }
    }
    call.reply.ok();
    Ok(())
}

/// Settings that one CONFIG SET may name: each is compared with those before it.
const SETTINGS_AT_ONCE: usize = 64;

fn get(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut shown, mut left) = (settings(call), PATTERN_STEPS);
    let patterns: Vec<_> = call.rest(2).iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
    shown.retain(|(name, _)| {
        patterns.iter().any(|pattern| {
            let mut pattern = GlobPattern::within(pattern, left);
            let matches = pattern.matches(name.as_bytes());
            left -= pattern.steps();
            matches
        })
    });
    call.context.work((PATTERN_STEPS - left) / PATTERN_STEPS_PER_REQUEST);
    call.reply.map(shown.len());
    for (name, value) in shown {
        // A name is returned as it was written.
        let attributes = call.rest(2).iter().find(|attributes| is_word(attributes, name));
        call.reply.bulk(attributes.map_or(name.as_bytes(), |attributes| *attributes));
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

pub(super) fn config(call: &mut CommandCall<'_, '_>) -> CommandResult {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" if call.args.len() >= 3 => get(call),
        b"SET" => set(call),
        b"RESETSTAT" => {
            call.view()?.tenant.usage.reset_commands();
            call.reply.ok();
            Ok(())
        }
        b"REWRITE" => {
            Err("ERR The server is running without a config file that is the tenant's: settings are the operator's"
                .into())
        }
        b"HELP" => super::server::help(
            call,
            &["CONFIG <subcommand> [<arg> ...]. Subcommands are:", "GET <pattern>, RESETSTAT, SET <setting> <value>."],
        ),
        _ => Err(unknown_subcommand(call.arg(1), "CONFIG")),
    }
}
