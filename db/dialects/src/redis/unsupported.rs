//! Redis commands that do not exist here. The answer says more than "unknown command": it names an alternative.

use super::errors::{CommandError, unknown_command};

const LUA: &str = "no Lua here: push an extension, and call it with FCALL";
const MODULES: &str = "no modules here: push an extension, and call it with FCALL";
const FORMATS: &str = "Redis' own formats are not spoken here: read with GET or SCAN, write with SET";
const OPERATOR: &str = "that is the server's operator's business, not a tenant's: docs/operations.md";

/// Missing features, and their commands.
const UNSUPPORTED_TYPES: &[(&str, &[&str])] = &[
    (
        "lists",
        &[
            "blmove",
            "blmpop",
            "blpop",
            "brpop",
            "brpoplpush",
            "lindex",
            "linsert",
            "llen",
            "lmove",
            "lmpop",
            "lpop",
            "lpos",
            "lpush",
            "lpushx",
            "lrange",
            "lrem",
            "lset",
            "ltrim",
            "rpop",
            "rpoplpush",
            "rpush",
            "rpushx",
        ],
    ),
    (
        "sets",
        &[
            "sadd",
            "scard",
            "sdiff",
            "sdiffstore",
            "sinter",
            "sintercard",
            "sinterstore",
            "sismember",
            "smembers",
            "smismember",
            "smove",
            "spop",
            "srandmember",
            "srem",
            "sscan",
            "sunion",
            "sunionstore",
        ],
    ),
    (
        "sorted sets",
        &[
            "bzmpop",
            "bzpopmax",
            "bzpopmin",
            "zadd",
            "zcard",
            "zcount",
            "zdiff",
            "zdiffstore",
            "zincrby",
            "zinter",
            "zintercard",
            "zinterstore",
            "zlexcount",
            "zmpop",
            "zmscore",
            "zpopmax",
            "zpopmin",
            "zrandmember",
            "zrange",
            "zrangebylex",
            "zrangebyscore",
            "zrangestore",
            "zrank",
            "zrem",
            "zremrangebylex",
            "zremrangebyrank",
            "zremrangebyscore",
            "zrevrange",
            "zrevrangebylex",
            "zrevrangebyscore",
            "zrevrank",
            "zscan",
            "zscore",
            "zunion",
            "zunionstore",
        ],
    ),
    (
        "hashes",
        &[
            "hdel",
            "hexists",
            "hexpire",
            "hexpireat",
            "hexpiretime",
            "hget",
            "hgetall",
            "hgetdel",
            "hgetex",
            "hincrby",
            "hincrbyfloat",
            "hkeys",
            "hlen",
            "hmget",
            "hmset",
            "hpersist",
            "hpexpire",
            "hpexpireat",
            "hpexpiretime",
            "hpttl",
            "hrandfield",
            "hscan",
            "hset",
            "hsetex",
            "hsetnx",
            "hstrlen",
            "httl",
            "hvals",
        ],
    ),
    (
        "streams",
        &[
            "xack",
            "xackdel",
            "xadd",
            "xautoclaim",
            "xclaim",
            "xdel",
            "xdelex",
            "xgroup",
            "xinfo",
            "xlen",
            "xpending",
            "xrange",
            "xread",
            "xreadgroup",
            "xrevrange",
            "xsetid",
            "xtrim",
        ],
    ),
    (
        "places",
        &[
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "georadius",
            "georadius_ro",
            "georadiusbymember",
            "georadiusbymember_ro",
            "geosearch",
            "geosearchstore",
        ],
    ),
    ("HyperLogLogs", &["pfadd", "pfcount", "pfdebug", "pfmerge", "pfselftest"]),
    (
        "vector sets",
        &["vadd", "vcard", "vdim", "vemb", "vgetattr", "vinfo", "vlinks", "vrandmember", "vrem", "vsetattr", "vsim"],
    ),
];

/// Other commands, and the texts for them.
const UNSUPPORTED_COMMANDS: &[(&str, &[&str])] = &[
    (LUA, &["eval", "evalsha", "eval_ro", "evalsha_ro"]),
    (
        "no publish and subscribe here: poll a key, or put a broker beside the server",
        &[
            "psubscribe",
            "publish",
            "pubsub",
            "punsubscribe",
            "spublish",
            "ssubscribe",
            "subscribe",
            "sunsubscribe",
            "unsubscribe",
        ],
    ),
    (FORMATS, &["dump", "restore", "restore-asking", "migrate", "psync", "sync", "replconf"]),
    ("only strings here, and one table's keys in one place: read with MGET and sort there", &["sort", "sort_ro"]),
    ("tables stand for databases: COPY key key DB table, then DEL", &["move", "swapdb"]),
    (
        "no replicas and no files of records here",
        &["waitaof", "replicaof", "slaveof", "failover", "bgrewriteaof", "bgsave", "save"],
    ),
    (OPERATOR, &["shutdown", "monitor"]),
];

/// Beginnings of modules' commands.
const MODULE_PREFIXES: [&str; 10] = ["json.", "ft.", "ts.", "bf.", "cf.", "cms.", "topk.", "tdigest.", "graph.", "ai."];

/// The hint for a missing command.
pub(super) fn hint(args: &[&[u8]]) -> Option<CommandError> {
    let name = args.first()?.to_ascii_lowercase();
    let among = |names: &[&str]| names.iter().any(|known| known.as_bytes() == name);
    let why = match UNSUPPORTED_TYPES.iter().find(|(_, names)| among(names)) {
        Some((kind, _)) => format!(
            "no {kind} here, Sandstorm stores strings: keep one in records of its own and change it in an extension, called \
             with FCALL: docs/extensions.md"
        ),
        None if MODULE_PREFIXES.iter().any(|begins| name.starts_with(begins.as_bytes())) => MODULES.to_owned(),
        None => UNSUPPORTED_COMMANDS.iter().find(|(_, names)| among(names)).map(|(why, _)| (*why).to_owned())?,
    };
    let CommandError(unknown) = unknown_command(args);
    Some(format!("{unknown}({why})").into())
}

/// SCRIPT: there are no scripts.
pub(super) fn script(call: &mut super::command_call::CommandCall<'_, '_>) -> super::errors::CommandResult {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"EXISTS" => {
            let shown = call.rest(2).len();
            call.reply.array(shown);
            (0..shown).for_each(|_| call.reply.integer(0));
            Ok(())
        }
        b"FLUSH" => {
            super::functions::check_flush_mode(call, "ERR SCRIPT FLUSH only support SYNC|ASYNC option")?;
            call.reply.ok();
            Ok(())
        }
        b"KILL" => Err("NOTBUSY No scripts in execution right now.".into()),
        b"HELP" => {
            super::server::help(call, &["SCRIPT <subcommand> [<arg> ...]. Subcommands are:", "EXISTS, FLUSH, KILL."])
        }
        _ => Err(format!("ERR {LUA}").into()),
    }
}

/// LATENCY: it has no data; SLOWLOG has the slow commands.
pub(super) fn latency(call: &mut super::command_call::CommandCall<'_, '_>) -> super::errors::CommandResult {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"LATEST" | b"HISTORY" => call.reply.array(0),
        b"HISTOGRAM" => call.reply.map(0),
        b"RESET" => call.reply.integer(0),
        b"DOCTOR" => {
            call.reply.verbatim("Latency is not monitored for a tenant: see SLOWLOG GET and INFO commandstats.\n")
        }
        b"HELP" => {
            let text =
                ["LATENCY <subcommand> [<arg> ...]. Subcommands are:", "DOCTOR, HISTOGRAM, HISTORY, LATEST, RESET."];
            return super::server::help(call, &text);
        }
        _ => return Err("ERR latency is not monitored for a tenant: see SLOWLOG GET and INFO commandstats".into()),
    }
    Ok(())
}

/// MODULE: there are none.
pub(super) fn module(call: &mut super::command_call::CommandCall<'_, '_>) -> super::errors::CommandResult {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"LIST" => call.reply.array(0),
        b"HELP" => return super::server::help(call, &["MODULE <subcommand> [<arg> ...]. Subcommands are:", "LIST."]),
        _ => return Err(format!("ERR {MODULES}").into()),
    }
    Ok(())
}
