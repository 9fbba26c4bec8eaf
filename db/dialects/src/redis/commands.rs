//! The table of commands.

use std::sync::LazyLock;

use super::arguments::is_word;
use super::errors::{CommandError, unknown_subcommand};
use crate::limits::redis::{QUICK_ARGS, QUICK_BYTES};

/// Changes records.
pub(super) const WRITE: u16 = 1;
/// Reads records.
pub(super) const READONLY: u16 = 2;
/// May need more memory.
pub(super) const DENYOOM: u16 = 4;
/// Takes the same time however much is stored.
pub(super) const FAST: u16 = 8;
/// Runs for unauthenticated clients.
pub(super) const NO_AUTH: u16 = 16;
/// Happens to all its keys at once.
pub(super) const ATOMIC: u16 = 32;
/// Not between MULTI and EXEC.
pub(super) const NO_MULTI: u16 = 64;
/// For administrators of a server.
pub(super) const ADMIN: u16 = 128;
/// Changes all of the table.
pub(super) const WHOLE_TABLE: u16 = 256;
/// Changes all of the tenant's tables.
pub(super) const ALL_TABLES: u16 = 512;
/// Has subcommands.
pub(super) const CONTAINER: u16 = 1024;

/// A command.
pub(super) struct RedisCommandSpec {
    pub(super) name: &'static str,
    /// Number of arguments, the name included; negative: at least this many.
    pub(super) arity: i32,
    flags: u16,
    /// Number of the first key, of the last (negative: from the end), and the step between keys; 0: no keys.
    pub(super) first: usize,
    pub(super) last: i32,
    pub(super) step: usize,
    pub(super) group: &'static str,
    /// The version of Redis that introduced it.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
}

impl RedisCommandSpec {
    /// Whether it has one of these flags.
    pub(super) fn is(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Its number among all commands.
    pub(super) fn number(&self) -> usize {
        (std::ptr::from_ref(self).addr() - COMMANDS.as_ptr().addr()) / size_of::<RedisCommandSpec>()
    }

    /// Whether it takes `count` arguments.
    pub(super) fn takes(&self, count: usize) -> bool {
        fits_arity(self.arity, count)
    }

    /// Whether it cannot take long with that number of arguments, and that many bytes.
    pub(super) fn is_quick(&self, args: usize, bytes: usize) -> bool {
        let one_key = self.first == 1 && self.last == 1;
        bytes <= QUICK_BYTES && (one_key || self.is(FAST) && args <= QUICK_ARGS)
    }

    /// The keys among its arguments.
    pub(super) fn keys<'a>(&self, args: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
        let last = if self.last < 0 { args.len() as i32 + self.last } else { self.last };
        let last = usize::try_from(last).unwrap_or(0).min(args.len().saturating_sub(1));
        let keys = if self.first == 0 { &[] } else { args.get(self.first..=last).unwrap_or_default() };
        keys.iter().step_by(self.step.max(1)).copied()
    }
}

/// Subcommands and their arity, as in [`RedisCommandSpec::arity`].
static SUBCOMMANDS: &[(&str, &[(&str, i32)])] = &[
    ("object", &[("encoding", 3), ("freq", 3), ("idletime", 3), ("refcount", 3), ("help", 2)]),
    ("memory", &[("usage", -3), ("doctor", 2), ("purge", 2), ("stats", 2), ("malloc-stats", 2), ("help", 2)]),
    (
        "client",
        &[
            ("id", 2),
            ("getname", 2),
            ("setname", 3),
            ("setinfo", 4),
            ("info", 2),
            ("list", -2),
            ("kill", -3),
            ("no-evict", 3),
            ("no-touch", 3),
            ("reply", 3),
            ("unblock", -3),
            ("pause", -3),
            ("unpause", 2),
            ("tracking", -3),
            ("trackinginfo", 2),
            ("caching", 3),
            ("getredir", 2),
            ("help", 2),
        ],
    ),
    (
        "function",
        &[
            ("load", -3),
            ("delete", 3),
            ("flush", -2),
            ("restore", -3),
            ("dump", 2),
            ("kill", 2),
            ("list", -2),
            ("stats", 2),
            ("help", 2),
        ],
    ),
    ("config", &[("get", -3), ("set", -4), ("rewrite", 2), ("resetstat", 2), ("help", 2)]),
    ("command", &[("count", 2), ("docs", -2), ("info", -2), ("list", -2), ("getkeys", -4), ("help", 2)]),
    ("script", &[("exists", -3), ("flush", -2), ("kill", 2), ("load", 3), ("debug", 3), ("help", 2)]),
    (
        "latency",
        &[("latest", 2), ("history", 3), ("reset", -2), ("graph", 3), ("doctor", 2), ("histogram", -2), ("help", 2)],
    ),
    ("module", &[("list", 2), ("load", -3), ("loadex", -3), ("unload", 3), ("help", 2)]),
    ("slowlog", &[("get", -2), ("len", 2), ("reset", 2), ("help", 2)]),
];

/// Whether a number of arguments matches an arity.
fn fits_arity(arity: i32, count: usize) -> bool {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    if arity < 0 { count >= -arity } else { count == arity }
}

/// The error for a command's number of arguments, or its subcommand.
pub(super) fn arity_error(spec: &RedisCommandSpec, args: &[&[u8]]) -> Option<CommandError> {
    let wrong = |name: &str| Some(format!("ERR wrong number of arguments for '{name}' command").into());
    if !spec.takes(args.len()) {
        return wrong(spec.name);
    }
    let word = args.get(1).filter(|_| spec.is(CONTAINER))?;
    let (_, known) = SUBCOMMANDS.iter().find(|(name, _)| *name == spec.name)?;
    match known.iter().find(|(name, _)| is_word(word, name)) {
        None => Some(unknown_subcommand(word, &spec.name.to_uppercase())),
        Some((_, arity)) if fits_arity(*arity, args.len()) => None,
        Some((name, _)) => wrong(&format!("{}|{name}", spec.name)),
    }
}

/// Slots of the index of commands: a few times as many as there are commands.
const INDEX_SLOTS: usize = 512;

/// The index of each command in [`COMMANDS`], plus one, by the hash of its name; a collision moves on to the next slot.
static INDEX: LazyLock<[u8; INDEX_SLOTS]> = LazyLock::new(|| {
    let mut index = [0; INDEX_SLOTS];
    for (number, spec) in (1u8..).zip(COMMANDS) {
        let mut slot = hash_slot(spec.name.as_bytes());
        while index[slot] != 0 {
            slot = (slot + 1) % INDEX_SLOTS;
        }
        index[slot] = number;
    }
    index
});

fn hash_slot(name: &[u8]) -> usize {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte | 0x20)).wrapping_mul(0x0100_0193);
    name.iter().fold(0x811c_9dc5, mix) as usize % INDEX_SLOTS
}

/// The command of that name, ignoring case.
pub(super) fn find(name: &[u8]) -> Option<&'static RedisCommandSpec> {
    if name.len() > 16 {
        return None;
    }
    let mut slot = hash_slot(name);
    loop {
        let spec = COMMANDS.get(usize::from(INDEX[slot]).checked_sub(1)?)?;
        if name.eq_ignore_ascii_case(spec.name.as_bytes()) {
            return Some(spec);
        }
        slot = (slot + 1) % INDEX_SLOTS;
    }
}

/// All commands, one a line. The table of their properties is made of the lines here, and that of their handlers in
/// `dispatch`, which is above all handlers: handlers may use this file.
#[rustfmt::skip]
macro_rules! command_rows {
    ($table:ident) => {
        $table! {
            "get" 2 [READONLY FAST] 1 1 1 "string" "1.0.0" strings::get "The value of a key.";
            "set" -3 [WRITE DENYOOM] 1 1 1 "string" "1.0.0" strings::set "Stores a value, on conditions and with an expiry if wished.";
            "setnx" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" strings::setnx "Stores a value if there is none.";
            "setex" 4 [WRITE DENYOOM] 1 1 1 "string" "2.0.0" strings::setex "Stores a value that expires in so many seconds.";
            "psetex" 4 [WRITE DENYOOM] 1 1 1 "string" "2.6.0" strings::psetex "Stores a value that expires in so many milliseconds.";
            "getset" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" strings::getset "Stores a value and tells the old one.";
            "getdel" 2 [WRITE FAST] 1 1 1 "string" "6.2.0" strings::getdel "Tells a value and deletes it.";
            "getex" -2 [WRITE FAST] 1 1 1 "string" "6.2.0" strings::getex "Tells a value and sets or clears its expiry.";
            "mget" -2 [READONLY FAST] 1 -1 1 "string" "1.0.0" strings::mget "The values of several keys.";
            "mset" -3 [WRITE DENYOOM ATOMIC] 1 -1 2 "string" "1.0.1" strings::mset "Stores several values at once.";
            "msetnx" -3 [WRITE DENYOOM ATOMIC] 1 -1 2 "string" "1.0.1" strings::msetnx "Stores several values if none of the keys is there.";
            "append" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "2.0.0" strings::append "Adds bytes at the end of a value.";
            "strlen" 2 [READONLY FAST] 1 1 1 "string" "2.2.0" strings::strlen "The length of a value.";
            "getrange" 4 [READONLY] 1 1 1 "string" "2.4.0" strings::getrange "A part of a value.";
            "substr" 4 [READONLY] 1 1 1 "string" "1.0.0" strings::getrange "A part of a value.";
            "setrange" 4 [WRITE DENYOOM] 1 1 1 "string" "2.2.0" strings::setrange "Writes over a part of a value.";
            "incr" 2 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" numbers::incr "Adds one to a number.";
            "decr" 2 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" numbers::decr "Takes one from a number.";
            "incrby" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" numbers::incrby "Adds to a number.";
            "decrby" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "1.0.0" numbers::decrby "Takes from a number.";
            "incrbyfloat" 3 [WRITE DENYOOM FAST] 1 1 1 "string" "2.6.0" numbers::incrbyfloat "Adds to a number with a fraction.";
            "getbit" 3 [READONLY FAST] 1 1 1 "bitmap" "2.2.0" numbers::getbit "A bit of a value.";
            "setbit" 4 [WRITE DENYOOM] 1 1 1 "bitmap" "2.2.0" numbers::setbit "Sets or clears a bit of a value.";
            "bitcount" -2 [READONLY] 1 1 1 "bitmap" "2.6.0" numbers::bitcount "How many bits of a value are set.";
            "bitpos" -3 [READONLY] 1 1 1 "bitmap" "2.8.7" bits::bitpos "The first bit of a value that is set, or clear.";
            "bitop" -4 [WRITE DENYOOM ATOMIC] 2 -1 1 "bitmap" "2.6.0" bits::bitop "Combines values bit by bit into another.";
            "bitfield" -2 [WRITE DENYOOM] 1 1 1 "bitmap" "3.2.0" bits::bitfield "Reads and writes numbers of any width in a value.";
            "bitfield_ro" -2 [READONLY FAST] 1 1 1 "bitmap" "6.0.0" bits::bitfield_ro "Reads numbers of any width in a value.";
            "lcs" -3 [READONLY] 1 2 1 "string" "7.0.0" lcs::lcs "The longest common subsequence of two short values.";
            "del" -2 [WRITE] 1 -1 1 "generic" "1.0.0" keys::del "Deletes keys.";
            "unlink" -2 [WRITE FAST] 1 -1 1 "generic" "4.0.0" keys::del "Deletes keys.";
            "exists" -2 [READONLY FAST] 1 -1 1 "generic" "1.0.0" keys::exists "How many of the keys are there.";
            "touch" -2 [READONLY FAST] 1 -1 1 "generic" "3.2.1" keys::exists "Reads keys, which keeps them in a cache.";
            "expire" -3 [WRITE FAST] 1 1 1 "generic" "1.0.0" expiry::expire "Has a key expire in so many seconds.";
            "pexpire" -3 [WRITE FAST] 1 1 1 "generic" "2.6.0" expiry::pexpire "Has a key expire in so many milliseconds.";
            "expireat" -3 [WRITE FAST] 1 1 1 "generic" "1.2.0" expiry::expireat "Has a key expire at a second since 1970.";
            "pexpireat" -3 [WRITE FAST] 1 1 1 "generic" "2.6.0" expiry::pexpireat "Has a key expire at a millisecond since 1970.";
            "ttl" 2 [READONLY FAST] 1 1 1 "generic" "1.0.0" expiry::ttl "In how many seconds a key expires.";
            "pttl" 2 [READONLY FAST] 1 1 1 "generic" "2.6.0" expiry::pttl "In how many milliseconds a key expires.";
            "expiretime" 2 [READONLY FAST] 1 1 1 "generic" "7.0.0" expiry::expiretime "At which second since 1970 a key expires.";
            "pexpiretime" 2 [READONLY FAST] 1 1 1 "generic" "7.0.0" expiry::pexpiretime "At which millisecond since 1970 a key expires.";
            "persist" 2 [WRITE FAST] 1 1 1 "generic" "2.2.0" expiry::persist "Has a key never expire.";
            "type" 2 [READONLY FAST] 1 1 1 "generic" "1.0.0" keys::type_of "What is stored under a key: a string.";
            "rename" 3 [WRITE ATOMIC] 1 2 1 "generic" "1.0.0" keys::rename "Moves a value to another key.";
            "renamenx" 3 [WRITE FAST ATOMIC] 1 2 1 "generic" "1.0.0" keys::renamenx "Moves a value to another key if that is free.";
            "copy" -3 [WRITE DENYOOM ATOMIC] 1 2 1 "generic" "6.2.0" keys::copy "Copies a value to another key.";
            "randomkey" 1 [READONLY] 0 0 0 "generic" "1.0.0" keys::randomkey "Some key of the table.";
            "scan" -2 [READONLY] 0 0 0 "generic" "2.8.0" keys::scan "The keys of the table, a few at a time.";
            "keys" 2 [READONLY] 0 0 0 "generic" "1.0.0" keys::keys "All keys that match a pattern, of a small table.";
            "object" -2 [READONLY CONTAINER] 2 2 1 "generic" "2.2.3" keys::object "How a value is stored.";
            "memory" -2 [READONLY CONTAINER] 0 0 0 "server" "4.0.0" keys::memory "How much memory a key takes.";
            "wait" 3 [] 0 0 0 "generic" "3.0.0" server::wait "How many replicas have all writes: none.";
            "dbsize" 1 [READONLY FAST] 0 0 0 "server" "1.0.0" keys::dbsize "How many keys there are.";
            "flushdb" -1 [WRITE WHOLE_TABLE] 0 0 0 "server" "1.0.0" keys::flushdb "Empties the table.";
            "flushall" -1 [WRITE ALL_TABLES] 0 0 0 "server" "1.0.0" keys::flushall "Empties all of the tenant's tables.";
            "auth" -2 [FAST NO_AUTH] 0 0 0 "connection" "1.0.0" connection::auth "Shows a tenant's name and token.";
            "hello" -1 [FAST NO_AUTH] 0 0 0 "connection" "6.0.0" connection::hello "Agrees on a version of the protocol.";
            "select" 2 [FAST] 0 0 0 "connection" "1.0.0" connection::select "Uses another table.";
            "ping" -1 [FAST] 0 0 0 "connection" "1.0.0" connection::ping "Answers.";
            "echo" 2 [FAST] 0 0 0 "connection" "1.0.0" connection::echo "Answers what was said.";
            "quit" -1 [FAST NO_AUTH] 0 0 0 "connection" "1.0.0" connection::quit "Ends the connection.";
            "reset" 1 [FAST NO_AUTH] 0 0 0 "connection" "6.2.0" connection::reset "Makes the connection as it was at first.";
            "client" -2 [CONTAINER] 0 0 0 "connection" "2.4.0" connection::client "About the connection.";
            "multi" 1 [FAST] 0 0 0 "transactions" "1.2.0" transactions::multi "Begins a transaction.";
            "exec" 1 [] 0 0 0 "transactions" "1.2.0" queued::exec "Runs a transaction.";
            "discard" 1 [FAST] 0 0 0 "transactions" "2.0.0" transactions::discard "Drops a transaction.";
            "watch" -2 [FAST] 1 -1 1 "transactions" "2.2.0" transactions::watch "Lets a transaction run only if the keys stay as they are.";
            "unwatch" 1 [FAST] 0 0 0 "transactions" "2.2.0" transactions::unwatch "Forgets what is watched.";
            "fcall" -3 [NO_MULTI] 0 0 0 "scripting" "7.0.0" functions::fcall "Calls an extension.";
            "fcall_ro" -3 [NO_MULTI] 0 0 0 "scripting" "7.0.0" functions::fcall "Calls an extension.";
            "fcall_cost" -3 [NO_MULTI] 0 0 0 "scripting" "7.0.0" functions::fcall "Calls an extension, and tells what that cost.";
            "function" -2 [CONTAINER] 0 0 0 "scripting" "7.0.0" functions::function "Lists the extensions.";
            "script" -2 [CONTAINER] 0 0 0 "scripting" "2.6.0" unsupported::script "About scripts, of which there are none.";
            "info" -1 [] 0 0 0 "server" "1.0.0" info::info "About the server, in sections.";
            "config" -2 [ADMIN CONTAINER] 0 0 0 "server" "2.0.0" settings::config "Settings that tools ask for and set.";
            "command" -1 [CONTAINER] 0 0 0 "server" "2.8.13" introspect::command "About commands.";
            "slowlog" -2 [ADMIN CONTAINER] 0 0 0 "server" "2.2.12" server::slowlog "The tenant's commands that took long.";
            "debug" -2 [ADMIN] 0 0 0 "server" "1.0.0" server::debug "Refused.";
            "cluster" -2 [] 0 0 0 "cluster" "3.0.0" cluster::cluster "About the servers of the cluster, if there is one.";
            "readonly" 1 [FAST] 0 0 0 "cluster" "3.0.0" cluster::read_mode "Changes nothing: there are no replicas.";
            "readwrite" 1 [FAST] 0 0 0 "cluster" "3.0.0" cluster::read_mode "Changes nothing: there are no replicas.";
            "asking" 1 [FAST] 0 0 0 "cluster" "3.0.0" cluster::asking "Changes nothing: no server asks for it.";
            "latency" -2 [ADMIN CONTAINER] 0 0 0 "server" "2.8.13" unsupported::latency "What is monitored of latency: nothing.";
            "module" -2 [ADMIN CONTAINER] 0 0 0 "server" "4.0.0" unsupported::module "Lists modules, of which there are none.";
            "acl" -2 [ADMIN] 0 0 0 "server" "6.0.0" server::acl "Who the connection acts for.";
            "role" 1 [FAST] 0 0 0 "server" "2.8.12" server::role "A master without replicas.";
            "time" 1 [FAST] 0 0 0 "server" "2.6.0" server::time "The server's time.";
            "lastsave" 1 [FAST] 0 0 0 "server" "1.0.0" server::lastsave "When the server began.";
        }
    };
}
pub(super) use command_rows;

macro_rules! specs {
    ($($name:literal $arity:literal [$($flag:ident)*] $first:literal $last:literal $step:literal
       $group:literal $since:literal $family:ident::$run:ident $summary:literal;)*) => {
        &[$(RedisCommandSpec {
            name: $name,
            arity: $arity,
            flags: 0 $(| $flag)*,
            first: $first,
            last: $last,
            step: $step,
            group: $group,
            since: $since,
            summary: $summary,
        }),*]
    };
}

/// All commands.
pub(super) static COMMANDS: &[RedisCommandSpec] = command_rows!(specs);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name() {
        for spec in COMMANDS {
            assert!(find(spec.name.to_uppercase().as_bytes()).is_some_and(|found| found.name == spec.name));
            assert_eq!(COMMANDS[spec.number()].name, spec.name);
        }
        assert!(find(b"").is_none() && find(b"gett").is_none() && find(&[0xff; 16]).is_none());
    }
}
