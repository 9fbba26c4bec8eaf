//! Promise: a server's log tells how far its triggers have come; the one that takes its place calls for the rest before
//! its own changes, and the one that has lost its place calls for none of it.

use sandstorm_cluster::called_positions::{CALLED_TABLE, CalledPosition, inherited_table};
use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_store::slots::SlotSpan;

use super::*;

/// Two servers, of which the second owns all slots, and the number of their table in the log.
fn worlds() -> (TwoWorlds, u64) {
    let two = TwoWorlds::new();
    two.give(0);
    let view = two.worlds[0].view();
    let number = view.table_by_name("items").expect("the table").table.log_number();
    (two, number.expect("it is logged"))
}

fn serial(world: &World) -> u64 {
    world.view().triggers["t"].serial
}

/// The positions that a log tells of a trigger.
fn told(world: &World) -> Vec<CalledPosition> {
    let (log, serial, mut found) = (world.directory.change_log().expect("a log"), serial(world), Vec::new());
    assert!(log.wait(log.end(), LONG));
    let mut tail = LogTail::at(&log, 0).expect("its beginning");
    let mut note = |change: &LoggedChange<'_>| {
        let number =
            |at: usize| change.value.get(at..at + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        if change.table == CALLED_TABLE && change.key == serial.to_le_bytes() {
            let (table, position) = (number(0).expect("a table"), number(8).expect("a position"));
            found.push(CalledPosition { table, position });
        }
    };
    tail.read(u64::MAX, &mut |_, change| {
        note(change);
        true
    })
    .expect("sound");
    found
}

/// Puts a key at the first server; returns its version.
fn put(world: &World, key: &str, value: &[u8]) -> u64 {
    let (view, participant) = (world.view(), world.directory.participant());
    let table = &view.table_by_name("items").expect("the table").table;
    let put = table.put(&participant, table.hash(key.as_bytes()), key.as_bytes(), value, &WriteOptions::default(), 1);
    put.expect("there is room")
}

/// Key and value of each change that was called for.
fn called(world: &World) -> Vec<(Vec<u8>, Vec<u8>)> {
    world.seen().into_iter().map(|(key, value, _)| (key, value.expect("a put"))).collect()
}

#[test]
fn what_is_inherited_is_called_for_before_own_changes_and_not_before_the_slots_are_own() {
    let (two, number) = worlds();
    let (world, own) = (&two.worlds[0], &two.owns[0]);
    let mut runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), spec("t"), 1).expect("created");
    own.set_inherited_from(Some("b"));
    let (log, table) = (world.directory.change_log().expect("a log"), inherited_table(serial(world), number));
    let mut expected: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for version in 0..60_u64 {
        let (key, value) = (format!("key:{}", version % 7).into_bytes(), version.to_le_bytes().to_vec());
        let delete = LoggedChange::delete(table, version + 1, &key);
        log.append(&LoggedChange { kind: ChangeKind::Put, value: &value, ..delete }, true);
        expected.entry(key).or_default().push(value);
    }
    wait_until(|| status(&runner, world.id(), "t").open == 60);
    // It starts again before the slots are its own.
    drop(runner);
    runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    wait_until(|| status(&runner, world.id(), "t").open == 60);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((called(world), status(&runner, world.id(), "t").calls.not_run), (vec![], 0));
    two.give(16_384);
    own.set_inherited_from(None);
    for key in 0..7 {
        let key = format!("key:{key}");
        put(world, &key, b"own");
        expected.get_mut(key.as_bytes()).expect("its changes").push(b"own".to_vec());
    }
    wait_until_handled(world, &runner);
    let mut found: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    called(world).into_iter().for_each(|(key, value)| found.entry(key).or_default().push(value));
    assert_eq!(found, expected);
    // Another trigger has none of it, nor has one that has its name later.
    runner.remove(world.id(), "t").expect("the trigger");
    runner.create(&world.view(), spec("t"), 1).expect("created");
    assert_ne!(inherited_table(serial(world), number), table);
    runner.replay(world.id(), "t", Some(0)).expect("a position");
    wait_until_handled(world, &runner);
    assert_eq!(called(world).len(), 60 + 7 + 7);
}

#[test]
fn a_log_tells_how_far_triggers_have_come_and_nothing_where_they_have_nothing_to_do() {
    let (two, number) = worlds();
    two.give(16_384);
    let (world, own) = (&two.worlds[0], &two.owns[0]);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), spec("t"), 1).expect("created");
    // Before anything that is changed behind this.
    let begun = told(world);
    assert_eq!(begun.iter().map(|one| one.table).collect::<Vec<_>>(), [number]);
    let log = world.directory.change_log().expect("a log");
    // Held up, it has not come further, and what it needs is not given away.
    own.set_called_elsewhere(Some(SlotSpan { first: 0, last: 16_383 }));
    put(world, "apple", b"1");
    assert!(log.wait(log.end(), LONG));
    let (behind, before) = (log.durable(), begun[0].position);
    wait_until(|| status(&runner, world.id(), "t").open == 1);
    assert!(told(world).iter().all(|one| one.position < behind));
    own.set_called_elsewhere(None);
    wait_until(|| told(world).last().is_some_and(|one| one.position >= behind));
    assert!(before < behind);
    // A look or two later there is nothing to tell.
    wait_until_handled(world, &runner);
    let known = told(world).len();
    std::thread::sleep(TRIGGER_WRITE_LOOK * 4);
    assert!(told(world).len() <= known + 1, "{:?}", told(world));
    // A start tells it, whatever its file says.
    drop(runner);
    let known = told(world).len();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    wait_until(|| told(world).len() > known);
    drop(runner);
}

#[test]
fn a_server_that_has_lost_its_place_calls_for_nothing_from_before() {
    let (two, _) = worlds();
    two.give(16_384);
    let (world, own) = (&two.worlds[0], &two.owns[0]);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), spec("t"), 1).expect("created");
    own.set_called_elsewhere(Some(SlotSpan { first: 0, last: 16_383 }));
    for number in 0..20 {
        put(world, &format!("key:{number}"), b"lost");
    }
    wait_until(|| status(&runner, world.id(), "t").open == 20);
    own.set_lost_place(true);
    two.give(0);
    wait_until(|| status(&runner, world.id(), "t").open == 0);
    own.set_lost_place(false);
    own.set_called_elsewhere(None);
    two.give(16_384);
    put(world, "pear", b"kept");
    wait_until_handled(world, &runner);
    assert_eq!(called(world), [(b"pear".to_vec(), b"kept".to_vec())]);
    assert_eq!(own.lost_places(), 1);
}

#[test]
fn changes_that_cannot_be_called_for_pause_their_trigger_and_say_so() {
    let (two, _) = worlds();
    two.give(16_384);
    let world = &two.worlds[0];
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    for name in ["t", "u"] {
        runner.create(&world.view(), spec(name), 1).expect("created");
    }
    let caller = runner.change_caller();
    caller.take_over().expect("they are there");
    caller.lose(serial(world), "server 1f0c6a52, whose place this one has taken, had more");
    let phase = |runner: &TriggerRunner, name: &str| status(runner, world.id(), name).phase;
    let is_told = |runner: &TriggerRunner| match phase(runner, "t") {
        TriggerPhase::Paused(why) => why.contains("has missed changes: server 1f0c6a52") && why.contains("resume t"),
        _ => false,
    };
    assert!(is_told(&runner) && phase(&runner, "u") == TriggerPhase::Running);
    // Also after a restart.
    drop(runner);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    assert!(is_told(&runner), "{:?}", phase(&runner, "t"));
    runner.set_paused(world.id(), "t", false, 1).expect("the trigger");
    wait_until(|| phase(&runner, "t") == TriggerPhase::Running);
}
