//! Triggers of a server whose place is taken: the successor's log has what they had not called for, before the slots
//! are its own, and so has that of the server that takes its place in turn.

use sandstorm_catalog::AgreedTrigger;
use sandstorm_log::{ChangeKind, LogTail};

use super::*;
use crate::called_positions::{CalledPosition, inherited_table, position_change};
use crate::change_calls::ChangeCaller;

/// The trigger's serial.
const SERIAL: u64 = 7;

/// What makes calls at a successor.
#[derive(Default)]
struct AskedCaller(AtomicUsize);

impl ChangeCaller for AskedCaller {
    fn behind(&self, _position: u64) -> Option<String> {
        None
    }

    fn give_up(&self, _position: u64) {}

    fn take_over(&self) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Kinds and versions of the changes that a server has inherited for the trigger.
fn inherited(server: &TestServer, table: u64) -> Vec<(ChangeKind, u64)> {
    let (log, mut found) = (server.directory.change_log().unwrap(), Vec::new());
    assert!(log.wait(log.end(), PATIENCE));
    let mut tail = LogTail::at(&log, 0).unwrap();
    tail.read(u64::MAX, &mut |_, change| {
        if change.table == inherited_table(SERIAL, table) {
            found.push((change.kind, change.version));
        }
        true
    })
    .unwrap();
    found
}

#[test]
fn a_successor_has_what_triggers_had_not_called_for_and_so_has_the_next_one() {
    let cluster = TestCluster::start();
    let first = &cluster.servers[0];
    let definition = r#"{"name":"t","extension":"e","table":"items"}"#.to_owned();
    let trigger = AgreedTrigger { serial: SERIAL, definition, paused: false, resumed: 0 };
    let made = || {
        let made = first.directory.change_triggers("shop", |all| drop(all.insert("t".to_owned(), trigger.clone())));
        // The store of the agreement loses some answers.
        made.is_ok() || first.directory.snapshot().by_name("shop").is_some_and(|view| !view.triggers.is_empty())
    };
    assert!(eventually(made));
    let view = first.directory.snapshot().by_name("shop").unwrap().clone();
    let table = view.table_by_name("items").unwrap().table.log_number().unwrap();
    let log = first.directory.change_log().unwrap();
    first.put(b"apple", b"1");
    let called = log.end();
    first.put(b"apple", b"2");
    first.put(b"pear", b"3");
    // Two of its calls have not ended yet.
    let told = CalledPosition { table, position: called }.encode();
    log.append(&position_change(&SERIAL.to_le_bytes(), &told), true);
    let position = first.put(b"apple", b"4");
    assert!(eventually(|| first.state_of(position) == PositionState::OnDisk));
    let holder = cluster.holder(0).expect("it has a copy");
    let (successor, other) = (&cluster.servers[holder], (1..SERVERS).find(|number| *number != holder).unwrap());
    let caller = Arc::new(AskedCaller::default());
    successor.coordinator.calls().set_caller(Arc::clone(&caller) as Arc<dyn ChangeCaller>);
    cluster.cut_off(0);
    drop(first.threads.lock().take());
    assert!(eventually(|| cluster.servers[other].coordinator.fail_over(&id_of(0), None).is_ok()));
    assert!(eventually(|| successor.owns_all()));
    assert_eq!(caller.0.load(Ordering::SeqCst), 1, "its triggers are those of all before its log is told");
    let versions: Vec<u64> = inherited(successor, table).into_iter().map(|(_, version)| version).collect();
    assert_eq!(inherited(successor, table), versions.iter().map(|one| (ChangeKind::Put, *one)).collect::<Vec<_>>());
    // Two of one key, and one of another between them: versions are those of a part of the table.
    assert!(versions.len() == 3 && versions[0] < versions[2], "{versions:?}");
    assert_eq!(successor.coordinator.slots().inherited_from(), None, "it is over");

    // The first one reads that it has lost its place, once, and has copies of others again.
    assert_eq!(first.coordinator.slots().lost_places(), 0);
    first.is_reached.store(true, Ordering::Release);
    assert!(eventually(|| first.coordinator.slots().lost_places() == 1 && !first.owns_all()));
    let copies = Arc::clone(first.member.lock().copies());
    let (part, tables) = (|| Arc::clone(&first.coordinator), || Arc::clone(&first.directory));
    let keeper = CopyReplicator::start(tables(), part(), Arc::clone(&copies), 1).unwrap();
    *first.threads.lock() = Some((keeper, SuccessorThread::start(part(), copies, tables()).unwrap()));

    // The successor has called for none of it: what it has inherited goes on with its place.
    let own = successor.directory.change_log().unwrap();
    let told = CalledPosition { table, position: 0 }.encode();
    own.append(&position_change(&SERIAL.to_le_bytes(), &told), true);
    let position = successor.put(b"plum", b"5");
    assert!(eventually(|| successor.state_of(position) == PositionState::OnDisk));
    let next = &cluster.servers[cluster.holder(holder).expect("it has a copy")];
    cluster.cut_off(holder);
    drop(successor.threads.lock().take());
    assert!(eventually(|| next.coordinator.fail_over(&id_of(holder), None).is_ok()));
    assert!(eventually(|| next.owns_all()));
    let found: Vec<u64> = inherited(next, table).into_iter().map(|(_, version)| version).collect();
    assert_eq!(found[..3], versions[..]);
    assert_eq!(found.len(), 4, "and what has changed since: {found:?}");
    assert_eq!(first.coordinator.slots().lost_places(), 1);
}
