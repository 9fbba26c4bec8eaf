//! A trigger at work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use data_encoding::BASE64;

use super::batch_size::{BatchOutcome, BatchSize};
use super::call_queue::{BegunInvocation, CallEnd, CallQueue, TriggerCall, TriggerCallOutcome};
use super::call_routes::{CallHome, CallPlace, CallRoutes, schedule_slot};
use super::definition::{TriggerDefinition, TriggerOp, TriggerSource};
use super::schedule::{Schedule, last_due};
use super::state_file::{DeadLetter, StoredTrigger};
use crate::limits::{TRIGGER_DEAD_LETTER_BYTES, TRIGGER_DEAD_LETTERS, TRIGGER_READ_BYTES};
use sandstorm_api::change::{Change, ChangeOp};
use sandstorm_catalog::{AgreedTrigger, TenantView};
use sandstorm_cluster::called_positions::inherited_table;
use sandstorm_log::{ChangeKind, ChangeLog, LogTail, LoggedChange, TailError};
use sandstorm_net::rpc::RpcStatus;
use sandstorm_net::slots::slot_of;

/// What a trigger does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerPhase {
    /// It makes its calls.
    Running,
    /// It makes none, until it is resumed: why.
    Paused(String),
    /// It cannot make any until something comes that is missing: what.
    Waiting(String),
}

/// The report on a trigger.
#[derive(Clone, Debug)]
pub struct TriggerStatus {
    /// Its definition.
    pub spec: TriggerDefinition,
    /// What it does.
    pub phase: TriggerPhase,
    /// Of a table's trigger: the position up to which all changes are handled, and the bytes of the log behind it.
    pub position: Option<(u64, u64)>,
    /// Of a schedule: when it is due next, in milliseconds since 1970.
    pub next_due_ms: Option<u64>,
    /// Calls that wait or run.
    pub open: usize,
    /// What its calls have done since the server started.
    pub calls: TriggerCounts,
    /// Calls whose tries are over.
    pub dead_letters: usize,
    /// The last error; empty: there was none since the server started.
    pub last_error: String,
    /// When that was, in milliseconds since 1970.
    pub last_error_at_ms: Option<u64>,
}

/// Calls of a trigger since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerCounts {
    /// Calls that succeeded; of a trigger with a batch, changes.
    pub succeeded: u64,
    /// Calls that failed, each try by itself; a batch is one.
    pub failed: u64,
    /// Calls that could not run, each try by itself.
    pub not_run: u64,
    /// Times that a schedule was due while its last call was not over.
    pub skipped: u64,
}

/// See the head of this file.
pub(super) struct ActiveTrigger {
    pub(super) tenant: u32,
    pub(super) tenant_name: String,
    pub(super) spec: TriggerDefinition,
    /// Its tenant and name, for the calls under way.
    pub(super) key: Arc<TriggerKey>,
    /// The extension that it calls.
    pub(super) extension: Arc<str>,
    source: TriggerSource,
    pub(super) paused: String,
    /// In a cluster: what the servers have agreed on, as this one has taken it over.
    pub(super) agreed: Option<AgreedTrigger>,
    waiting: String,
    queue: CallQueue,
    /// Of a trigger with a batch: how many changes its calls have.
    batch: Option<BatchSize>,
    /// Which queue a call is of: see [`next_epoch`].
    pub(super) epoch: u64,
    tail: Option<LogTail>,
    /// The position up to which the log was read.
    read: u64,
    /// The log that this is a position of; 0: whichever there is.
    pub(super) log_id: u64,
    last_due_ms: u64,
    dead: BTreeMap<u64, DeadLetter>,
    /// The last number of a letter: none is given twice while calls run that replay one.
    last_letter: u64,
    dead_bytes: usize,
    pub(super) counts: TriggerCounts,
    last_error: String,
    last_error_at_ms: Option<u64>,
    /// Until when moves of slots do not wait for it, in milliseconds since 1970; `None`: it was made just now.
    given_up_until_ms: Option<u64>,
}

/// A call that begins.
pub(super) struct BegunTriggerCall {
    pub(super) place: InvocationPlace,
    pub(super) args: Vec<u8>,
    /// Where it is made.
    pub(super) at: CallPlace,
    /// The cluster's slots of its keys.
    pub(super) slots: Vec<u16>,
}

/// A trigger's tenant and name.
pub(super) type TriggerKey = (u32, String);

/// An invocation under way: which queue it is of, and its place there.
pub(super) type InvocationPlace = (u64, (usize, u64));

impl ActiveTrigger {
    /// A trigger as the file has it.
    ///
    /// # Errors
    /// What is wrong with its definition.
    pub(super) fn of(stored: StoredTrigger) -> Result<ActiveTrigger, String> {
        let StoredTrigger { tenant, tenant_name, spec, position, log_id, last_due_ms, paused, agreed, dead_letters } =
            stored;
        let source = spec.source()?;
        let dead_bytes = dead_letters.iter().map(letter_bytes).sum();
        let dead: BTreeMap<_, _> = dead_letters.into_iter().map(|letter| (letter.id, letter)).collect();
        let (key, extension) = (Arc::new((tenant, spec.name.clone())), spec.called().0.into());
        let batch = spec.batch.map(BatchSize::of);
        Ok(ActiveTrigger {
            tenant,
            tenant_name,
            spec,
            key,
            extension,
            source,
            paused,
            agreed,
            waiting: String::new(),
            queue: CallQueue::default(),
            batch,
            epoch: next_epoch(),
            tail: None,
            read: position,
            log_id,
            last_due_ms,
            last_letter: dead.keys().next_back().copied().unwrap_or(0),
            dead,
            dead_bytes,
            counts: TriggerCounts::default(),
            last_error: String::new(),
            last_error_at_ms: None,
            given_up_until_ms: None,
        })
    }

    /// What the file is to have.
    pub(super) fn stored(&self) -> StoredTrigger {
        StoredTrigger {
            tenant: self.tenant,
            tenant_name: self.tenant_name.clone(),
            spec: self.spec.clone(),
            position: self.position(),
            log_id: self.log_id,
            last_due_ms: self.last_due_ms,
            paused: self.paused.clone(),
            agreed: self.agreed.clone(),
            dead_letters: self.dead.values().cloned().collect(),
        }
    }

    /// The same trigger with another definition: dead letters and counts stay, and so does the position, unless it has
    /// another table, of which it begins at `start`. A schedule that is another one counts from now. Its calls begin
    /// anew, and those that still run are not its own.
    pub(super) fn redefined(&self, spec: TriggerDefinition, start: u64, now_ms: u64) -> Result<ActiveTrigger, String> {
        let keeps_schedule = (&spec.every, &spec.cron) == (&self.spec.every, &self.spec.cron);
        let last_due_ms = if keeps_schedule { self.last_due_ms } else { now_ms };
        let position = if spec.table == self.spec.table { self.position() } else { start };
        let mut made = ActiveTrigger::of(StoredTrigger { spec, last_due_ms, position, ..self.stored() })?;
        (made.last_letter, made.counts) = (self.last_letter, self.counts);
        (made.last_error, made.last_error_at_ms) = (self.last_error.clone(), self.last_error_at_ms);
        made.given_up_until_ms = self.given_up_until_ms.or(Some(0));
        Ok(made)
    }

    /// The position up to which all changes are handled.
    pub(super) fn position(&self) -> u64 {
        self.queue.handled(self.read)
    }

    /// The position from which it needs the log; `None`: it does not.
    pub(super) fn needs_log_from(&self) -> Option<u64> {
        matches!(self.source, TriggerSource::Table(_)).then(|| self.position())
    }

    /// Whether it makes calls for changes before a position, and has not made all of them: unless it was given up.
    pub(super) fn is_behind(&self, position: u64, now_ms: u64) -> bool {
        let is_given_up = self.given_up_until_ms.is_some_and(|until_ms| now_ms < until_ms);
        let makes_calls = self.paused.is_empty() && self.waiting.is_empty() && !is_given_up;
        makes_calls && self.needs_log_from().is_some_and(|own| own < position)
    }

    /// Has no move of slots wait for it until a time, in milliseconds since 1970, or longer.
    pub(super) fn give_up_until(&mut self, until_ms: u64) {
        self.given_up_until_ms = self.given_up_until_ms.max(Some(until_ms));
    }

    /// The same for one that was made just now.
    pub(super) fn begin_given_up(&mut self, until_ms: u64) {
        self.given_up_until_ms.get_or_insert(until_ms);
    }

    /// The table whose changes it is called for.
    pub(super) fn table(&self) -> Option<&str> {
        match &self.source {
            TriggerSource::Table(table) => Some(table),
            TriggerSource::Schedule(_) => None,
        }
    }

    fn schedule(&self) -> Option<&Schedule> {
        match &self.source {
            TriggerSource::Schedule(schedule) => Some(schedule),
            TriggerSource::Table(_) => None,
        }
    }

    /// The slot whose owner makes the calls of a schedule on which the servers of a cluster agree.
    fn schedule_slot(&self) -> Option<u16> {
        let is_of_all = self.agreed.is_some() && self.schedule().is_some();
        is_of_all.then(|| schedule_slot(self.tenant, &self.spec.name))
    }

    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.schedule().and_then(|schedule| schedule.next_after(self.last_due_ms))
    }

    /// When it has something to do next without a change or an answer, in milliseconds since 1970.
    pub(super) fn next_look_ms(&self) -> Option<u64> {
        if !self.paused.is_empty() {
            return None;
        }
        let next_due_ms = self.next_due_ms().filter(|_| self.waiting.is_empty());
        [next_due_ms, self.queue.next_begin_ms()].into_iter().flatten().min()
    }

    pub(super) fn status(&self, log_end: u64) -> TriggerStatus {
        let phase = match (&self.paused, &self.waiting) {
            (why, _) if !why.is_empty() => TriggerPhase::Paused(why.clone()),
            (_, why) if !why.is_empty() => TriggerPhase::Waiting(why.clone()),
            _ => TriggerPhase::Running,
        };
        let position = self.needs_log_from();
        TriggerStatus {
            spec: self.spec.clone(),
            phase,
            position: position.map(|position| (position, log_end.saturating_sub(position))),
            next_due_ms: self.next_due_ms().filter(|_| self.paused.is_empty() && self.waiting.is_empty()),
            open: self.queue.len(),
            calls: self.counts,
            dead_letters: self.dead.len(),
            last_error: self.last_error.clone(),
            last_error_at_ms: self.last_error_at_ms,
        }
    }

    /// Finds new calls: a schedule that is due, changes in the log. Returns whether it has read all that
    /// it can take. `home`: the server that makes the calls of a schedule.
    pub(super) fn find_calls(
        &mut self,
        (view, log): (&TenantView, Option<&Arc<ChangeLog>>),
        home: &CallHome,
        now_ms: u64,
    ) -> bool {
        self.waiting.clear();
        match &self.source {
            TriggerSource::Schedule(schedule) => {
                if *home != CallHome::Here {
                    // Calls that were not over stay: they are made where the others are made by now, and here again
                    // where the slot comes back. What was due lately is due there again.
                    self.last_due_ms = home.last_due(schedule, self.last_due_ms, now_ms);
                    self.waiting = home.to_string();
                    return true;
                }
                let due = schedule.next_after(self.last_due_ms).is_some_and(|due_ms| due_ms <= now_ms);
                if due {
                    // However many times were missed, one call makes up for them.
                    self.last_due_ms = last_due(schedule, self.last_due_ms, now_ms);
                    if self.queue.len() > 0 {
                        self.counts.skipped += 1;
                    } else {
                        let call = TriggerCall::plain(self.spec.args.clone().into_bytes());
                        self.queue.push(Some(b""), call.at_slot(self.schedule_slot()));
                    }
                }
                true
            }
            TriggerSource::Table(table) => {
                let number = view.table_by_name(table).map(|entry| entry.table.log_number());
                match (number, log) {
                    (None, _) => self.waiting = format!("there is no table {table:?}"),
                    (Some(None), _) | (_, None) => {
                        self.waiting = format!("table {table:?} has durability none: its changes are in no log");
                    }
                    (Some(Some(number)), Some(log)) => return self.read_log(log, number),
                }
                true
            }
        }
    }

    /// Whether its position is one of this log. Where the log is another one, or ends before that position, it pauses:
    /// what it would leave out is told, and it goes on from the end of the log that there is.
    fn is_of(&mut self, log: &ChangeLog) -> bool {
        let is_other = self.log_id != 0 && self.log_id != log.id();
        self.log_id = log.id();
        if !is_other && self.read <= log.durable() {
            return true;
        }
        let handled = self.read;
        (self.queue, self.tail, self.read) = (CallQueue::default(), None, log.durable());
        self.batch.iter_mut().for_each(BatchSize::forget_calls);
        self.epoch = next_epoch();
        let (name, from) = (&self.spec.name, self.read);
        self.pause(format!(
            "the log is not the one of which trigger {name:?} has handled what is before position {handled}: it was \
             salvaged, restored or removed. `sandstorm trigger resume {name}` goes on with changes from position {from} \
             on; `sandstorm trigger replay {name} --from POSITION` before that makes calls for earlier ones"
        ));
        false
    }

    /// Reads changes of a table behind the last position.
    fn read_log(&mut self, log: &Arc<ChangeLog>, number: u64) -> bool {
        if !self.is_of(log) {
            return true;
        }
        // Not for each one that is over: a turn reads many, and then none for a while.
        if !self.queue.has_much_room() || self.read >= log.durable() {
            return true;
        }
        let tail = match self.tail.take() {
            Some(tail) => Ok(tail),
            None => LogTail::at(log, self.read),
        };
        let read = tail.and_then(|mut tail| {
            let (queue, spec) = (&mut self.queue, &self.spec);
            // Also what a server had not called for whose place this one has taken.
            let inherited = self.agreed.as_ref().map(|agreed| inherited_table(agreed.serial, number));
            let (mut before, mut unit) = (tail.position(), tail.position());
            tail.read(TRIGGER_READ_BYTES, &mut |position, change| {
                if position != unit {
                    (before, unit) = (unit, position);
                }
                if (change.table == number || Some(change.table) == inherited)
                    && let Some((key, args)) = call_of(spec, position, change)
                {
                    queue.push(key, TriggerCall::of_change(args, (before, position)).at_slot_of(key));
                }
                queue.has_room()
            })?;
            Ok(tail)
        });
        match read {
            Ok(tail) => {
                self.read = tail.position();
                let is_at_end = tail.is_at_end();
                self.tail = Some(tail);
                is_at_end
            }
            Err(error) => {
                self.pause(unread_text(&self.spec.name, self.read, &error));
                true
            }
        }
    }

    /// The next invocation that may begin.
    pub(super) fn begin_call(&mut self, now_ms: u64, routes: &CallRoutes) -> Option<BegunTriggerCall> {
        // A schedule waits since another server makes its calls: those that are not over are made there.
        let makes_none = !self.waiting.is_empty() && self.schedule().is_none();
        if !self.paused.is_empty() || makes_none {
            return None;
        }
        let together = self.batch.as_ref().map(BatchSize::next);
        let BegunInvocation { place, args, at, slots } = self.queue.begin((now_ms, together), routes)?;
        if let (Some(batch), Some(together)) = (&mut self.batch, together) {
            batch.begun(together, place);
        }
        Some(BegunTriggerCall { place: (self.epoch, place), args, at, slots })
    }

    /// Notes how an invocation ended. Returns whether the trigger paused itself.
    pub(super) fn end_call(
        &mut self,
        (epoch, place): InvocationPlace,
        (status, text): (RpcStatus, &[u8]),
        now_ms: u64,
    ) -> bool {
        if epoch != self.epoch {
            return false;
        }
        let end = end_of(status);
        if !matches!(end, CallEnd::Done | CallEnd::Moved) {
            let text = String::from_utf8_lossy(text);
            self.last_error = format!("{status:?}: {}", text.chars().take(500).collect::<String>());
            self.last_error_at_ms = Some(now_ms);
        }
        match end {
            CallEnd::Done | CallEnd::Moved => {}
            CallEnd::Failed => self.counts.failed += 1,
            CallEnd::NotRun => self.counts.not_run += 1,
        }
        let fate = self.queue.end(place, end, (self.spec.retries, now_ms));
        if let Some(batch) = &mut self.batch {
            let (calls, outcome) = match &fate {
                Some(TriggerCallOutcome::Over { calls, .. }) => (*calls, BatchOutcome::Fits),
                Some(TriggerCallOutcome::Split(calls)) if takes_too_much(status) => (*calls, BatchOutcome::TooMuch),
                _ => (0, BatchOutcome::Unknown),
            };
            batch.ended(place, calls, outcome);
        }
        match fate {
            Some(TriggerCallOutcome::Over { calls, letter }) => {
                self.counts.succeeded += calls as u64;
                letter.into_iter().for_each(|id| self.forget_letter(id));
                false
            }
            Some(TriggerCallOutcome::Split(_) | TriggerCallOutcome::Again) | None => false,
            Some(TriggerCallOutcome::GivenUp(call)) => self.bury(&call, now_ms),
        }
    }

    /// Removes the letter that a call has replayed.
    fn forget_letter(&mut self, id: u64) {
        if let Some(letter) = self.dead.remove(&id) {
            self.dead_bytes -= letter_bytes(&letter);
        }
    }

    /// Keeps a call whose tries are over. Returns whether the trigger paused itself, since there is no room for more.
    fn bury(&mut self, call: &TriggerCall, now_ms: u64) -> bool {
        let id = call.letter.unwrap_or(self.last_letter + 1);
        self.last_letter = self.last_letter.max(id);
        self.forget_letter(id);
        let encoded = BASE64.encode(&call.args);
        let fits = self.dead_bytes + encoded.len() <= TRIGGER_DEAD_LETTER_BYTES;
        let letter = DeadLetter {
            id,
            at_ms: now_ms,
            position: call.position,
            tries: call.failures,
            error: self.last_error.clone(),
            args: fits.then_some(encoded),
        };
        self.dead_bytes += letter_bytes(&letter);
        self.dead.insert(id, letter);
        let is_full = self.dead.len() >= TRIGGER_DEAD_LETTERS || self.dead_bytes >= TRIGGER_DEAD_LETTER_BYTES;
        if is_full && self.paused.is_empty() {
            let name = &self.spec.name;
            self.pause(format!(
                "there is no room for more dead letters of trigger {name:?}: mend its extension, then `sandstorm trigger \
                 resume {name}` goes on and `sandstorm trigger replay {name}` makes their calls again; `sandstorm \
                 trigger dead-letters {name} --discard` removes them"
            ));
            return true;
        }
        false
    }

    /// Makes no calls from now on.
    pub(super) fn pause(&mut self, why: String) {
        self.paused = why;
        self.tail = None;
    }

    /// Makes calls again. A schedule goes on with its next time.
    pub(super) fn resume(&mut self, now_ms: u64) {
        if let Some(schedule) = self.schedule() {
            self.last_due_ms = last_due(schedule, self.last_due_ms, now_ms);
        }
        self.paused.clear();
    }

    /// Makes the calls of dead letters again that have their arguments and are not made again already, as many as there
    /// is room for among the calls that wait. Returns their number.
    pub(super) fn replay_letters(&mut self) -> usize {
        let under_way = self.queue.letters();
        let others = self.dead.values().filter(|letter| !under_way.contains(&letter.id));
        let letters = others.filter_map(|letter| Some((letter, letter.decoded_args()?)));
        let (mut replayed, of_schedule) = (0, self.schedule().map(|_| self.schedule_slot()));
        for (DeadLetter { id, position, .. }, args) in letters {
            if !self.queue.has_room() {
                break;
            }
            let change = Change::decode(&args).ok().filter(|change| change.op != ChangeOp::Clear);
            let key = change.filter(|_| of_schedule.is_none()).map(|change| change.key.to_vec());
            let call = TriggerCall::replayed(args, *id, *position);
            let call = call.at_slot(of_schedule.unwrap_or_else(|| key.as_deref().map(slot_of)));
            self.queue.push(Some(&key.unwrap_or_default()), call);
            replayed += 1;
        }
        replayed
    }

    /// Goes on from a position: what is under way is forgotten.
    pub(super) fn replay_from(&mut self, position: u64, log: &ChangeLog) {
        (self.queue, self.tail, self.read) = (CallQueue::default(), None, position);
        self.log_id = log.id();
        self.batch.iter_mut().for_each(BatchSize::forget_calls);
        self.epoch = next_epoch();
    }

    pub(super) fn dead_letters(&self) -> Vec<DeadLetter> {
        self.dead.values().cloned().collect()
    }

    pub(super) fn discard_letters(&mut self) -> usize {
        self.dead_bytes = 0;
        std::mem::take(&mut self.dead).len()
    }
}

/// The number of a new queue of calls. None of this process has it twice: a call of a trigger that was removed may end
/// when there is another one of its name.
fn next_epoch() -> u64 {
    static EPOCHS: AtomicU64 = AtomicU64::new(1);
    EPOCHS.fetch_add(1, Ordering::Relaxed)
}

fn letter_bytes(letter: &DeadLetter) -> usize {
    letter.args.as_ref().map_or(0, String::len) + letter.error.len()
}

/// Key and arguments of the call for a change, if the trigger is called for it.
fn call_of<'c>(
    spec: &TriggerDefinition,
    position: u64,
    change: &LoggedChange<'c>,
) -> Option<(Option<&'c [u8]>, Vec<u8>)> {
    let (op, wanted) = match change.kind {
        ChangeKind::Put => (ChangeOp::Put, TriggerOp::Put),
        ChangeKind::Delete => (ChangeOp::Delete, TriggerOp::Delete),
        ChangeKind::Clear => (ChangeOp::Clear, TriggerOp::Clear),
        ChangeKind::Expire => (ChangeOp::Expire, TriggerOp::Expire),
        ChangeKind::MakeTable | ChangeKind::DropTable | ChangeKind::Arrive | ChangeKind::Leave => return None,
    };
    let (key, value) = if op == ChangeOp::Clear { (&b""[..], &b""[..]) } else { (change.key, change.value) };
    let (version, expires_at_ms) = (change.version, change.expires_at_ms);
    let args = || Change { op, key, value, version, expires_at_ms, position }.encode();
    spec.wants(wanted).then(|| ((op != ChangeOp::Clear).then_some(change.key), args()))
}

/// Whether a call that ended so may have had too much to do.
fn takes_too_much(status: RpcStatus) -> bool {
    matches!(status, RpcStatus::Killed | RpcStatus::TooLarge)
}

/// What a status says of a call.
fn end_of(status: RpcStatus) -> CallEnd {
    match status {
        RpcStatus::Ok => CallEnd::Done,
        RpcStatus::WrongServer => CallEnd::Moved,
        RpcStatus::UnknownTenant
        | RpcStatus::UnknownExtension
        | RpcStatus::Suspended
        | RpcStatus::OverQuota
        | RpcStatus::Overloaded
        | RpcStatus::ShuttingDown => CallEnd::NotRun,
        _ => CallEnd::Failed,
    }
}

/// Why a trigger pauses that cannot read on behind a position, and what to do.
fn unread_text(name: &str, handled: u64, error: &TailError) -> String {
    match error {
        TailError::TooOld { oldest } => format!(
            "trigger {name:?} has missed changes: it has handled what is before position {handled}, and the log begins at \
             {oldest}. `sandstorm trigger replay {name} --from {oldest}` and then `sandstorm trigger resume {name}` make \
             calls for what is there; what was before is in the table alone"
        ),
        error => format!(
            "trigger {name:?} cannot read the log behind position {handled}: {error}; `sandstorm trigger resume {name}` \
             tries again"
        ),
    }
}

#[cfg(test)]
#[path = "active_tests.rs"]
mod tests;
