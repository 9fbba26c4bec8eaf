//! One running command: its arguments, its context, and the writer of its answer.

use std::sync::Arc;

use sandstorm_net::resp::RespWriter;

use super::arguments::parse_integer;
use super::errors::{CommandError, CommandResult, LEFT_MEMORY, NO_AUTH, NOT_AN_INTEGER, OVER_RATE};
use super::session_state::RedisSessionState;
use super::stripe_locks::StripeLocks;
use super::transaction_state::QueuedCommand;
use crate::CommandContext;
use sandstorm_catalog::{AccessError, TableEntry, TenantView};
use sandstorm_store::backed::BackedKeyChange;
use sandstorm_store::{EpochGuard, NewValue, RecordHead, RecordRef, RecordTable, RecordUpdate, StoreError};

const NOT_NAMED: &str = "ERR a table that the transaction did not name";
const NO_TABLE: &str = "ERR there is no table to use: SELECT one, or make one (`sandstorm table create`)";

/// The arguments of a handler.
pub(super) struct CommandCall<'c, 'w> {
    pub(super) context: &'c CommandContext<'w>,
    pub(super) guard: &'c EpochGuard<'w>,
    pub(super) view: Option<&'w Arc<TenantView>>,
    pub(super) state: &'c mut RedisSessionState,
    /// Locked stripes, which exclude other writers: for a transaction, or a command on several keys.
    pub(super) locked: Option<&'c mut StripeLocks<'w>>,
    /// The command's name first; the number of arguments matches its arity.
    pub(super) args: &'c [&'c [u8]],
    pub(super) reply: RespWriter<'c>,
}

impl<'c, 'w> CommandCall<'c, 'w> {
    /// Calls `f` for each queued command but `SELECT`, which chooses the table that those after it see. The session's
    /// own table is as before afterwards.
    pub(super) fn for_each_queued<'q>(
        &mut self,
        queued: &'q [QueuedCommand],
        mut f: impl FnMut(&mut Self, &'q QueuedCommand, &[&'q [u8]]),
    ) {
        let before = self.state.table;
        for one in queued {
            let args = one.args();
            if one.spec.name == "select" {
                if let Some(Ok(table)) = self.view.map(|view| self.state.selected(view, args[1])) {
                    self.state.table = Some(table);
                }
                continue;
            }
            f(self, one, &args);
        }
        self.state.table = before;
    }

    /// Shows a function the same call with other arguments.
    pub(super) fn with_args<R>(&mut self, args: &[&[u8]], f: impl FnOnce(&mut CommandCall<'_, 'w>) -> R) -> R {
        let reply = RespWriter { out: &mut *self.reply.out, resp3: self.reply.resp3 };
        f(&mut CommandCall {
            context: self.context,
            guard: self.guard,
            view: self.view,
            state: &mut *self.state,
            locked: self.locked.as_deref_mut(),
            args,
            reply,
        })
    }

    /// An argument, by its number; the command's name is number 0.
    pub(super) fn arg(&self, number: usize) -> &'c [u8] {
        self.args.get(number).copied().unwrap_or_default()
    }

    /// The arguments from that number on.
    pub(super) fn rest(&self, from: usize) -> &'c [&'c [u8]] {
        self.args.get(from..).unwrap_or_default()
    }

    /// An argument that has to be a whole number.
    pub(super) fn integer(&self, number: usize) -> Result<i64, CommandError> {
        parse_integer(self.arg(number)).ok_or_else(|| NOT_AN_INTEGER.into())
    }

    /// Whether the command cannot take long; the arguments of a long one are not examined for that.
    pub(super) fn is_quick(&self, spec: &super::commands::RedisCommandSpec) -> bool {
        let bytes = || self.args.iter().map(|arg| arg.len()).sum();
        self.args.len() <= crate::limits::redis::QUICK_ARGS && spec.is_quick(self.args.len(), bytes())
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.context.now_ms
    }

    /// The clock's time now, for expiries that count from it.
    pub(super) fn clock_ms(&self) -> u64 {
        sandstorm_store::clock_ms(self.now_ms())
    }

    /// The tenant.
    pub(super) fn view(&self) -> Result<&'w Arc<TenantView>, CommandError> {
        self.view.ok_or_else(|| NO_AUTH.into())
    }

    /// The table that is selected.
    pub(super) fn table(&self, write: bool) -> Result<&'w TableEntry, CommandError> {
        let view = self.view()?;
        let id = self.state.table_id().ok_or_else(|| no_table_error(self))?;
        reach_table(view, id, write)
    }

    /// Counts further keys of the command against the tenant's rate. Those of a transaction were counted before it
    /// began: here they are part of its work, which is bounded.
    pub(super) fn admit_keys(&self, keys: usize) -> CommandResult {
        let further = keys.saturating_sub(1);
        if self.state.in_exec {
            self.context.work(further as u64);
        } else if further > 0 && !self.context.admit(self.view()?, u32::try_from(further).unwrap_or(u32::MAX)) {
            return Err(OVER_RATE.into());
        }
        Ok(())
    }

    /// Counts keys of a transaction against the tenant's rate alone.
    pub(super) fn admit_rate(&self, keys: usize) -> CommandResult {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        if keys > 0 && !self.context.admit_rate(self.view()?, keys) {
            return Err(OVER_RATE.into());
        }
        Ok(())
    }

    /// The live record of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<RecordRef<'c>>, CommandError> {
        let table = &self.table(false)?.table;
        Ok(self.get_in(table, key))
    }

    /// The same, in a table that was looked up.
    pub(super) fn get_in(&self, table: &'w RecordTable, key: &[u8]) -> Option<RecordRef<'c>> {
        let found = table.get(self.guard, crate::hash_key(table, key), key, self.now_ms());
        if found.is_none() && self.has_cold() {
            return None;
        }
        self.count_read(found.is_some());
        found
    }

    fn count_read(&self, is_there: bool) {
        self.context.counters.records_read.add(u64::from(is_there));
        if let Some(view) = self.view {
            let counters = view.tenant.usage.worker(self.context.worker);
            counters.connection_reads.add(1);
            counters.connection_misses.add(u64::from(!is_there));
        }
    }

    /// Whether the command has met a cold record: then what it has read says nothing, and it changes nothing.
    #[inline]
    pub(super) fn has_cold(&self) -> bool {
        self.context.participant.shown().has_cold()
    }

    /// Answers with an error where a command, after it was made sure that all it needs is in memory, has met what is
    /// not. It may have changed something, so it is not run again.
    pub(super) fn refuse_if_cold(&mut self, begun: usize) {
        if self.has_cold() {
            self.context.participant.shown().take_cold();
            self.reply.out.truncate(begun);
            self.reply.error(LEFT_MEMORY.as_bytes());
        }
    }

    /// What is known of a record without its value.
    pub(super) fn head_in(&self, table: &RecordTable, key: &[u8]) -> Option<RecordHead> {
        let found = table.head(self.guard, crate::hash_key(table, key), key, self.now_ms());
        if found.is_none() && self.has_cold() {
            return None;
        }
        self.count_read(found.is_some());
        found
    }

    /// Has a function decide the update of a record by whether it is there, while no other thread writes it. Its value
    /// is not read.
    pub(super) fn update_by_head<R>(
        &mut self,
        entry: &'w TableEntry,
        key: &[u8],
        f: impl FnOnce(Option<RecordHead>) -> RecordUpdate<'c, R>,
    ) -> Result<R, CommandError> {
        let (table, context, now_ms) = (&entry.table, self.context, self.now_ms());
        let hash = self.begin_update(table, key)?;
        let f = |old: Option<RecordHead>| note_copied(context, f(old));
        let done = match self.locked.as_deref_mut().map(|locked| locked.of(table)) {
            Some(Some(locked)) => locked.update_by_head(hash, key, now_ms, f),
            Some(None) => return Err(NOT_NAMED.into()),
            None => table.update_by_head(self.context.participant, hash, key, now_ms, f),
        };
        Ok(done?.0)
    }

    /// Puts a record whatever is there, which is not looked for.
    pub(super) fn replace(&mut self, entry: &'w TableEntry, key: &[u8], put: &NewValue<'_>) -> CommandResult {
        let (table, now_ms) = (&entry.table, self.now_ms());
        let hash = self.begin_update(table, key)?;
        self.context.bytes(put.value.copied_bytes());
        match self.locked.as_deref_mut().map(|locked| locked.of(table)) {
            Some(Some(locked)) => locked.replace(hash, key, now_ms, put)?,
            Some(None) => return Err(NOT_NAMED.into()),
            None => table.replace(self.context.participant, hash, key, now_ms, put)?,
        };
        Ok(())
    }

    /// Counts a write. Returns the key's hash. A command that has met a cold record writes nothing.
    fn begin_update(&self, table: &RecordTable, key: &[u8]) -> Result<u64, CommandError> {
        if self.has_cold() {
            return Err(StoreError::Cold.into());
        }
        if let Some(view) = self.view {
            view.tenant.usage.worker(self.context.worker).connection_writes.add(1);
        }
        Ok(crate::hash_key(table, key))
    }

    /// Reserves room in the log for the changes of a command on several keys. A transaction has done so for all of its
    /// commands.
    pub(super) fn reserve_log(&self, changes: usize, bytes: usize) -> CommandResult {
        match &self.locked {
            Some(locked) if !self.state.in_exec => Ok(locked.reserve_log(changes, bytes)?),
            _ => Ok(()),
        }
    }

    /// Has what is behind a table admit all changes of a command on several keys, before the first is made. A
    /// transaction has done so for all of its commands.
    pub(super) fn admit_backed<'k>(
        &mut self,
        entry: &'w TableEntry,
        changes: impl FnOnce(&RecordTable) -> Vec<BackedKeyChange<'k>>,
    ) -> CommandResult {
        match &mut self.locked {
            Some(locked) if !self.state.in_exec && entry.table.has_backing() => {
                Ok(locked.admit_backed(&entry.table, &changes(&entry.table))?)
            }
            _ => Ok(()),
        }
    }

    /// Has a function decide the update of a record, while no other thread writes it.
    pub(super) fn update<R>(
        &mut self,
        key: &[u8],
        f: impl FnOnce(Option<RecordRef<'c>>) -> RecordUpdate<'c, R>,
    ) -> Result<R, CommandError> {
        let entry = self.table(true)?;
        self.update_in(entry, key, f)
    }

    /// The same, in a table that was looked up for writing.
    pub(super) fn update_in<R>(
        &mut self,
        entry: &'w TableEntry,
        key: &[u8],
        f: impl FnOnce(Option<RecordRef<'c>>) -> RecordUpdate<'c, R>,
    ) -> Result<R, CommandError> {
        let (table, context, now_ms) = (&entry.table, self.context, self.now_ms());
        let hash = self.begin_update(table, key)?;
        let f = |old: Option<RecordRef<'c>>| note_copied(context, f(old));
        let done = match self.locked.as_deref_mut().map(|locked| locked.of(table)) {
            Some(Some(locked)) => locked.update(hash, key, now_ms, f),
            // While some are locked, no further one may be waited for.
            Some(None) => return Err(NOT_NAMED.into()),
            None => table.update(self.context.participant, hash, key, now_ms, f),
        };
        Ok(done?.0)
    }
}

/// Charges the bytes that a change copies.
#[inline]
fn note_copied<'c, R>(context: &CommandContext<'_>, change: RecordUpdate<'c, R>) -> RecordUpdate<'c, R> {
    if let RecordUpdate::Put { value, .. } = &change {
        context.bytes(value.copied_bytes());
    }
    change
}

/// The error of a connection without an identity: it has shown no token, or its port's tenant does not exist.
pub(super) fn no_auth_error(call: &CommandCall<'_, '_>) -> CommandError {
    let missing = call.state.service.missing_tenant(call.context.snapshot);
    missing.map_or_else(|| NO_AUTH.into(), |text| format!("ERR {text}").into())
}

/// The error of a connection without a table: there is none, or its port's does not exist.
#[cold]
fn no_table_error(call: &CommandCall<'_, '_>) -> CommandError {
    let missing = call.state.service.missing_table(call.context.snapshot);
    missing.map_or_else(|| NO_TABLE.into(), |text| format!("ERR {text}").into())
}

/// A table whose keys are all in memory: those of others are not listed at once.
pub(super) fn listed(entry: &TableEntry) -> Result<&TableEntry, CommandError> {
    if entry.table.is_larger_than_memory() {
        return Err("ERR the table is larger than memory (mode `spill`): use SCAN, outside of a transaction".into());
    }
    scanned(entry)
}

/// A table whose keys are listed step by step, if need be from the disk.
pub(super) fn scanned(entry: &TableEntry) -> Result<&TableEntry, CommandError> {
    if entry.table.has_backing() {
        return Err(
            "ERR the table is in front of a backing: its keys are not listed, since memory has only some".into()
        );
    }
    Ok(entry)
}

/// A table of a tenant, for reading or for writing.
pub(super) fn reach_table(view: &TenantView, id: u64, write: bool) -> Result<&TableEntry, CommandError> {
    view.reach(id, write).map_err(|why| match why {
        AccessError::ReadOnly => "NOPERM the table was granted for reading only".into(),
        AccessError::Unknown => NO_TABLE.into(),
    })
}
