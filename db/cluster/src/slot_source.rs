//! The source's part in a move: answers what the target asks, from the tables.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use sandstorm_catalog::{Directory, TableEntry};
use sandstorm_net::slots::slot_of;
use sandstorm_store::slots::SlotSpan;
use sandstorm_store::{Participant, RecordRef, RestoredRecord};

use crate::copy_format::{CopiedKey, CopiedTable, CopyAnswer, CopyAsk, CopyHead, CopyRequest};
use crate::limits::{COPY_CHANGES, COPY_PAGE_BYTES, COPY_SCAN_RECORDS};
use crate::move_desk::{CopyProgress, MoveDesk};
pub use crate::peer_link::{COPY_PATH, PEER_KEY_HEADER};

/// A table with its tenant's id.
type TenantTable = (u32, Arc<TableEntry>);

/// All tables.
fn tables_of(directory: &Directory) -> Vec<TenantTable> {
    let snapshot = directory.snapshot();
    let tables = |view: &sandstorm_catalog::TenantView| -> Vec<TenantTable> {
        view.tables.values().map(|entry| (view.tenant.id, Arc::clone(entry))).collect()
    };
    snapshot.iter().flat_map(|view| tables(view)).collect()
}

/// Why slots cannot be moved: a table whose records are not all in memory, by its name.
pub fn unmovable(directory: &Directory) -> Option<String> {
    let snapshot = directory.snapshot();
    let found = snapshot.sorted().into_iter().find_map(|view| {
        let partial = view.tables.values().find(|entry| entry.table.is_partial());
        partial.map(|entry| format!("{}/{}", view.tenant.name, entry.name()))
    })?;
    Some(format!(
        "table {found} has a backing, or is larger than memory: slots cannot be moved while there is such a table, since \
         each has keys in all slots"
    ))
}

fn record_of(record: RecordRef<'_>) -> RestoredRecord<'_> {
    RestoredRecord {
        version: record.version(),
        key: record.key(),
        value: record.value(),
        flags: record.flags(),
        expires_at_ms: record.expires_at_ms(),
    }
}

fn table_heads(tables: &[TenantTable]) -> Vec<CopiedTable> {
    let head = |(tenant, entry): &TenantTable| CopiedTable {
        tenant: *tenant,
        table: entry.id,
        serial: entry.serial(),
        version: entry.table.highest_version(),
    };
    tables.iter().map(head).collect()
}

impl MoveDesk {
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
                let (_turn, span) = self.turn_of(attempt)?;
                if self.slots().is_copy_spoilt() {
                    return Err(self.spoilt(attempt));
                }
                let entry = directory.snapshot().tenant(*tenant).and_then(|view| view.table(*table).cloned());
                match entry.filter(|entry| entry.serial() == *serial) {
                    Some(entry) => Ok(self.page(participant, (*tenant, &entry), span, *cursor)),
                    // It was dropped meanwhile.
                    None => Ok(CopyAnswer::default()),
                }
            }
            CopyAsk::Changes => {
                let (_turn, _) = self.turn_of(attempt)?;
                let mut answer = changes(directory, participant);
                answer.head.noted = self.slots().noted_bytes() as u64;
                match self.slots().is_copy_spoilt() {
                    true => Err(self.spoilt(attempt)),
                    false => Ok(answer),
                }
            }
            CopyAsk::Freeze => self.freeze_tables(directory, participant, attempt),
            CopyAsk::Ready => {
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
        }
    }

    fn spoilt(&self, attempt: u64) -> String {
        self.abandon(attempt);
        "a table was emptied, or more keys have changed than are noted: the copy begins again".to_owned()
    }

    fn begin_copy(
        &self,
        directory: &Directory,
        participant: &Participant,
        request: &CopyRequest,
    ) -> Result<CopyAnswer, String> {
        if let Some(why) = unmovable(directory) {
            return Err(why);
        }
        let _turn = self.turn();
        self.begin(request.move_id, request.attempt, &request.target)?;
        fence(Ordering::SeqCst);
        let tables = tables_of(directory);
        for (_, entry) in &tables {
            entry.table.forget_copied_keys();
            // Whoever writes from here on notes the keys.
            entry.table.settle_writers(participant);
        }
        self.set_progress(CopyProgress {
            move_id: request.move_id,
            state: "is copied".to_owned(),
            ..Default::default()
        });
        let head = CopyHead { tables: table_heads(&tables), ..CopyHead::default() };
        Ok(CopyAnswer { head, records: Vec::new() })
    }

    /// Records of a table from a cursor on.
    fn page(
        &self,
        participant: &Participant,
        (tenant, entry): (u32, &TableEntry),
        span: SlotSpan,
        cursor: u64,
    ) -> CopyAnswer {
        let (mut answer, mut at) = (CopyAnswer::default(), Some(cursor));
        let guard = participant.guard();
        let mut looked = 0;
        while let Some(from) = at
            && answer.records.len() < COPY_PAGE_BYTES
            && looked < COPY_SCAN_RECORDS
        {
            let mut rest = None;
            at = entry.table.scan(&guard, from, COPY_SCAN_RECORDS, 0, &mut |record| {
                looked += 1;
                // Those of one hash lie in one page, so that the next one begins behind it.
                let is_full = answer.records.len() >= COPY_PAGE_BYTES;
                if rest.is_some() || is_full && entry.table.hash(record.key()) != from {
                    rest = rest.or_else(|| Some(entry.table.hash(record.key())));
                } else if span.contains(slot_of(record.key())) {
                    let (table, serial, key) = (entry.id, entry.serial(), record.key());
                    answer.push(&CopiedKey { tenant, table, serial, key, record: Some(record_of(record)) });
                }
            });
            at = rest.or(at);
        }
        (answer.head.next, answer.head.noted) = (at, self.slots().noted_bytes() as u64);
        answer
    }

    fn freeze_tables(
        &self,
        directory: &Directory,
        participant: &Participant,
        attempt: u64,
    ) -> Result<CopyAnswer, String> {
        let (_turn, _) = self.turn_of(attempt)?;
        if self.slots().trouble().is_some() {
            // Nothing could be handed over: the slots are served until etcd answers.
            return Ok(CopyAnswer { head: CopyHead { waits: true, ..CopyHead::default() }, records: Vec::new() });
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
        let head = CopyHead { tables: table_heads(&tables), ..CopyHead::default() };
        Ok(CopyAnswer { head, records: Vec::new() })
    }
}

/// Keys that have changed, as they are now.
fn changes(directory: &Directory, participant: &Participant) -> CopyAnswer {
    let mut answer = CopyAnswer::default();
    for (tenant, entry) in tables_of(directory) {
        if answer.records.len() >= COPY_PAGE_BYTES {
            answer.head.has_more = true;
            break;
        }
        let keys = entry.table.take_copied_keys(COPY_CHANGES);
        answer.head.has_more |= keys.len() >= COPY_CHANGES;
        let mut keys = keys.into_iter();
        let guard = participant.guard();
        while answer.records.len() < COPY_PAGE_BYTES
            && let Some(key) = keys.next()
        {
            let record = entry.table.copy_source(&guard, &key).map(record_of);
            let (table, serial) = (entry.id, entry.serial());
            answer.push(&CopiedKey { tenant, table, serial, key: &key, record });
        }
        answer.head.has_more |= keys.len() > 0;
        entry.table.return_copied_keys(participant, keys);
    }
    answer
}
