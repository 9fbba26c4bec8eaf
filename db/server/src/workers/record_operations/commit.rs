//! Commits of clients' transactions: checks and changes that one message brings, made at one moment or not at all.

use sandstorm_api::limits::{
    TRANSACTION_BYTES, TRANSACTION_RANGES, TRANSACTION_READS, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS,
    TRANSACTION_WRITES,
};
use sandstorm_catalog::{AccessError, TenantView};
use sandstorm_net::rpc::{
    COMMIT_BYTES, COMMIT_RANGES, COMMIT_READS, COMMIT_ROW_BYTES, COMMIT_ROWS, COMMIT_WRITES, CommitDecodeError,
    CommitStep, CommitStepIter, OP_HEADER_LEN, Operation, RpcStatus, encode_operation,
};
use sandstorm_store::transactions::{
    CommitError, CommitFailure, KeyChange, KeyRead, MetInRange, NewRecord, OutdatedRead, RangeRead, commit_or_tell,
    note_counts,
};
use sandstorm_store::{KeyRange, RecordTable, StoreError, expiry_ms};

use super::operation_context::OperationContext;
use super::{READ_ONLY_TEXT, UNKNOWN_TABLE_TEXT, store_error_status, too_long_text};
use crate::limits::{POSITION_KEY_BYTES_PER_REQUEST, POSITION_REQUESTS};
use crate::workers::operation_response::{encode_refusal, has_room};

// A client's transaction may be as large as one of a call. Its ranges may not: one operation is never cut, and the
// worker's other clients wait for it.
const _: () = assert!(COMMIT_READS == TRANSACTION_READS && COMMIT_WRITES == TRANSACTION_WRITES);
const _: () = assert!(COMMIT_RANGES == TRANSACTION_RANGES && COMMIT_BYTES == TRANSACTION_BYTES);
const _: () = assert!(COMMIT_ROWS <= TRANSACTION_ROWS && COMMIT_ROW_BYTES <= TRANSACTION_ROW_BYTES);

/// The text for a commit whose reads meet records that left memory: it waits for them, and this is never sent.
const COLD_TEXT: &str = "records that the transaction read are on their way into memory: ask again";

/// A refused commit, before its answer is written.
struct StepRefusal<'m> {
    step: Option<CommitStep<'m>>,
    status: RpcStatus,
    text: String,
}

impl<'m> StepRefusal<'m> {
    fn of(step: CommitStep<'m>, status: RpcStatus, text: impl Into<String>) -> StepRefusal<'m> {
        StepRefusal { step: Some(step), status, text: text.into() }
    }
}

/// A transaction as the store takes it. For conflicts, the steps of its reads are kept by their indices.
#[derive(Default)]
struct StoreTransaction<'m> {
    reads: Vec<KeyRead<'m>>,
    ranges: Vec<RangeRead<'m>>,
    changes: Vec<KeyChange<'m>>,
    read_steps: Vec<(u64, CommitStep<'m>)>,
    range_steps: Vec<(u64, CommitStep<'m>)>,
    change_steps: Vec<(&'m RecordTable, CommitStep<'m>)>,
    read_bytes: usize,
    row_bytes: usize,
    written_bytes: usize,
    rows: usize,
    /// Work of the counts beyond the one request of each, in requests.
    count_requests: usize,
}

impl<'m> StoreTransaction<'m> {
    /// Adds a step. Bytes are counted before they are hashed, which takes time in proportion.
    fn add(
        &mut self,
        (index, step): (u64, CommitStep<'m>),
        table: &'m RecordTable,
        now_ms: u64,
    ) -> Result<(), StepRefusal<'m>> {
        match step {
            CommitStep::Read { key, version, .. } => {
                self.read_bytes += key.len();
                check_bytes(step, self.read_bytes, COMMIT_BYTES, "of keys that it has read")?;
                let hash = table.hash(key);
                table.prefetch_bucket(hash);
                self.reads.push(KeyRead { table, hash, key, version });
                self.read_steps.push((index, step));
            }
            CommitStep::Range { from, to, backward, rows, .. } => {
                check_order(step, table)?;
                self.rows += rows.len();
                if self.rows > COMMIT_ROWS {
                    let text = format!("the ranges of a transaction have at most {COMMIT_ROWS} records together");
                    return Err(StepRefusal::of(step, RpcStatus::TooLarge, text));
                }
                self.row_bytes += from.len() + to.len() + rows.map(|row| row.key.len()).sum::<usize>();
                check_bytes(step, self.row_bytes, COMMIT_ROW_BYTES, "of keys that its ranges have met")?;
                let met = MetInRange::Records(rows.map(|row| (row.key, row.version)).collect());
                self.ranges.push(RangeRead { table, span: KeyRange::new(from, to, backward), met });
                self.range_steps.push((index, step));
            }
            CommitStep::Count { from, to, keys, .. } => {
                check_order(step, table)?;
                self.row_bytes += from.len() + to.len();
                check_bytes(step, self.row_bytes, COMMIT_ROW_BYTES, "of keys that its ranges have met")?;
                self.count_requests +=
                    POSITION_REQUESTS as usize - 1 + (from.len() + to.len()) / POSITION_KEY_BYTES_PER_REQUEST;
                let met = MetInRange::Keys(keys);
                self.ranges.push(RangeRead { table, span: KeyRange::new(from, to, false), met });
                self.range_steps.push((index, step));
            }
            CommitStep::Put { key, value, user_flags, ttl_ms, .. } => {
                self.written_bytes += key.len() + value.len();
                check_bytes(step, self.written_bytes, COMMIT_BYTES, "of keys and values that it writes")?;
                if value.len() > table.max_value_len() {
                    return Err(StepRefusal::of(step, RpcStatus::TooLarge, too_long_text(table, value)));
                }
                let expires_at_ms = if ttl_ms == 0 { 0 } else { expiry_ms(now_ms, ttl_ms) };
                self.change(step, table, Some(NewRecord { value, flags: user_flags, expires_at_ms }));
            }
            CommitStep::Delete { key, .. } => {
                self.written_bytes += key.len();
                check_bytes(step, self.written_bytes, COMMIT_BYTES, "of keys and values that it writes")?;
                self.change(step, table, None);
            }
        }
        Ok(())
    }

    fn change(&mut self, step: CommitStep<'m>, table: &'m RecordTable, becomes: Option<NewRecord<'m>>) {
        let (key, hash) = (step.key(), table.hash(step.key()));
        table.prefetch_bucket(hash);
        self.changes.push(KeyChange { table, hash, key, becomes });
        self.change_steps.push((table, step));
    }

    /// The step of a change, by its index among the changes in the order in which the store has left them.
    fn step_of_change(&self, index: usize) -> Option<CommitStep<'m>> {
        let change = self.changes.get(index)?;
        let is_its = |(table, step): &&(&RecordTable, CommitStep<'m>)| {
            std::ptr::eq(*table, change.table) && step.key() == change.key
        };
        self.change_steps.iter().find(is_its).map(|(_, step)| *step)
    }

    /// A step whose key this server does not own any more.
    fn moved_step(&self) -> Option<CommitStep<'m>> {
        let moved = self.changes.iter().position(|change| !change.table.owns(change.key));
        moved.and_then(|moved| self.step_of_change(moved)).or_else(|| {
            let moved = self.reads.iter().position(|read| !read.table.owns(read.key))?;
            self.read_steps.get(moved).map(|(_, step)| *step)
        })
    }

    /// The step that does not hold, and its index.
    fn outdated_step(&self, outdated: OutdatedRead) -> Option<(u64, CommitStep<'m>)> {
        match outdated {
            OutdatedRead::Key(index) => self.read_steps.get(index).copied(),
            OutdatedRead::Range(index) => self.range_steps.get(index).copied(),
        }
    }
}

/// Refuses ranges and counts of a table that has no order of all its keys here.
fn check_order<'m>(step: CommitStep<'m>, table: &RecordTable) -> Result<(), StepRefusal<'m>> {
    if table.is_ordered() && table.owns_all() {
        return Ok(());
    }
    let text = "the table of a range or a count is not ordered: these need one that was made with --ordered, and whose keys are all on one server";
    Err(StepRefusal::of(step, RpcStatus::Malformed, text))
}

fn check_bytes<'m>(step: CommitStep<'m>, bytes: usize, most: usize, what: &str) -> Result<(), StepRefusal<'m>> {
    if bytes <= most {
        return Ok(());
    }
    Err(StepRefusal::of(step, RpcStatus::TooLarge, format!("a transaction has at most {most} bytes {what}")))
}

/// Makes a transaction's changes, if all that it has read still holds, and appends the answer.
pub(crate) fn run(
    context: &OperationContext<'_>,
    view: &TenantView,
    operation: &Operation<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let mut transaction = StoreTransaction::default();
    if let Err(refusal) = gather(context, view, operation, &mut transaction) {
        return encode_step_refusal(view, operation, &refusal, response);
    }
    let deletes = transaction.changes.iter().filter(|change| change.becomes.is_none());
    let deletes = deletes.map(|change| (change.table, change.hash, change.key));
    let reads = transaction.reads.iter().map(|read| (read.table, read.hash, read.key));
    for (table, hash, key) in reads.chain(deletes).filter(|(table, ..)| table.has_backing()) {
        // What left memory since it was read is there still, and what was never read: only the backing knows.
        let _found = table.get(&context.participant.guard(), hash, key, context.now_ms);
    }
    if context.participant.shown().has_cold() {
        return encode_refusal(operation, RpcStatus::Overloaded, COLD_TEXT, response);
    }
    // Admission has counted the steps.
    context.ranges.owe(transaction.rows + transaction.count_requests);
    let before = context.participant.retired();
    let StoreTransaction { reads, ranges, changes, .. } = &mut transaction;
    let committed = commit_or_tell(context.participant, reads, ranges, changes, context.now_ms);
    // Also of a refusal: it tells that there are not as many.
    note_counts(&transaction.ranges, context.participant.shown());
    let replaced = transaction.changes.len() as u64;
    context.ranges.owe((context.participant.retired() - before).saturating_sub(replaced) as usize);
    match committed {
        Ok(()) => {
            // It has happened, so it must not be tried again.
            context.participant.shown().take_cold();
            encode_operation(&operation.answer(RpcStatus::Ok), response);
            RpcStatus::Ok
        }
        Err(failure) => encode_failure(&transaction, view, operation, failure, response),
    }
}

/// Reads the steps, and finds their tables.
fn gather<'m>(
    context: &OperationContext<'_>,
    view: &'m TenantView,
    operation: &Operation<'m>,
    transaction: &mut StoreTransaction<'m>,
) -> Result<(), StepRefusal<'m>> {
    for (index, step) in (0..).zip(CommitStepIter::new(operation.number, operation.value)) {
        let step = step.map_err(|error| {
            let status = if error == CommitDecodeError::Steps { RpcStatus::TooLarge } else { RpcStatus::Malformed };
            StepRefusal { step: None, status, text: error.to_string() }
        })?;
        let entry = view.reach(step.table(), step.writes()).map_err(|error| match error {
            AccessError::ReadOnly => StepRefusal::of(step, RpcStatus::ReadOnly, READ_ONLY_TEXT),
            AccessError::Unknown => StepRefusal::of(step, RpcStatus::UnknownTable, UNKNOWN_TABLE_TEXT),
        })?;
        // A range and a count say themselves whether their keys are here.
        if !step.is_of_many_keys() && !entry.table.owns(step.key()) {
            return Err(StepRefusal::of(step, RpcStatus::WrongServer, ""));
        }
        transaction.add((index, step), &entry.table, context.now_ms)?;
    }
    Ok(())
}

/// Appends the answer to a commit of which a step is refused: with its table and key.
#[cold]
fn encode_step_refusal(
    view: &TenantView,
    operation: &Operation<'_>,
    refusal: &StepRefusal<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let StepRefusal { step, status, text } = refusal;
    let (table, key) = step.map_or((0, &[][..]), |step| (step.table(), step.key()));
    let found = view.reach(table, false).ok();
    let owner = found.and_then(|entry| entry.table.slots()).filter(|_| *status == RpcStatus::WrongServer);
    let (number, owner) = owner.map(|slots| slots.wrong_server(key)).unwrap_or_default();
    let text = if *status == RpcStatus::WrongServer { &owner } else { text };
    let (key, text) = fitting(key, text, response);
    let answer = Operation { table, key, number, value: text.as_bytes(), ..operation.answer(*status) };
    encode_operation(&answer, response);
    *status
}

/// Leaves out of an answer what the response has no room for.
fn fitting<'a>(key: &'a [u8], text: &'a str, response: &[u8]) -> (&'a [u8], &'a str) {
    let text = if has_room(response, OP_HEADER_LEN + text.len()) { text } else { "" };
    let key = if has_room(response, OP_HEADER_LEN + text.len() + key.len()) { key } else { &[] };
    (key, text)
}

/// Appends the answer to a commit that did not happen.
#[cold]
fn encode_failure(
    transaction: &StoreTransaction<'_>,
    view: &TenantView,
    operation: &Operation<'_>,
    failure: CommitFailure,
    response: &mut Vec<u8>,
) -> RpcStatus {
    match failure.error {
        CommitError::Conflict => {
            let outdated = failure.outdated.and_then(|outdated| transaction.outdated_step(outdated));
            let (number, table, key) =
                outdated.map_or((0, 0, &[][..]), |(index, step)| (index, step.table(), step.key()));
            let (key, _) = fitting(key, "", response);
            encode_operation(&Operation { table, key, number, ..operation.answer(RpcStatus::Conflict) }, response);
            RpcStatus::Conflict
        }
        CommitError::DuplicateKey => {
            let refusal = StepRefusal { step: None, status: RpcStatus::Malformed, text: failure.error.to_string() };
            encode_step_refusal(view, operation, &refusal, response)
        }
        CommitError::Refused(error) => {
            let status = store_error_status(error);
            let step = match error {
                // A slot has left while it was tried.
                StoreError::WrongServer => transaction.moved_step(),
                _ => failure.refused.and_then(|index| transaction.step_of_change(index)),
            };
            encode_step_refusal(view, operation, &StepRefusal { step, status, text: error.to_string() }, response)
        }
    }
}
