//! Promise: slots that move to another server and back leave no change without its call, in the order of each key, and
//! none is a dead letter for that; and a move waits for calls as long as it may, whatever a tenant's trigger does.

use sandstorm_catalog::AgreedTrigger;
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange, SlotSpan};

use super::*;
use crate::triggers::active::InvocationPlace;
use crate::triggers::call_routes::{CallPlace, schedule_slot};
use crate::triggers::remote_caller::RemoteRequest;
use crate::triggers::remote_calls::{RemoteCall, RemoteOutcome};

const ALL: SlotSpan = SlotSpan { first: 0, last: 16_383 };

/// A server of a cluster of two, which owns all slots, with the tenant and the table.
fn world_in_cluster() -> (World, Arc<SlotOwnership>) {
    let (world, own) = (World::empty(), Arc::new(SlotOwnership::new("a".to_owned())));
    world.directory.join_cluster(&own);
    set_owner(&own, 0);
    world.directory.create_tenant(NewTenant::named("shop")).expect("there is room");
    let interval = Some(TableDurability::Interval);
    let new = NewTable { durability: interval, quota_bytes: Some(8 << 20), ..NewTable::named("items") };
    world.directory.create_table("shop", new).expect("there is room");
    (world, own)
}

/// Has one of the two servers own all slots, as this one reads it.
fn set_owner(own: &SlotOwnership, owner: usize) {
    let servers = ["a", "b"].map(ClusterServer::example).to_vec();
    own.set_map(SlotMap::new(1, servers, &[SlotRange { first: ALL.first, last: ALL.last, server: Some(owner) }]));
    own.set_owned(|_| owner == 0);
}

/// Starts triggers whose extension reaches keys of the server alone where it runs, as all do. Of the calls that are
/// sent, some answers are lost.
fn start(world: &World, own: &Arc<SlotOwnership>) -> TriggerRunner {
    let succeed = |succeeded: &Mutex<Vec<Vec<u8>>>, args: &[u8]| {
        let changes = Changes::decode(args).expect("changes");
        succeeded.lock().extend(changes.map(|change| change.encode()));
    };
    let (owned, succeeded) = (Arc::clone(own), Arc::clone(&world.succeeded));
    let here = move |_home: u32, begun: Vec<LocalCall>| {
        for LocalCall { args, done, .. } in begun {
            let has_keys = Changes::decode(&args).expect("changes").all(|change| owned.owns(change.key));
            if has_keys {
                succeed(&succeeded, &args);
            }
            let status = if has_keys { RpcStatus::Ok } else { RpcStatus::Failed };
            let value = b"WrongServer".to_vec();
            done(LocalCallResult { status, number: 1, value, shown: 0, cost: None, ended: None });
        }
    };
    let (owned, succeeded, calls) = (Arc::clone(own), Arc::clone(&world.succeeded), Arc::clone(&world.calls));
    let elsewhere = move |RemoteRequest { server, calls: sent, done }: RemoteRequest| {
        assert_eq!(server, "b");
        let run = |RemoteCall { args, .. }: RemoteCall| {
            let is_there = Changes::decode(&args).expect("changes").all(|change| !owned.owns(change.key));
            if is_there {
                succeed(&succeeded, &args);
            }
            RemoteOutcome::of(if is_there { RpcStatus::Ok } else { RpcStatus::WrongServer }, b"")
        };
        let outcomes: Vec<RemoteOutcome> = sent.calls.into_iter().map(run).collect();
        let is_lost = calls.fetch_add(1, Ordering::SeqCst) % 5 == 3;
        done(if is_lost { Err("the answer was lost".to_owned()) } else { Ok(outcomes) });
    };
    let sinks = CallSinks { here: Box::new(here), elsewhere: Box::new(elsewhere) };
    let (directory, folder) = (Arc::clone(&world.directory), Some(world.folder.path()));
    TriggerRunner::start(directory, Box::new(|_| {}), folder, sinks).expect("started")
}

#[test]
fn changes_are_called_where_their_slots_have_moved_and_none_is_given_up() {
    for batch in FORMS {
        let (world, own) = world_in_cluster();
        let runner = start(&world, &own);
        // Not one failure is forgiven.
        runner.create(&world.view(), TriggerDefinition { retries: 0, batch, ..spec("t") }, 1).expect("created");
        let (mut random, mut made) = (SmallRng::seed_from_u64(8), Vec::new());
        for round in 0..30 {
            made.extend(world.write(&mut random, 40));
            if round % 3 == 0 {
                // What gathers meanwhile is called there.
                let log = world.directory.change_log().expect("a log");
                log.request(log.end());
            }
            own.disown(ALL);
            std::thread::sleep(Duration::from_millis(random.random_range(0..4)));
            // A move that is given up is served again; else the other server owns the slots for a while.
            if round % 4 != 1 {
                set_owner(&own, 1);
                std::thread::sleep(Duration::from_millis(random.random_range(0..8)));
                own.set_awaited(Some(ALL));
            }
            set_owner(&own, 0);
            own.set_awaited(None);
        }
        set_owner(&own, 1);
        wait_until_handled(&world, &runner);
        assert_complete(&made, &world.seen());
        let status = status(&runner, world.id(), "t");
        assert_eq!((status.dead_letters, status.calls.failed), (0, 0), "{status:?}");
        assert!(world.calls.load(Ordering::SeqCst) > 0, "some were made at the other server");
    }
}

#[test]
fn a_target_makes_no_calls_of_its_own_before_the_source_has_made_those_for_older_changes() {
    let (world, own) = world_in_cluster();
    let runner = start(&world, &own);
    runner.create(&world.view(), spec("t"), 1).expect("created");
    own.set_called_elsewhere(Some(ALL));
    let made = world.write(&mut SmallRng::seed_from_u64(9), 100);
    wait_until(|| status(&runner, world.id(), "t").open >= made.len());
    std::thread::sleep(Duration::from_millis(100));
    assert!(world.seen().is_empty(), "older changes may still be called for");
    own.set_called_elsewhere(None);
    wait_until_handled(&world, &runner);
    assert_complete(&made, &world.seen());
}

#[test]
fn moves_wait_for_triggers_that_make_calls_and_for_no_others() {
    let (world, own) = world_in_cluster();
    let runner = start(&world, &own);
    let caller = runner.change_caller();
    let log = world.directory.change_log().expect("a log");
    for name in ["t", "paused"] {
        runner.create(&world.view(), spec(name), 1).expect("created");
    }
    let other = TriggerDefinition { name: "other".into(), ops: vec![TriggerOp::Clear], ..spec("t") };
    runner.create(&world.view(), other, 1).expect("created");
    runner.set_paused(world.id(), "paused", true, 1).expect("the trigger");
    // No call can be made now.
    own.set_called_elsewhere(Some(ALL));
    world.write(&mut SmallRng::seed_from_u64(10), 20);
    assert!(log.wait(log.end(), LONG));
    let end = log.durable();
    wait_until(|| status(&runner, world.id(), "t").open > 0);
    // The other one has no call to make.
    wait_until(|| status(&runner, world.id(), "other").position.is_some_and(|(position, _)| position >= end));
    assert_eq!(caller.behind(end).as_deref(), Some("trigger \"t\" of tenant \"shop\""), "one that is paused is not");
    assert_eq!(caller.behind(0), None, "none has changes to call for from before that");
    caller.give_up(end);
    assert_eq!(caller.behind(end), None, "it is not waited for again");
    own.set_called_elsewhere(None);
    wait_until_handled(&world, &runner);
    let all = TriggerChange { ops: Some(Vec::new()), ..TriggerChange::default() };
    runner.set(&world.view(), "other", all, 1).expect("changed");
    own.set_called_elsewhere(Some(ALL));
    world.write(&mut SmallRng::seed_from_u64(11), 20);
    assert!(log.wait(log.end(), LONG));
    wait_until(|| caller.behind(log.durable()).is_some_and(|who| who.contains("other")));
    own.set_called_elsewhere(None);
    wait_until(|| caller.behind(log.durable()).is_none());
}

/// Whatever its name is, and also where the tenant had no trigger meanwhile.
#[test]
fn a_trigger_that_was_given_up_is_not_waited_for_once_it_is_made_anew() {
    let (world, own) = world_in_cluster();
    let runner = start(&world, &own);
    let (caller, log) = (runner.change_caller(), world.directory.change_log().expect("a log"));
    own.set_called_elsewhere(Some(ALL));
    let behind = |names: &[&str]| {
        world.write(&mut SmallRng::seed_from_u64(12), 20);
        assert!(log.wait(log.end(), LONG));
        wait_until(|| names.iter().all(|name| status(&runner, world.id(), name).open > 0));
        caller.behind(log.durable())
    };
    runner.create(&world.view(), spec("t"), 1).expect("created");
    assert!(behind(&["t"]).is_some());
    caller.give_up(log.durable());
    runner.remove(world.id(), "t").expect("the trigger");
    for name in ["t", "another"] {
        runner.create(&world.view(), spec(name), 1).expect("created");
    }
    assert_eq!(behind(&["t", "another"]), None);
}

/// Whatever is done with it while others are given up.
#[test]
fn a_trigger_of_before_a_restart_is_not_one_that_was_made_just_now() {
    let (world, own) = world_in_cluster();
    let runner = start(&world, &own);
    let other = TriggerDefinition { name: "other".into(), ops: vec![TriggerOp::Clear], ..spec("t") };
    for spec in [spec("t"), other] {
        runner.create(&world.view(), spec, 1).expect("created");
    }
    drop(runner);
    let runner = start(&world, &own);
    let (caller, log) = (runner.change_caller(), world.directory.change_log().expect("a log"));
    own.set_called_elsewhere(Some(ALL));
    world.write(&mut SmallRng::seed_from_u64(13), 20);
    assert!(log.wait(log.end(), LONG));
    let end = log.durable();
    wait_until(|| status(&runner, world.id(), "t").open > 0);
    wait_until(|| status(&runner, world.id(), "other").position.is_some_and(|(position, _)| position >= end));
    caller.give_up(end);
    assert_eq!(caller.behind(end), None);
    for paused in [true, false] {
        runner.set_paused(world.id(), "other", paused, 1).expect("the trigger");
    }
    let all = TriggerChange { ops: Some(Vec::new()), ..TriggerChange::default() };
    runner.set(&world.view(), "other", all, 1).expect("changed");
    world.write(&mut SmallRng::seed_from_u64(14), 20);
    assert!(log.wait(log.end(), LONG));
    wait_until(|| caller.behind(log.durable()).is_some_and(|who| who.contains("other")));
    own.set_called_elsewhere(None);
    wait_until(|| caller.behind(log.durable()).is_none());
}

/// When the schedules of these tests were made, and a day later.
const CREATED_MS: u64 = 1_700_000_000_000;
const DUE_MS: u64 = CREATED_MS + 86_400_000;

/// A schedule of all servers that is due once a day.
fn daily(world: &World, retries: u32) -> ActiveTrigger {
    let args = "daily".to_owned();
    let spec = TriggerDefinition { every: Some("1d".into()), table: None, args, retries, ..spec("t") };
    let begins = StoredTrigger::begins(&world.view().tenant, spec, (0, 0), CREATED_MS);
    let agreed = AgreedTrigger { serial: 1, definition: String::new(), paused: false, resumed: 0 };
    ActiveTrigger::of(StoredTrigger { agreed: Some(agreed), ..begins }).expect("a schedule")
}

/// A turn of its server; returns what begins, and where.
fn turn_of(
    trigger: &mut ActiveTrigger,
    (world, own): (&World, &Arc<SlotOwnership>),
    now_ms: u64,
) -> Option<(InvocationPlace, CallPlace)> {
    let routes = CallRoutes::now(Some(own));
    trigger.find_calls((&world.view(), None), &routes.home(world.id(), "t"), now_ms);
    let begun = trigger.begin_call(now_ms, &routes)?;
    assert_eq!((&*begun.args, begun.slots), (&b"daily"[..], vec![schedule_slot(world.id(), "t")]));
    Some((begun.place, begun.at))
}

#[test]
fn a_schedules_call_that_is_not_over_stays_where_its_slot_stays_and_goes_where_it_goes() {
    let (world, own) = world_in_cluster();
    let mut trigger = daily(&world, 8);
    let turn = |trigger: &mut ActiveTrigger, now_ms| turn_of(trigger, (&world, &own), now_ms);
    assert_eq!(turn(&mut trigger, DUE_MS - 1), None);
    let (place, at) = turn(&mut trigger, DUE_MS).expect("it is due");
    assert_eq!(at, CallPlace::Here);
    // Its slot is frozen, which the call meets, and then served again: the hand-over was given up.
    own.disown(ALL);
    trigger.end_call(place, (RpcStatus::WrongServer, b""), DUE_MS);
    assert_eq!(turn(&mut trigger, DUE_MS + 60_000), None, "nobody makes its calls now");
    set_owner(&own, 0);
    let (place, at) = turn(&mut trigger, DUE_MS + 61_000).expect("it was not made yet");
    assert_eq!(at, CallPlace::Here);
    // It fails, and the slot moves: longer ago than the other server makes up for.
    trigger.end_call(place, (RpcStatus::Failed, b""), DUE_MS + 61_000);
    set_owner(&own, 1);
    let (place, at) = turn(&mut trigger, DUE_MS + 90_000).expect("its tries are not over");
    assert_eq!(at, CallPlace::Server(1));
    let shown = trigger.status(0);
    assert!(matches!(shown.phase, TriggerPhase::Waiting(_)) && shown.open == 1, "{shown:?}");
    trigger.end_call(place, (RpcStatus::Ok, b""), DUE_MS + 90_000);
    assert_eq!((turn(&mut trigger, DUE_MS + 120_000), trigger.status(0).calls.succeeded), (None, 1));
}

#[test]
fn a_schedules_dead_letter_is_replayed_where_its_slot_has_gone() {
    let (world, own) = world_in_cluster();
    let mut trigger = daily(&world, 0);
    let (place, _) = turn_of(&mut trigger, (&world, &own), DUE_MS).expect("it is due");
    trigger.end_call(place, (RpcStatus::Failed, b"no"), DUE_MS);
    assert_eq!(trigger.dead_letters().len(), 1);
    set_owner(&own, 1);
    assert_eq!(turn_of(&mut trigger, (&world, &own), DUE_MS + 60_000), None);
    assert_eq!(trigger.replay_letters(), 1);
    let (place, at) = turn_of(&mut trigger, (&world, &own), DUE_MS + 61_000).expect("it is replayed");
    assert_eq!(at, CallPlace::Server(1));
    trigger.end_call(place, (RpcStatus::Ok, b""), DUE_MS + 61_000);
    assert!(trigger.dead_letters().is_empty());
}
