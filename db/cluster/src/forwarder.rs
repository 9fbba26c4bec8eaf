//! Sends commands of memcached clients to the servers that have their keys, and brings back the answers. No worker
//! waits: each server that is asked has some threads here, which end when there is nothing to do.
//!
//! A command is sent to one server at a time, and once, unless that server says that it has not run it: so it is run at
//! most once. If there is no answer, the client is told that its outcome is unknown. Its slot may move meanwhile: then
//! the command follows it, a bounded number of times.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sandstorm_net::forwarding::{CommandForwarder, ForwardDone, ForwardedBatch};

use crate::answer_budget::AnswerBudget;
use crate::forward_batch::{BatchUnderWay, ForwardFailure};
use crate::forward_link::{FORWARD_PATH, ForwardLink, LinkAnswer};
use crate::forward_queue::{ForwardPart, ForwardQueue, ThreadNeed};
use crate::limits::{FORWARD_IDLE, FORWARD_TIMEOUT};
use crate::move_coordinator::MoveCoordinator;

/// What waits for a server, and the link to it.
struct ForwardTarget {
    /// The server's id.
    id: String,
    queue: Mutex<ForwardQueue>,
    changed: Condvar,
    link: Mutex<Option<Arc<ForwardLink>>>,
}

/// What the threads share.
struct ForwarderState {
    coordinator: Arc<MoveCoordinator>,
    answers: Arc<AnswerBudget>,
    targets: Mutex<HashMap<String, Arc<ForwardTarget>>>,
}

/// Commands that were not run, and may be later, and why they were not.
struct OpenCommands {
    numbers: Vec<usize>,
    why: ForwardFailure,
}

/// See the head of this file.
pub struct ClusterForwarder(Arc<ForwarderState>);

impl std::fmt::Debug for ClusterForwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterForwarder").finish_non_exhaustive()
    }
}

impl ClusterForwarder {
    /// The forwarder of the server that has this coordinator.
    pub fn start(coordinator: &Arc<MoveCoordinator>) -> Arc<dyn CommandForwarder> {
        let coordinator = Arc::clone(coordinator);
        Arc::new(ClusterForwarder(Arc::new(ForwarderState {
            coordinator,
            answers: Arc::default(),
            targets: Mutex::default(),
        })))
    }
}

impl CommandForwarder for ClusterForwarder {
    fn forward(&self, batch: ForwardedBatch, done: ForwardDone) {
        let numbers = (0..batch.commands.len()).collect();
        let under_way = Arc::new(BatchUnderWay::new(batch, Instant::now() + FORWARD_TIMEOUT, &self.0.answers, done));
        self.0.route(
            ForwardPart { under_way, numbers, tries: 0, paused: Duration::ZERO, why: ForwardFailure::Late },
            None,
        );
    }
}

impl ForwarderState {
    /// The id of the server that owns the slot of a command. One of a slot without an owner waits here for one.
    fn owner(&self, batch: &ForwardedBatch, number: usize) -> String {
        let (slots, slot) = (self.coordinator.slots(), batch.commands.get(number).map_or(0, |command| command.slot));
        slots.map().owner(slot).map_or_else(|| slots.own_id().to_owned(), |server| server.id.clone())
    }

    /// Has commands sent to the owners of their slots, at `at` at the earliest: those that only read to all of them,
    /// others to the first one's.
    fn route(self: &Arc<Self>, part: ForwardPart, at: Option<Instant>) {
        let ForwardPart { under_way, numbers, tries, paused, why } = part;
        let batch = &under_way.batch;
        let mut parts: Vec<(String, Vec<usize>)> = Vec::new();
        match numbers.first() {
            None => return,
            Some(first) if batch.is_ordered => parts.push((self.owner(batch, *first), numbers)),
            Some(_) => {
                for number in numbers {
                    let owner = self.owner(batch, number);
                    match parts.iter_mut().find(|(id, _)| *id == owner) {
                        Some((_, numbers)) => numbers.push(number),
                        None => parts.push((owner, vec![number])),
                    }
                }
            }
        }
        for (id, numbers) in parts {
            self.push(&id, ForwardPart { under_way: Arc::clone(&under_way), numbers, tries, paused, why }, at);
        }
    }

    fn push(self: &Arc<Self>, id: &str, part: ForwardPart, at: Option<Instant>) {
        let target = {
            let mut targets = self.targets.lock();
            let new = || ForwardTarget {
                id: id.to_owned(),
                queue: Mutex::default(),
                changed: Condvar::new(),
                link: Mutex::default(),
            };
            Arc::clone(targets.entry(id.to_owned()).or_insert_with(|| Arc::new(new())))
        };
        let mut queue = target.queue.lock();
        if let Err(part) = queue.push(part, at) {
            drop(queue);
            return part.under_way.refuse(&part.numbers, id, ForwardFailure::Crowded);
        }
        self.provide(&target, queue);
    }

    /// Sees to it that there are threads for what waits for a server.
    fn provide(self: &Arc<Self>, target: &Arc<ForwardTarget>, mut queue: MutexGuard<'_, ForwardQueue>) {
        match queue.need_threads() {
            ThreadNeed::Nothing => return,
            ThreadNeed::Wake => {
                target.changed.notify_one();
                return;
            }
            ThreadNeed::Start => drop(queue),
        }
        let (state, served) = (Arc::clone(self), Arc::clone(target));
        let spawned = thread::Builder::new().name("forward".to_owned()).spawn(move || state.serve(&served));
        if spawned.is_err() {
            let mut queue = target.queue.lock();
            queue.threads -= 1;
            // Another thread sends it, if there is one.
            let stuck = if queue.threads == 0 { queue.take_all() } else { Vec::new() };
            drop(queue);
            let refuse = |part: &ForwardPart| {
                part.under_way.refuse(&part.numbers, &target.id, ForwardFailure::Crowded);
            };
            stuck.iter().for_each(refuse);
        }
    }

    /// Sends what waits for a server, until there has been nothing for a while.
    fn serve(self: &Arc<Self>, target: &Arc<ForwardTarget>) {
        loop {
            let mut queue = target.queue.lock();
            let part = loop {
                let now = Instant::now();
                if let Some(part) = queue.pop(now) {
                    break part;
                }
                let until = queue.next_due().unwrap_or(now + FORWARD_IDLE);
                queue.idle += 1;
                let timed_out = target.changed.wait_until(&mut queue, until).timed_out();
                queue.idle -= 1;
                if timed_out && queue.is_empty() {
                    queue.threads -= 1;
                    return;
                }
            };
            // There may be more, such as what has come due meanwhile.
            self.provide(target, queue);
            let tenant = part.under_way.batch.tenant;
            self.send(target, part);
            target.queue.lock().finish(tenant);
        }
    }

    /// Sends commands to a server, and takes its answers.
    fn send(self: &Arc<Self>, target: &ForwardTarget, mut part: ForwardPart) {
        let (under_way, id) = (Arc::clone(&part.under_way), target.id.as_str());
        let left = under_way.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || part.is_given_up() {
            return under_way.refuse(&part.numbers, id, part.why);
        }
        // It has waited: its slots may have moved meanwhile.
        let is_here = |number: &usize| self.owner(&under_way.batch, *number) == id;
        let own = part.numbers.iter().position(|number| !is_here(number)).unwrap_or(part.numbers.len());
        let rest = part.numbers.split_off(own);
        let numbers = std::mem::take(&mut part.numbers);
        if numbers.is_empty() {
            let (tries, why) = (part.tries + 1, ForwardFailure::Moving);
            return self.route(ForwardPart { numbers: rest, tries, why, ..part }, None);
        }
        let open = if id == self.coordinator.slots().own_id() {
            // The connection runs it itself, once the slot is this server's to serve.
            let slot = under_way.batch.commands.get(numbers[0]).map_or(0, |command| command.slot);
            if self.coordinator.slots().owns_slot(slot) {
                return under_way.give_back(&[numbers, rest].concat());
            }
            Some(OpenCommands { numbers, why: ForwardFailure::Moving })
        } else {
            self.ask(target, &under_way, &numbers, left)
        };
        let Some(open) = open else { return self.route(ForwardPart { numbers: rest, ..part }, None) };
        self.coordinator.wake_agent();
        let (pause, tries) = (part.next_pause(), part.tries + 1);
        let (numbers, paused) = ([open.numbers, rest].concat(), part.paused + pause);
        let again = ForwardPart { numbers, tries, paused, why: open.why, ..part };
        self.route(again, Some(Instant::now() + pause));
    }

    /// Asks a server to run commands, and takes over its answers. Returns those that it has not run and are to be sent
    /// again.
    fn ask(
        &self,
        target: &ForwardTarget,
        under_way: &BatchUnderWay,
        numbers: &[usize],
        time: Duration,
    ) -> Option<OpenCommands> {
        let id = target.id.as_str();
        let all = |why| Some(OpenCommands { numbers: numbers.to_vec(), why });
        // `None`: the server has just joined, or was removed.
        let Some((server, key)) = self.coordinator.peer(id) else { return all(ForwardFailure::Moving) };
        let link = {
            let mut link = target.link.lock();
            if link.as_ref().is_none_or(|link| !link.leads_to(&server)) {
                *link = ForwardLink::new(&server).ok().map(Arc::new);
            }
            link.clone()
        };
        let Some(link) = link else { return all(ForwardFailure::Moving) };
        let failed = match link.send(FORWARD_PATH, (&key, &under_way.batch.request(numbers)), time) {
            LinkAnswer::Answered(answers) => {
                let numbers = under_way.take_over(numbers, id, &answers);
                return (!numbers.is_empty()).then_some(OpenCommands { numbers, why: ForwardFailure::Moving });
            }
            LinkAnswer::NotYet => return all(ForwardFailure::Refused),
            LinkAnswer::NotSent => ForwardFailure::Away,
            LinkAnswer::NotRun => ForwardFailure::Refused,
            LinkAnswer::Lost => ForwardFailure::Lost,
        };
        under_way.refuse(numbers, id, failed);
        None
    }
}
