//! Promise: what a server that watches others wants, and what it says of those that are gone, follows from what it has
//! looked at.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sandstorm_catalog::DirectoryOptions;
use sandstorm_log::ReplicaBatch;
use sandstorm_store::Epochs;
use sandstorm_store::slots::SlotOwnership;

use super::*;
use crate::copy_coordinator::CopyName;
use crate::limits::SILENT_TICKS;
use crate::replica_messages::{LEASE_MS, ReplicaAsk, ReplicaHead};
use crate::state::{ServerState, StoredSlots};

/// The start that each server has told of.
const BOOT: u64 = 1;

fn id_of(name: char) -> String {
    name.to_string().repeat(40)
}

/// Server `c` of a cluster of four, of which each has copies of its log on all others.
struct WatchingServer {
    folder: PathBuf,
    run: WatcherLoop,
    map: StoredSlots,
    revision: u64,
}

impl WatchingServer {
    fn start(test: &str) -> WatchingServer {
        let folder = std::env::temp_dir().join(format!("sandstorm-watcher-{test}-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let own = id_of('c');
        let coordinator = Arc::new(MoveCoordinator::new(Arc::new(SlotOwnership::new(own.clone())), BOOT));
        coordinator.copies_view().set_copy_store(CopyStore::new(&folder));
        let copies = Arc::new(CopyCoordinator::new(&own, BOOT));
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let mut run = WatcherLoop::new(coordinator, copies, directory, FailoverMode::Automatic);
        run.reached = Some(0);
        let ids = ['a', 'b', 'c', 'd'].map(id_of);
        let mut map = StoredSlots::divided(&ids);
        for (id, first) in ids.iter().zip([10, 20, 30, 40]) {
            let copies: Vec<CopyName> = ids.iter().filter(|other| *other != id).cloned().zip(first..).collect();
            map = map.set_copies(id, BOOT, &copies).unwrap();
        }
        let mut server = WatchingServer { folder, run, map: map.clone(), revision: 0 };
        server.adopt(map);
        server
    }

    /// Reads another map, which is not old for as long as the test takes.
    fn adopt(&mut self, map: StoredSlots) {
        self.read(map, &['a', 'b', 'c', 'd']);
    }

    /// Reads a map, and which servers live.
    fn read(&mut self, map: StoredSlots, live: &[char]) {
        let servers = ['a', 'b', 'c', 'd'].map(|id| (id_of(id), ServerState::example())).into_iter().collect();
        let live: BTreeSet<String> = live.iter().map(|id| id_of(*id)).collect();
        let read_at = Instant::now() + Duration::from_secs(600);
        (self.map, self.revision) = (map, self.revision + 1);
        self.run.copies.adopt((self.revision, &self.map), (&servers, &live), "", read_at);
    }

    /// A server begins to take another one's place by itself.
    fn begin(&mut self, owner: char, successor: char) {
        self.adopt(self.map.take_place(&id_of(owner), &id_of(successor)).unwrap());
    }

    /// A server asks the copy of its log here.
    fn ask(&self, owner: char, copy: u64, ask: ReplicaAsk) {
        let head = ReplicaHead { owner: id_of(owner), copy, epoch: 1, ask, lease_ms: LEASE_MS };
        let question = head.encode(&ReplicaBatch::default().encode()).unwrap();
        self.run.coordinator.copies_view().copy_store().unwrap().answer(&question).unwrap();
    }

    fn confirm(&self, owner: char, copy: u64) {
        self.ask(owner, copy, ReplicaAsk::State { makes: true });
        self.ask(owner, copy, ReplicaAsk::Append);
    }

    /// A server is found to be gone.
    fn lose(&mut self, owner: char) {
        let seen = [ObservedOwner { owner: id_of(owner), boot: BOOT, questions: 0, is_asking: false }];
        let asked = (0..=SILENT_TICKS).find_map(|_| self.run.watch.tick(TickPace::Timely, &seen).pop());
        self.run.watch.answer(&asked.expect("it is asked"), LifeAnswer::Refused);
    }

    /// What this server wants now, by the tables as they were at a revision.
    fn request(&mut self, directory_revision: u64) -> Option<SuccessionRequest> {
        let (read_at, coordinator) = (Instant::now(), Arc::clone(&self.run.coordinator));
        self.run.judge(coordinator.copies_view().copy_store().unwrap(), directory_revision);
        self.run.copies.place_change(self.revision, read_at).map(|(_, request)| request)
    }

    /// The copy with which it takes a place now.
    fn wished(&mut self) -> Option<CopyName> {
        self.request(0).map(|request| request.copy)
    }

    fn obstacle(&self, owner: char) -> Option<SuccessionObstacle> {
        self.run.gone.get(&id_of(owner)).and_then(|one| one.obstacle.clone()).map(|(obstacle, _)| obstacle)
    }
}

impl Drop for WatchingServer {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_copy_that_is_read_has_to_be_whole_and_not_that_of_the_successor_that_is_gone() {
    let mut server = WatchingServer::start("reads");
    server.lose('b');
    assert_eq!((server.wished(), server.obstacle('b')), (None, Some(SuccessionObstacle::CopyIsUnsure)));
    server.confirm('b', 21);
    assert_eq!((server.wished(), server.obstacle('b')), (Some((id_of('b'), 21)), None));
    // It was to take another one's place: this server takes that first, by the copy of that one's log.
    server.begin('a', 'b');
    assert_eq!((server.wished(), server.obstacle('b')), (None, Some(SuccessionObstacle::CopyIsUnsure)));
    server.ask('a', 11, ReplicaAsk::State { makes: true });
    assert_eq!((server.wished(), server.obstacle('b')), (None, Some(SuccessionObstacle::CopyIsUnsure)));
    server.ask('a', 11, ReplicaAsk::Append);
    assert_eq!((server.wished(), server.obstacle('b')), (Some((id_of('a'), 11)), None));
}

#[test]
fn a_wish_names_the_tables_that_were_looked_at_and_how_long_nothing_was_heard_and_tells_nothing_yet() {
    let mut server = WatchingServer::start("tables");
    server.confirm('b', 21);
    server.lose('b');
    // A table changes while they are looked at.
    server.run.coordinator.set_directory_revision(9);
    let request = server.request(7).expect("nothing speaks against it");
    assert_eq!((request.directory_revision, request.silent_ms), (7, SILENT_TICKS * WATCH_TICK.as_millis() as u64));
    assert_eq!(server.run.coordinator.copies_view().take_notes(), [], "whether it is made is not known");
}

#[test]
fn a_probation_takes_its_time_however_long_the_server_was_well_before_and_begins_anew_where_it_was_asleep() {
    let (begun, second) = (Duration::from_secs(9_000), Duration::from_secs(1));
    let mut server = WatchingServer::start("probation");
    let mut well = WellTime { probation: None, since: Duration::ZERO };
    let mut look = |server: &WatchingServer, now, pace| {
        server.run.copies.set_well(|probation| well.is_over(now, pace, probation));
        server.run.copies.next_change(server.revision)
    };
    assert_eq!(look(&server, begun, TickPace::Timely), None);
    let mut map = server.map.clone();
    map.on_probation.insert(id_of('c'));
    // It has run for hours when its place is taken. Its next look comes before its next tick, or after it.
    server.adopt(map.clone());
    assert_eq!(server.run.copies.next_change(server.revision), None);
    for time in [begun + second, begun + PROBATION - second] {
        assert_eq!(look(&server, time, TickPace::Timely), None);
    }
    let slept = begun + PROBATION;
    assert_eq!(look(&server, slept, TickPace::Slept), None);
    assert_eq!(look(&server, slept + PROBATION - second, TickPace::Late), None);
    let ended = look(&server, slept + PROBATION, TickPace::Timely).expect("it is over");
    assert!(ended.on_probation.is_empty());
    // The next one begins with the map that shows it, though the watcher has not ticked in between.
    server.adopt(ended);
    server.adopt(map);
    assert_eq!(server.run.copies.next_change(server.revision), None);
    assert_eq!(look(&server, slept + PROBATION + second, TickPace::Timely), None);
}

#[test]
fn others_are_asked_again_only_after_a_pause() {
    let mut server = WatchingServer::start("others");
    server.run.reached = None;
    let mut begun = 0;
    for tick in 0..=3 * FAILED_TICKS {
        assert!(!server.run.reaches_others(&id_of('b')));
        // All have failed at once.
        begun += u64::from(std::mem::take(&mut server.run.asks_others) > 0);
        assert_eq!(begun, 1 + tick / FAILED_TICKS);
        server.run.others_pause = server.run.others_pause.saturating_sub(1);
    }
}

#[test]
fn a_succession_whose_successor_is_gone_is_told_to_the_operator() {
    let mut server = WatchingServer::start("stalled");
    let mut map = server.map.take_place(&id_of('a'), &id_of('b')).unwrap();
    // Only the one that takes the place has a copy of that log.
    map.generations.get_mut(&id_of('a')).unwrap().copies.retain(|(holder, _)| *holder == id_of('b'));
    let part = |server: &WatchingServer| {
        let found = server.run.coordinator.copies_view().suspected();
        found.into_iter().map(|one| (one.server, one.needs_operator, one.obstacle.is_some())).collect::<Vec<_>>()
    };
    let look = |server: &mut WatchingServer, ticks: u32| {
        let mut notes = Vec::new();
        for _ in 0..ticks {
            assert_eq!(server.wished(), None);
            server.run.show();
            notes.extend(server.run.coordinator.copies_view().take_notes());
        }
        notes
    };
    server.read(map.clone(), &['a', 'b', 'c', 'd']);
    assert_eq!((look(&mut server, 2 * HURDLE_TICKS), part(&server)), (vec![], vec![]), "it is under way");
    server.read(map.clone(), &['a', 'c', 'd']);
    assert_eq!(look(&mut server, HURDLE_TICKS - 1), [], "it may be back in a moment");
    assert_eq!(part(&server), [(id_of('a'), false, true)]);
    let obstacle = SuccessionObstacle::SuccessorIsGone(id_of('b')).to_string();
    assert_eq!(look(&mut server, HURDLE_TICKS), [FailoverNote::not_possible(&id_of('a'), &obstacle)], "once");
    assert_eq!(part(&server), [(id_of('a'), true, true)]);
    // It is back and goes on.
    server.read(map, &['b', 'c', 'd']);
    assert_eq!((look(&mut server, 1), part(&server)), (vec![], vec![]));
}
