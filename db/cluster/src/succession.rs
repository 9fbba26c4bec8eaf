//! The thread that takes another server's place. It seals the copy of that server's log that is here, waits until its
//! last lease is over, and imports the records. It has its own log tell of what that server's triggers have not called
//! for ([`InheritedCalls`]). When all that is on its disk and on its own copies, the map is changed. After a restart in
//! between it begins again.
//!
//! Only the last change of each key is made. A log that repeated all of a copy's changes would be longer than the
//! copied one, and the log of the next successor longer than that, until a checkpoint is due. A checkpoint is suggested
//! afterwards, so that the next successor has little to read. The copy is read once, unless it has more changes than
//! are kept in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandstorm_catalog::{AgreedLogNumbers, Directory, TableEntry};
use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_store::RestoredRecord;
use sandstorm_store::limits::RESTART_VERSIONS;
use sandstorm_store::slots::SlotSpan;

use crate::called_positions::CalledPositions;
use crate::copies_view::FailoverNote;
use crate::copy_coordinator::{CopyCoordinator, CopyName};
use crate::copy_format::{CopiedKey, CopiedTable, CopyAnswer, EmptiedTable};
use crate::inherited_calls::{BehindChangeVisit, InheritedCalls, table_triggers};
use crate::inherited_log::InheritedLog;
use crate::kept_changes::{ChangeVisit, read_last_changes};
use crate::limits::{
    COPY_PAGE_BYTES, INHERITED_CALLS_BYTES, KEEPER_INTERVAL, KEPT_CHANGES_BYTES, LOG_INTERVAL, REPLICA_PAUSE,
};
use crate::move_coordinator::MoveCoordinator;
use crate::slot_copy::CopyTables;
use crate::slot_mover::OwnTables;

/// The thread. Stops when dropped.
#[derive(Debug)]
pub(crate) struct SuccessorThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SuccessorThread {
    pub(crate) fn start(
        coordinator: Arc<MoveCoordinator>,
        copies: Arc<CopyCoordinator>,
        directory: Arc<Directory>,
    ) -> std::io::Result<SuccessorThread> {
        let (stop, woken) = (Arc::new(AtomicBool::new(false)), Arc::clone(&copies));
        let own = OwnTables::new(Arc::clone(&directory));
        let (logged, called) = (None, None);
        let mut run = SuccessorLoop { coordinator, copies, directory, own, logged, called, stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new().name("successor".to_owned()).spawn(move || run.run())?;
        woken.wake_with_the_map(thread.thread().clone());
        Ok(SuccessorThread { stop, thread: Some(thread) })
    }
}

impl Drop for SuccessorThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

struct SuccessorLoop {
    coordinator: Arc<MoveCoordinator>,
    copies: Arc<CopyCoordinator>,
    directory: Arc<Directory>,
    own: OwnTables,
    /// The time of the last line in the log about trouble.
    logged: Option<Instant>,
    /// The copy of which this server's log has been told what its owner's triggers have not called for.
    called: Option<CopyName>,
    stop: Arc<AtomicBool>,
}

/// A table of the copy that is known here.
struct InheritedTable {
    tenant: u32,
    entry: Arc<TableEntry>,
}

/// A copy while its records become this server's own.
struct TakenCopy<'a> {
    spans: &'a [SlotSpan],
    /// Tables by their numbers in the log.
    known: HashMap<u64, InheritedTable>,
    /// Names of tables whose numbers do not hold here yet: see [`AgreedLogNumbers`].
    unsettled: HashMap<u64, String>,
    /// The records that are taken over next.
    page: CopyAnswer,
}

/// Changes of a copy between two looks whether this server is still to take the place: about a millisecond.
const CHANGES_BETWEEN_CHECKS: u64 = 16_384;

/// How long a succession took, and each of its steps, of which the ends are given.
fn took(ends: &[(&str, Duration)]) -> String {
    let mut before = Duration::ZERO;
    let steps = ends.iter().map(|(name, end)| {
        let step = end.saturating_sub(std::mem::replace(&mut before, *end));
        format!("{name} {} ms", step.as_millis())
    });
    let steps = steps.collect::<Vec<_>>().join(", ");
    format!("in {} ms: {steps}", before.as_millis())
}

/// Whether this server is still to take the place of that one.
fn check(copies: &CopyCoordinator, stop: &AtomicBool, name: &CopyName) -> Result<(), String> {
    match copies.inheritance().as_ref() == Some(name) && !stop.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err("another server is to take it, or this one stops".to_owned()),
    }
}

impl SuccessorLoop {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.own.rest();
            let Some(name) = self.copies.inheritance() else {
                std::thread::park_timeout(KEEPER_INTERVAL);
                continue;
            };
            if let Err(why) = self.take_place(&name) {
                self.own.rest();
                if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                    tracing::error!("the place of server {} is not taken yet: {why}; it is tried again", name.0);
                    if self.check(&name).is_ok() {
                        let obstacle = format!("what takes it fails, and is tried again: {why}");
                        self.coordinator.copies_view().note_failover(FailoverNote::not_possible(&name.0, &obstacle));
                    }
                    self.logged = Some(Instant::now());
                }
                std::thread::park_timeout(REPLICA_PAUSE);
            }
        }
    }

    /// Whether this server is still to take the place of that one.
    fn check(&self, name: &CopyName) -> Result<(), String> {
        check(&self.copies, &self.stop, name)
    }

    fn take_place(&mut self, name: &CopyName) -> Result<(), String> {
        let begun = Instant::now();
        // Afterwards the map tells no more whether an operator has asked for it.
        let is_automatic = self.copies.is_on_probation(&name.0);
        let coordinator = Arc::clone(&self.coordinator);
        let mut log = InheritedLog::of(&self.copies, &coordinator, name)?;
        let left = log.seal(name)?;
        let mut parts = vec![("seal", begun.elapsed())];
        let until = Instant::now() + left;
        while Instant::now() < until {
            self.check(name)?;
            std::thread::park_timeout((until - Instant::now()).min(KEEPER_INTERVAL));
        }
        parts.push(("lease", begun.elapsed()));
        self.directory.catch_up().map_err(|error| error.to_string())?;
        // What is removed of an earlier move to that server is removed before its records come, or not at all.
        drop(coordinator.removal());
        let map = self.copies.peers().map;
        let mut spans: Vec<SlotSpan> = map.spans_of(&name.0).collect();
        spans.sort_unstable_by_key(|span| span.first);
        self.own.begin_clearing();
        while self.again(name, |own| own.clear(&spans))? {}
        parts.push(("clear", begun.elapsed()));
        let (tables, called) = self.inherit(name, &mut log, &spans)?;
        parts.push(("records", begun.elapsed()));
        self.inherit_calls(name, &log, called)?;
        parts.push(("calls", begun.elapsed()));
        self.again(name, |own| own.finish(&tables))?;
        self.check(name)?;
        parts.push(("disk", begun.elapsed()));
        self.copies.set_succeeded(&name.0);
        self.coordinator.wake_agent();
        while self.check(name).is_ok() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        // Another one may be to take it instead.
        if self.copies.has_taken(&name.0) {
            parts.push(("map", begun.elapsed()));
            let took = took(&parts);
            tracing::warn!("this server has taken the place of server {}, {took}", name.0);
            // This server's log has all of these records now, and its copies are what the next successor reads.
            self.directory.checkpoint_requests().suggest();
            self.coordinator.copies_view().note_failover(FailoverNote::done(&name.0, is_automatic, &took));
            log.remove(name);
        }
        self.logged = None;
        Ok(())
    }

    /// Does something until it is done: the log may have no room for a moment.
    fn again<T>(
        &mut self,
        name: &CopyName,
        mut act: impl FnMut(&mut OwnTables) -> Result<T, String>,
    ) -> Result<T, String> {
        loop {
            self.check(name)?;
            let done = act(&mut self.own);
            self.own.rest();
            match done {
                Ok(done) => return Ok(done),
                Err(why) => {
                    if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                        tracing::info!("the records of server {} wait: {why}", name.0);
                        self.logged = Some(Instant::now());
                    }
                    std::thread::park_timeout(KEEPER_INTERVAL);
                }
            }
        }
    }

    /// Has this server's log tell of what the triggers of the other one have not called for, once.
    fn inherit_calls(
        &mut self,
        name: &CopyName,
        lost_log: &InheritedLog,
        called: CalledPositions,
    ) -> Result<(), String> {
        let serials = table_triggers(&self.directory);
        let Some(log) = self.directory.change_log() else { return Ok(()) };
        if serials.is_empty() || self.called.as_ref() == Some(name) {
            return Ok(());
        }
        let coordinator = Arc::clone(&self.coordinator);
        let caller = coordinator.calls().caller();
        if let Some(Err(error)) = caller.map(|caller| caller.take_over()) {
            // A trigger that was made just now may not be called for what is told here.
            tracing::warn!("not all triggers of the cluster are here while a place is taken: {error}");
        }
        let check = || self.check(name);
        let read_behind =
            |position: u64, visit: &mut BehindChangeVisit<'_>| lost_log.read_behind(name, position, visit);
        let (read_behind, most_bytes) = (&read_behind, INHERITED_CALLS_BYTES);
        let inherited = InheritedCalls { read_behind, name, log: &log, most_bytes, check: &check };
        for (serial, why) in inherited.take_over(&serials, called)? {
            tracing::warn!("not all calls of a trigger are taken over: {why}");
            caller.into_iter().for_each(|caller| caller.lose(serial, &why));
        }
        self.called = Some(name.clone());
        Ok(())
    }

    /// Makes the records of a copy this server's own. Returns the tables, with versions behind all that were given, and
    /// the positions of triggers.
    fn inherit(
        &mut self,
        name: &CopyName,
        log: &mut InheritedLog,
        spans: &[SlotSpan],
    ) -> Result<(Vec<CopiedTable>, CalledPositions), String> {
        let AgreedLogNumbers { tables, unsettled } = self.directory.log_numbers()?;
        let inherited = |(number, (tenant, entry))| (number, InheritedTable { tenant, entry });
        let known: HashMap<u64, InheritedTable> = tables.into_iter().map(inherited).collect();
        let (copies, stop) = (Arc::clone(&self.copies), Arc::clone(&self.stop));
        let mut called = CalledPositions::default();
        let read = |visit: &mut ChangeVisit<'_>| {
            let mut looked = 0_u64;
            log.read(name, &mut |change| {
                looked += 1;
                if looked.is_multiple_of(CHANGES_BETWEEN_CHECKS) {
                    check(&copies, &stop, name)?;
                }
                if called.note(change) { Ok(()) } else { visit(change) }
            })
        };
        let mut taken = TakenCopy { spans, known, unsettled, page: CopyAnswer::default() };
        let make = |change: &LoggedChange<'_>| self.inherit_change(name, change, &mut taken);
        let versions = read_last_changes(spans, KEPT_CHANGES_BYTES, read, make)?;
        self.take(name, &mut taken.page)?;
        let told = taken.known.iter().map(|(number, table)| CopiedTable {
            tenant: table.tenant,
            table: table.entry.id,
            serial: table.entry.serial(),
            version: versions.get(number).copied().unwrap_or(0) + RESTART_VERSIONS,
            backing: None,
            logged: None,
        });
        Ok((told.collect(), called))
    }

    /// Makes a change of a copy, which is the last one of its key, or empties a table.
    fn inherit_change(
        &mut self,
        name: &CopyName,
        change: &LoggedChange<'_>,
        taken: &mut TakenCopy<'_>,
    ) -> Result<(), String> {
        if let Some(table) = taken.unsettled.get(&change.table) {
            // Its records would be taken for those of a dropped one.
            return Err(format!("the durability of table {table} was changed, and does not hold here yet"));
        }
        // An unknown table was dropped, or has begun anew.
        let Some(table) = taken.known.get(&change.table) else { return Ok(()) };
        let (tenant, id, serial) = (table.tenant, table.entry.id, table.entry.serial());
        let record = match change.kind {
            ChangeKind::Put | ChangeKind::Arrive => Some(RestoredRecord {
                version: change.version,
                key: change.key,
                value: change.value,
                flags: change.flags,
                expires_at_ms: change.expires_at_ms,
            }),
            ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => None,
            ChangeKind::MakeTable | ChangeKind::DropTable => return Ok(()),
            ChangeKind::Clear => {
                let emptied = EmptiedTable { tenant, table: id, serial };
                self.take(name, &mut taken.page)?;
                while self.again(name, |own| own.empty(taken.spans, &emptied))? {}
                return Ok(());
            }
        };
        taken.page.push(&CopiedKey { tenant, table: id, serial, key: change.key, record });
        if taken.page.records.len() >= COPY_PAGE_BYTES { self.take(name, &mut taken.page) } else { Ok(()) }
    }

    /// Takes over a page of records, in their order. Again and again, if the log has no room: it comes to the same.
    fn take(&mut self, name: &CopyName, page: &mut CopyAnswer) -> Result<(), String> {
        let taken = std::mem::take(page);
        self.again(name, |own| own.take(&taken)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_succession_add_up_to_what_it_took() {
        let at = Duration::from_millis;
        assert_eq!(
            took(&[("seal", at(2)), ("lease", at(120)), ("map", at(125))]),
            "in 125 ms: seal 2 ms, lease 118 ms, map 5 ms"
        );
    }
}
