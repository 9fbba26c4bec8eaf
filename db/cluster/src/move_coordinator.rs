//! The moves of slots that a server gives away or takes: the state that its threads share.
//!
//! The source of a move owns the slots and serves them while the target copies their records. Each *attempt* of the
//! target begins empty. At its end the source stops serving the slots and hands them over, by one compare and swap of
//! the map. Until then the copy counts for nothing, and is made again after any trouble; from then on the source's
//! records count for nothing.
//!
//! Only the source hands slots over, and only while it does not serve them: from [`MoveCoordinator::freeze`] on. It
//! serves them again only if no hand-over can be under way. A process that starts does not know what an earlier one has
//! sent, so it changes the map before it serves such slots (`StoredSlots::take_up`): a change that was sent before then
//! fails.

mod peer_lookup;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sandstorm_store::slots::{SlotOwnership, SlotSpan};

use crate::broken_rules::{MemberRule, is_broken};
use crate::change_calls::CallWaits;
use crate::copies_view::CopiesView;
use crate::limits::{CHANGE_TIMEOUT, HAND_OVER_TIMEOUT, MAP_CHANGE_TRIES, MAP_REQUESTS};
use crate::map_requests::{FASTER, MapAnswer, MapChange, MapRequest, WaitingRequest};
pub use crate::move_progress::{CopyProgress, LaggingServer};
use crate::slot_moves::{WantedMove, overlap};
use crate::slot_plans::{KnownServers, PlannedMove, ServerChange};
use crate::source_walk::SourceWalks;
use crate::state::{ServerState, StoredMove, StoredSlots};

/// How far the attempt to copy some slots is, at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStage {
    /// The source serves the slots.
    Copying,
    /// It serves them no more.
    Frozen,
    /// The target has all, on its disk.
    Ready,
    /// The hand-over was sent, where the map had this revision.
    Sent(u64),
}

/// An attempt to copy some slots, at the source.
#[derive(Clone, Debug)]
struct SourceAttempt {
    move_id: u64,
    /// The target's number for it.
    attempt: u64,
    span: SlotSpan,
    stage: CopyStage,
    /// The target's last word.
    heard: Instant,
}

/// What decides which slots a server owns: the map's revision, whether it is replaced, and the slots that are frozen.
type OwnedBasis = (u64, bool, Option<SlotSpan>);

#[derive(Default)]
struct MoveCoordinatorState {
    /// The map that was read last.
    map: StoredSlots,
    servers: BTreeMap<String, ServerState>,
    /// Servers with a recent sign of life.
    live: BTreeSet<String>,
    peer_key: String,
    /// The revision of that map.
    revision: u64,
    /// The revision of the newest change of the directory that was read.
    directory_revision: u64,
    /// Whether another process has this server's id: it owns nothing then.
    is_replaced: bool,
    /// Of what the slots that this server owns were set last.
    owned: Option<OwnedBasis>,
    attempt: Option<SourceAttempt>,
    /// Attempts that were handed over, by the target's number: the last one.
    handed_over: Option<u64>,
    requests: Vec<WaitingRequest>,
    /// Moves whose records this server, their source, has removed.
    cleared: Vec<u64>,
    progress: CopyProgress,
    /// The thread that reads the map.
    agent: Option<Thread>,
}

impl MoveCoordinatorState {
    fn known(&self) -> KnownServers<'_> {
        KnownServers { all: &self.servers, live: &self.live }
    }
}

/// See the head of this file.
pub struct MoveCoordinator {
    slots: Arc<SlotOwnership>,
    /// A random number of this start.
    boot: u64,
    state: Mutex<MoveCoordinatorState>,
    changed: Condvar,
    /// Held while a target's question is answered from the tables, with its position in one: keys that a late question
    /// of an earlier attempt takes off the lists of changed keys would be missing in the next. Before `state`.
    turn: Mutex<SourceWalks>,
    /// Held while some of the records of slots that are other servers' are removed.
    removal: Mutex<()>,
    copies: CopiesView,
    calls: CallWaits,
}

impl std::fmt::Debug for MoveCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MoveCoordinator").field("boot", &self.boot).finish_non_exhaustive()
    }
}

impl MoveCoordinator {
    /// The coordinator of a server that has not read the map. `boot` is a random number of this start, not 0.
    pub fn new(slots: Arc<SlotOwnership>, boot: u64) -> MoveCoordinator {
        MoveCoordinator {
            slots,
            boot: boot.max(1),
            state: Mutex::default(),
            changed: Condvar::new(),
            turn: Mutex::default(),
            removal: Mutex::default(),
            copies: CopiesView::default(),
            calls: CallWaits::default(),
        }
    }

    /// What there is of copies of logs.
    pub fn copies_view(&self) -> &CopiesView {
        &self.copies
    }

    pub(crate) fn slots(&self) -> &Arc<SlotOwnership> {
        &self.slots
    }

    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    /// Sets the thread that reads the map, so that it can be woken.
    pub(crate) fn set_agent(&self, agent: Thread) {
        self.state.lock().agent = Some(agent);
    }

    /// Has the cluster's state read now.
    pub fn wake_agent(&self) {
        self.state.lock().agent.iter().for_each(Thread::unpark);
    }

    /// Takes over what was read, and sets what this server owns.
    pub(crate) fn adopt(&self, (revision, map): (u64, StoredSlots), known: KnownServers<'_>, peer_key: &str) {
        let state = &mut *self.state.lock();
        (state.map, state.revision) = (map, revision);
        state.servers.clone_from(known.all);
        state.live.clone_from(known.live);
        peer_key.clone_into(&mut state.peer_key);
        state.is_replaced = false;
        state.cleared.retain(|id| state.map.moves.iter().any(|one| one.id == *id));
        if let Some(attempt) = &mut state.attempt {
            let stored = state.map.moves.iter().find(|one| one.id == attempt.move_id);
            match stored {
                Some(one) if self.has_taken_up(one) => {
                    // A hand-over sent for an older map fails, and is sent again.
                    if matches!(attempt.stage, CopyStage::Sent(sent) if sent != revision) {
                        attempt.stage = CopyStage::Ready;
                    }
                }
                found => {
                    if found.is_some_and(|one| one.handed_over) {
                        state.handed_over = Some(attempt.attempt);
                    }
                    self.end_attempt(state);
                }
            }
        }
        self.own(state);
        self.changed.notify_all();
    }

    pub(crate) fn set_directory_revision(&self, revision: u64) {
        self.state.lock().directory_revision = revision;
    }

    /// The revision of the newest change of tenants that was read.
    pub fn directory_revision(&self) -> u64 {
        self.state.lock().directory_revision
    }

    /// The servers that have not said that they have taken over that change, or a later one.
    pub fn servers_behind(&self, revision: u64) -> Vec<LaggingServer> {
        let state = self.state.lock();
        let behind = state.servers.iter().filter(|(_, server)| server.taken_over < revision);
        behind.map(|(id, _)| LaggingServer { id: id.clone(), lives: state.live.contains(id) }).collect()
    }

    /// Another process has this server's id.
    pub(crate) fn set_replaced(&self) {
        let state = &mut *self.state.lock();
        state.is_replaced = true;
        self.end_attempt(state);
        self.own(state);
    }

    /// Sets the slots that this server owns.
    fn own(&self, state: &mut MoveCoordinatorState) {
        let id = self.slots.own_id();
        self.slots.set_arriving(state.map.moves.iter().any(|one| !one.handed_over && one.target == id));
        let is_frozen = |attempt: &&SourceAttempt| attempt.stage != CopyStage::Copying;
        let frozen = state.attempt.as_ref().filter(is_frozen).map(|attempt| attempt.span);
        let frozen = frozen.filter(|_| !is_broken(MemberRule::FrozenIsNotServed));
        let basis = (state.revision, state.is_replaced, frozen);
        if state.owned.replace(basis) == Some(basis) {
            return;
        }
        // A hand-over of an earlier start may be under way until this one has taken the move up.
        let is_doubtful = |one: &&StoredMove| {
            one.is_copied_from(id) && one.boot != 0 && one.boot != self.boot && !is_broken(MemberRule::MovesAreTakenUp)
        };
        let is_cleared_first = |one: &&StoredMove| one.is_clearing() && one.source == id;
        let unserved = |one: &&StoredMove| is_doubtful(one) || is_cleared_first(one);
        let unserved: Vec<SlotSpan> = state.map.moves.iter().filter(unserved).map(StoredMove::span).collect();
        self.slots.set_owned(|slot| {
            !state.is_replaced
                && state.map.owns(id, slot)
                && frozen.is_none_or(|span| !span.contains(slot))
                && !unserved.iter().any(|span| span.contains(slot))
        });
    }

    /// Whether a move is from here, and no hand-over of an earlier start can be under way.
    fn has_taken_up(&self, one: &StoredMove) -> bool {
        let is_own = one.boot == self.boot || is_broken(MemberRule::MovesAreTakenUp);
        one.is_copied_from(self.slots.own_id()) && is_own
    }

    fn end_attempt(&self, state: &mut MoveCoordinatorState) {
        state.attempt = None;
        self.slots.set_copied(None);
    }

    /// The change of the map that is to be made now, if it has this revision.
    pub(crate) fn next_change(&self, revision: u64) -> Option<MapChange> {
        let state = &mut *self.state.lock();
        while !state.requests.is_empty() {
            let WaitingRequest { wanted: request, sender, asked } = state.requests.remove(0);
            // The caller was told that etcd does not answer: what it does not wait for is not made later.
            if asked.elapsed() >= CHANGE_TIMEOUT {
                continue;
            }
            let changed = match &request {
                MapRequest::Begin(wanted) => state.map.begin(wanted, state.known(), rand::random),
                MapRequest::Cancel(spans) => state.map.cancel(spans),
                MapRequest::Planned(moves, rate) => state.map.begin_planned(moves, *rate, state.known(), rand::random),
                MapRequest::Server(id, change) => state.map.change_server(id, *change, state.known(), rand::random),
                MapRequest::FailOver(id, to) => {
                    state.map.fail_over(id, to.as_deref(), state.known()).map(|map| (map, 1))
                }
            };
            let removed_server = match request {
                MapRequest::Server(id, ServerChange::Remove { .. }) => Some(id),
                _ => None,
            };
            match changed {
                Ok((map, count)) => return Some(MapChange { map, removed_server, answer: Some((sender, count)) }),
                // The caller may wait no more.
                Err(why) => drop(sender.try_send(Err(why))),
            }
        }
        if state.is_replaced {
            return None;
        }
        let make = |map| MapChange { map, removed_server: None, answer: None };
        if !is_broken(MemberRule::MovesAreTakenUp)
            && let Some(map) = state.map.take_up(self.slots.own_id(), self.boot)
        {
            return Some(make(map));
        }
        if let Some(attempt) = &mut state.attempt
            && matches!(attempt.stage, CopyStage::Ready | CopyStage::Sent(_))
            && let Some(map) = state.map.hand_over(attempt.move_id)
        {
            attempt.stage = CopyStage::Sent(revision);
            return Some(make(map));
        }
        if let Some(map) = state.map.end(&state.cleared) {
            return Some(make(map));
        }
        // A server that is drained sees to it itself, so that a start or a cancelled move does not end that.
        state.map.drain_on(self.slots.own_id(), state.known(), rand::random).map(make)
    }

    /// The target of a move begins to copy: the slots are served, from here on keys that change are noted.
    ///
    /// # Errors
    /// One line: there is no such move from here, or it is not the time.
    pub(crate) fn begin(&self, move_id: u64, attempt: u64, target: &str) -> Result<SlotSpan, String> {
        let state = &mut *self.state.lock();
        let found = state.map.moves.iter().find(|one| one.id == move_id && one.target == target);
        let span = match found {
            Some(one) if self.has_taken_up(one) => one.span(),
            Some(one) if one.is_copied_from(self.slots.own_id()) => {
                return Err("the source has not taken the move up yet".to_owned());
            }
            _ => return Err("the source knows of no such move".to_owned()),
        };
        if let Some(other) = &state.attempt {
            // What an earlier attempt has copied is thrown away by this one: not while it is handed over.
            if matches!(other.stage, CopyStage::Sent(_)) && !is_broken(MemberRule::NoneBeginsWhileHandedOver) {
                return Err("the slots are being handed over".to_owned());
            }
            if other.move_id != move_id {
                return Err("the source gives other slots away first".to_owned());
            }
        }
        let stage = CopyStage::Copying;
        state.attempt = Some(SourceAttempt { move_id, attempt, span, stage, heard: Instant::now() });
        self.own(state);
        self.slots.set_copied(Some(span));
        Ok(span)
    }

    fn current(state: &mut MoveCoordinatorState, attempt: u64) -> Result<&mut SourceAttempt, String> {
        let current = state.attempt.as_mut().filter(|current| current.attempt == attempt);
        let current = current.ok_or("the source has ended this copy: it begins again")?;
        current.heard = Instant::now();
        Ok(current)
    }

    /// The slots of an attempt, if it is still the one.
    pub(crate) fn span_of(&self, attempt: u64) -> Result<SlotSpan, String> {
        Self::current(&mut self.state.lock(), attempt).map(|current| current.span)
    }

    /// Has the lists of changed keys to itself, as long as the answer lives.
    pub(crate) fn turn(&self) -> MutexGuard<'_, SourceWalks> {
        self.turn.lock()
    }

    /// The turn of an attempt, with its span, if it is still the one: none begins or ends what it does meanwhile.
    pub(crate) fn turn_of(&self, attempt: u64) -> Result<(MutexGuard<'_, SourceWalks>, SlotSpan), String> {
        let turn = self.turn();
        self.span_of(attempt).map(|span| (turn, span))
    }

    /// Has the removal of other servers' records to itself, as long as the answer lives.
    pub(crate) fn removal(&self) -> MutexGuard<'_, ()> {
        self.removal.lock()
    }

    /// Serves the slots no more. Writers that have begun are not waited for.
    pub(crate) fn freeze(&self, attempt: u64) -> Result<(), String> {
        let mut state = self.state.lock();
        let current = Self::current(&mut state, attempt)?;
        if current.stage == CopyStage::Copying {
            current.stage = CopyStage::Frozen;
        }
        let span = current.span;
        if !is_broken(MemberRule::FrozenIsNotServed) {
            self.slots.disown(span);
            state.owned = None;
        }
        Ok(())
    }

    /// Serves the slots of an attempt again, which goes on.
    pub(crate) fn thaw(&self, attempt: u64) {
        let state = &mut *self.state.lock();
        let is_frozen = |one: &&mut SourceAttempt| one.attempt == attempt && one.stage == CopyStage::Frozen;
        if let Some(current) = state.attempt.as_mut().filter(is_frozen) {
            current.stage = CopyStage::Copying;
            state.owned = None;
            self.own(state);
        }
    }

    /// Ends an attempt that cannot be finished, unless it is handed over.
    pub(crate) fn abandon(&self, attempt: u64) {
        let state = &mut *self.state.lock();
        let is_it = |one: &&SourceAttempt| one.attempt == attempt && !matches!(one.stage, CopyStage::Sent(_));
        if state.attempt.as_ref().filter(is_it).is_some() {
            self.end_attempt(state);
            self.own(state);
        }
    }

    /// The target has everything: the slots are handed over.
    pub(crate) fn set_ready(&self, attempt: u64) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.handed_over == Some(attempt) {
            return Ok(());
        }
        let current = Self::current(&mut state, attempt)?;
        match current.stage {
            CopyStage::Copying => return Err("the slots are served yet: freeze them first".to_owned()),
            CopyStage::Frozen => current.stage = CopyStage::Ready,
            CopyStage::Ready | CopyStage::Sent(_) => {}
        }
        state.agent.iter().for_each(Thread::unpark);
        Ok(())
    }

    /// Waits until the slots of an attempt are handed over; returns whether they are.
    pub(crate) fn await_hand_over(&self, attempt: u64) -> bool {
        let until = Instant::now() + HAND_OVER_TIMEOUT;
        let mut state = self.state.lock();
        while state.handed_over != Some(attempt) && state.attempt.as_ref().is_some_and(|one| one.attempt == attempt) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.handed_over == Some(attempt)
    }

    /// Whether the slots of an attempt are handed over.
    #[cfg(test)]
    pub(crate) fn is_handed_over(&self, attempt: u64) -> bool {
        self.state.lock().handed_over == Some(attempt)
    }

    /// Ends an attempt whose target has been silent for so long, `served` or `frozen`, and serves its slots again:
    /// unless a hand-over may be under way.
    pub(crate) fn end_silent(&self, served: Duration, frozen: Duration) {
        let state = &mut *self.state.lock();
        let limit = |stage| match stage {
            CopyStage::Copying => Some(served),
            // No change of the map was sent for it, or none that can be made any more.
            CopyStage::Frozen | CopyStage::Ready => Some(frozen),
            CopyStage::Sent(_) => Some(frozen).filter(|_| is_broken(MemberRule::WhatIsSentStaysFrozen)),
        };
        let is_silent = |one: &&SourceAttempt| limit(one.stage).is_some_and(|limit| one.heard.elapsed() >= limit);
        if state.attempt.as_ref().filter(is_silent).is_some() {
            self.end_attempt(state);
            self.own(state);
        }
    }

    /// The first move that this server has to copy, with its source.
    pub(crate) fn next_copy(&self) -> Option<(StoredMove, Option<ServerState>, String)> {
        let state = self.state.lock();
        let own = |one: &&StoredMove| !one.handed_over && one.target == self.slots.own_id();
        let found = state.map.moves.iter().find(own)?;
        Some((found.clone(), state.servers.get(&found.source).cloned(), state.peer_key.clone()))
    }

    /// Whether a move is to be copied here still.
    pub(crate) fn is_to_be_copied(&self, move_id: u64) -> bool {
        let state = self.state.lock();
        state.map.moves.iter().any(|one| one.id == move_id && !one.handed_over && one.target == self.slots.own_id())
    }

    /// Whether a move is not under way any more, and was not handed over.
    pub(crate) fn is_gone(&self, move_id: u64) -> bool {
        !self.state.lock().map.moves.iter().any(|one| one.id == move_id)
    }

    /// Whether the map gives this server none of some slots. Slots that it owns but does not serve for a moment are its
    /// own, and so are those of a server whose place it takes: their records come here.
    pub(crate) fn is_foreign(&self, span: SlotSpan) -> bool {
        let (state, id) = (self.state.lock(), self.slots.own_id());
        let is_own = |(first, last, owner): &(u16, u16, String)| {
            let is_its = owner.as_str() == id || state.map.is_succeeded_by(owner, id);
            is_its && overlap(SlotSpan { first: *first, last: *last }, span)
        };
        state.revision != 0 && !state.map.ranges.iter().any(is_own)
    }

    /// Those of some slots that the map gives to other servers.
    pub(crate) fn foreign_parts(&self, span: SlotSpan) -> Vec<SlotSpan> {
        let (state, id) = (self.state.lock(), self.slots.own_id());
        let foreign = state.map.ranges.iter().filter(|(_, _, owner)| owner != id);
        let foreign = foreign.map(|(first, last, _)| SlotSpan { first: *first, last: *last });
        let part = |of: SlotSpan| SlotSpan { first: span.first.max(of.first), last: span.last.min(of.last) };
        foreign.filter(|other| overlap(*other, span)).map(part).collect()
    }

    /// The first move whose records this server has to remove, since it has handed them over.
    pub(crate) fn next_to_clear(&self) -> Option<(u64, SlotSpan)> {
        let state = self.state.lock();
        let own = |one: &&StoredMove| {
            let is_inherited = state.map.is_succeeded_by(&one.target, self.slots.own_id());
            one.handed_over && one.source == self.slots.own_id() && !is_inherited && !state.cleared.contains(&one.id)
        };
        state.map.moves.iter().find(own).map(|one| (one.id, one.span()))
    }

    /// Whether this server removes what it has of some slots before it serves them.
    pub(crate) fn clears_before_serving(&self, move_id: u64) -> bool {
        let state = self.state.lock();
        state.map.moves.iter().any(|one| one.id == move_id && one.is_clearing() && one.source == self.slots.own_id())
    }

    /// The records of a move are removed here.
    pub(crate) fn set_cleared(&self, move_id: u64) {
        let mut state = self.state.lock();
        state.cleared.push(move_id);
        state.agent.iter().for_each(Thread::unpark);
    }

    /// How far the copy is that this server makes or serves.
    pub fn progress(&self) -> CopyProgress {
        self.state.lock().progress.clone()
    }

    pub(crate) fn set_progress(&self, progress: CopyProgress) {
        self.state.lock().progress = progress;
    }

    /// Begins to move slots; returns the number of moves, one for each server that has some of them.
    ///
    /// # Errors
    /// One line.
    pub fn request_move(&self, wanted: WantedMove) -> Result<usize, String> {
        self.change(&MapRequest::Begin(wanted))
    }

    /// Cancels the moves of some slots that are not handed over yet; returns how many.
    ///
    /// # Errors
    /// One line.
    pub fn cancel_moves(&self, spans: Vec<SlotSpan>) -> Result<usize, String> {
        self.change(&MapRequest::Cancel(spans))
    }

    /// Changes a server's part in the cluster; returns the number of moves that this begins.
    ///
    /// # Errors
    /// One line.
    pub fn change_server(&self, id: &str, change: ServerChange) -> Result<usize, String> {
        self.change(&MapRequest::Server(id.to_owned(), change))
    }

    /// Has another server take the place of one: `to`, or any that has a copy of its log.
    ///
    /// # Errors
    /// One line.
    pub fn fail_over(&self, id: &str, to: Option<&str>) -> Result<(), String> {
        self.change(&MapRequest::FailOver(id.to_owned(), to.map(str::to_owned))).map(drop)
    }

    /// What such a change would move now.
    ///
    /// # Errors
    /// One line.
    pub fn plan_server(&self, id: &str, change: ServerChange) -> Result<Vec<PlannedMove>, String> {
        let state = self.state.lock();
        let (map, _) = state.map.change_server(id, change, state.known(), rand::random)?;
        Ok(state.map.planned(&map))
    }

    /// The map that was read last, the servers, those that live, and the cluster's key.
    pub(crate) fn read_last(&self) -> (StoredSlots, BTreeMap<String, ServerState>, BTreeSet<String>, String) {
        let state = self.state.lock();
        (state.map.clone(), state.servers.clone(), state.live.clone(), state.peer_key.clone())
    }

    /// Has a change of the map made, and waits for it.
    pub(crate) fn change(&self, wanted: &MapRequest) -> MapAnswer {
        let mut made = Err(FASTER.to_owned());
        for _ in 0..MAP_CHANGE_TRIES {
            made = Self::wait(&self.ask(wanted.clone()));
            if made.as_ref().err().is_none_or(|why| why != FASTER) {
                break;
            }
        }
        made
    }

    pub(crate) fn ask(&self, request: MapRequest) -> Receiver<MapAnswer> {
        let (sender, receiver) = sync_channel(1);
        let mut state = self.state.lock();
        if state.is_replaced || state.requests.len() >= MAP_REQUESTS {
            let why = match state.is_replaced {
                true => "this server was removed from the cluster, or another process has its id: ask another server",
                false => "too many changes of the map of slots wait for etcd: try again",
            };
            // There is room for one.
            let _sent = sender.try_send(Err(why.to_owned()));
            return receiver;
        }
        state.requests.push(WaitingRequest { wanted: request, sender, asked: Instant::now() });
        state.agent.iter().for_each(Thread::unpark);
        receiver
    }

    fn wait(answer: &Receiver<MapAnswer>) -> MapAnswer {
        let unknown = "etcd does not answer; `sandstorm cluster status` shows whether it was made, once it does";
        answer.recv_timeout(CHANGE_TIMEOUT).unwrap_or_else(|_| Err(unknown.to_owned()))
    }
}
