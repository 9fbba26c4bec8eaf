//! Promise: a place is taken by itself by one server, of a start that is gone, at a moment at which nothing speaks
//! against it; and two servers do not take each other's for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_store::slots::SlotOwnership;

use crate::broken_rules::{BROKEN, MemberRule};
use crate::copies_view::FailoverNote;
use crate::copy_coordinator::{CopyName, CopyPosition, MapObstacle, SuccessionRequest};
use crate::member::{ClusterMember, MemberAddresses};
use crate::model::{ModelEtcd, QuestionOutcome};
use crate::move_coordinator::MoveCoordinator;
use crate::slot_plans::{KnownServers, ServerChange};
use crate::state::{DIRECTORY_KEY, SLOTS_KEY, STOPPED, ServerState, StoredSlots};

const SERVERS: usize = 4;
/// For how long nothing was heard of the server that is gone.
const SILENT_MS: u64 = 480;

fn id_of(number: usize) -> String {
    format!("{number:040x}")
}

fn member(number: usize, boot: u64) -> ClusterMember {
    let slots = Arc::new(SlotOwnership::new(id_of(number)));
    slots.set_owned(|_| false);
    let mut member = ClusterMember::new(Arc::new(MoveCoordinator::new(slots, boot)), SERVERS);
    let data = SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16));
    let (control, fingerprint) = (String::new(), String::new());
    member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
    member
}

/// Servers that live, of which the first has copies of its log on the next two.
struct WatchingCluster {
    store: ModelEtcd,
    members: Vec<ClusterMember>,
}

impl WatchingCluster {
    fn start() -> WatchingCluster {
        let mut store = ModelEtcd::default();
        let ids: Vec<String> = (0..SERVERS).map(id_of).collect();
        let mut members: Vec<ClusterMember> = (0..SERVERS).map(|number| member(number, 1 + number as u64)).collect();
        store.found_cluster(ids.iter().map(String::as_str).zip(members.iter_mut()));
        let mut cluster = WatchingCluster { store, members };
        cluster.want(0, vec![(id_of(1), 11), (id_of(2), 12)]);
        cluster
    }

    /// Gives a server's log copies.
    fn want(&mut self, number: usize, copies: Vec<CopyName>) {
        let held = copies.iter().map(|name| (name.clone(), CopyPosition { held: Some(0), asked_ns: 1 })).collect();
        assert!(self.members[number].copies().want(copies, &held));
        self.look(number);
        (0..SERVERS).for_each(|number| self.look(number));
    }

    fn look(&mut self, number: usize) {
        self.members[number].step(&mut self.store).unwrap();
    }

    fn request(&self, number: usize, boot: u64, directory_revision: u64, until: Instant) {
        let copies = self.members[number].copies();
        // One that has no copy may name any.
        let copy = copies.place_copy(&id_of(0)).unwrap_or((id_of(0), 12));
        copies.request_succession(Some(SuccessionRequest {
            owner: id_of(0),
            copy,
            boot,
            directory_revision,
            until,
            silent_ms: SILENT_MS,
        }));
    }

    /// What a server has told of failovers since it was asked last.
    fn notes(&self, number: usize) -> Vec<FailoverNote> {
        self.members[number].coordinator().copies_view().take_notes()
    }

    fn map(&self) -> StoredSlots {
        serde_json::from_str(&self.store.get("slots")).unwrap()
    }

    fn successor(&self) -> Option<String> {
        self.map().generations.get(&id_of(0)).and_then(|one| one.successor.clone())
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[test]
fn of_two_that_want_a_place_one_takes_it_and_the_other_sees_that() {
    let mut cluster = WatchingCluster::start();
    let known = cluster.members[2].copies().copy_owners();
    assert_eq!((known.len(), known[0].owner.clone(), known[0].copy, known[0].boot), (1, id_of(0), 12, 1));
    // Both have read the same map, and one is first.
    [1, 2].iter().for_each(|number| cluster.request(*number, 1, 0, soon()));
    cluster.look(2);
    cluster.look(1);
    assert_eq!(cluster.successor(), Some(id_of(2)));
    let begun = FailoverNote::begun(&id_of(0), &id_of(0), SILENT_MS);
    assert_eq!((cluster.notes(1), cluster.notes(2)), (vec![], vec![begun]), "only one of them has begun");
    assert_eq!(cluster.map().on_probation, BTreeSet::from([id_of(0)]));
    assert_eq!(cluster.members[1].copies().copy_owners(), [], "nothing is left to take");
    // One that has no copy never takes it.
    let mut cluster = WatchingCluster::start();
    cluster.request(3, 1, 0, soon());
    cluster.look(3);
    assert_eq!(cluster.successor(), None);
}

#[test]
fn a_wish_is_void_once_it_is_old_or_its_server_has_come_back_or_has_stopped_or_a_table_has_changed() {
    let taken = |change: &dyn Fn(&mut WatchingCluster)| {
        let mut cluster = WatchingCluster::start();
        cluster.request(1, 1, 0, soon());
        change(&mut cluster);
        cluster.look(1);
        cluster.successor().is_some()
    };
    assert!(taken(&|_| {}));
    let came_back = |cluster: &mut WatchingCluster| {
        cluster.members[0] = member(0, 77);
        (0..2).for_each(|_| cluster.look(0));
    };
    assert!(!taken(&came_back));
    assert!(!taken(&|cluster| cluster.store.put(&format!("{STOPPED}{}", id_of(0)), "1")));
    assert!(!taken(&|cluster| cluster.store.put(DIRECTORY_KEY, "{}")));
    assert!(!taken(&|cluster| assert!(cluster.members[1].copies().request_succession(None))));
    // The server was stopped between its request and its look.
    let old = |cluster: &mut WatchingCluster| cluster.request(1, 1, 0, Instant::now());
    assert!(!taken(&old));
    BROKEN.set(Some(MemberRule::SuccessionRequestsEnd));
    let is_taken = taken(&old);
    BROKEN.set(None);
    assert!(is_taken, "the test has not noticed");
}

#[test]
fn a_wish_is_void_once_another_copy_than_the_one_that_was_looked_at_would_be_read() {
    let mut cluster = WatchingCluster::start();
    cluster.want(1, vec![(id_of(2), 21), (id_of(3), 22)]);
    let request = |copy: CopyName| {
        let (directory_revision, until, silent_ms) = (0, soon(), SILENT_MS);
        SuccessionRequest { owner: id_of(1), copy, boot: 2, directory_revision, until, silent_ms }
    };
    assert_eq!(cluster.members[2].copies().place_copy(&id_of(1)), Some((id_of(1), 21)));
    cluster.members[2].copies().request_succession(Some(request((id_of(1), 21))));
    // The one that is gone begins to take a place itself just before, and so that place is taken first.
    cluster.request(1, 1, 0, soon());
    cluster.look(1);
    cluster.look(2);
    assert_eq!(cluster.successor(), Some(id_of(1)), "of that copy nothing was known");
    assert_eq!(cluster.members[2].copies().place_copy(&id_of(1)), Some((id_of(0), 12)));
    cluster.look(3);
    assert_eq!(cluster.members[3].copies().place_copy(&id_of(1)), None);
    assert_eq!(cluster.notes(2), []);
    cluster.members[2].copies().request_succession(Some(request((id_of(0), 12))));
    cluster.look(2);
    assert_eq!(cluster.successor(), Some(id_of(2)));
    assert_eq!(cluster.notes(2), [FailoverNote::begun(&id_of(0), &id_of(1), SILENT_MS)]);
}

#[test]
fn that_a_place_is_taken_is_told_once_the_map_shows_it_also_where_the_answer_was_lost() {
    let begun = [FailoverNote::begun(&id_of(0), &id_of(0), SILENT_MS)];
    // The first question of a look asks for the state, the second one is the change. The last fate is the first.
    let looked = |fate: QuestionOutcome| {
        let mut cluster = WatchingCluster::start();
        cluster.request(1, 1, 0, soon());
        let is_answered = cluster.store.look(&mut cluster.members[1], vec![fate, QuestionOutcome::Answered]);
        (cluster, is_answered)
    };
    let (cluster, is_answered) = looked(QuestionOutcome::Answered);
    assert_eq!((is_answered, &cluster.notes(1)[..]), (true, &begun[..]));
    let (mut cluster, is_answered) = looked(QuestionOutcome::AnswerLost);
    assert_eq!((is_answered, cluster.successor(), cluster.notes(1)), (false, Some(id_of(1)), vec![]));
    (0..2).for_each(|_| cluster.look(1));
    assert_eq!(cluster.notes(1), begun, "once");
    // The change comes late, or another server changes the map before.
    for is_first in [true, false] {
        let (mut cluster, _) = looked(QuestionOutcome::QuestionLost);
        cluster.members[1].copies().request_succession(None);
        cluster.look(1);
        assert_eq!(cluster.notes(1), [], "it may be made still");
        if !is_first {
            let other = cluster.store.get(SLOTS_KEY);
            cluster.store.put(SLOTS_KEY, &other);
        }
        let late = cluster.store.between.pop().unwrap();
        assert_eq!(cluster.store.apply(&late), is_first);
        (0..2).for_each(|_| cluster.look(1));
        assert_eq!(cluster.notes(1), begun[usize::from(!is_first)..]);
    }
}

#[test]
fn what_stands_in_the_way_is_named() {
    let cluster = WatchingCluster::start();
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap_or_else(Instant::now);
    let obstacle = |number: usize, boot| cluster.members[number].copies().place_hurdle(&id_of(0), boot, long_ago);
    assert_eq!((obstacle(1, 1), obstacle(1, 2)), (None, Some(MapObstacle::HasChanged)));
    assert_eq!(obstacle(3, 1), Some(MapObstacle::HasChanged), "it has no copy");
    let copies = cluster.members[1].copies();
    assert_eq!(copies.place_hurdle(&id_of(0), 1, soon()), Some(MapObstacle::MapIsOld));
    copies.set_stopped(&BTreeSet::from([id_of(0)]));
    assert_eq!(obstacle(1, 1), Some(MapObstacle::WasStopped));
    copies.set_stopped(&BTreeSet::from([id_of(2), id_of(3)]));
    assert_eq!(obstacle(1, 1), Some(MapObstacle::NoThirdServer));
    copies.set_replaced();
    assert_eq!(obstacle(1, 1), Some(MapObstacle::IsReplaced));
}

/// A map in which each of three servers has a copy of the others' logs.
fn whole_map() -> StoredSlots {
    let ids = ["a", "b", "c"].map(str::to_owned);
    let mut map = StoredSlots::divided(&ids);
    for (at, id) in ids.iter().enumerate() {
        let copies: Vec<(String, u64)> = ids.iter().filter(|other| *other != id).cloned().zip(1..).collect();
        map = map.set_copies(id, 1 + at as u64, &copies).unwrap();
    }
    map
}

#[test]
fn servers_that_hang_by_turns_come_to_rest_until_somebody_says_that_they_are_well() {
    let map = whole_map();
    let taken = map.take_place("a", "b").unwrap();
    assert!(taken.take_place("c", "b").is_none(), "one after the other");
    let mut map = taken.succeed("a", "b", || 1).unwrap();
    assert!(map.take_place("a", "c").is_none(), "it owns nothing");
    // It is back, has a copy of the log of the one that has taken its place, and that one hangs.
    map = map.set_copies("a", 9, &[("b".to_owned(), 7), ("c".to_owned(), 8)]).unwrap();
    assert!(map.take_place("b", "a").is_none(), "it is on probation");
    map = map.take_place("b", "c").unwrap().succeed("b", "c", || 2).unwrap();
    map = map.set_copies("b", 9, &[("a".to_owned(), 7), ("c".to_owned(), 8)]).unwrap();
    assert!(["a", "b"].iter().all(|other| map.take_place("c", other).is_none()), "nothing is left that may");
    assert!(map.end_probation("c").is_none());
    let well = map.end_probation("a").unwrap();
    assert!(well.take_place("c", "a").is_some() && well.take_place("c", "b").is_none());
    let all: BTreeMap<String, ServerState> =
        ["a", "b", "c"].map(|id| (id.to_owned(), ServerState::example())).into_iter().collect();
    let live: BTreeSet<String> = all.keys().cloned().collect();
    let (added, _) = map
        .change_server("b", ServerChange::Add { mib_per_s: 0 }, KnownServers { all: &all, live: &live }, rand::random)
        .unwrap();
    assert_eq!(added.on_probation, BTreeSet::from(["a".to_owned()]));
    let mut drained = whole_map();
    drained.draining.insert("b".to_owned(), 0);
    assert!(drained.take_place("a", "b").is_none() && drained.take_place("a", "c").is_some());
}

#[test]
fn a_server_that_is_gone_while_it_takes_a_place_is_replaced_in_that_first() {
    let taken = whole_map().take_place("a", "b").unwrap();
    let again = taken.take_place("b", "c").unwrap();
    assert_eq!(again.succession(), Some(("a", "c")));
    assert!(again.generations["a"].number > taken.generations["a"].number);
    let mut map = again.succeed("a", "c", || 1).unwrap();
    assert!(map.spans_of("b").next().is_some());
    map = map.take_place("b", "c").unwrap().succeed("b", "c", || 2).unwrap();
    assert_eq!(map.on_probation, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert!(map.owns("c", 0) && map.owns("c", 8_000) && map.owns("c", 16_383));
    // One without a copy of the first log cannot.
    let mut lacking = taken;
    lacking.generations.get_mut("a").unwrap().copies.retain(|(server, _)| server == "b");
    assert!(lacking.take_place("b", "c").is_none());
}
