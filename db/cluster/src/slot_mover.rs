//! The thread of a server that takes slots from others, and removes the records of those that it has given away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandstorm_catalog::{Directory, TableEntry};
use sandstorm_log::COPIED_BIT;
use sandstorm_store::slots::SlotSpan;
use sandstorm_store::{GracePeriod, Participant, SlotWalk, StoreError, WalkBudget};

use crate::broken_rules::{MemberRule, is_broken};
use crate::copy_format::{CopiedTable, CopyAnswer, EmptiedTable};
use crate::copy_notes::CopyNotes;
use crate::limits::{
    CALLS_ELSEWHERE_MOST, CLEAR_BATCH, COPY_PAGE_BYTES, COPY_PAUSE, COPY_READS, LOG_INTERVAL, MOVE_POLL_INTERVAL,
    SPILL_WAIT,
};
use crate::move_coordinator::{CopyProgress, MoveCoordinator};
use crate::peer_link::PeerLink;
use crate::slot_copy::{CopySource, CopyTables, SlotCopy};
use crate::slot_source::{logged_as, tables_of};
use crate::state::{ServerState, StoredMove};

/// Time between two looks whether all threads have passed a point.
const GRACE_PAUSE: Duration = Duration::from_millis(1);

/// Waits until all threads have passed a point since now. Returns whether they have: not if it is to stop.
pub(crate) fn await_grace(participant: &mut Participant, stop: &AtomicBool) -> bool {
    let grace = GracePeriod::begin(participant);
    while !grace.is_over() {
        participant.quiescent();
        participant.offline();
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::park_timeout(GRACE_PAUSE);
    }
    true
}

/// The tables of all tenants.
pub(crate) fn all_tables(directory: &Directory) -> Vec<Arc<TableEntry>> {
    directory.snapshot().iter().flat_map(|view| view.tables.values().cloned().collect::<Vec<_>>()).collect()
}

/// The thread. Stops when dropped.
#[derive(Debug)]
pub(crate) struct SlotMover {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlotMover {
    pub(crate) fn start(
        coordinator: Arc<MoveCoordinator>,
        directory: Arc<Directory>,
        notes: CopyNotes,
    ) -> std::io::Result<SlotMover> {
        let mover = MoverLoop::new(coordinator, directory, notes);
        let stop = Arc::clone(&mover.stop);
        let thread = std::thread::Builder::new().name("slot-mover".to_owned()).spawn(move || mover.run())?;
        Ok(SlotMover { stop, thread: Some(thread) })
    }
}

impl Drop for SlotMover {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

pub(crate) struct MoverLoop {
    coordinator: Arc<MoveCoordinator>,
    own: OwnTables,
    /// The moves that were copied here, until it is known what became of them.
    pub(crate) notes: CopyNotes,
    /// A copy that was ready when its source did not answer: whether its slots are handed over the map will say. Until
    /// then this server makes no calls for their changes, as where it has the answer.
    doubtful: Option<(StoredMove, SlotCopy)>,
    /// The time of the last line in the log about trouble.
    logged: Option<Instant>,
    stop: Arc<AtomicBool>,
}

impl MoverLoop {
    pub(crate) fn new(coordinator: Arc<MoveCoordinator>, directory: Arc<Directory>, notes: CopyNotes) -> MoverLoop {
        let stop = Arc::new(AtomicBool::new(false));
        MoverLoop { own: OwnTables::new(directory), coordinator, notes, doubtful: None, logged: None, stop }
    }

    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.own.participant.offline();
            self.coordinator.slots().set_awaited(None);
            self.end_doubt(|own, wanted, copy| own.await_calls_of(wanted, copy));
            self.remove_cancelled();
            if let Some((move_id, span)) = self.coordinator.next_to_clear() {
                self.clear(move_id, span);
            } else if let Some((wanted, source, key)) = self.coordinator.next_copy() {
                self.copy(&wanted, source, key);
            } else {
                self.own.forget_noted(&self.coordinator);
                std::thread::park_timeout(MOVE_POLL_INTERVAL);
            }
        }
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Removes the records of slots that were handed over.
    pub(crate) fn clear(&mut self, move_id: u64, span: SlotSpan) {
        // A reader that checked the slot's owner before may still read.
        if !await_grace(&mut self.own.participant, &self.stop) {
            return;
        }
        self.remove(move_id, span);
        if !self.stops() {
            self.coordinator.set_cleared(move_id);
        }
    }

    /// Removes what was copied for moves that were cancelled, maybe before this start: it is worth nothing.
    pub(crate) fn remove_cancelled(&mut self) {
        let mut gone = self.notes.copies();
        gone.retain(|(move_id, _)| self.coordinator.is_gone(*move_id));
        for (move_id, span) in gone {
            for part in self.coordinator.foreign_parts(span) {
                self.remove(move_id, part);
            }
            if self.stops() {
                return;
            }
            self.notes.remove(move_id);
        }
    }

    /// Whether nothing that this server has of some slots is worth anything.
    pub(crate) fn may_remove(&self, move_id: u64, span: SlotSpan) -> bool {
        let is_worthless = self.coordinator.is_foreign(span) || self.coordinator.clears_before_serving(move_id);
        is_worthless && !self.own.owns_any(span)
    }

    /// Removes the records of slots that are not this server's.
    fn remove(&mut self, move_id: u64, span: SlotSpan) {
        self.own.cursor = ClearCursor::default();
        while !self.stops() {
            // A successor waits for it before it takes records over: the next look finds that they stay.
            let removal = self.coordinator.removal();
            if !self.may_remove(move_id, span) {
                return;
            }
            let removed = self.own.clear(&[span]);
            drop(removal);
            match removed {
                Ok(true) => {}
                Ok(false) => return,
                // No room in the log, for a moment.
                Err(why) => self.pause(move_id, &why),
            }
        }
    }

    /// Copies the slots of a move, and has them handed over.
    fn copy(&mut self, wanted: &StoredMove, source: Option<ServerState>, key: String) {
        let link = source.ok_or_else(|| "its source has told of no address".to_owned());
        let mut link = match link.and_then(|source| PeerLink::new(&source, key)) {
            Ok(link) => link,
            Err(why) => return self.pause(wanted.id, &why),
        };
        self.copy_from(wanted, &mut link);
    }

    /// The same, from a source.
    pub(crate) fn copy_from(&mut self, wanted: &StoredMove, link: &mut impl CopySource) {
        let mut copy = SlotCopy::new(self.coordinator.slots().own_id(), wanted.id, wanted.span(), rand::random());
        self.own.cursor = ClearCursor::default();
        if let Err(why) = self.notes.add(wanted.id, wanted.span()) {
            return self.pause(wanted.id, &why);
        }
        let begun = Instant::now();
        while !copy.is_over() && !self.stops() {
            if copy.is_served() && !self.coordinator.is_to_be_copied(wanted.id) {
                // It was cancelled: `remove_cancelled` follows.
                return copy.abandon(link);
            }
            let stepped = copy.step(link, &mut self.own);
            // Before anything waits: memory is freed only once every online participant has moved on.
            self.own.participant.quiescent();
            self.own.participant.offline();
            let is_of_source = |(doubted, _): &mut (StoredMove, _)| doubted.source == wanted.source;
            if copy.has_begun() && self.doubtful.take_if(is_of_source).is_some() {
                // The source begins none while an earlier one is handed over: that one never was.
                self.coordinator.slots().set_called_elsewhere(None);
            }
            if let Err(why) = stepped.and_then(|()| self.attend(&copy, link)) {
                copy.abandon(link);
                self.pause(wanted.id, &why);
                // The source may have handed the slots over, and its answer was lost.
                self.doubtful = copy.is_ready().then(|| (wanted.clone(), copy)).or(self.doubtful.take());
                return;
            }
            let (records, bytes, state) = (copy.records, copy.bytes, copy.state());
            self.coordinator.set_progress(CopyProgress { move_id: wanted.id, records, bytes, state });
            if copy.is_served()
                && let Err(why) = self.keep_rate(wanted.mib_per_s, begun, &copy, link)
            {
                copy.abandon(link);
                return self.pause(wanted.id, &why);
            }
        }
        // This server reads that it owns them now.
        self.coordinator.wake_agent();
        self.logged = None;
        while self.coordinator.is_to_be_copied(wanted.id) && copy.is_over() && !self.stops() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if copy.is_over() {
            self.await_calls(&copy, link);
        }
    }

    /// Looks what became of a copy whose source did not answer when it was ready. Calls for changes of its slots are
    /// made here once it is known that they were not handed over, or by `wait`, which asks the source, that it has made
    /// its own.
    pub(crate) fn end_doubt(&mut self, wait: impl FnOnce(&MoverLoop, &StoredMove, &SlotCopy)) {
        if let Some((wanted, copy)) = self.doubtful.take() {
            match self.coordinator.is_taken(&wanted) {
                None => {
                    self.doubtful = Some((wanted, copy));
                    return;
                }
                Some(false) => {}
                Some(true) => wait(self, &wanted, &copy),
            }
        }
        self.coordinator.slots().set_called_elsewhere(None);
    }

    /// The same as [`MoverLoop::await_calls`], over another link.
    fn await_calls_of(&self, wanted: &StoredMove, copy: &SlotCopy) {
        // A server that was removed makes none.
        let Some((source, key)) = self.coordinator.peer(&wanted.source) else { return };
        if let Ok(mut link) = PeerLink::new(&source, key) {
            self.await_calls(copy, &mut link);
        }
    }

    /// Waits until the source has made its calls for changes of the slots, which are this server's by now.
    fn await_calls(&self, copy: &SlotCopy, link: &mut impl CopySource) {
        let until = Instant::now() + CALLS_ELSEWHERE_MOST;
        while !self.stops() && Instant::now() < until {
            match copy.ask_called(link) {
                Ok(true) => return,
                Ok(false) => {}
                // It may start again.
                Err(_) => std::thread::park_timeout(COPY_PAUSE),
            }
        }
    }

    /// What is to be done between two steps: the source is told that the copy goes on, clients are told that slots
    /// come here.
    fn attend(&self, copy: &SlotCopy, link: &mut impl CopySource) -> Result<(), String> {
        if copy.is_ready() {
            self.coordinator.slots().set_awaited(Some(copy.span()));
            self.coordinator.slots().set_called_elsewhere(Some(copy.span()));
        }
        if copy.waits {
            std::thread::park_timeout(COPY_PAUSE);
        }
        if copy.is_served() && link.is_quiet() { copy.keep_alive(link) } else { Ok(()) }
    }

    /// Waits as long as the rate of a move asks for.
    fn keep_rate(
        &self,
        mib_per_s: u64,
        begun: Instant,
        copy: &SlotCopy,
        link: &mut impl CopySource,
    ) -> Result<(), String> {
        if mib_per_s == 0 {
            return Ok(());
        }
        let due = Duration::from_secs_f64(copy.bytes as f64 / (mib_per_s << 20) as f64);
        while begun.elapsed() < due && !self.stops() && self.coordinator.is_to_be_copied(copy.move_id()) {
            std::thread::park_timeout((due - begun.elapsed().min(due)).min(MOVE_POLL_INTERVAL));
            if link.is_quiet() {
                copy.keep_alive(link)?;
            }
        }
        Ok(())
    }

    fn pause(&mut self, move_id: u64, why: &str) {
        self.own.participant.offline();
        self.note(move_id, why);
        std::thread::park_timeout(COPY_PAUSE);
    }

    fn note(&mut self, move_id: u64, why: &str) {
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            // Most of it is the order in which moves are made; `cluster status` shows it, too.
            tracing::info!("slots are not moved yet: {why}; it is tried again");
            self.logged = Some(Instant::now());
        }
        self.coordinator.set_progress(CopyProgress {
            move_id,
            state: format!("waits: {why}"),
            ..CopyProgress::default()
        });
    }
}

/// Tenant, table and serial, and the table if it is known here.
type FoundTable = ((u32, u64, u64), Option<Arc<TableEntry>>);

/// Where the removal of records goes on.
#[derive(Default)]
struct ClearCursor {
    tables: Option<Vec<(u32, Weak<TableEntry>)>>,
    walk: SlotWalk,
    /// The same for the table that the source has emptied. A new attempt begins anew with it, too.
    emptying: SlotWalk,
}

/// This server's tables.
pub(crate) struct OwnTables {
    directory: Arc<Directory>,
    participant: Participant,
    cursor: ClearCursor,
}

/// Waits until a table larger than memory has room for what comes: what was there before goes to the disk.
fn make_room(
    participant: &mut Participant,
    (tenant, entry): (u32, &TableEntry),
    waited: &mut Duration,
) -> Result<(), String> {
    while !entry.table.makes_room_for_arrivals(participant).map_err(words)? {
        if *waited >= SPILL_WAIT {
            let name = entry.name();
            return Err(format!(
                "the disk of this server takes the records of table {name} of tenant {tenant} too slowly"
            ));
        }
        let begun = Instant::now();
        // Memory is given back only behind participants that are online.
        participant.quiescent();
        participant.offline();
        std::thread::park_timeout(Duration::from_millis(1));
        *waited += begun.elapsed();
    }
    Ok(())
}

/// Removes further records of some slots from a table; returns whether there may be more. An error has the walk begin
/// again.
fn remove_some(
    participant: &mut Participant,
    (tenant, entry): (u32, &TableEntry),
    walk: &mut SlotWalk,
    spans: &[SlotSpan],
) -> Result<bool, String> {
    let budget = WalkBudget { records: CLEAR_BATCH, reads: COPY_READS, bytes: COPY_PAGE_BYTES };
    let removed = entry.table.remove_slots(participant, walk, (budget, spans));
    removed.map_err(|error| format!("a record of table {} of tenant {tenant} is not removed: {error}", entry.name()))
}

fn words(error: StoreError) -> String {
    format!("this server does not take a record: {error}")
}

impl OwnTables {
    pub(crate) fn new(directory: Arc<Directory>) -> OwnTables {
        let participant = directory.participant();
        OwnTables { directory, participant, cursor: ClearCursor::default() }
    }

    /// Nothing of the tables is in use for a while.
    pub(crate) fn rest(&mut self) {
        self.participant.quiescent();
        self.participant.offline();
    }

    /// What is cleared next is cleared from the first table on.
    pub(crate) fn begin_clearing(&mut self) {
        self.cursor = ClearCursor::default();
    }

    /// Whether this server owns any of some slots.
    fn owns_any(&self, span: SlotSpan) -> bool {
        self.directory.slots().is_none_or(|slots| (span.first..=span.last).any(|slot| slots.owns_slot(slot)))
    }

    fn find(&self, tenant: u32, table: u64) -> Option<Arc<TableEntry>> {
        self.directory.snapshot().tenant(tenant).and_then(|view| view.table(table).cloned())
    }

    /// Makes sure that the backing of a table is the one that the source has.
    fn check_backing(&self, table: &CopiedTable) -> Result<(), String> {
        let found = self.find(table.tenant, table.table);
        let Some((entry, wanted)) = found.as_ref().zip(table.backing.as_ref()) else { return Ok(()) };
        let own = entry.backing().map(|backing| backing.identity()).transpose();
        let own = own.map_err(|error| format!("the backing of table {}: {error}", entry.name()))?.flatten();
        match own.as_ref() == Some(wanted) {
            true => Ok(()),
            false => Err(format!(
                "what is behind table {} here is not what is behind it at the source: a backing has to be one for all \
                 servers, such as a folder that all of them mount",
                entry.name()
            )),
        }
    }

    /// Gives memory back of a copy that has ended.
    pub(crate) fn forget_noted(&self, coordinator: &MoveCoordinator) {
        // None begins meanwhile.
        let _turn = coordinator.turn();
        if coordinator.slots().copied().is_none() && coordinator.slots().noted_bytes() > 0 {
            all_tables(&self.directory).iter().for_each(|entry| entry.table.forget_copied_keys());
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl CopyTables for OwnTables {
    fn check(&mut self, tables: &[CopiedTable]) -> Result<(), String> {
        let is_unknown = |own: &OwnTables, wanted: &CopiedTable| {
            own.find(wanted.tenant, wanted.table).is_none_or(|entry| entry.serial() != wanted.serial)
        };
        if tables.iter().any(|table| is_unknown(self, table)) {
            self.directory.catch_up().map_err(|error| error.to_string())?;
        }
        match tables.iter().find(|table| is_unknown(self, table)) {
            None => tables.iter().try_for_each(|table| self.check_backing(table)),
            Some(table) => Err(format!("table {} of tenant {} is not known here yet", table.table, table.tenant)),
        }
    }

    /// A change of a table's durability holds here a while after it does at the source, and what the source has
    /// acknowledged would be less safe than it was.
    fn logged_otherwise(&self, tables: &[CopiedTable]) -> Option<String> {
        let otherwise = |table: &CopiedTable| {
            let entry = self.find(table.tenant, table.table).filter(|entry| entry.serial() == table.serial)?;
            (table.logged? != logged_as(&entry)).then_some(entry)
        };
        let entry = tables.iter().find_map(otherwise)?;
        Some(format!(
            "the durability of table {} was changed, and does not hold here and at the source yet",
            entry.name()
        ))
    }

    fn clear(&mut self, spans: &[SlotSpan]) -> Result<bool, String> {
        // It cannot be, and would be the end of these records.
        if spans.iter().any(|span| self.owns_any(*span)) {
            return Err("these slots are this server's own".to_owned());
        }
        let all =
            || tables_of(&self.directory).iter().map(|(tenant, entry)| (*tenant, Arc::downgrade(entry))).collect();
        let tables = self.cursor.tables.get_or_insert_with(all);
        let Some((tenant, table)) = tables.last() else {
            self.cursor = ClearCursor::default();
            return Ok(false);
        };
        let has_more = match table.upgrade() {
            Some(entry) => {
                let has_more = remove_some(&mut self.participant, (*tenant, &entry), &mut self.cursor.walk, spans)?;
                if !has_more && let Some(backing) = entry.backing() {
                    spans.iter().for_each(|span| backing.forget_slots(&self.participant, *span));
                }
                has_more
            }
            None => false,
        };
        if !has_more {
            tables.pop();
            self.cursor.walk = SlotWalk::default();
        }
        self.participant.quiescent();
        Ok(true)
    }

    fn empty(&mut self, spans: &[SlotSpan], table: &EmptiedTable) -> Result<bool, String> {
        if spans.iter().any(|span| self.owns_any(*span)) {
            return Err("these slots are this server's own".to_owned());
        }
        let found = self.find(table.tenant, table.table).filter(|entry| entry.serial() == table.serial);
        let Some(entry) = found else {
            // It was dropped meanwhile, and the next table that is emptied is emptied from its first record on.
            self.cursor.emptying = SlotWalk::default();
            return Ok(false);
        };
        let removed = remove_some(&mut self.participant, (table.tenant, &entry), &mut self.cursor.emptying, spans);
        self.participant.quiescent();
        if !matches!(removed, Ok(true)) {
            self.cursor.emptying = SlotWalk::default();
        }
        removed
    }

    fn take(&mut self, answer: &CopyAnswer) -> Result<u64, String> {
        let (mut count, now_ms, mut is_caught_up, mut waited) = (0, now_ms(), false, Duration::ZERO);
        let mut found: Option<FoundTable> = None;
        for copied in answer.keys() {
            let copied = copied?;
            let of = (copied.tenant, copied.table, copied.serial);
            if found.as_ref().is_none_or(|(known, _)| *known != of) {
                let same = |own: &OwnTables| {
                    own.find(copied.tenant, copied.table).filter(|entry| entry.serial() == copied.serial)
                };
                let mut entry = same(self);
                if entry.is_none() && !is_caught_up {
                    // The source may have made it this moment, and its keys come only once.
                    self.participant.offline();
                    self.directory.catch_up().map_err(|error| error.to_string())?;
                    (entry, is_caught_up) = (same(self), true);
                }
                found = Some((of, entry));
            }
            // A table that the directory does not know any more was dropped.
            let Some((_, Some(entry))) = &found else { continue };
            if copied.record.is_some() {
                make_room(&mut self.participant, (copied.tenant, entry), &mut waited)?;
            }
            match &copied.record {
                Some(record) => entry.table.take_arrival(&self.participant, record, now_ms),
                None if is_broken(MemberRule::RemovalsAreCopied) => Ok(()),
                None => entry.table.take_leaving(&self.participant, copied.key),
            }
            .map_err(words)?;
            count += 1;
            if count % CLEAR_BATCH as u64 == 0 {
                self.participant.quiescent();
            }
        }
        Ok(count)
    }

    fn finish(&mut self, tables: &[CopiedTable]) -> Result<(), String> {
        for table in tables {
            let found = self.find(table.tenant, table.table);
            if let Some(entry) = found.filter(|entry| entry.serial() == table.serial) {
                entry.table.take_versions(&self.participant, table.version, &entry.name()).map_err(words)?;
            }
        }
        self.participant.offline();
        let end = self.directory.change_log().map_or(0, |log| log.end());
        let end = if self.directory.needs_copies() { end | COPIED_BIT } else { end };
        self.directory.wait_for_disk(end).map_err(|error| error.to_string())
    }
}
