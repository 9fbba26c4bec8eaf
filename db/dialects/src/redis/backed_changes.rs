//! Changes of several keys in tables with a backing: what is behind such a table is asked for all of them before the
//! first is made, so that a command, or a transaction, is refused as a whole.

use sandstorm_store::backed::BackedKeyChange;
use sandstorm_store::{RecordTable, StoreError};

use super::backed_keys::{delete, put};
use super::command_call::{CommandCall, reach_table};
use super::commands::{self, RedisCommandSpec};
use super::keys::copy_destination;
use super::stripe_locks::StripeLocks;
use super::transaction_state::QueuedCommand;

/// Bytes of a number's digits, with which a value that is counted up may become longer than the command says.
const NUMBER_BYTES: usize = 24;

/// Has the backings of its tables admit all changes of a transaction, as far as its commands say them: what they make
/// of longer old values may still be refused, one by one.
pub(super) fn admit_queued<'w>(
    call: &mut CommandCall<'_, 'w>,
    locked: &mut StripeLocks<'w>,
    queued: &[QueuedCommand],
) -> Result<(), StoreError> {
    if !locked.have_backing() {
        return Ok(());
    }
    let mut tables: Vec<(&RecordTable, Vec<BackedKeyChange<'_>>)> = Vec::new();
    call.for_each_queued(queued, |call, one, args| {
        // An error here is repeated when the command runs, and answered then.
        let Some((from, to)) = tables_of(call, one.spec, args).filter(|_| one.spec.is(commands::WRITE)) else {
            return;
        };
        if to.has_backing() {
            let changes = changes_of(locked, (from, to), one.spec, args);
            match tables.iter_mut().find(|(table, _)| std::ptr::eq(*table, to)) {
                Some((_, all)) => all.extend(changes),
                None => tables.push((to, changes)),
            }
        }
    });
    tables.iter().try_for_each(|(table, changes)| locked.admit_backed(table, changes))
}

/// The table that a command reads, and the one that it changes.
fn tables_of<'w>(
    call: &mut CommandCall<'_, 'w>,
    spec: &RedisCommandSpec,
    args: &[&[u8]],
) -> Option<(&'w RecordTable, &'w RecordTable)> {
    let from = &call.table(false).ok()?.table;
    if spec.name != "copy" {
        return Some((from, from));
    }
    let view = call.view?;
    let to = call.with_args(args, |call| copy_destination(call)).ok()?;
    Some((from, &reach_table(view, to, true).ok()?.table))
}

/// What a command changes, at most.
fn changes_of<'k>(
    locked: &mut StripeLocks<'_>,
    (from, to): (&RecordTable, &RecordTable),
    spec: &RedisCommandSpec,
    args: &[&'k [u8]],
) -> Vec<BackedKeyChange<'k>> {
    let mut old_bytes = |key: &[u8]| {
        let hash = crate::hash_key(from, key);
        locked.of(from).map_or(0, |locked| locked.value_bytes(hash, key))
    };
    let key = |number: usize| args.get(number).copied().unwrap_or_default();
    let said: usize = args.iter().skip(2).map(|word| word.len()).sum();
    match spec.name {
        "mset" | "msetnx" => {
            let pairs = args.get(1..).unwrap_or_default().chunks_exact(2);
            pairs.map(|pair| put(to, pair[0], pair[1].len(), 0)).collect()
        }
        "del" | "unlink" | "getdel" => args.iter().skip(1).map(|key| delete(to, key)).collect(),
        "rename" | "renamenx" => vec![delete(to, key(1)), put(to, key(2), old_bytes(key(1)), 0)],
        "copy" => vec![put(to, key(2), old_bytes(key(1)), 0)],
        "bitop" => vec![put(to, key(2), spec.keys(args).map(&mut old_bytes).max().unwrap_or(0), 0)],
        "set" | "setex" | "psetex" | "setnx" | "getset" => vec![put(to, key(1), said, 0)],
        _ if spec.first == 1 => vec![put(to, key(1), old_bytes(key(1)) + said + NUMBER_BYTES, 0)],
        _ => Vec::new(),
    }
}
