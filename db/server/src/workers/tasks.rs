//! Tasks: invocations on their way through the run queue, from the request that asks for one to the answer.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;

use parking_lot::MutexGuard;
use sandstorm_api::abi;
use sandstorm_net::rpc::{MAX_VALUE_LEN, Op, Operation, Status, encode_operation};

use super::Worker;
use super::admit::count;
use super::assembly::Ticket;
use super::connections::Name;
use super::plain;
use super::port::PortState;
use super::run_queue::Turn;
use crate::limits::{INVOCATIONS_PER_WORKER, PLACES_PER_FREE};
use sandstorm_accounts::Kill;
use sandstorm_catalog::TenantView;
use sandstorm_dialects::InvocationAnswer;
use sandstorm_extension::{Extension, Transactions};
use sandstorm_metrics::cause_index;
use sandstorm_runtime::{BeginError, Invocation, Polled};

/// Where the answer of an invocation is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// By who sent a datagram.
    Datagram {
        /// The port that the request came to, and its answer leaves by.
        port: u32,
        /// Which operation of the request.
        part: u32,
        /// The response that waits.
        ticket: Ticket,
    },
    /// At a connection.
    Stream {
        /// The worker that has it.
        worker: u32,
        /// Which.
        name: Name,
    },
}

/// An invocation and who waits for it, which its label says: a task is moved with every poll, so it is one word.
pub(super) struct Task {
    pub(super) invocation: Invocation,
}

/// A mark in the first word of a label: a connection waits.
const STREAM: u64 = 1 << 63;

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn parts(pair: u64) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

impl Caller {
    fn words(self) -> [u64; 2] {
        match self {
            Caller::Datagram { port, part, ticket } => [pair(port, part), ticket.word()],
            Caller::Stream { worker, name } => [STREAM | pair(worker, 0), name.word()],
        }
    }

    /// The inverse of [`Caller::words`].
    fn from_words([first, second]: [u64; 2]) -> Caller {
        let (of, part) = parts(first & !STREAM);
        if first & STREAM == 0 {
            Caller::Datagram { port: of, part, ticket: Ticket::from_word(second) }
        } else {
            Caller::Stream { worker: of, name: Name::from_word(second) }
        }
    }
}

impl Task {
    fn new(mut invocation: Invocation, caller: Caller, begun_us: u64) -> Task {
        let [first, second] = caller.words();
        invocation.set_label([first, second, begun_us]);
        Task { invocation }
    }

    /// Who waits for it.
    pub(super) fn caller(&self) -> Caller {
        let [first, second, _] = self.invocation.label();
        Caller::from_words([first, second])
    }

    /// When it was asked for, in the workers' microseconds.
    fn begun_us(&self) -> u64 {
        let [_, _, begun_us] = self.invocation.label();
        begun_us
    }

    /// Whether its answer leaves in the same burst as that of `other`, which has this view.
    fn leaves_with(&self, other: &Task, view: &Arc<TenantView>) -> bool {
        let port = |task: &Task| match task.caller() {
            Caller::Datagram { port, .. } => Some(port),
            Caller::Stream { .. } => None,
        };
        self.invocation.view().is_some_and(|own| Arc::ptr_eq(own, view))
            && port(self).is_some_and(|own| port(other) == Some(own))
    }

    /// Its tenant's id and weight.
    fn share(&self) -> (u32, u32) {
        self.invocation.view().map_or((0, 1), |view| (view.tenant.id, view.tenant.quotas.weight))
    }

    /// Counts the places that its tenant holds on a worker; for that worker.
    pub(super) fn count_place(&self, worker: usize, change: i64) {
        if let Some(view) = self.invocation.view() {
            let places = &view.tenant.usage.worker(worker).invocations_live;
            places.set(places.get().wrapping_add_signed(change));
        }
    }
}

/// Whether a tenant that holds `held` of the `live` places of a worker may take one more: it may hold so many times what is
/// free. So one tenant alone gets two thirds of the places, two get two fifths each, and however many want all they can get,
/// something is left for one that holds little.
fn may_take_place(live: usize, held: usize) -> Result<(), &'static str> {
    let free = INVOCATIONS_PER_WORKER.saturating_sub(live);
    if free == 0 {
        Err("the worker has all the invocations that it can hold; try again later")
    } else if held >= free * PLACES_PER_FREE {
        Err("the tenant has its share of the invocations that the worker can hold; try again later")
    } else {
        Ok(())
    }
}

/// A task that ended and is not answered yet.
pub(super) struct Ended {
    task: Task,
    polled: Polled,
}

impl Worker {
    /// Makes a task of an invocation. When it cannot, writes the answer that says why and gives its status.
    pub(super) fn begin_task(
        &mut self,
        view: &Arc<TenantView>,
        operation: &Operation<'_>,
        caller: Caller,
        answer: &mut Vec<u8>,
    ) -> Option<Status> {
        let (status, text) = self.try_begin(view, operation, caller).err()?;
        Some(plain::refuse(operation, status, &text, answer))
    }

    /// Makes a task of an invocation.
    ///
    /// # Errors
    /// Why it cannot: a status, and a text that says more.
    pub(super) fn try_begin<'v>(
        &mut self,
        view: &'v Arc<TenantView>,
        operation: &Operation<'_>,
        caller: Caller,
    ) -> Result<(), (Status, Cow<'v, str>)> {
        let extension = find_extension(view, operation).map_err(|(status, text)| (status, text.into()))?;
        let tenant = &view.tenant;
        if !extension.brake.admits(self.now_us.saturating_mul(1000)) {
            tenant.usage.worker(self.index).over_quota.add(1);
            return Err((Status::OverQuota, SLOWED_TEXT.into()));
        }
        let places = &tenant.usage.worker(self.index).invocations_live;
        may_take_place(self.live, places.get() as usize).map_err(|text| (Status::Overloaded, text.into()))?;
        if !self.engine.has_stack_for(&tenant.usage) {
            return Err((Status::Overloaded, PARKED_TEXT.into()));
        }
        if let Err(text) = tenant.begin_invocation() {
            tenant.usage.worker(self.index).over_quota.add(1);
            return Err((Status::OverQuota, text.into()));
        }
        let budget = view.budget(extension);
        let begun = self.engine.begin(view, extension, operation.value, budget);
        match begun {
            Ok(invocation) => {
                self.counters.invocations_started.add(1);
                self.live += 1;
                places.set(places.get() + 1);
                let task = Task::new(invocation, caller, self.now_us);
                self.queue.push(tenant.id, tenant.quotas.weight, task);
                Ok(())
            }
            Err(error) => {
                tenant.end_invocations(1);
                let status = match error {
                    BeginError::OverQuota => {
                        tenant.usage.worker(self.index).over_quota.add(1);
                        Status::OverQuota
                    }
                    BeginError::TooLarge { .. } => Status::TooLarge,
                    BeginError::Memory(_) => Status::Overloaded,
                };
                Err((status, error.to_string().into()))
            }
        }
    }

    /// The task to poll next. Those that were offered and nobody took come back when there is room for them.
    pub(super) fn next_task(&mut self) -> Option<Turn<Task>> {
        while self.offer.comes_back(&self.queue) {
            let Some(task) = self.offered.pop() else { break };
            self.take_task(task);
        }
        self.queue.next()
    }

    /// Puts a task into the run queue that was offered, by this worker or another.
    pub(super) fn take_task(&mut self, task: Task) {
        let (tenant, weight) = task.share();
        task.count_place(self.index, 1);
        self.live += 1;
        self.queue.push(tenant, weight, task);
    }

    /// Puts a polled task where it belongs now: back into the queue, or among those that ended.
    pub(super) fn after_poll(&mut self, turn: Turn<Task>, polled: Polled) {
        match polled {
            Polled::Pending => self.queue.again(turn),
            Polled::Preempted => {
                self.counters.preemptions.add(1);
                if let Some(view) = turn.task.invocation.view() {
                    view.tenant.usage.worker(self.index).preemptions.add(1);
                }
                self.queue.switched_out(turn);
            }
            Polled::Done | Polled::Failed { .. } | Polled::Killed(_) => {
                let task = self.queue.done(turn);
                task.count_place(self.index, -1);
                self.live -= 1;
                self.ended.push(Ended { task, polled });
            }
        }
    }

    /// Answers the invocations that ended, each through the port it came from, and takes their memory back.
    pub(super) fn answer_ended(&mut self) {
        let mut ended = mem::take(&mut self.ended);
        let shared = Arc::clone(&self.shared);
        let mut open: Option<(u32, MutexGuard<'_, PortState>)> = None;
        let mut leaving = 0;
        let mut all = ended.drain(..).peekable();
        while let Some(Ended { task, polled }) = all.next() {
            let answer = ended_answer(&task.invocation, &polled);
            count(&self.counters.responses, answer.status as usize);
            match task.caller() {
                Caller::Datagram { port, part, ticket } => {
                    if open.as_ref().is_none_or(|(opened, _)| *opened != port) {
                        if let Some((_, mut done)) = open.take() {
                            done.transmit();
                        }
                        open = shared.ports[port as usize].open(true).map(|state| (port, state));
                    }
                    if let Some((_, state)) = &mut open {
                        let write = |response: &mut Vec<u8>| encode_ended(&answer, response);
                        state.desk.deliver(self.now_us, ticket, part as usize, write);
                    }
                }
                Caller::Stream { worker, name } => self.answer_connection(worker, name, &answer),
            }
            self.count_ended(&task, &polled);
            // Those of one tenant whose answers leave together give their places back together, before: the word is common to all workers.
            if let Some(view) = task.invocation.view() {
                leaving += 1;
                if !all.peek().is_some_and(|next| next.task.leaves_with(&task, view)) {
                    view.tenant.end_invocations(mem::take(&mut leaving));
                }
            }
            self.engine.finish(&self.participant, task.invocation);
        }
        drop(all);
        if let Some((_, mut done)) = open {
            done.transmit();
        }
        self.ended = ended;
    }

    fn count_ended(&self, task: &Task, polled: &Polled) {
        let invocation = &task.invocation;
        let (Some(view), Some(extension)) = (invocation.view(), invocation.extension()) else { return };
        let tenant = view.tenant.usage.worker(self.index);
        tenant.invocation_cpu_ns.add(invocation.cpu_ns());
        if let Some(Transactions { commits, retries, conflicts }) = invocation.transactions() {
            tenant.transactions_committed.add(commits);
            tenant.transaction_retries.add(retries);
            tenant.transaction_conflicts.add(conflicts);
        }
        match polled {
            Polled::Pending | Polled::Preempted => {}
            Polled::Done => {
                self.counters.invocations_done.add(1);
                tenant.invocations_done.add(1);
            }
            Polled::Failed { .. } => {
                self.counters.invocations_failed.add(1);
                tenant.invocations_failed.add(1);
            }
            Polled::Killed(cause) => {
                count(&self.counters.invocations_killed, cause_index(*cause));
                count(&tenant.invocations_killed, cause_index(*cause));
                // The turn's clock stood still while this one ran.
                let now_us = self.shared.epoch.elapsed().as_micros() as u64;
                view.tenant.usage.record_kill(Kill {
                    worker: self.index as u32,
                    extension: extension.name.to_string(),
                    version: extension.version,
                    cause: *cause,
                    cpu_us: invocation.cpu_ns() / 1000,
                    wall_us: now_us.saturating_sub(task.begun_us()),
                    at_ms: self.now_ms,
                    text: String::from_utf8_lossy(invocation.text()).into_owned(),
                });
            }
        }
    }
}

/// What a call of an extension that is slowed down is told.
const SLOWED_TEXT: &str = "quota slow_after_kills: the extension's calls keep being killed, so only some are let in each \
                           second; `sandstorm kills` shows why";

/// What a call is told whose tenant has as many switched-out invocations as it may.
const PARKED_TEXT: &str =
    "the tenant's computations that are switched out hold its share of the side stacks; try again later";

/// The extension that an operation names, or why it cannot be called.
fn find_extension<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
) -> Result<&'v Arc<Extension>, (Status, &'v str)> {
    let extension = std::str::from_utf8(operation.key).ok().and_then(|name| view.extension(name));
    let Some(extension) = extension else {
        let text = "the tenant has no extension of this name; `sandstorm ext list` shows those there are";
        return Err((Status::UnknownExtension, text));
    };
    if operation.number != 0 && operation.number != extension.version {
        return Err((
            Status::UnknownExtension,
            "this version of the extension is not loaded; ask for 0 to get the newest",
        ));
    }
    if let Some(suspension) = view.suspension(&extension.name) {
        return Err((Status::Suspended, &suspension.text));
    }
    Ok(extension)
}

/// How an invocation ended, for who asked for it.
fn ended_answer<'i>(invocation: &'i Invocation, polled: &Polled) -> InvocationAnswer<'i> {
    let (status, number, value) = match polled {
        Polled::Done | Polled::Pending | Polled::Preempted => {
            (Status::Ok, invocation.extension().map_or(0, |extension| extension.version), invocation.reply())
        }
        Polled::Failed { code: abi::STATUS_CONTENDED } => (Status::Conflict, 0, invocation.text()),
        Polled::Failed { code } => (Status::Failed, u64::from(*code), invocation.text()),
        Polled::Killed(cause) => (Status::Killed, *cause as u64, invocation.text()),
    };
    // The reply's budget is at most what a message can carry; a longer one cannot come from `reply`.
    InvocationAnswer { status, number, value: &value[..value.len().min(MAX_VALUE_LEN)] }
}

/// Appends the answer of an invocation that ended.
fn encode_ended(answer: &InvocationAnswer<'_>, response: &mut Vec<u8>) {
    let InvocationAnswer { status, number, value } = *answer;
    encode_operation(&Operation { status, number, value, ..Operation::new(Op::Invoke) }, response);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenants that take all the places they can get, in turns, until none can take more.
    fn filled(tenants: usize) -> (usize, Vec<usize>) {
        let mut held = vec![0; tenants];
        loop {
            let before = held.clone();
            for tenant in 0..tenants {
                let live = held.iter().sum();
                held[tenant] += usize::from(may_take_place(live, held[tenant]).is_ok());
            }
            if held == before {
                return (held.iter().sum(), held);
            }
        }
    }

    #[test]
    fn whoever_waits_is_found_again_by_the_label() {
        for (one, two, three) in [(0, 0, 0), (1, 2, 3), (63, u32::MAX, 7), (5, 1 << 31, u32::MAX)] {
            let word = pair(two, three);
            let stream = Caller::Stream { worker: one, name: Name::from_word(word) };
            for caller in [Caller::Datagram { port: one, part: two, ticket: Ticket::from_word(word) }, stream] {
                assert_eq!(Caller::from_words(caller.words()), caller);
            }
            assert_eq!((Ticket::from_word(word).word(), Name::from_word(word).word()), (word, word));
        }
    }

    #[test]
    fn however_many_take_all_they_can_get_another_one_still_gets_in() {
        for tenants in [1, 2, 3, 10, 100, 500] {
            let (live, held) = filled(tenants);
            assert!(may_take_place(live, 0).is_ok(), "{tenants} tenants hold {live}");
            let (least, most) = (held.iter().min(), held.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "and share alike: {held:?}");
        }
        assert_eq!(filled(1).0, 1024, "what the limit's documentation says");
        assert!(may_take_place(INVOCATIONS_PER_WORKER, 0).is_err());
    }
}
