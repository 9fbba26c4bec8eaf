//! The source's part in a move: answers what the target asks, from the tables.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use sandstorm_catalog::{Directory, TableEntry};
use sandstorm_store::slots::SlotSpan;
use sandstorm_store::spill::SpillReadError;
use sandstorm_store::{Participant, WalkBudget};

use crate::backed_moves::{check_written, unmovable, write_slots};
use crate::copy_format::{
    CopiedKey, CopiedTable, CopyAnswer, CopyAsk, CopyHead, CopyRequest, EmptiedTable, LoggedTable,
};
use crate::limits::{
    COPY_CHANGES, COPY_PAGE_BYTES, COPY_READS, COPY_SCAN_RECORDS, FLUSH_BEFORE_FREEZE, FLUSH_FROZEN, FREEZE_BELOW_DIRTY,
};
use crate::move_coordinator::{CopyProgress, MoveCoordinator};
pub use crate::peer_link::{COPY_PATH, PEER_KEY_HEADER};
use crate::source_walk::SourceWalk;

/// A table with its tenant's id.
type TenantTable = (u32, Arc<TableEntry>);

/// All tables.
pub(crate) fn tables_of(directory: &Directory) -> Vec<TenantTable> {
    let snapshot = directory.snapshot();
    let tables = |view: &sandstorm_catalog::TenantView| -> Vec<TenantTable> {
        view.tables.values().map(|entry| (view.tenant.id, Arc::clone(entry))).collect()
    };
    snapshot.iter().flat_map(|view| tables(view)).collect()
}

/// How a table is logged here now.
pub(crate) fn logged_as(entry: &TableEntry) -> LoggedTable {
    (entry.durability(), entry.table.log_number().unwrap_or_default())
}

/// What the target is told of each table. Not to be called by a participant that is online: a backing that hangs must
/// not keep memory from being given back.
///
/// # Errors
/// One line: a backing does not answer.
fn table_heads(tables: &[TenantTable]) -> Result<Vec<CopiedTable>, String> {
    let head = |(tenant, entry): &TenantTable| {
        let identity = entry.backing().map(|backing| backing.identity()).transpose();
        Ok(CopiedTable {
            tenant: *tenant,
            table: entry.id,
            serial: entry.serial(),
            version: entry.table.highest_version(),
            logged: Some(logged_as(entry)),
            backing: identity.map_err(|error| format!("the backing of table {}: {error}", entry.name()))?.flatten(),
        })
    };
    tables.iter().map(head).collect()
}

impl MoveCoordinator {
    /// Answers what the target of a move from here asks. Takes some milliseconds; for a hand-over as long as etcd does.
    ///
    /// # Errors
    /// One line: the attempt is over, or it is not the time for it.
    pub fn answer(&self, directory: &Directory, request: &[u8]) -> Result<Vec<u8>, String> {
        let request: CopyRequest = serde_json::from_slice(request).map_err(|error| error.to_string())?;
        self.answer_copy(directory, &request)?.encode()
    }

    pub(crate) fn answer_copy(&self, directory: &Directory, request: &CopyRequest) -> Result<CopyAnswer, String> {
        let mut participant = directory.participant();
        let answer = self.answer_request(directory, &mut participant, request);
        participant.offline();
        answer
    }

    fn answer_request(
        &self,
        directory: &Directory,
        participant: &mut Participant,
        request: &CopyRequest,
    ) -> Result<CopyAnswer, String> {
        let attempt = request.attempt;
        match &request.ask {
            CopyAsk::Begin => self.begin_copy(directory, participant, request),
            CopyAsk::Page { tenant, table, serial, cursor } => {
                let (mut turn, span) = self.turn_of(attempt)?;
                if self.slots().is_copy_spoilt() {
                    return Err(self.spoilt(attempt));
                }
                let entry = directory.snapshot().tenant(*tenant).and_then(|view| view.table(*table).cloned());
                match entry.filter(|entry| entry.serial() == *serial && !entry.table.has_backing()) {
                    Some(entry) => {
                        let walk = turn.walk_of(attempt, *cursor)?;
                        let answer = self.page(participant, (*tenant, &entry), span, walk);
                        answer.map_err(|error| self.unreadable(attempt, (*tenant, &entry), error))
                    }
                    // It was dropped meanwhile, or its records are in its backing.
                    None => Ok(CopyAnswer::default()),
                }
            }
            CopyAsk::Changes => {
                let (_turn, _) = self.turn_of(attempt)?;
                let mut answer = self.changes(directory, participant, attempt)?;
                answer.head.noted = self.slots().noted_bytes() as u64;
                match self.slots().is_copy_spoilt() {
                    true => Err(self.spoilt(attempt)),
                    false => Ok(answer),
                }
            }
            CopyAsk::Freeze => self.freeze_tables(directory, participant, attempt),
            CopyAsk::Thaw => {
                self.span_of(attempt)?;
                self.thaw(attempt);
                Ok(CopyAnswer::default())
            }
            CopyAsk::Ready => {
                // It cannot be: none of these slots was served since all was written.
                if let Ok(span) = self.span_of(attempt) {
                    check_written(directory, span)?;
                }
                self.set_ready(attempt)?;
                participant.offline();
                let handed_over = self.await_hand_over(attempt);
                Ok(CopyAnswer { head: CopyHead { handed_over, ..CopyHead::default() }, records: Vec::new() })
            }
            CopyAsk::Alive => self.span_of(attempt).map(|_| CopyAnswer::default()),
            CopyAsk::Abandon => {
                self.abandon(attempt);
                Ok(CopyAnswer::default())
            }
            CopyAsk::Called => {
                participant.offline();
                match self.calls().after_hand_over(attempt, directory.change_log()) {
                    Ok(()) => Ok(CopyAnswer::default()),
                    Err(who) => Ok(waiting(who)),
                }
            }
        }
    }

    fn spoilt(&self, attempt: u64) -> String {
        self.abandon(attempt);
        "more keys have changed than are noted: the copy begins again".to_owned()
    }

    fn begin_copy(
        &self,
        directory: &Directory,
        participant: &mut Participant,
        request: &CopyRequest,
    ) -> Result<CopyAnswer, String> {
        if let Some(why) = unmovable(directory) {
            return Err(why);
        }
        let mut turn = self.turn();
        turn.forget();
        self.begin(request.move_id, request.attempt, &request.target)?;
        fence(Ordering::SeqCst);
        let tables = tables_of(directory);
        for (_, entry) in &tables {
            entry.table.forget_copied_keys();
            // Writers that begin from here on note the keys.
            entry.table.settle_writers(participant);
        }
        self.set_progress(CopyProgress {
            move_id: request.move_id,
            state: "is copied".to_owned(),
            ..Default::default()
        });
        participant.offline();
        let head = CopyHead { tables: table_heads(&tables)?, ..CopyHead::default() };
        Ok(CopyAnswer { head, records: Vec::new() })
    }

    /// The next records of a table.
    fn page(
        &self,
        participant: &mut Participant,
        (tenant, entry): (u32, &TableEntry),
        span: SlotSpan,
        walk: &mut SourceWalk,
    ) -> Result<CopyAnswer, SpillReadError> {
        let mut answer = CopyAnswer::default();
        let budget = WalkBudget { records: COPY_SCAN_RECORDS, reads: COPY_READS, bytes: COPY_PAGE_BYTES };
        entry.table.walk_slots(participant, &mut walk.walk, (budget, &[span]), &mut |record| {
            let (table, serial, key) = (entry.id, entry.serial(), record.key);
            answer.push(&CopiedKey { tenant, table, serial, key, record: Some(*record) });
            answer.records.len()
        })?;
        walk.page += 1;
        answer.head.next = Some(walk.page).filter(|_| !walk.walk.is_over());
        answer.head.noted = self.slots().noted_bytes() as u64;
        Ok(answer)
    }

    /// Keys that have changed, as they are now.
    fn changes(
        &self,
        directory: &Directory,
        participant: &mut Participant,
        attempt: u64,
    ) -> Result<CopyAnswer, String> {
        let mut answer = CopyAnswer::default();
        for (tenant, entry) in tables_of(directory) {
            if answer.records.len() >= COPY_PAGE_BYTES {
                answer.head.has_more = true;
                break;
            }
            let keys = entry.table.take_copied_keys(COPY_CHANGES);
            answer.head.has_more |= keys.len() >= COPY_CHANGES;
            let (table, serial) = (entry.id, entry.serial());
            // Behind the keys: each that was written since is noted again, and comes with a later answer.
            if entry.table.take_emptied() {
                answer.head.emptied.push(EmptiedTable { tenant, table, serial });
            }
            let budget = WalkBudget { records: COPY_CHANGES, reads: COPY_READS, bytes: COPY_PAGE_BYTES };
            let shown = entry.table.show_keys(participant, (&keys, budget), &mut |key, record| {
                answer.push(&CopiedKey { tenant, table, serial, key, record: record.copied() });
                answer.records.len()
            });
            let shown = shown.map_err(|error| self.unreadable(attempt, (tenant, &entry), error))?;
            answer.head.has_more |= keys.len() > shown;
            entry.table.return_copied_keys(participant, keys.into_iter().skip(shown));
        }
        Ok(answer)
    }

    /// Ends an attempt: what cannot be read cannot be given away.
    fn unreadable(&self, attempt: u64, (tenant, entry): (u32, &TableEntry), error: SpillReadError) -> String {
        self.abandon(attempt);
        let name = entry.name();
        format!(
            "table {name} of tenant {tenant}, which is larger than memory, has a record that cannot be read: {error}"
        )
    }

    fn freeze_tables(
        &self,
        directory: &Directory,
        participant: &mut Participant,
        attempt: u64,
    ) -> Result<CopyAnswer, String> {
        let (_turn, span) = self.turn_of(attempt)?;
        if self.slots().trouble().is_some() {
            // Nothing could be handed over: the slots are served until etcd answers.
            return Ok(CopyAnswer { head: CopyHead { waits: true, ..CopyHead::default() }, records: Vec::new() });
        }
        participant.offline();
        if let Err(who) = self.calls().before_freeze(attempt, directory.change_log()) {
            return Ok(waiting(format!("not all calls for changes are made: {who}")));
        }
        if let Err(why) = write_slots(directory, span, (FREEZE_BELOW_DIRTY, FLUSH_BEFORE_FREEZE)) {
            return Ok(waiting(why));
        }
        self.freeze(attempt)?;
        // Tables that are made from here on have no key of these slots.
        fence(Ordering::SeqCst);
        let tables = tables_of(directory);
        tables.iter().for_each(|(_, entry)| entry.table.settle_writers(participant));
        if self.slots().is_copy_spoilt() {
            return Err(self.spoilt(attempt));
        }
        if let Some(why) = unmovable(directory) {
            self.abandon(attempt);
            return Err(why);
        }
        participant.offline();
        match write_slots(directory, span, (0, FLUSH_FROZEN)).and_then(|()| table_heads(&tables)) {
            Ok(tables) => Ok(CopyAnswer { head: CopyHead { tables, ..CopyHead::default() }, records: Vec::new() }),
            Err(why) => {
                self.thaw(attempt);
                Ok(waiting(why))
            }
        }
    }
}

/// The answer that nothing is frozen now.
fn waiting(why: String) -> CopyAnswer {
    CopyAnswer { head: CopyHead { waits: true, waits_for: Some(why), ..CopyHead::default() }, records: Vec::new() }
}
