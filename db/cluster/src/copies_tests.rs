//! Promise: the threads of copies, over real logs, tables and links. What a table of durability `copies`
//! acknowledges is on another server; a copy that is lost is replaced; a server that is gone or was asleep is
//! succeeded by one that has its copy, and shows nothing any more.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_catalog::{
    AgreedImage, Directory, DirectoryAgreement, DirectoryOptions, NewTable, NewTenant, TableDurability,
};
use sandstorm_log::{PositionState, ReplicaError};
use sandstorm_store::slots::SlotOwnership;
use sandstorm_store::{Epochs, WriteOptions};

use crate::copy_coordinator::CopyName;
use crate::copy_notes::CopyNotes;
use crate::copy_replicator::CopyReplicator;
use crate::copy_store::CopyStore;
use crate::directory::ClusterDirectory;
use crate::directory_model::SharedStore;
use crate::limits::COPY_IDLE;
use crate::log_scrubber::LogScrubber;
use crate::member::{ClusterMember, MemberAddresses};
use crate::model::ModelEtcd;
use crate::move_coordinator::MoveCoordinator;
use crate::slot_mover::MoverLoop;
use crate::succession::SuccessorThread;

mod full_disks;
mod inherited;
mod served;
mod unsettled;

use served::ServedCopies;

const SERVERS: usize = 3;
/// A minute under a load of ten.
const PATIENCE: Duration = Duration::from_secs(120);

fn id_of(number: usize) -> String {
    format!("{number:040x}")
}

fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

struct TestServer {
    folder: PathBuf,
    directory: Arc<Directory>,
    coordinator: Arc<MoveCoordinator>,
    member: Mutex<ClusterMember>,
    /// Whether it hears the others, and they hear it.
    is_reached: Arc<AtomicBool>,
    /// Whether its copies' disk is slow.
    is_slow: Arc<AtomicBool>,
    threads: Mutex<Option<(CopyReplicator, SuccessorThread)>>,
}

impl TestServer {
    fn start(number: usize, agreement: &Arc<dyn DirectoryAgreement>) -> TestServer {
        static FOLDERS: AtomicUsize = AtomicUsize::new(0);
        let other = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sandstorm-copies-{}-{other}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let slots = Arc::new(SlotOwnership::new(id_of(number)));
        slots.set_owned(|_| false);
        let coordinator = Arc::new(MoveCoordinator::new(slots, 1 + number as u64));
        coordinator.copies_view().set_copy_store(CopyStore::new(&folder));
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Epochs::new(), options);
        directory.join_cluster(coordinator.slots());
        let found = AgreedImage::read(&**agreement, &Default::default()).unwrap();
        found.iter().for_each(|found| directory.restore(&found.image).unwrap());
        directory.agree_with(agreement, found.as_ref()).unwrap();
        directory.restore_records(&folder.join("log"), 1, |log| log.start()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("http://{}", listener.local_addr().unwrap());
        let is_reached = Arc::new(AtomicBool::new(true));
        let is_slow = Arc::new(AtomicBool::new(false));
        let (answering, reached, slow) = (Arc::clone(&coordinator), Arc::clone(&is_reached), Arc::clone(&is_slow));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (coordinator, reached, slow) = (Arc::clone(&answering), Arc::clone(&reached), Arc::clone(&slow));
                std::thread::spawn(move || {
                    // One of them is of a version that answers requests alone.
                    let has_streams = number != 1;
                    if reached.load(Ordering::Acquire) {
                        let served = ServedCopies { coordinator: &coordinator, is_slow: &slow, has_streams };
                        let _ended = served.serve(&stream);
                    }
                });
            }
        });
        let mut member = ClusterMember::new(Arc::clone(&coordinator), SERVERS);
        let data = SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16));
        let fingerprint = String::new();
        member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
        let copies = Arc::clone(member.copies());
        let keeper =
            CopyReplicator::start(Arc::clone(&directory), Arc::clone(&coordinator), Arc::clone(&copies), 1).unwrap();
        let successor = SuccessorThread::start(Arc::clone(&coordinator), copies, Arc::clone(&directory)).unwrap();
        let threads = Mutex::new(Some((keeper, successor)));
        TestServer { folder, directory, coordinator, member: Mutex::new(member), is_reached, is_slow, threads }
    }

    /// Writes a record, and returns what its answer waits for.
    fn put(&self, key: &[u8], value: &[u8]) -> u64 {
        let view = self.directory.snapshot().by_name("shop").unwrap().clone();
        let (entry, participant) = (view.table_by_name("items").unwrap(), self.directory.participant());
        let table = &entry.table;
        table.put(&participant, table.hash(key), key, value, &WriteOptions::default(), 1).unwrap();
        participant.shown().take()
    }

    /// Reads a record, and returns what its answer waits for.
    fn get(&self, key: &[u8]) -> (Option<Vec<u8>>, u64) {
        let view = self.directory.snapshot().by_name("shop").unwrap().clone();
        let (entry, participant) = (view.table_by_name("items").unwrap(), self.directory.participant());
        let found = {
            let guard = participant.guard();
            let found = entry.table.get(&guard, entry.table.hash(key), key, 1);
            found.map(|record| record.value().to_vec())
        };
        (found, participant.shown().take())
    }

    fn state_of(&self, position: u64) -> PositionState {
        let log = self.directory.change_log().unwrap();
        log.request(position);
        log.state_of(position)
    }

    fn owns_all(&self) -> bool {
        self.coordinator.slots().owns_all()
    }

    fn copies_of(&self, owner: usize) -> usize {
        self.coordinator
            .copies_view()
            .copy_store()
            .unwrap()
            .list()
            .iter()
            .filter(|copy| copy.owner == id_of(owner))
            .count()
    }
}

struct TestCluster {
    servers: Vec<Arc<TestServer>>,
    store: Arc<Mutex<ModelEtcd>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl TestCluster {
    /// Three servers, of which the first has a record that it has acknowledged: another one has a copy of it.
    fn with_a_record() -> TestCluster {
        let cluster = TestCluster::start();
        let position = cluster.servers[0].put(b"apple", b"3");
        assert!(eventually(|| cluster.servers[0].state_of(position) == PositionState::OnDisk));
        cluster
    }

    fn start() -> TestCluster {
        let agreement: Arc<dyn DirectoryAgreement> = Arc::new(ClusterDirectory::over(SharedStore::default()));
        let servers: Vec<Arc<TestServer>> =
            (0..SERVERS).map(|number| Arc::new(TestServer::start(number, &agreement))).collect();
        let store = Arc::new(Mutex::new(ModelEtcd::default()));
        (0..SERVERS).for_each(|number| store.lock().put(&format!("live/{}", id_of(number)), "1"));
        // The first server owns all slots.
        let ranges = format!(r#"{{"format":1,"epoch":1,"ranges":[[0,16383,"{}"]]}}"#, id_of(0));
        store.lock().put("slots", &ranges);
        let stop = Arc::new(AtomicBool::new(false));
        let look = |server: &Arc<TestServer>| {
            let (server, store, stop) = (Arc::clone(server), Arc::clone(&store), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    if server.is_reached.load(Ordering::Acquire) {
                        let mut store = store.lock();
                        let _later = server.member.lock().step(&mut *store);
                        drop(store);
                        let _later = server.directory.catch_up();
                        if let Some((move_id, span)) = server.coordinator.next_to_clear() {
                            // It is online as long as it lives, and others wait for it to rest.
                            MoverLoop::new(
                                Arc::clone(&server.coordinator),
                                Arc::clone(&server.directory),
                                CopyNotes::default(),
                            )
                            .clear(move_id, span);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(3));
                }
            })
        };
        let threads = servers.iter().map(look).collect();
        let cluster = TestCluster { servers, store, stop, threads };
        assert!(eventually(|| cluster.servers[0].owns_all()));
        let new = NewTable { durability: Some(TableDurability::Copies), ..NewTable::named("items") };
        let made = || {
            let made = cluster.servers[0].directory.create_tenant(NewTenant::named("shop"));
            // The store of the agreement loses some answers.
            made.is_ok() || cluster.servers[0].directory.snapshot().by_name("shop").is_some()
        };
        assert!(eventually(made));
        let made = || {
            let made = cluster.servers[0].directory.create_table("shop", new.clone());
            let view = || cluster.servers[0].directory.snapshot().by_name("shop").cloned();
            made.is_ok() || view().is_some_and(|view| view.table_by_name("items").is_some())
        };
        assert!(eventually(made));
        let knows = |server: &Arc<TestServer>| {
            server.directory.snapshot().by_name("shop").is_some_and(|view| view.table_by_name("items").is_some())
        };
        assert!(eventually(|| cluster.servers.iter().all(knows)));
        cluster
    }

    /// The server that has the needed copy of the log of another one.
    fn holder(&self, owner: usize) -> Option<usize> {
        let (_, copies) = self.servers[owner].member.lock().copies().generation();
        let (server, _) = copies.first()?;
        (0..SERVERS).find(|number| id_of(*number) == *server)
    }

    fn cut_off(&self, number: usize) {
        self.servers[number].is_reached.store(false, Ordering::Release);
        self.store.lock().put(&format!("gone/{}", id_of(number)), "1");
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        for server in &self.servers {
            drop(server.threads.lock().take());
            let _left = std::fs::remove_dir_all(&server.folder);
        }
    }
}

#[test]
fn a_server_that_was_asleep_is_succeeded_and_shows_nothing_any_more() {
    let cluster = TestCluster::start();
    let first = &cluster.servers[0];
    // Acknowledged once it is on another server.
    let position = first.put(b"apple", b"3");
    assert!(sandstorm_log::waits_for_copies(position));
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    let holder = cluster.holder(0).expect("it has a copy");
    assert_eq!(cluster.servers[holder].copies_of(0), 1);
    let (found, shown) = first.get(b"apple");
    assert_eq!(found.as_deref(), Some(&b"3"[..]));
    assert!(eventually(|| first.state_of(shown) == PositionState::OnDisk));
    for number in 0..4_000_u32 {
        first.put(&(number % 200).to_le_bytes(), &[7; 300]);
    }
    let position = first.put(b"pear", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));

    // It hears nothing any more, and another one takes its place. (Its links end with the next question.)
    cluster.cut_off(0);
    drop(first.threads.lock().take());
    let asleep = first.put(b"apple", b"4");
    let other = (1..SERVERS).find(|number| *number != holder).unwrap();
    assert!(eventually(|| cluster.servers[other].coordinator.fail_over(&id_of(0), None).is_ok()));
    let successor = &cluster.servers[holder];
    assert!(eventually(|| successor.owns_all()), "{}", cluster.store.lock().get("slots"));
    for (key, value) in [(&b"apple"[..], &b"3"[..]), (b"pear", b"4"), (&7_u32.to_le_bytes(), &[7; 300])] {
        let (found, shown) = successor.get(key);
        assert_eq!(found.as_deref(), Some(value));
        assert!(eventually(|| successor.state_of(shown) == PositionState::OnDisk));
    }
    assert!(
        eventually(|| successor.directory.checkpoint_requests().take_suggestion()),
        "the next one has little to read"
    );
    let position = successor.put(b"apple", b"5");
    assert!(eventually(|| successor.state_of(position) == PositionState::OnDisk));
    // Its log has the records, and not each of the changes that made them.
    let [long, short] = [first, successor].map(|server| server.directory.change_log().unwrap().end());
    assert!(short * 4 < long, "{short} of {long} bytes");
    // The first one knows of nothing. What it reads it does not show, and what it has written is never acknowledged.
    assert!(first.owns_all());
    let (found, shown) = first.get(b"pear");
    assert_eq!(found.as_deref(), Some(&b"4"[..]));
    assert_ne!(first.state_of(shown), PositionState::OnDisk);
    assert_ne!(first.state_of(asleep), PositionState::OnDisk);

    // It wakes, serves nothing, has copies again, and what has waited before is lost for good.
    let copies = Arc::clone(first.member.lock().copies());
    first.is_reached.store(true, Ordering::Release);
    assert!(eventually(|| !first.owns_all() && copies.has_lost()));
    let keeper =
        CopyReplicator::start(Arc::clone(&first.directory), Arc::clone(&first.coordinator), Arc::clone(&copies), 1);
    let heir = SuccessorThread::start(Arc::clone(&first.coordinator), copies, Arc::clone(&first.directory)).unwrap();
    *first.threads.lock() = Some((keeper.unwrap(), heir));
    assert!(eventually(|| cluster.holder(0).is_some()));
    let log = first.directory.change_log().unwrap();
    assert!(eventually(|| first.state_of(log.copied_position(0)) == PositionState::OnDisk), "it may show again");
    assert_eq!((first.state_of(shown), first.state_of(asleep)), (PositionState::Uncertain, PositionState::Uncertain));
    // Its records of what is another one's are removed.
    assert!(eventually(|| first.get(b"pear").0.is_none()));
}

#[test]
fn a_copy_whose_disk_is_slower_than_a_lease_acknowledges_what_is_written_all_the_time() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let holder = cluster.holder(0).expect("it has a copy");
    cluster.servers[holder].is_slow.store(true, Ordering::Release);
    for round in 0..3_u32 {
        let position = first.put(&round.to_le_bytes(), b"1");
        let is_there = || {
            // There is always more to send.
            first.put(b"pear", &[5; 300]);
            first.state_of(position) == PositionState::OnDisk
        };
        assert!(eventually(is_there), "round {round}");
    }
}

#[test]
fn a_copy_that_is_lost_is_replaced_and_what_waits_is_acknowledged() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let holder = cluster.holder(0).expect("it has a copy");
    cluster.cut_off(holder);
    // A server that has a connection still is heard: it ends.
    let copy_store = cluster.servers[holder].coordinator.copies_view().copy_store().unwrap();
    let name = (id_of(0), copy_store.list().iter().find(|copy| copy.owner == id_of(0)).unwrap().copy);
    copy_store.seal(&name).unwrap();
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    let other = cluster.holder(0).expect("it has another copy");
    assert_ne!(other, holder);
    assert_eq!(cluster.servers[other].copies_of(0), 1);
    let status = || first.coordinator.copies_view().status();
    assert!(eventually(|| status().is_on && !status().is_stalled && status().generation >= 2), "{:?}", status());
}

#[test]
fn writes_that_no_copy_confirms_are_refused_and_taken_again() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    // No server is left that could have a copy.
    (1..SERVERS).for_each(|number| cluster.cut_off(number));
    for number in 1..SERVERS {
        let copy_store = cluster.servers[number].coordinator.copies_view().copy_store().unwrap();
        copy_store.list().iter().filter(|copy| copy.owner == id_of(0)).for_each(|copy| {
            copy_store.seal(&(copy.owner.clone(), copy.copy)).unwrap();
        });
    }
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::Uncertain));
    let log = first.directory.change_log().unwrap();
    assert!(log.are_copies_missing());
    (1..SERVERS).for_each(|number| cluster.servers[number].is_reached.store(true, Ordering::Release));
    assert!(eventually(|| !log.are_copies_missing() && first.state_of(position) == PositionState::OnDisk));
}

/// The name of the needed copy of the first server's log, once its generation has one that is none of these.
fn other_copy(cluster: &TestCluster, known: &[CopyName]) -> CopyName {
    let mut found = None;
    let is_there = || {
        let (_, copies) = cluster.servers[0].member.lock().copies().generation();
        found = copies.first().filter(|name| !known.contains(name)).cloned();
        found.is_some()
    };
    assert!(eventually(is_there), "it has no other copy");
    found.unwrap()
}

#[test]
fn a_copy_that_is_gone_or_went_back_is_replaced_and_not_filled_again() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let copy_store_of = |name: &CopyName| {
        let number = (0..SERVERS).find(|number| id_of(*number) == name.0).unwrap();
        let copy_store = cluster.servers[number].coordinator.copies_view().copy_store().unwrap();
        let is_there = copy_store.list().iter().any(|copy| copy.owner == id_of(0) && copy.copy == name.1);
        (copy_store, (id_of(0), name.1), is_there)
    };
    // Its folder is swept.
    let gone = other_copy(&cluster, &[]);
    let (copy_store, at_holder, _) = copy_store_of(&gone);
    copy_store.remove_unneeded(|name| *name != at_holder, Instant::now() + 2 * COPY_IDLE);
    let second = other_copy(&cluster, std::slice::from_ref(&gone));
    assert!(!copy_store_of(&gone).2, "it was made again");
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));

    // Its folder is what it was before the last write.
    let (copy_store, at_holder, _) = copy_store_of(&second);
    let backup = first.folder.join("backup");
    std::fs::create_dir_all(&backup).unwrap();
    for entry in std::fs::read_dir(copy_store.folder_of(&at_holder)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), backup.join(entry.file_name())).unwrap();
    }
    let position = first.put(b"pear", &[5; 9_000]);
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    copy_store.put_back(&at_holder, &backup);
    let third = other_copy(&cluster, &[gone, second]);
    let position = first.put(b"apple", b"5");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    assert!(copy_store_of(&third).2);
}

/// A byte of the newest segment of a copy is another one.
fn flip_byte(copy_store: &CopyStore, name: &CopyName) {
    let folder = copy_store.folder_of(name);
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let path = folder.join(names.filter(|name| name.starts_with("log-")).max().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    // The first frame of a log is empty: in its block are zeros that no start needs.
    bytes[2 * 4_096 + 70] ^= 4;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_copy_whose_disk_changes_a_byte_is_found_told_and_replaced_and_never_read() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let needed = other_copy(&cluster, &[]);
    let holder = cluster.holder(0).unwrap();
    let server = &cluster.servers[holder];
    let copy_store = server.coordinator.copies_view().copy_store().unwrap();
    let name = (id_of(0), needed.1);
    let scrubber = LogScrubber::start(Arc::clone(&server.directory), Some(Arc::clone(&server.coordinator))).unwrap();
    let coordinator = server.directory.scrub_progress();
    let passes = |damage: u64| {
        assert!(eventually(|| coordinator.ask()));
        eventually(|| coordinator.status().last.is_some_and(|last| last.damage == damage) && !coordinator.is_asked())
    };
    assert!(passes(0), "{:?}", coordinator.status());
    let shown = || copy_store.list().into_iter().find(|copy| (&copy.owner, copy.copy) == (&name.0, name.1)).unwrap();
    assert!(shown().checked.is_some() && shown().damage.is_none());
    assert_eq!((copy_store.take_damage(), copy_store.damage_counts()), (vec![], [0, 0]));

    flip_byte(copy_store, &name);
    assert!(passes(1), "{:?}", coordinator.status());
    assert!(shown().damage.is_some_and(|text| text.contains("byte 8192")), "{:?}", shown());
    assert!(!copy_store.heard(&name).confirms, "it takes no place with it");
    assert!(matches!(copy_store.seal(&name), Err(ReplicaError::Damaged(_))));
    assert!(matches!(copy_store.read(&name, &mut |_| Ok(())), Err(ReplicaError::Damaged(_))));
    let told = copy_store.take_damage();
    assert!(told.len() == 1 && told[0].0 == id_of(0) && copy_store.damage_counts() == [1, 1], "{told:?}");
    // Another copy takes its place, with all that was acknowledged.
    let second = other_copy(&cluster, std::slice::from_ref(&needed));
    let position = first.put(b"pear", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    assert_ne!(second.1, needed.1);
    assert!(eventually(|| !copy_store.heard(&name).confirms));
    // What is not needed any more is removed, and counts as damage no longer.
    copy_store.remove_unneeded(|known| *known != name, Instant::now() + 2 * COPY_IDLE);
    assert_eq!(copy_store.damage_counts(), [0, 1]);
    drop(scrubber);
}

#[test]
fn a_copy_that_is_damaged_when_it_is_opened_is_shown_and_replaced() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let needed = other_copy(&cluster, &[]);
    let copy_store = cluster.servers[cluster.holder(0).unwrap()].coordinator.copies_view().copy_store().unwrap();
    let name = (id_of(0), needed.1);
    let promise = copy_store.folder_of(&name).join("promise");
    let mut bytes = std::fs::read(&promise).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&promise, bytes).unwrap();
    copy_store.close(&name);
    let second = other_copy(&cluster, std::slice::from_ref(&needed));
    assert_ne!(second.1, needed.1);
    let shown = copy_store.list().into_iter().find(|copy| copy.copy == name.1).expect("it is shown");
    assert!(shown.bytes > 0 && shown.damage.is_some_and(|text| text.contains("promise")));
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
}

#[test]
fn a_server_whose_disk_is_nearly_full_keeps_what_it_has_and_another_one_gets_a_copy() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    let needed = other_copy(&cluster, &[]);
    let holder = cluster.holder(0).unwrap();
    let copy_store_of = |number: usize| cluster.servers[number].coordinator.copies_view().copy_store().unwrap();
    copy_store_of(holder).assume_free(0);
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    let second = other_copy(&cluster, std::slice::from_ref(&needed));
    let other = cluster.holder(0).unwrap();
    assert!(other != holder && second.0 == id_of(other));

    // Where no disk has room, what was acknowledged is shown still; what comes is refused after a while.
    copy_store_of(other).assume_free(0);
    let log = first.directory.change_log().unwrap();
    let shown = position;
    let position = first.put(b"pear", b"5");
    assert!(eventually(|| log.are_copies_missing()));
    assert!(eventually(|| first.state_of(shown) == PositionState::OnDisk));
    assert_eq!(first.state_of(position), PositionState::Uncertain);
    let troubles = || first.coordinator.copies_view().status().copies;
    let is_told = || troubles().iter().any(|copy| copy.trouble.as_ref().is_some_and(|why| why.contains("nearly full")));
    assert!(eventually(is_told), "{:?}", troubles());
    // Room again: it goes on.
    [holder, other].iter().for_each(|number| copy_store_of(*number).assume_free(1 << 40));
    assert!(eventually(|| !log.are_copies_missing() && first.state_of(position) == PositionState::OnDisk));
}

#[test]
fn without_a_table_that_needs_copies_there_is_no_generation() {
    let cluster = TestCluster::with_a_record();
    let first = &cluster.servers[0];
    assert!(cluster.holder(0).is_some());
    // The store of the agreement loses some answers.
    let is_gone = || {
        let _maybe = first.directory.drop_table("shop", "items");
        first.directory.snapshot().by_name("shop").is_some_and(|view| view.table_by_name("items").is_none())
    };
    assert!(eventually(is_gone));
    assert!(eventually(|| cluster.holder(0).is_none()));
    // Clients that wait learn that nothing is known. No server takes its place with what the copy had once.
    let log = first.directory.change_log().unwrap();
    assert!(eventually(|| first.state_of(log.copied_position(log.end())) == PositionState::Uncertain));
    let refused = || cluster.servers[1].coordinator.fail_over(&id_of(0), None).unwrap_err();
    assert!(eventually(|| refused().contains("no other server has a copy")), "{}", refused());
}
