//! Promise: a trigger that is made, changed, paused or removed at one server of a cluster is so at all; each makes the
//! calls for the changes of its own keys, and one of them those of a schedule.

mod inherited;

use sandstorm_catalog::AgreedTrigger;
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange};

use super::*;
use crate::limits::TRIGGERS;
use crate::triggers::call_routes::{CallHome, CallRoutes};

/// Two servers that agree, of which each owns half of the slots.
struct TwoWorlds {
    worlds: [World; 2],
    owns: [Arc<SlotOwnership>; 2],
}

impl TwoWorlds {
    fn new() -> TwoWorlds {
        let agreement: Arc<dyn DirectoryAgreement> = Arc::new(AgreedInMemory::default());
        let owns = ["a", "b"].map(|id| Arc::new(SlotOwnership::new(id.to_owned())));
        let worlds = [World::empty(), World::empty()];
        for (world, own) in worlds.iter().zip(&owns) {
            world.directory.join_cluster(own);
            let found = AgreedImage::read(&*agreement, &Default::default()).expect("it answers");
            found.iter().for_each(|found| world.directory.restore(&found.image).expect("there is room"));
            world.directory.agree_with(&agreement, found.as_ref()).expect("it answers");
        }
        let two = TwoWorlds { worlds, owns };
        two.give(8_192);
        let directory = &two.worlds[0].directory;
        directory.create_tenant(NewTenant::named("shop")).expect("there is room");
        for name in ["items", "others"] {
            let interval = Some(TableDurability::Interval);
            let new = NewTable { durability: interval, quota_bytes: Some(8 << 20), ..NewTable::named(name) };
            directory.create_table("shop", new).expect("there is room");
        }
        two.catch_up();
        two
    }

    /// The first server owns so many slots, the other one the rest.
    fn give(&self, first: u16) {
        let mut ranges = Vec::new();
        ranges.extend((first > 0).then(|| SlotRange { first: 0, last: first - 1, server: Some(0) }));
        ranges.extend((first < 16_384).then_some(SlotRange { first, last: 16_383, server: Some(1) }));
        for (at, own) in self.owns.iter().enumerate() {
            own.set_map(SlotMap::new(1, ["a", "b"].map(ClusterServer::example).to_vec(), &ranges));
            own.set_owned(|slot| (slot < first) == (at == 0));
        }
    }

    fn catch_up(&self) {
        self.worlds.iter().for_each(|world| world.directory.catch_up().expect("it answers"));
    }

    fn start(&self) -> [TriggerRunner; 2] {
        self.worlds.each_ref().map(|world| world.start(Arc::new(|_, _| RpcStatus::Ok)))
    }

    /// Puts keys at their owners; returns how many each has.
    fn put(&self, table: &str, keys: std::ops::Range<usize>) -> [usize; 2] {
        self.worlds.each_ref().map(|world| {
            let (view, participant) = (world.view(), world.directory.participant());
            let table = &view.table_by_name(table).expect("the table").table;
            let put = |key: &String| {
                let key = key.as_bytes();
                table.put(&participant, table.hash(key), key, b"v", &WriteOptions::default(), 1).is_ok()
            };
            keys.clone().map(|key| format!("key:{key}")).filter(put).count()
        })
    }

    fn seen(&self) -> [usize; 2] {
        self.worlds.each_ref().map(|world| world.succeeded.lock().len())
    }
}

fn named(runner: &TriggerRunner, tenant: u32) -> Vec<String> {
    runner.list(tenant).into_iter().map(|one| one.spec.name).collect()
}

#[test]
fn a_trigger_of_one_server_is_one_of_all() {
    let two = TwoWorlds::new();
    let (runners, id) = (two.start(), two.worlds[0].id());
    let of = |at: usize| status(&runners[at], id, "t");
    runners[0].create(&two.worlds[0].view(), spec("t"), 1).expect("created");
    two.catch_up();
    wait_until(|| named(&runners[1], id) == ["t"]);
    let made = two.put("items", 0..200);
    assert!(made[0] > 0 && made[1] > 0 && made[0] + made[1] == 200, "{made:?}");
    wait_until(|| two.seen() == made);
    // Paused at one, resumed at the other, with what has gathered.
    runners[1].set_paused(id, "t", true, 1).expect("the trigger");
    two.catch_up();
    wait_until(|| [0, 1].iter().all(|at| matches!(of(*at).phase, TriggerPhase::Paused(_))));
    let more = two.put("items", 200..300);
    runners[0].set_paused(id, "t", false, 1).expect("the trigger");
    two.catch_up();
    wait_until(|| two.seen() == [made[0] + more[0], made[1] + more[1]]);
    wait_until(|| [0, 1].iter().all(|at| of(*at).calls.succeeded == (made[*at] + more[*at]) as u64));
    // Changed at one: the definition is another one, position and counts stay.
    let ops = TriggerChange { ops: Some(vec![TriggerOp::Delete]), ..TriggerChange::default() };
    runners[1].set(&two.worlds[1].view(), "t", ops, 1).expect("changed");
    two.catch_up();
    wait_until(|| of(0).spec.ops == [TriggerOp::Delete]);
    assert_eq!(of(0).calls.succeeded, (made[0] + more[0]) as u64);
    let exists = TriggerError::Exists("t".to_owned());
    assert_eq!(runners[1].create(&two.worlds[1].view(), spec("t"), 1).map(drop), Err(exists));
    // Over a restart of one, and what is removed meanwhile.
    let [first, second] = runners;
    drop(second);
    let second = two.worlds[1].start(Arc::new(|_, _| RpcStatus::Ok));
    assert_eq!(status(&second, id, "t").spec.ops, [TriggerOp::Delete]);
    drop(second);
    first.remove(id, "t").expect("the trigger");
    assert_eq!(first.remove(id, "t"), Err(TriggerError::Unknown("t".to_owned())));
    two.catch_up();
    let second = two.worlds[1].start(Arc::new(|_, _| RpcStatus::Ok));
    assert!(named(&second, id).is_empty());
    // One of the same name is another one: it begins with the next change.
    second.create(&two.worlds[1].view(), spec("t"), 1).expect("created");
    two.catch_up();
    wait_until(|| named(&first, id) == ["t"]);
    assert_eq!(status(&first, id, "t").calls, TriggerCounts::default());
}

#[test]
fn what_a_manifest_declares_is_declared_at_all_servers_and_limits_hold_for_all() {
    let two = TwoWorlds::new();
    let (runners, id) = (two.start(), two.worlds[0].id());
    let declare = |at: usize, spec: TriggerDefinition| {
        let declared = runners[at].declare(&two.worlds[at].view(), spec, 1);
        two.catch_up();
        declared
    };
    assert_eq!(declare(0, spec("t")), Ok(DeclaredTrigger::Created));
    assert_eq!(declare(1, spec("t")), Ok(DeclaredTrigger::Unchanged));
    let others = TriggerDefinition { table: Some("others".to_owned()), ..spec("t") };
    assert_eq!(declare(1, others.clone()), Ok(DeclaredTrigger::Changed));
    wait_until(|| runners.iter().all(|runner| status(runner, id, "t").spec == others));
    let made = two.put("others", 0..50);
    two.put("items", 0..50);
    wait_until(|| two.seen() == made);
    let another = TriggerDefinition { extension: "other".to_owned(), ..spec("t") };
    assert_eq!(declare(0, another), Err(TriggerError::Exists("t".to_owned())));
    for number in 1..TRIGGERS_PER_TENANT {
        let at = number % 2;
        runners[at].create(&two.worlds[at].view(), spec(&format!("t{number}")), 1).expect("there is room");
        two.catch_up();
    }
    for at in [0, 1] {
        let refused = runners[at].create(&two.worlds[at].view(), spec("more"), 1).map(drop);
        assert!(matches!(refused, Err(TriggerError::TooMany(_))), "{refused:?}");
    }
}

#[test]
fn a_schedule_runs_at_one_server_and_goes_on_at_the_other_that_has_its_slot() {
    let two = TwoWorlds::new();
    let (runners, id) = (two.start(), two.worlds[0].id());
    runners[0].create(&two.worlds[0].view(), often("t"), clock_ms()).expect("created");
    two.catch_up();
    wait_until(|| runners.iter().all(|runner| named(runner, id) == ["t"]));
    let calls = |at: usize| runners[at].show(id, "t").map_or(0, |one| one.calls.succeeded);
    for round in 0..3 {
        let (home, other) = (round % 2, 1 - round % 2);
        two.give(if home == 0 { 16_384 } else { 0 });
        let is_there = |at: usize| matches!(status(&runners[at], id, "t").phase, TriggerPhase::Running) == (at == home);
        wait_until(|| is_there(0) && is_there(1));
        let (before, there) = (calls(home), calls(other));
        wait_until(|| calls(home) >= before + 3);
        // One may have been under way.
        assert!(calls(other) <= there + 1, "two make the same calls");
        let waits = status(&runners[other], id, "t");
        let expected = format!("its calls are made at server {}", ["a", "b"][home]);
        assert_eq!((waits.phase, waits.next_due_ms), (TriggerPhase::Waiting(expected), None));
    }
}

#[test]
fn whoever_takes_a_schedule_over_makes_up_for_what_was_due_while_nobody_made_its_calls() {
    let schedule = crate::triggers::schedule::Schedule::every("1s").expect("a schedule");
    let elsewhere = |lives| CallHome::Elsewhere { server: "b".to_owned(), lives };
    assert_eq!(elsewhere(true).last_due(&schedule, 1_000, 60_500), 45_000);
    assert_eq!(elsewhere(true).last_due(&schedule, 50_000, 60_500), 50_000, "it does not go back");
    assert_eq!(elsewhere(false).last_due(&schedule, 1_000, 60_500), 1_000, "whoever is gone makes no calls");
    assert_eq!(CallHome::Changing.last_due(&schedule, 1_000, 60_500), 1_000);
    assert_eq!(CallRoutes::default().home(1, "t"), CallHome::Here);
}

/// A trigger that some server could not take over would be one of some servers alone.
#[test]
fn the_cluster_has_as_many_triggers_as_a_server_may_have_and_no_more() {
    let two = TwoWorlds::new();
    let directory = &two.worlds[0].directory;
    let yearly = |name: &str| TriggerDefinition { cron: Some("0 0 1 1 *".to_owned()), table: None, ..spec(name) };
    let definition = serde_json::to_string(&yearly("t")).expect("JSON");
    for tenant in 1..TRIGGERS / TRIGGERS_PER_TENANT {
        let name = format!("tenant{tenant}");
        directory.create_tenant(NewTenant::named(&name)).expect("there is room");
        let made = directory.change_triggers(&*name, |all| {
            for number in 0..TRIGGERS_PER_TENANT {
                let (serial, definition) = (number as u64, definition.replace("\"t\"", &format!("\"t{number}\"")));
                let made = AgreedTrigger { serial, definition, paused: false, resumed: 0 };
                all.insert(format!("t{number}"), made);
            }
        });
        made.expect("they agree");
    }
    directory.create_tenant(NewTenant::named("more")).expect("there is room");
    let sinks = CallSinks::here(Box::new(|_, _| {}));
    let runner = TriggerRunner::start(Arc::clone(directory), Box::new(|_| {}), None, sinks).expect("started");
    let (shop, id) = (two.worlds[0].view(), two.worlds[0].id());
    let more = || directory.snapshot().by_name("more").expect("the tenant").clone();
    for number in 0..TRIGGERS_PER_TENANT {
        runner.create(&shop, yearly(&format!("t{number}")), 1).expect("there is room");
    }
    assert_eq!(runner.shared.store.len(), TRIGGERS);
    let refused = runner.create(&more(), yearly("t"), 1).map(drop);
    assert!(matches!(&refused, Err(TriggerError::TooMany(why)) if why.contains("cluster")), "{refused:?}");
    let refused = runner.declare(&more(), yearly("t"), 1);
    assert!(matches!(&refused, Err(TriggerError::TooMany(why)) if why.contains("cluster")), "{refused:?}");
    assert!(more().triggers.is_empty(), "nothing is agreed on that cannot be taken over");
    runner.remove(id, "t0").expect("the trigger");
    runner.create(&more(), yearly("t"), 1).expect("there is room again");
}

#[test]
fn a_table_logs_expiries_no_longer_once_another_server_has_removed_the_trigger_for_them() {
    let two = TwoWorlds::new();
    let (runners, id) = (two.start(), two.worlds[0].id());
    let is_watched = |at: usize| {
        let view = two.worlds[at].view();
        view.table_by_name("items").expect("the table").table.logs_expiry()
    };
    let expiries = TriggerDefinition { ops: vec![TriggerOp::Expire], ..spec("t") };
    runners[0].create(&two.worlds[0].view(), expiries, 1).expect("created");
    two.catch_up();
    wait_until(|| is_watched(0) && is_watched(1));
    runners[0].remove(id, "t").expect("the trigger");
    two.catch_up();
    wait_until(|| !is_watched(0) && !is_watched(1));
}
