//! How far the copies of this server's log are, and what may be acknowledged. The threads of copies share this state.
//! It has neither clocks nor threads.
//!
//! The server acknowledges what all copies of its generation have. Only the server changes its generation, by compare
//! and swap of the map. From the moment that it wants a new one it needs all copies of both, until the map shows the
//! outcome. A new copy is wanted only once it has everything acknowledged. So each copy of the generation in the map
//! has all that was acknowledged, whatever becomes of this server, or of a change that it has sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Instant;

use parking_lot::Mutex;

use crate::broken_rules::{MemberRule, is_broken};
use crate::generations::needed;
use crate::state::{ServerState, StoredGeneration, StoredSlots};
use crate::stream_copies::{STREAM_HOLDER, StreamCopies};

/// A copy: its server, and its number.
pub(crate) type CopyName = (String, u64);

/// What a link to a copy knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyPosition {
    /// The position up to which it has the log; `None`: it cannot be read yet.
    pub(crate) held: Option<u64>,
    /// When the last question was sent that it has answered, in nanoseconds of the clock of leases; 0: none.
    pub(crate) asked_ns: u64,
}

/// What may be acknowledged, and until when what that shows may be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiedUpTo {
    pub(crate) position: u64,
    /// When the oldest question was sent that each needed copy has answered since; 0: not all have.
    pub(crate) asked_ns: u64,
}

#[derive(Debug, Default)]
struct CopyCoordinatorState {
    map: StoredSlots,
    revision: u64,
    /// When the map was asked for that was read last.
    read_at: Option<Instant>,
    servers: BTreeMap<String, ServerState>,
    live: BTreeSet<String>,
    peer_key: String,
    is_replaced: bool,
    /// The copies that this server wants to have.
    wanted: Option<Vec<CopyName>>,
    /// Those of all changes of the map that were sent, where it had the revision that was read last: each of them may
    /// be made still.
    sent: Vec<CopyName>,
    /// What was acknowledged.
    published: u64,
    /// The end of the log when this start has looked first: what earlier starts have acknowledged is before it.
    found: Option<u64>,
    /// The server whose place this one takes, once all of its records are here.
    succeeded: Option<String>,
    /// Whether this server has read that another one takes its place, or has. What waits is never acknowledged then.
    has_lost: bool,
    /// The servers that were stopped in order.
    stopped: BTreeSet<String>,
    /// The place that this server wants to take by itself.
    place: Option<SuccessionRequest>,
    /// The one that it has asked for, by a change of the map that had this revision.
    asked_place: Option<(u64, SuccessionRequest)>,
    /// Whether this server has been well for as long as a probation takes, and the probations that it has seen begin.
    is_well: bool,
    probations: u64,
}

/// The request of a server to take the place of one that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SuccessionRequest {
    /// The server that is gone.
    pub(crate) owner: String,
    /// The copy that is sealed and read: of that server's log, or of the one whose place it was to take. It has
    /// confirmed all.
    pub(crate) copy: CopyName,
    /// The start of the owner that is gone.
    pub(crate) boot: u64,
    /// The revision of the last change of tables, by which none of them loses a record.
    pub(crate) directory_revision: u64,
    /// When it is old: the thread that made it may have been stopped since.
    pub(crate) until: Instant,
    /// Milliseconds for which nothing was heard of the owner.
    pub(crate) silent_ms: u64,
}

/// The owner of a copy that is here, or in a stream that this server reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyOwner {
    pub(crate) owner: String,
    /// The number of the copy.
    pub(crate) copy: u64,
    /// Whether it is in a stream: its owner is not heard then.
    pub(crate) in_stream: bool,
    /// The start that it has told of; 0: none.
    pub(crate) boot: u64,
}

/// Why a server does not take a place by itself, as the map has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapObstacle {
    /// This server does not know what the map is now.
    MapIsOld,
    /// This server belongs to the cluster no more, or its own place was taken.
    IsReplaced,
    /// It has given no sign of life lately.
    IsNotKnown,
    IsDraining,
    IsOnProbation,
    /// The other one was stopped in order.
    WasStopped,
    /// It has other copies now, or begins again.
    HasChanged,
    OwnsNothing,
    /// A place is being taken already.
    SuccessionUnderWay(String),
    /// No third server that could have a copy of this one's log.
    NoThirdServer,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct CopyCoordinator {
    own_id: String,
    boot: u64,
    state: Mutex<CopyCoordinatorState>,
    /// The threads that act on another map.
    woken: Mutex<Vec<Thread>>,
    /// The streams in which copies are; none: they are on servers. Set before the threads of copies start.
    pub(crate) streams: OnceLock<StreamCopies>,
}

/// What a server's threads need to know of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownPeers {
    pub(crate) servers: BTreeMap<String, ServerState>,
    pub(crate) live: BTreeSet<String>,
    pub(crate) peer_key: String,
    pub(crate) map: StoredSlots,
    /// When the map was asked for that was read last; `None`: it was not read.
    pub(crate) read_at: Option<Instant>,
}

impl CopyCoordinatorState {
    /// The generation of this start, if no other server takes this one's place.
    fn own(&self, owner: &str, boot: u64) -> Option<&StoredGeneration> {
        let is_own = |one: &&StoredGeneration| {
            let is_of_boot = one.boot == boot || is_broken(MemberRule::GenerationsAreTakenUp);
            !self.is_replaced && is_of_boot && one.successor.is_none()
        };
        self.map.generations.get(owner).filter(is_own)
    }
}

impl CopyCoordinator {
    pub(crate) fn new(own_id: &str, boot: u64) -> CopyCoordinator {
        let (state, woken, streams) = (Mutex::default(), Mutex::default(), OnceLock::new());
        CopyCoordinator { own_id: own_id.to_owned(), boot, state, woken, streams }
    }

    pub(crate) fn streams(&self) -> Option<&StreamCopies> {
        self.streams.get()
    }

    /// Whether this server can read a copy with that holder: it has it itself, or it is in a stream.
    fn reads(&self, holder: &str) -> bool {
        holder == self.own_id || holder == STREAM_HOLDER && self.streams.get().is_some()
    }

    /// Whether a copy of a server's log, by its owner and number, is in a stream.
    pub(crate) fn is_in_stream(&self, (owner, copy): &CopyName) -> bool {
        let state = self.state.lock();
        let is_it = |(holder, number): &CopyName| holder == STREAM_HOLDER && number == copy;
        state.map.generations.get(owner).is_some_and(|one| one.copies.iter().any(is_it))
    }

    pub(crate) fn own_id(&self) -> &str {
        &self.own_id
    }

    /// Takes over what was read, and was asked for at `read_at`.
    pub(crate) fn adopt(
        &self,
        (revision, map): (u64, &StoredSlots),
        (servers, live): (&BTreeMap<String, ServerState>, &BTreeSet<String>),
        peer_key: &str,
        read_at: Instant,
    ) {
        let state = &mut *self.state.lock();
        state.read_at = Some(read_at).filter(|_| revision != 0);
        // Whatever was read before: a generation of an earlier start, or none where this start has sent one and has had
        // no answer. Writes wait in either case.
        let has_lost = state.revision != 0 && map.has_taken_place(&self.own_id, &state.map);
        let is_new = has_lost || !state.map.on_probation.contains(&self.own_id);
        if map.on_probation.contains(&self.own_id) && is_new {
            // However well it was before: a probation begins with the map that shows it, or another loss.
            (state.probations, state.is_well) = (state.probations + 1, false);
        }
        if revision != state.revision {
            // What was sent for an older map was made, or cannot be any more.
            state.sent.clear();
            state.map = map.clone();
            self.woken.lock().iter().for_each(Thread::unpark);
        }
        (state.revision, state.is_replaced) = (revision, false);
        state.servers.clone_from(servers);
        state.live.clone_from(live);
        peer_key.clone_into(&mut state.peer_key);
        state.has_lost |= has_lost && !is_broken(MemberRule::LostPlacesEndWaits);
        let is_over = |owner: &String| {
            let known = state.map.generations.get(owner);
            known.is_none_or(|one| one.successor.as_deref() != Some(&self.own_id))
        };
        if state.succeeded.as_ref().is_some_and(is_over) {
            state.succeeded = None;
        }
        if let Some(own) = state.own(&self.own_id, self.boot)
            && state.wanted.as_ref() == Some(&own.copies)
        {
            state.wanted = None;
        }
    }

    /// This server belongs to the cluster no more, or another process has its id.
    pub(crate) fn set_replaced(&self) {
        self.state.lock().is_replaced = true;
    }

    /// The change of the map that is to be made now, if it has this revision.
    pub(crate) fn next_change(&self, revision: u64) -> Option<StoredSlots> {
        let state = &mut *self.state.lock();
        if state.is_replaced || state.revision != revision {
            return None;
        }
        if !is_broken(MemberRule::GenerationsAreTakenUp)
            && let Some(map) = state.map.take_up_generation(&self.own_id, self.boot)
        {
            return Some(map);
        }
        if let Some(owner) = state.succeeded.clone() {
            return state.map.succeed(&owner, &self.own_id, rand::random);
        }
        if let Some(wanted) = state.wanted.clone()
            && let Some(map) = state.map.set_copies(&self.own_id, self.boot, &wanted)
        {
            state.sent.extend(wanted);
            return Some(map);
        }
        if state.is_well { state.map.end_probation(&self.own_id) } else { None }
    }

    /// Has a thread woken when the map is another one.
    pub(crate) fn wake_with_the_map(&self, thread: Thread) {
        self.woken.lock().push(thread);
    }

    /// Takes over which servers were stopped in order.
    pub(crate) fn set_stopped(&self, stopped: &BTreeSet<String>) {
        self.state.lock().stopped.clone_from(stopped);
    }

    /// Sets whether this server has been well for as long as a probation takes; `is_well` is told which one it is on.
    pub(crate) fn set_well(&self, is_well: impl FnOnce(Option<u64>) -> bool) {
        let state = &mut *self.state.lock();
        let probation = Some(state.probations).filter(|_| state.map.on_probation.contains(&self.own_id));
        state.is_well = is_well(probation) && probation.is_some();
    }

    /// Sets the place that this server wants to take by itself. It is wished again and again; returns whether it is
    /// another one.
    pub(crate) fn request_succession(&self, request: Option<SuccessionRequest>) -> bool {
        let known = std::mem::replace(&mut self.state.lock().place, request.clone());
        known.map(|known| known.owner) != request.map(|request| request.owner)
    }

    /// The change of the map by which this server takes a place by itself, if it has this revision; and the request.
    /// The map was asked for at `read_at`.
    pub(crate) fn place_change(&self, revision: u64, read_at: Instant) -> Option<(StoredSlots, SuccessionRequest)> {
        let state = self.state.lock();
        let request = state
            .place
            .as_ref()
            .filter(|request| read_at < request.until || is_broken(MemberRule::SuccessionRequestsEnd))?;
        if state.revision != revision || self.map_obstacle(&state, &request.owner, request.boot).is_some() {
            return None;
        }
        // Of another copy it is not known whether it has all.
        if self.copy_to_read(&state, &request.owner).as_ref() != Some(&request.copy) {
            return None;
        }
        state.map.take_place(&request.owner, &self.own_id).map(|map| (map, request.clone()))
    }

    /// This server asks for a place, by a change of the map that has this revision. A newer map shows whether it was
    /// made, since the answer may be lost.
    pub(crate) fn ask_place(&self, revision: u64, request: SuccessionRequest) {
        self.state.lock().asked_place = Some((revision, request));
    }

    /// The place that this server has asked for, if a newer map shows that it takes it. Once for each.
    pub(crate) fn begun_place(&self) -> Option<SuccessionRequest> {
        let state = &mut *self.state.lock();
        // While the map is the one that was to be changed, the change may be made still.
        let (_, request) = state.asked_place.take_if(|(asked, _)| *asked != state.revision)?;
        let (place, _) = &request.copy;
        let is_successor = |one: &StoredGeneration| one.successor.as_deref() == Some(&self.own_id);
        let is_begun = state.map.generations.get(place).is_some_and(is_successor);
        (is_begun && state.map.on_probation.contains(place)).then_some(request)
    }

    /// Why this server does not take the place of an owner that is gone, as the map has it.
    pub(crate) fn place_hurdle(&self, owner: &str, boot: u64, map_since: Instant) -> Option<MapObstacle> {
        let state = self.state.lock();
        if state.read_at.is_none_or(|at| at < map_since) {
            return Some(MapObstacle::MapIsOld);
        }
        self.map_obstacle(&state, owner, boot)
    }

    /// The copy here that is sealed and read if this server takes a place because an owner is gone: not that owner's,
    /// where it was to take another server's place itself.
    pub(crate) fn place_copy(&self, owner: &str) -> Option<CopyName> {
        self.copy_to_read(&self.state.lock(), owner)
    }

    fn copy_to_read(&self, state: &CopyCoordinatorState, owner: &str) -> Option<CopyName> {
        let place = state.map.place_to_take(owner)?;
        let copies = &state.map.generations.get(place)?.copies;
        let (_, copy) = copies.iter().find(|(holder, _)| self.reads(holder))?;
        Some((place.to_owned(), *copy))
    }

    fn map_obstacle(&self, state: &CopyCoordinatorState, owner: &str, boot: u64) -> Option<MapObstacle> {
        let (own, map) = (&self.own_id, &state.map);
        let known = map.generations.get(owner);
        let has_copy = known.is_some_and(|one| one.copies.iter().any(|(holder, _)| self.reads(holder)));
        let third = |id: &&String| {
            let is_other = *id != own && id.as_str() != owner && !state.stopped.contains(*id);
            is_other && state.servers.contains_key(*id) && !map.draining.contains_key(*id)
        };
        // Where a third server takes a place, that is told below.
        let owns_nothing = map.place_to_take(owner).is_some_and(|place| map.spans_of(place).next().is_none());
        let obstacles = [
            (state.is_replaced || state.has_lost, MapObstacle::IsReplaced),
            (!state.live.contains(own), MapObstacle::IsNotKnown),
            (map.draining.contains_key(own), MapObstacle::IsDraining),
            (map.on_probation.contains(own), MapObstacle::IsOnProbation),
            (state.stopped.contains(owner), MapObstacle::WasStopped),
            (!has_copy || state.servers.get(owner).is_none_or(|one| one.boot != boot), MapObstacle::HasChanged),
            (owns_nothing, MapObstacle::OwnsNothing),
            // Where copies are in streams, this one's is, too.
            (self.streams.get().is_none() && !state.live.iter().any(|id| third(&id)), MapObstacle::NoThirdServer),
        ];
        let found = obstacles.into_iter().find(|(is_so, _)| *is_so).map(|(_, obstacle)| obstacle);
        found.or_else(|| match map.take_place(owner, own) {
            Some(_) => None,
            None => {
                let under_way = map.succession().map(|(of, _)| of.to_owned()).unwrap_or_default();
                Some(MapObstacle::SuccessionUnderWay(under_way))
            }
        })
    }

    /// The owners of copies that the map gives this server, of those whose place none takes.
    pub(crate) fn copy_owners(&self) -> Vec<CopyOwner> {
        let state = self.state.lock();
        let own_copy = |(owner, one): (&String, &StoredGeneration)| {
            let (holder, copy) = one.copies.iter().find(|(holder, _)| self.reads(holder))?;
            let in_stream = holder == STREAM_HOLDER;
            let boot = state.servers.get(owner).map_or(0, |server| server.boot);
            (one.successor.is_none() && *owner != self.own_id).then(|| CopyOwner {
                owner: owner.clone(),
                copy: *copy,
                in_stream,
                boot,
            })
        };
        state.map.generations.iter().filter_map(own_copy).collect()
    }

    /// The server whose place another one takes now, with the number of its generation: one for each successor.
    pub(crate) fn succession(&self) -> Option<(String, u64)> {
        let state = self.state.lock();
        let (owner, _) = state.map.succession()?;
        Some((owner.to_owned(), state.map.generations.get(owner)?.number))
    }

    /// A server whose place another one was to take, which does not live, as it was read last; and that other one.
    pub(crate) fn stalled_succession(&self) -> Option<(String, String)> {
        let state = self.state.lock();
        let (owner, successor) = state.map.succession()?;
        let is_stalled = !state.is_replaced && successor != self.own_id && !state.live.contains(successor);
        is_stalled.then(|| (owner.to_owned(), successor.to_owned()))
    }

    /// Whether this server has taken the place of that one, and the succession is over.
    pub(crate) fn has_taken(&self, owner: &str) -> bool {
        let state = self.state.lock();
        let known = state.map.generations.get(owner);
        known.is_some_and(|one| one.successor.is_none() && one.copies.is_empty()) && !state.is_replaced
    }

    /// Whether the place of a server was taken by another one by itself.
    pub(crate) fn is_on_probation(&self, server: &str) -> bool {
        self.state.lock().map.on_probation.contains(server)
    }

    /// The other servers that live and were not stopped, as they have told of themselves, and the cluster's key.
    pub(crate) fn others(&self) -> (BTreeMap<String, ServerState>, String) {
        let state = self.state.lock();
        let is_there = |id: &String| state.live.contains(id) && !state.stopped.contains(id) && *id != self.own_id;
        let others = state.servers.iter().filter(|(id, _)| is_there(id));
        (others.map(|(id, server)| (id.clone(), server.clone())).collect(), state.peer_key.clone())
    }

    /// A server as it has told of itself, and the cluster's key.
    pub(crate) fn server(&self, id: &str) -> Option<(ServerState, String)> {
        let state = self.state.lock();
        state.servers.get(id).map(|server| (server.clone(), state.peer_key.clone()))
    }

    /// The copies of this server's generation, as it was read, and the generation's number; none and 0 before that.
    pub(crate) fn generation(&self) -> (u64, Vec<CopyName>) {
        let state = self.state.lock();
        let known = state.map.generations.get(&self.own_id);
        known.map_or((0, Vec::new()), |generation| (generation.number, generation.copies.clone()))
    }

    /// The number of this server's generation, as it was read; 0 before that.
    pub(crate) fn generation_number(&self) -> u64 {
        self.state.lock().map.generations.get(&self.own_id).map_or(0, |generation| generation.number)
    }

    /// The generations of all servers, as they were read.
    pub(crate) fn generations(&self) -> BTreeMap<String, StoredGeneration> {
        self.state.lock().map.generations.clone()
    }

    /// All copies that are, or may be, needed.
    pub(crate) fn needed(&self) -> BTreeSet<CopyName> {
        self.needed_of(&self.state.lock())
    }

    fn needed_of(&self, state: &CopyCoordinatorState) -> BTreeSet<CopyName> {
        let read = state.map.generations.get(&self.own_id).map_or(&[][..], |one| &one.copies);
        needed(read, state.wanted.as_deref().unwrap_or_default(), &state.sent)
    }

    /// Takes over the end of the log, at the first look of this start. Returns what a new copy has to have at least.
    pub(crate) fn note_log(&self, end: u64) -> u64 {
        let state = &mut *self.state.lock();
        (*state.found.get_or_insert(end)).max(state.published)
    }

    /// Wants other copies. New ones, outside the generation, need all that was acknowledged; returns whether they have
    /// it.
    pub(crate) fn want(&self, copies: Vec<CopyName>, held: &BTreeMap<CopyName, CopyPosition>) -> bool {
        let state = &mut *self.state.lock();
        let known = state.map.generations.get(&self.own_id).map_or(&[][..], |one| &one.copies);
        let acknowledged = state.published.max(state.found.unwrap_or(0));
        let has_all = |name: &CopyName| {
            known.contains(name)
                || is_broken(MemberRule::NewCopiesHoldAll)
                || held.get(name).and_then(|copy| copy.held).is_some_and(|held| held >= acknowledged)
        };
        if !copies.iter().all(has_all) {
            return false;
        }
        state.wanted = Some(copies);
        true
    }

    /// Takes the positions of the copies. Returns what may be acknowledged.
    pub(crate) fn publish(&self, held: &BTreeMap<CopyName, CopyPosition>) -> CopiedUpTo {
        let state = &mut *self.state.lock();
        let has_generation = state.own(&self.own_id, self.boot).is_some_and(|own| !own.copies.is_empty());
        if !has_generation || state.has_lost {
            return CopiedUpTo { position: state.published, asked_ns: 0 };
        }
        let needed = self.needed_of(state);
        let all: Vec<CopyPosition> = needed.iter().map(|name| held.get(name).copied().unwrap_or_default()).collect();
        let of_all = |of: &dyn Fn(&CopyPosition) -> u64| match is_broken(MemberRule::AllCopiesConfirm) {
            true => all.iter().map(of).max().unwrap_or(0),
            false => all.iter().map(of).min().unwrap_or(0),
        };
        let position = of_all(&|copy| copy.held.unwrap_or(0));
        state.published = state.published.max(position);
        CopiedUpTo { position: state.published, asked_ns: of_all(&|copy| copy.asked_ns) }
    }

    /// Whether another server has taken this one's place, and what has waited since before may not be shown any more.
    pub(crate) fn has_lost(&self) -> bool {
        self.state.lock().has_lost
    }

    /// None of what has waited will be shown.
    pub(crate) fn end_loss(&self) {
        self.state.lock().has_lost = false;
    }

    /// What is known of the others.
    pub(crate) fn peers(&self) -> KnownPeers {
        let state = self.state.lock();
        KnownPeers {
            servers: state.servers.clone(),
            live: state.live.clone(),
            peer_key: state.peer_key.clone(),
            map: state.map.clone(),
            read_at: state.read_at,
        }
    }

    /// The server whose place this one takes now, and the copy of its log that is here or in a stream.
    pub(crate) fn inheritance(&self) -> Option<CopyName> {
        let state = self.state.lock();
        let own = |one: &StoredGeneration| one.successor.as_deref() == Some(&self.own_id);
        let (owner, generation) = state.map.generations.iter().find(|(_, one)| own(one))?;
        let copy = generation.copies.iter().find(|(holder, _)| self.reads(holder))?;
        Some((owner.clone(), copy.1))
    }

    /// All records of the server whose place this one takes are here, on its disk and its copies': the map is to show
    /// it.
    pub(crate) fn set_succeeded(&self, owner: &str) {
        self.state.lock().succeeded = Some(owner.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broken_rules::BROKEN;

    /// What a start publishes that reads the generation of an earlier one, and the map that it wants.
    fn first_look() -> (CopyCoordinator, CopiedUpTo, Option<StoredSlots>) {
        let (own, copy) = ("a".repeat(40), ("b".repeat(40), 7));
        let map = StoredSlots::divided(std::slice::from_ref(&own));
        let map = map.set_copies(&own, 1, std::slice::from_ref(&copy)).unwrap();
        let coordinator = CopyCoordinator::new(&own, 2);
        let (servers, live) = (BTreeMap::new(), BTreeSet::new());
        coordinator.adopt((5, &map), (&servers, &live), "", Instant::now());
        let held = BTreeMap::from([(copy, CopyPosition { held: Some(9), asked_ns: 3 })]);
        let published = coordinator.publish(&held);
        let wanted = coordinator.next_change(5);
        if let Some(wanted) = &wanted {
            coordinator.adopt((6, wanted), (&servers, &live), "", Instant::now());
            assert_eq!(coordinator.publish(&held), CopiedUpTo { position: 9, asked_ns: 3 });
        }
        (coordinator, published, wanted)
    }

    /// A change that the earlier start has sent may be made at any moment, with copies that this one does not know.
    /// The model meets that too rarely.
    #[test]
    fn a_start_counts_on_no_copies_before_what_an_earlier_one_has_sent_is_void() {
        let (_, published, wanted) = first_look();
        assert_eq!(published, CopiedUpTo::default());
        assert!(wanted.is_some_and(|map| map.epoch == 3), "a late change compares the revision, and fails");
        BROKEN.set(Some(MemberRule::GenerationsAreTakenUp));
        let (_, published, wanted) = first_look();
        BROKEN.set(None);
        assert!(published.asked_ns > 0 && wanted.is_none(), "the test has not noticed");
    }

    #[test]
    fn a_place_is_lost_whatever_was_read_before_and_only_once() {
        let (coordinator, _, map) = first_look();
        let (own, mut map) = ("a".repeat(40), map.unwrap());
        let (servers, live) = (BTreeMap::new(), BTreeSet::new());
        let adopt =
            |revision, map: &StoredSlots| coordinator.adopt((revision, map), (&servers, &live), "", Instant::now());
        assert!(!coordinator.has_lost());
        let generation = map.generations.get_mut(&own).unwrap();
        (generation.number, generation.successor) = (generation.number + 1, Some("b".repeat(40)));
        adopt(7, &map);
        assert!(coordinator.has_lost());
        coordinator.end_loss();
        adopt(8, &map);
        assert!(!coordinator.has_lost());
        // A coordinator that knew of no generation: its first change was made, and the answer lost.
        let fresh = CopyCoordinator::new(&own, 3);
        let none = StoredSlots::divided(std::slice::from_ref(&own));
        fresh.adopt((1, &none), (&servers, &live), "", Instant::now());
        fresh.adopt((7, &map), (&servers, &live), "", Instant::now());
        assert!(fresh.has_lost());
        // A start that reads nothing else has shown nothing.
        let late = CopyCoordinator::new(&own, 4);
        late.adopt((7, &map), (&servers, &live), "", Instant::now());
        assert!(!late.has_lost());
    }
}
