//! One server's part in the agreement: looks at the state, registers, founds the map of slots, and adopts what it owns.
//!
//! Ownership is one key, the map of slots with its epoch, and every change of it compares that key's revision. So each
//! epoch has one map. A server owns a slot if the last map that it read says so. Nothing takes a slot from a server but
//! that server itself, so that a map that it has not read yet takes nothing from it: two servers never both own a slot.
//! The exception is a server whose records are given up: the operator has to know that it does not run.
//! Signs of life are only hints. They decide which servers count when a cluster is founded, and nothing later.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use data_encoding::HEXLOWER;
use sandstorm_store::limits::CLUSTER_SERVERS;

use crate::broken_rules::{MemberRule, is_broken};
use crate::copies_view::FailoverNote;
use crate::copy_coordinator::{CopyCoordinator, SuccessionRequest};
use crate::limits::CHANGES_PER_LOOK;
use crate::metadata::{MetadataChange, MetadataRange, MetadataStore, NoAnswer, StoredValue};
use crate::move_coordinator::MoveCoordinator;
use crate::slot_plans::KnownServers;
use crate::state::{
    DIRECTORY_KEY, FORMAT, LIVE, MEMBERS_END, PEER_KEY, SERVERS, SLOTS_KEY, STOPPED, ServerState, StoredSlots,
};

/// The reason that a step was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The store did not answer: the server goes on with what it owns.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The state is not understood: of a newer version, or damaged. The server goes on with what it owns.
    #[error("{0}")]
    State(String),
    /// Another process has this server's id. It owns the slots; this one owns none any more.
    #[error(
        "another process has started as server {0} of this cluster: this one owns nothing any more; each server needs a state directory of its own"
    )]
    Replaced(String),
    /// The server was removed from the cluster. It owns nothing.
    #[error(
        "server {0} was removed from this cluster and owns nothing any more: with a new state directory it can join as a new server"
    )]
    Removed(String),
}

/// Where the others reach this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddresses {
    /// The first data port.
    pub data: SocketAddr,
    /// The first port for Redis clients.
    pub redis: Option<SocketAddr>,
    /// The first port for memcached clients.
    pub memcached: Option<SocketAddr>,
    /// The control port's URL.
    pub control: String,
    /// The fingerprint of its certificate; empty without TLS.
    pub fingerprint: String,
}

/// A member of a cluster.
#[derive(Debug)]
pub struct ClusterMember {
    coordinator: Arc<MoveCoordinator>,
    copies: Arc<CopyCoordinator>,
    /// Servers among which the slots are divided when the cluster is founded.
    founders: usize,
    /// What the others are told, once the ports are bound.
    own: Option<ServerState>,
    is_registered: bool,
    /// The revision of the directory's last change.
    directory_revision: u64,
}

/// The state as it was read.
#[derive(Debug, Default)]
struct ClusterState {
    slots: Option<(u64, StoredSlots)>,
    servers: BTreeMap<String, ServerState>,
    revisions: BTreeMap<String, u64>,
    live: BTreeSet<String>,
    /// The servers that were stopped in order.
    stopped: BTreeSet<String>,
    peer_key: String,
    directory_revision: u64,
}

impl ClusterState {
    fn read(values: Vec<StoredValue>) -> Result<ClusterState, MemberError> {
        let mut state = ClusterState::default();
        for StoredValue { key, value, revision } in values {
            let damaged = |error: serde_json::Error| MemberError::State(format!("the cluster's key {key:?}: {error}"));
            if key == SLOTS_KEY {
                let slots: StoredSlots = serde_json::from_str(&value).map_err(damaged)?;
                slots.check().map_err(MemberError::State)?;
                state.slots = Some((revision, slots));
            } else if let Some(id) = key.strip_prefix(SERVERS) {
                let server: ServerState = serde_json::from_str(&value).map_err(damaged)?;
                state.servers.insert(id.to_owned(), server);
                state.revisions.insert(id.to_owned(), revision);
            } else if let Some(id) = key.strip_prefix(LIVE) {
                state.live.insert(id.to_owned());
            } else if let Some(id) = key.strip_prefix(STOPPED) {
                state.stopped.insert(id.to_owned());
            } else if key == PEER_KEY {
                state.peer_key = value;
            } else if key == DIRECTORY_KEY {
                state.directory_revision = revision;
            }
        }
        Ok(state)
    }
}

/// A key with which the servers of the cluster show each other that they are.
fn new_peer_key() -> String {
    HEXLOWER.encode(&rand::random::<[u8; 32]>())
}

/// Puts another map of slots, if the one that is there has a revision: unless that rule is broken.
fn slots_change(map: &StoredSlots, revision: u64, rule: MemberRule) -> Result<MetadataChange, MemberError> {
    let value = serde_json::to_string(map).map_err(|error| MemberError::State(error.to_string()))?;
    let compared = if is_broken(rule) { vec![] } else { vec![(SLOTS_KEY.to_owned(), revision)] };
    Ok(MetadataChange { compared, put: vec![(SLOTS_KEY.to_owned(), value)], removed: vec![] })
}

impl ClusterMember {
    /// A server that has not looked yet. `coordinator` has the slots that its tables ask; `founders` is how many
    /// servers the cluster has when it is founded.
    pub fn new(coordinator: Arc<MoveCoordinator>, founders: usize) -> ClusterMember {
        let founders = founders.clamp(1, CLUSTER_SERVERS);
        let copies = Arc::new(CopyCoordinator::new(coordinator.slots().own_id(), coordinator.boot()));
        ClusterMember { coordinator, copies, founders, own: None, is_registered: false, directory_revision: 0 }
    }

    /// What moves and places are told by.
    #[cfg(test)]
    pub(crate) fn coordinator(&self) -> &MoveCoordinator {
        &self.coordinator
    }

    /// How far the copies of this server's log are.
    pub(crate) fn copies(&self) -> &Arc<CopyCoordinator> {
        &self.copies
    }

    /// Sets where the others reach this server, which is told in the next step.
    pub fn set_addresses(&mut self, addresses: &MemberAddresses) {
        let MemberAddresses { data, redis, memcached, control, fingerprint } = addresses.clone();
        let (format, boot, directory, taken_over) = (FORMAT, self.coordinator.boot(), String::new(), 0);
        let own = ServerState {
            format,
            boot,
            data,
            redis,
            memcached,
            control,
            fingerprint,
            directory,
            taken_over,
            reads_streams: self.copies.streams().is_some(),
        };
        self.own = Some(own);
    }

    /// Sets the digest of the server's tenants, tables and extensions, which is told in the next step.
    pub fn set_directory(&mut self, digest: &str) {
        if let Some(own) = &mut self.own {
            digest.clone_into(&mut own.directory);
        }
    }

    /// The revision of the last change of the tenants on which the cluster's servers agree, as it was read last; 0:
    /// there are none yet.
    pub fn directory_revision(&self) -> u64 {
        self.directory_revision
    }

    /// Sets the revision of the newest change of the directory that the server has taken over; returns whether it is a
    /// newer one, which is told in the next step.
    pub fn set_taken_over(&mut self, revision: u64) -> bool {
        let Some(own) = &mut self.own else { return false };
        std::mem::replace(&mut own.taken_over, revision) != revision
    }

    /// The key that says that this server lives.
    pub fn live_key(&self) -> String {
        format!("{LIVE}{}", self.coordinator.slots().own_id())
    }

    /// Looks at the state, and does what it asks for.
    ///
    /// # Errors
    /// [`MemberError`]. Nothing that the server owned is lost by one, but for [`MemberError::Replaced`].
    pub fn step(&mut self, store: &mut impl MetadataStore) -> Result<(), MemberError> {
        for _ in 0..CHANGES_PER_LOOK {
            let read_at = Instant::now();
            let listed = store.list(MetadataRange::of(LIVE, MEMBERS_END))?;
            let state = ClusterState::read(listed.values)?;
            self.directory_revision = state.directory_revision;
            self.check_removed(&state)?;
            self.register(&state, store)?;
            self.found(&state, store)?;
            self.adopt(&state, read_at);
            if !self.change_map(&state, read_at, store)? {
                break;
            }
        }
        Ok(())
    }

    /// A server that was removed owns nothing and changes nothing, also one that was only thought to be dead.
    fn check_removed(&self, state: &ClusterState) -> Result<(), MemberError> {
        let id = self.coordinator.slots().own_id();
        let is_removed = state.slots.as_ref().is_some_and(|(_, slots)| slots.removed.iter().any(|other| other == id));
        if is_removed {
            self.coordinator.set_replaced();
            self.copies.set_replaced();
            return Err(MemberError::Removed(id.to_owned()));
        }
        Ok(())
    }

    /// Makes the change of the map that a move asks for; returns whether it has made one.
    fn change_map(
        &self,
        state: &ClusterState,
        read_at: Instant,
        store: &mut impl MetadataStore,
    ) -> Result<bool, MemberError> {
        let Some((revision, _)) = &state.slots else { return Ok(false) };
        let Some(change) = self.coordinator.next_change(*revision) else {
            return Ok(self.change_copies(*revision, store)? || self.take_place(state, (*revision, read_at), store)?);
        };
        let mut wanted = slots_change(&change.map, *revision, MemberRule::MovesCompare)?;
        if let Some(id) = &change.removed_server {
            // If it has started again meanwhile, its key has changed; if it only was late, it has told that it lives.
            // The servers that stay get a new key for what they say to each other.
            let key = format!("{SERVERS}{id}");
            wanted.compared.push((key.clone(), state.revisions.get(id).copied().unwrap_or(0)));
            wanted.compared.push((format!("{LIVE}{id}"), 0));
            wanted.put.push((PEER_KEY.to_owned(), new_peer_key()));
            wanted.removed.push((key.clone(), format!("{key}0")));
            wanted.removed.push((format!("{STOPPED}{id}"), format!("{STOPPED}{id}0")));
        }
        match store.change(&wanted) {
            Ok(made) => {
                change.answer(Ok(made.is_some()));
                Ok(true)
            }
            Err(error) => {
                change.answer(Err(error.to_string()));
                Err(error.into())
            }
        }
    }

    /// Makes the change of this server's copies that is to be made, or ends its taking of another one's place.
    fn change_copies(&self, revision: u64, store: &mut impl MetadataStore) -> Result<bool, MemberError> {
        let Some(map) = self.copies.next_change(revision) else { return Ok(false) };
        store.change(&slots_change(&map, revision, MemberRule::GenerationsCompare)?)?;
        Ok(true)
    }

    /// Begins to take the place of a server that is gone, if this one wants that. Returns whether it has tried.
    fn take_place(
        &self,
        state: &ClusterState,
        (revision, read_at): (u64, Instant),
        store: &mut impl MetadataStore,
    ) -> Result<bool, MemberError> {
        let Some((map, request)) = self.copies.place_change(revision, read_at) else { return Ok(false) };
        // Another table may lose records: it is looked at first.
        if request.directory_revision != state.directory_revision {
            return Ok(false);
        }
        let mut wanted = slots_change(&map, revision, MemberRule::GenerationsCompare)?;
        let (owner, known) = (request.owner.clone(), state.revisions.get(&request.owner).copied().unwrap_or(0));
        wanted.compared.push((DIRECTORY_KEY.to_owned(), request.directory_revision));
        // If it has started again meanwhile, its key has changed; if it was stopped in order, it has said so.
        wanted.compared.push((format!("{SERVERS}{owner}"), known));
        wanted.compared.push((format!("{STOPPED}{owner}"), 0));
        self.copies.ask_place(revision, request);
        Ok(store.change(&wanted)?.is_some())
    }

    /// Says that this server stops, and is not gone: unless another process has its id.
    ///
    /// # Errors
    /// [`MemberError`]: whether it is said is not known.
    pub fn say_stopped(&self, store: &mut impl MetadataStore) -> Result<(), MemberError> {
        let id = self.coordinator.slots().own_id();
        let key = format!("{SERVERS}{id}");
        let listed = store.list(MetadataRange::of(&key, &format!("{key}0")))?;
        let is_own = |known: &StoredValue| {
            let told: Result<ServerState, _> = serde_json::from_str(&known.value);
            told.is_ok_and(|told| told.boot == self.coordinator.boot())
        };
        if let Some(known) = listed.values.into_iter().find(is_own) {
            let (compared, put) = (vec![(key, known.revision)], vec![(format!("{STOPPED}{id}"), "1".to_owned())]);
            store.change(&MetadataChange { compared, put, removed: vec![] })?;
        }
        Ok(())
    }

    /// Tells the others where this server is, and notices another process with its id.
    fn register(&mut self, state: &ClusterState, store: &mut impl MetadataStore) -> Result<(), MemberError> {
        let Some(own) = &self.own else { return Ok(()) };
        let id = self.coordinator.slots().own_id();
        let known = state.servers.get(id);
        let is_stopped = state.stopped.contains(id);
        if known == Some(own) && !is_stopped {
            self.is_registered = true;
            return Ok(());
        }
        if self.is_registered && known.is_some_and(|known| known.boot != own.boot) {
            self.coordinator.set_replaced();
            self.copies.set_replaced();
            return Err(MemberError::Replaced(id.to_owned()));
        }
        if known.is_none() && state.servers.len() >= CLUSTER_SERVERS {
            let text = format!("the cluster has {CLUSTER_SERVERS} servers, and no room for another");
            return Err(MemberError::State(text));
        }
        let key = format!("{SERVERS}{id}");
        let value = serde_json::to_string(own).map_err(|error| MemberError::State(error.to_string()))?;
        let compared = vec![(key.clone(), state.revisions.get(id).copied().unwrap_or(0))];
        let stopped = format!("{STOPPED}{id}");
        let removed = if is_stopped { vec![(stopped.clone(), format!("{stopped}0"))] } else { vec![] };
        // Whether it was made is seen in the next step.
        store.change(&MetadataChange { compared, put: vec![(key, value)], removed })?;
        Ok(())
    }

    /// Divides the slots between the founders once all are there, unless another server has.
    fn found(&self, state: &ClusterState, store: &mut impl MetadataStore) -> Result<(), MemberError> {
        if state.slots.is_some() {
            if state.peer_key.is_empty() {
                let (key, made) = (PEER_KEY.to_owned(), new_peer_key());
                let compared = vec![(key.clone(), 0)];
                store.change(&MetadataChange { compared, put: vec![(key, made)], removed: vec![] })?;
            }
            return Ok(());
        }
        let there = state.servers.keys().filter(|id| state.live.contains(*id)).take(self.founders);
        let ids: Vec<String> = there.cloned().collect();
        if ids.len() < self.founders {
            return Ok(());
        }
        let map = StoredSlots::divided(&ids);
        store.change(&slots_change(&map, 0, MemberRule::FoundingCompares)?)?;
        Ok(())
    }

    /// Takes over what was read.
    fn adopt(&self, state: &ClusterState, read_at: Instant) {
        let (revision, stored) = state.slots.clone().unwrap_or_default();
        let slots = self.coordinator.slots();
        // Before the map: calls that its new owners make are not sent to them from here.
        slots.set_lost_place(stored.has_lost_place(slots.own_id()));
        slots.set_map(stored.map(&state.servers, |id| state.live.contains(id)));
        slots.set_inherited_from(stored.succession_by(slots.own_id()));
        let known = KnownServers { all: &state.servers, live: &state.live };
        self.coordinator.adopt((revision, stored.clone()), known, &state.peer_key);
        self.copies.set_stopped(&state.stopped);
        // Behind the owners: that a place was taken is acted on where its slots are served no more.
        self.copies.adopt((revision, &stored), (&state.servers, &state.live), &state.peer_key, read_at);
        self.coordinator.set_directory_revision(state.directory_revision);
        if let Some(SuccessionRequest { owner, copy: (place, _), silent_ms, .. }) = self.copies.begun_place() {
            tracing::warn!(
                "nothing was heard of server {owner} for {silent_ms} ms: this one takes the place of server {place}"
            );
            self.coordinator.copies_view().note_failover(FailoverNote::begun(&place, &owner, silent_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_store::slots::SlotOwnership;

    use super::*;
    use crate::model::ModelEtcd;

    fn member(id: &str, boot: u64) -> ClusterMember {
        let coordinator = Arc::new(MoveCoordinator::new(Arc::new(SlotOwnership::new(id.to_owned())), boot));
        let mut member = ClusterMember::new(coordinator, 1);
        let data = SocketAddr::from(([127, 0, 0, 1], 7000));
        let (control, fingerprint) = (String::new(), String::new());
        member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
        member
    }

    #[test]
    fn a_server_that_stops_says_so_until_it_starts_again() {
        let (mut store, id) = (ModelEtcd::default(), "a".repeat(40));
        let stopped = |store: &ModelEtcd| store.get(&format!("{STOPPED}{id}"));
        let mut first = member(&id, 1);
        first.say_stopped(&mut store).unwrap();
        assert_eq!(stopped(&store), "", "it has told nobody of itself");
        (0..2).for_each(|_| first.step(&mut store).unwrap());
        first.say_stopped(&mut store).unwrap();
        assert_eq!(stopped(&store), "1");
        let mut second = member(&id, 2);
        (0..2).for_each(|_| second.step(&mut store).unwrap());
        assert_eq!(stopped(&store), "");
        // The one that another process has replaced says nothing of that one.
        first.say_stopped(&mut store).unwrap();
        assert_eq!(stopped(&store), "");
    }
}
