//! Promise: for each change of a table its trigger's call succeeds at least once, those of a key in their order, or is
//! a dead letter; over failures, restarts and crashes.

mod in_cluster;
mod late_ends;
mod moved_slots;

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_api::change::{Change, ChangeOp, Changes};
use sandstorm_catalog::testing::AgreedInMemory;
use sandstorm_catalog::{
    AgreedImage, DirectoryAgreement, DirectoryOptions, ExpiryWatcher, NewTable, NewTenant, TableDurability,
};
use sandstorm_net::rpc::RpcStatus;
use sandstorm_server::workers::{LocalCall, LocalCallResult};
use sandstorm_store::{Epochs, StoreCondition, WriteOptions};
use tempfile::TempDir;

use super::*;
use crate::limits::TRIGGERS_PER_TENANT;
use crate::triggers::{TriggerCounts, TriggerOp, TriggerPhase};

const LONG: Duration = Duration::from_secs(60);

/// Key, value (`None`: deleted) and version of a change.
type Seen = (Vec<u8>, Option<Vec<u8>>, u64);

/// What the extension does with a call: its number, its arguments.
type Behaviour = Arc<dyn Fn(u64, &[u8]) -> RpcStatus + Send + Sync>;

struct World {
    folder: TempDir,
    directory: Arc<Directory>,
    /// Arguments of the calls that succeeded; those of a batch are the ones of its changes.
    succeeded: Arc<Mutex<Vec<Vec<u8>>>>,
    calls: Arc<AtomicU64>,
}

impl World {
    fn new() -> World {
        let world = World::empty();
        let directory = &world.directory;
        directory.create_tenant(NewTenant::named("shop")).expect("there is room");
        for (name, durability) in [("items", TableDurability::Interval), ("memory", TableDurability::None)] {
            let new = NewTable { durability: Some(durability), quota_bytes: Some(8 << 20), ..NewTable::named(name) };
            directory.create_table("shop", new).expect("there is room");
        }
        world
    }

    fn empty() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Epochs::new(), options);
        directory.restore_records(&folder.path().join("log"), 1, |log| log.start()).expect("an empty log");
        World { folder, directory, succeeded: Arc::default(), calls: Arc::default() }
    }

    fn view(&self) -> Arc<TenantView> {
        self.directory.snapshot().by_name("shop").expect("the tenant").clone()
    }

    fn id(&self) -> u32 {
        self.view().tenant.id
    }

    /// The file of a trigger.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("triggers/{}-{name}.json", self.id()))
    }

    fn start(&self, behaviour: Behaviour) -> TriggerRunner {
        let (succeeded, calls) = (Arc::clone(&self.succeeded), Arc::clone(&self.calls));
        let sink = move |_home: u32, begun: Vec<LocalCall>| {
            for call in begun {
                let status = behaviour(calls.fetch_add(1, Ordering::SeqCst), &call.args);
                if status == RpcStatus::Ok {
                    match (Change::decode(&call.args), Changes::decode(&call.args)) {
                        (Err(_), Ok(several)) => succeeded.lock().extend(several.map(|change| change.encode())),
                        _ => succeeded.lock().push(call.args),
                    }
                }
                let value = b"as it was told".to_vec();
                (call.done)(LocalCallResult { status, number: 1, value, shown: 0, cost: None, ended: None });
            }
        };
        let (directory, sinks) = (Arc::clone(&self.directory), CallSinks::here(Box::new(sink)));
        TriggerRunner::start(directory, Box::new(|_| {}), Some(self.folder.path()), sinks).expect("started")
    }

    /// Writes or deletes some records; returns all changes in their order.
    fn write(&self, random: &mut SmallRng, changes: usize) -> Vec<Seen> {
        let participant = self.directory.participant();
        let view = self.view();
        let table = &view.table_by_name("items").expect("the table").table;
        let mut made = Vec::new();
        while made.len() < changes {
            let key = format!("key:{}", random.random_range(0..20)).into_bytes();
            let hash = table.hash(&key);
            if random.random_range(0..4) == 0 {
                if table.delete(&participant, hash, &key, StoreCondition::Always, 1).expect("the log has room") {
                    made.push((key, None, 0));
                }
            } else {
                let value = random.random::<u64>().to_le_bytes().to_vec();
                let version = table.put(&participant, hash, &key, &value, &WriteOptions::default(), 1);
                made.push((key, Some(value), version.expect("room")));
            }
        }
        made
    }

    /// The changes of which calls succeeded.
    fn seen(&self) -> Vec<Seen> {
        let succeeded = self.succeeded.lock();
        let of = |args: &Vec<u8>| {
            let Change { op, key, value, version, .. } = Change::decode(args).expect("a change");
            (key.to_vec(), (op == ChangeOp::Put).then(|| value.to_vec()), version)
        };
        succeeded.iter().map(of).collect()
    }
}

fn spec(name: &str) -> TriggerDefinition {
    let name = name.to_owned();
    TriggerDefinition {
        name,
        extension: "count".to_owned(),
        every: None,
        cron: None,
        table: Some("items".to_owned()),
        ops: Vec::new(),
        batch: None,
        args: String::new(),
        retries: 8,
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < until, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn status(runner: &TriggerRunner, tenant: u32, name: &str) -> TriggerStatus {
    runner.list(tenant).into_iter().find(|status| status.spec.name == name).expect("the trigger")
}

/// Waits until the trigger has handled all that the log has.
fn wait_until_handled(world: &World, runner: &TriggerRunner) {
    let log = world.directory.change_log().expect("a log");
    assert!(log.wait(log.end(), LONG));
    let end = log.durable();
    wait_until(|| status(runner, world.id(), "t").position.is_some_and(|(position, _)| position >= end));
}

/// Each change is there, and those of a key come first in their order.
fn assert_complete(made: &[Seen], seen: &[Seen]) {
    let puts_and_deletes = |changes: &[Seen]| {
        let mut of_key: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::new();
        changes.iter().for_each(|(key, value, _)| of_key.entry(key.clone()).or_default().push(value.clone()));
        of_key
    };
    let mut first: HashMap<(Vec<u8>, u64), ()> = HashMap::new();
    let fresh: Vec<Seen> =
        seen.iter().filter(|(key, _, version)| first.insert((key.clone(), *version), ()).is_none()).cloned().collect();
    assert!(puts_and_deletes(made) == puts_and_deletes(&fresh), "{} made, {} seen", made.len(), fresh.len());
}

/// One change a call, and batches.
const FORMS: [Option<u32>; 2] = [None, Some(8)];

#[test]
fn each_change_is_handled_in_the_order_of_its_key_over_failures_restarts_and_crashes() {
    FORMS.into_iter().for_each(handles_each_change_over_failures_restarts_and_crashes);
}

fn handles_each_change_over_failures_restarts_and_crashes(batch: Option<u32>) {
    let world = World::new();
    let mut random = SmallRng::seed_from_u64(3);
    // A third of the calls fails, or cannot run.
    let behaviour: Behaviour = Arc::new(|number, _| match number % 7 {
        0 => RpcStatus::Killed,
        3 => RpcStatus::Suspended,
        _ => RpcStatus::Ok,
    });
    let runner = world.start(Arc::clone(&behaviour));
    world.write(&mut random, 10);
    wait_until(|| runner.create(&world.view(), TriggerDefinition { batch, ..spec("t") }, 1).is_ok());
    // What was written before is not its business; what is not on the disk yet may be.
    wait_until_handled(&world, &runner);
    world.succeeded.lock().clear();
    let mut made = world.write(&mut random, 300);
    wait_until_handled(&world, &runner);
    assert_complete(&made, &world.seen());
    // What waits while it is paused comes as well.
    runner.set_paused(world.id(), "t", true, 1).expect("the trigger");
    made.extend(world.write(&mut random, 100));
    runner.set_paused(world.id(), "t", false, 1).expect("the trigger");
    wait_until_handled(&world, &runner);
    assert_complete(&made, &world.seen());
    // A crash: the file is an older one.
    let file = world.file("t");
    let older = std::fs::read(&file).expect("the file");
    made.extend(world.write(&mut random, 300));
    wait_until(|| world.seen().len() > 500);
    runner.stop();
    drop(runner);
    std::fs::write(&file, older).expect("the older file is back");
    let runner = world.start(behaviour);
    made.extend(world.write(&mut random, 100));
    wait_until_handled(&world, &runner);
    assert_complete(&made, &world.seen());
}

#[test]
fn a_call_that_keeps_failing_is_a_dead_letter_and_may_be_made_again() {
    FORMS.into_iter().for_each(keeps_what_keeps_failing_and_makes_it_again);
}

fn keeps_what_keeps_failing_and_makes_it_again(batch: Option<u32>) {
    let world = World::new();
    let is_mended = Arc::new(AtomicU64::new(0));
    let mended = Arc::clone(&is_mended);
    let runner = world.start(Arc::new(move |_, args| {
        let is_bad = Changes::decode(args).is_ok_and(|mut changes| changes.any(|change| change.key == b"key:7"));
        if is_bad && mended.load(Ordering::SeqCst) == 0 { RpcStatus::Failed } else { RpcStatus::Ok }
    }));
    let only_puts = TriggerDefinition { retries: 1, ops: vec![TriggerOp::Put], batch, ..spec("t") };
    runner.create(&world.view(), only_puts, 1).expect("created");
    let made = world.write(&mut SmallRng::seed_from_u64(4), 100);
    wait_until_handled(&world, &runner);
    let puts = made.iter().filter(|(_, value, _)| value.is_some());
    let (bad, good): (Vec<_>, Vec<_>) = puts.cloned().partition(|(key, ..)| key == b"key:7");
    assert!(!bad.is_empty());
    assert_complete(&good, &world.seen());
    let letters = runner.dead_letters(world.id(), "t").expect("the trigger");
    assert_eq!(letters.len(), bad.len());
    assert!(letters.iter().all(|letter| letter.tries == 2 && letter.error.contains("as it was told")), "{letters:?}");
    // Another failure of a replay keeps what is known of them.
    let positions = |letters: &[DeadLetter]| letters.iter().map(|letter| letter.position).collect::<Vec<_>>();
    assert!(letters.iter().all(|letter| letter.position > 0), "{letters:?}");
    let failed = status(&runner, world.id(), "t").calls.failed;
    assert_eq!(runner.replay(world.id(), "t", None), Ok(bad.len()));
    wait_until(|| status(&runner, world.id(), "t").open == 0);
    let again = runner.dead_letters(world.id(), "t").expect("the trigger");
    let state = status(&runner, world.id(), "t");
    assert_eq!((positions(&again), state.calls.failed), (positions(&letters), failed + 2 * bad.len() as u64));
    assert!(again.iter().any(|letter| Some(letter.at_ms) == state.last_error_at_ms), "{state:?}");
    // They outlive the process, and go when their calls succeed.
    drop(runner);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    is_mended.store(1, Ordering::SeqCst);
    assert_eq!(runner.replay(world.id(), "t", None), Ok(bad.len()));
    wait_until(|| status(&runner, world.id(), "t").dead_letters == 0);
    let all: Vec<Seen> = made.iter().filter(|(_, value, _)| value.is_some()).cloned().collect();
    assert_complete(&all, &world.seen());
    // From an earlier position all are made again.
    world.succeeded.lock().clear();
    assert_eq!(runner.replay(world.id(), "t", Some(0)), Ok(0));
    wait_until_handled(&world, &runner);
    assert_complete(&all, &world.seen());
    assert!(matches!(runner.replay(world.id(), "t", Some(u64::MAX - 1)), Err(TriggerError::Invalid(_))));
}

#[test]
fn dead_letters_that_fill_their_room_pause_the_trigger_and_nothing_is_lost() {
    FORMS.into_iter().for_each(pauses_when_dead_letters_fill_their_room);
}

fn pauses_when_dead_letters_fill_their_room(batch: Option<u32>) {
    let world = World::new();
    let (fails, failing) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let fail = Arc::clone(&fails);
    let runner = world.start(Arc::new(move |_, _| {
        failing.fetch_add(1, Ordering::SeqCst);
        if fail.load(Ordering::SeqCst) == 1 { RpcStatus::Killed } else { RpcStatus::Ok }
    }));
    runner.create(&world.view(), TriggerDefinition { retries: 0, batch, ..spec("t") }, 1).expect("created");
    let made = world.write(&mut SmallRng::seed_from_u64(5), 3_000);
    wait_until(|| matches!(status(&runner, world.id(), "t").phase, TriggerPhase::Paused(_)));
    fails.store(0, Ordering::SeqCst);
    let letters = runner.dead_letters(world.id(), "t").expect("the trigger").len();
    // Asked again, what waits to be replayed is not replayed twice: it would fill the memory of a paused trigger.
    let replayed = runner.replay(world.id(), "t", None).expect("the trigger");
    let open = status(&runner, world.id(), "t").open;
    assert!(replayed > 0 && replayed <= letters + 64);
    for _ in 0..3 {
        let more = runner.replay(world.id(), "t", None).expect("the trigger");
        assert!(more + replayed <= letters + 64 && status(&runner, world.id(), "t").open <= open + more);
    }
    runner.set_paused(world.id(), "t", false, 1).expect("the trigger");
    wait_until_handled(&world, &runner);
    wait_until(|| {
        runner.replay(world.id(), "t", None).expect("the trigger");
        status(&runner, world.id(), "t").dead_letters == 0
    });
    let mut first = HashMap::new();
    let seen = world.seen();
    seen.iter().for_each(|(key, value, version)| drop(first.insert((key.clone(), *version), value.clone())));
    assert_eq!(first.len(), made.len(), "each change has been handled");
}

/// A batch that takes more than its call's budget is killed, however often it is tried: smaller ones are found that
/// are not, no change is given up, and most calls fit.
#[test]
fn batches_become_as_large_as_their_calls_budget_allows() {
    const FITS: usize = 5;
    let world = World::new();
    let (killed, full) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (kills, fulls) = (Arc::clone(&killed), Arc::clone(&full));
    let runner = world.start(Arc::new(move |_, args| {
        let changes = Changes::decode(args).expect("changes").len();
        if changes > FITS {
            kills.fetch_add(1, Ordering::SeqCst);
            return RpcStatus::Killed;
        }
        fulls.fetch_add(u64::from(changes >= FITS - 1), Ordering::SeqCst);
        RpcStatus::Ok
    }));
    let large = TriggerDefinition { retries: 0, batch: Some(64), ..spec("t") };
    runner.create(&world.view(), large, 1).expect("created");
    runner.set_paused(world.id(), "t", true, 1).expect("the trigger");
    let made = world.write(&mut SmallRng::seed_from_u64(6), 3_500);
    runner.set_paused(world.id(), "t", false, 1).expect("the trigger");
    wait_until_handled(&world, &runner);
    assert_complete(&made, &world.seen());
    let status = status(&runner, world.id(), "t");
    assert_eq!((status.calls.succeeded, status.dead_letters), (made.len() as u64, 0));
    let (killed, full) = (killed.load(Ordering::SeqCst), full.load(Ordering::SeqCst));
    assert!(killed < full, "{killed} calls were killed, {full} had about as many changes as fit");
}

#[test]
fn a_schedule_is_due_again_and_again_and_not_while_its_call_is_open() {
    let world = World::new();
    let behaviour: Behaviour = Arc::new(|number, _| if number < 2 { RpcStatus::Overloaded } else { RpcStatus::Ok });
    let runner = world.start(behaviour);
    let now_ms = clock_ms();
    let every =
        |every: &str| TriggerDefinition { every: Some(every.into()), table: None, args: "all".into(), ..spec("t") };
    runner.create(&world.view(), every("100ms"), now_ms).expect("created");
    let yearly = TriggerDefinition { every: None, cron: Some("0 0 1 1 *".into()), ..every("1s") };
    runner.create(&world.view(), TriggerDefinition { name: "yearly".into(), ..yearly }, now_ms).expect("created");
    wait_until(|| status(&runner, world.id(), "t").calls.succeeded >= 3);
    assert!(world.succeeded.lock().iter().all(|args| args == b"all"));
    assert_eq!(status(&runner, world.id(), "t").calls.not_run, 2);
    let yearly = status(&runner, world.id(), "yearly");
    assert!(yearly.calls == TriggerCounts::default() && yearly.next_due_ms.is_some_and(|due_ms| due_ms > now_ms));
    runner.set_paused(world.id(), "t", true, clock_ms()).expect("the trigger");
    wait_until(|| status(&runner, world.id(), "t").open == 0);
    let calls = world.calls.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(world.calls.load(Ordering::SeqCst), calls, "it is paused");
    // It stays so over a restart.
    drop(runner);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    assert!(matches!(status(&runner, world.id(), "t").phase, TriggerPhase::Paused(_)));
    assert!(matches!(runner.replay(world.id(), "t", Some(0)), Err(TriggerError::NoPositions(_))));
}

#[test]
fn what_cannot_be_a_trigger_is_refused_and_limits_hold() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    let create = |spec: TriggerDefinition| runner.create(&world.view(), spec, 1).map(drop);
    let of = |table: &str| TriggerDefinition { table: Some(table.into()), ..spec("t") };
    assert_eq!(create(of("memory")), Err(TriggerError::NotLogged("memory".into())));
    assert_eq!(create(of("other")), Err(TriggerError::UnknownTable("other".into())));
    assert!(matches!(create(TriggerDefinition { table: None, ..spec("t") }), Err(TriggerError::Invalid(_))));
    create(spec("t")).expect("created");
    assert_eq!(create(spec("t")), Err(TriggerError::Exists("t".into())));
    for number in 1..TRIGGERS_PER_TENANT {
        create(spec(&format!("t{number}"))).expect("there is room");
    }
    assert!(matches!(create(spec("more")), Err(TriggerError::TooMany(_))));
    assert_eq!(runner.remove(world.id(), "more"), Err(TriggerError::Unknown("more".into())));
    runner.remove(world.id(), "t").expect("it was there");
    // Those of a tenant that is gone are none of another one's that gets its name.
    world.directory.delete_tenant("shop").expect("the tenant");
    let id = world.directory.create_tenant(NewTenant::named("shop")).expect("there is room").0.tenant.id;
    wait_until(|| runner.list(id).is_empty());
    drop(runner);
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    wait_until(|| runner.list(id).is_empty());
}

/// Sweeps a table of the tenant to its end.
fn sweep(world: &World, table: &str, now_ms: u64) {
    let (view, participant) = (world.view(), world.directory.participant());
    let table = &view.table_by_name(table).expect("the table").table;
    for _ in 0..1_000 {
        table.sweep(&participant, now_ms, 1 << 16);
        if table.is_swept() {
            return;
        }
    }
    panic!("a small table is swept soon");
}

/// Writes a record that expires at 100.
fn write_expiring(world: &World, table: &str, key: &[u8]) {
    let (view, participant) = (world.view(), world.directory.participant());
    let table = &view.table_by_name(table).expect("the table").table;
    let write = WriteOptions { expires_at_ms: 100, ..WriteOptions::default() };
    table.put(&participant, table.hash(key), key, b"v", &write, 1).expect("room");
}

#[test]
fn expiries_are_changes_of_tables_whose_triggers_name_them_and_of_no_others() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    let (is_watched, id) = (|| world.view().table_by_name("items").expect("the table").table.logs_expiry(), world.id());
    runner.create(&world.view(), TriggerDefinition { name: "all".into(), ..spec("t") }, 1).expect("created");
    assert!(!is_watched(), "a trigger for all changes is none for expiries");
    let expiries = |name: &str| TriggerDefinition { ops: vec![TriggerOp::Expire], ..spec(name) };
    runner.create(&world.view(), expiries("t"), 1).expect("created");
    runner.create(&world.view(), expiries("second"), 1).expect("created");
    assert!(is_watched());
    runner.remove(id, "all").expect("it was there");
    runner.remove(id, "second").expect("it was there");
    assert!(is_watched(), "one of two is left");
    world.succeeded.lock().clear();
    write_expiring(&world, "items", b"session");
    sweep(&world, "items", 99);
    sweep(&world, "items", 100);
    wait_until_handled(&world, &runner);
    let succeeded = world.succeeded.lock().clone();
    let expired: Vec<Change<'_>> = succeeded.iter().map(|args| Change::decode(args).expect("a change")).collect();
    let shown = |change: &Change<'_>| (change.op, change.key.to_vec(), change.value.len(), change.expires_at_ms);
    assert_eq!(expired.iter().map(shown).collect::<Vec<_>>(), [(ChangeOp::Expire, b"session".to_vec(), 0, 100)]);

    // A table of the same name is asked as well, and the journal of the directory has both.
    world.directory.drop_table("shop", "items").expect("the table");
    let again = NewTable { durability: Some(TableDurability::Interval), ..NewTable::named("items") };
    world.directory.create_table("shop", again).expect("there is room");
    wait_until(is_watched);
    // What a manifest changes counts as well.
    let without = TriggerDefinition { ops: vec![TriggerOp::Put], ..spec("t") };
    assert_eq!(runner.declare(&world.view(), without, 1), Ok(DeclaredTrigger::Changed));
    assert!(!is_watched());
    assert_eq!(runner.declare(&world.view(), expiries("t"), 1), Ok(DeclaredTrigger::Changed));
    assert_eq!(runner.declare(&world.view(), expiries("t"), 1), Ok(DeclaredTrigger::Unchanged));
    assert!(is_watched());
    runner.remove(id, "t").expect("it was there");
    assert!(!is_watched(), "nobody is left");
    // A reader of the feed asks for itself.
    world.directory.watch_expiry("shop", "items", ExpiryWatcher::Feed, true).expect("the table");
    runner.create(&world.view(), expiries("t"), 1).expect("created");
    runner.remove(id, "t").expect("it was there");
    assert!(is_watched());
    world.directory.watch_expiry("shop", "items", ExpiryWatcher::Feed, false).expect("the table");
    assert!(!is_watched());
}

/// A schedule that is due all the time.
fn often(name: &str) -> TriggerDefinition {
    TriggerDefinition { every: Some("100ms".into()), table: None, ..spec(name) }
}

/// While a file of one tenant waits for the disk, the calls of its triggers go on, and what is asked for by others and
/// changed by them does so, too.
#[test]
fn a_tenant_whose_files_wait_for_the_disk_holds_up_no_other_one() {
    let world = World::new();
    world.directory.create_tenant(NewTenant::named("other")).expect("there is room");
    let other = world.directory.snapshot().by_name("other").expect("the tenant").clone();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), often("slow"), 1).expect("created");
    let waits = runner.shared.store.find(world.id()).expect("it has a trigger");
    let turn = waits.take_turn();
    // All that another tenant may do, while the first one's turn is taken.
    let begun = status(&runner, world.id(), "slow").calls.succeeded;
    runner.create(&other, often("quick"), 1).expect("created");
    runner.set_paused(other.tenant.id, "quick", true, 1).expect("the trigger");
    runner.set_paused(other.tenant.id, "quick", false, 1).expect("the trigger");
    wait_until(|| status(&runner, other.tenant.id, "quick").calls.succeeded >= 3);
    let file = world.folder.path().join(format!("triggers/{}-quick.json", other.tenant.id));
    let written = std::fs::read(&file).expect("its file");
    wait_until(|| std::fs::read(&file).expect("its file") != written);
    assert!(runner.dead_letters(other.tenant.id, "quick").expect("the trigger").is_empty());
    runner.remove(other.tenant.id, "quick").expect("the trigger");
    assert!(!file.exists());
    // What the tenant itself asks for is answered, and its calls go on; what it changes waits.
    wait_until(|| status(&runner, world.id(), "slow").calls.succeeded >= begun + 3);
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| runner.set_paused(world.id(), "slow", true, 1));
        assert!(world.file("slow").exists());
        drop(turn);
        pause.join().expect("no panic").expect("the trigger");
    });
    assert!(matches!(status(&runner, world.id(), "slow").phase, TriggerPhase::Paused(_)));
}

/// A change of a trigger writes the file of that one, whatever others have, and what is removed stays so.
#[test]
fn a_change_of_a_trigger_writes_its_own_file_alone() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    let yearly = |name: &str| TriggerDefinition { cron: Some("0 0 1 1 *".into()), table: None, ..spec(name) };
    ["a", "b"].into_iter().for_each(|name| drop(runner.create(&world.view(), yearly(name), 1).expect("created")));
    let written = |name: &str| std::fs::metadata(world.file(name)).expect("its file").ino();
    let (first, second) = (written("a"), written("b"));
    runner.set_paused(world.id(), "b", true, 1).expect("the trigger");
    assert!(written("a") == first && written("b") != second, "a file is replaced when it is written");
    runner.remove(world.id(), "b").expect("the trigger");
    drop(runner);
    assert!(!world.file("b").exists());
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    assert_eq!(runner.list(world.id()).iter().map(|one| one.spec.name.as_str()).collect::<Vec<_>>(), ["a"]);
    // Those of a tenant that is gone go without a request, and count no more.
    let file = world.file("a");
    world.directory.delete_tenant("shop").expect("the tenant");
    wait_until(|| !file.exists() && runner.shared.store.len() == 0);
}

/// Sixteen tenants have all triggers that there may be, and none has more than its part of them.
#[test]
fn all_triggers_that_there_may_be_are_those_of_many_tenants() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    let yearly = |number: usize| TriggerDefinition {
        cron: Some("0 0 1 1 *".into()),
        table: None,
        ..spec(&format!("t{number}"))
    };
    let mut all = 0;
    for tenant in 0..17 {
        world.directory.create_tenant(NewTenant::named(&format!("tenant{tenant}"))).expect("there is room");
        let view = world.directory.snapshot().by_name(&format!("tenant{tenant}")).expect("the tenant").clone();
        let own = (0..=TRIGGERS_PER_TENANT).filter(|number| runner.create(&view, yearly(*number), 1).is_ok()).count();
        assert_eq!(own, if tenant < 16 { TRIGGERS_PER_TENANT } else { 0 });
        all += own;
    }
    assert_eq!(runner.shared.store.len(), all);
    let first = world.directory.snapshot().by_name("tenant0").expect("the tenant").clone();
    let last = world.directory.snapshot().by_name("tenant16").expect("the tenant").clone();
    assert!(matches!(runner.create(&last, yearly(0), 1), Err(TriggerError::TooMany(why)) if why.contains("server")));
    runner.remove_tenant(first.tenant.id);
    runner.create(&last, yearly(0), 1).expect("there is room again");
}

/// A trigger that is made just after its tenant is none of a tenant that is gone, however slow the runner's thread is.
#[test]
fn which_tenants_there_are_is_asked_while_no_trigger_can_be_made() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), often("t"), 1).expect("created");
    let kept = runner.shared.store.find(world.id()).expect("it has a trigger");
    let left = |name_now: Option<&str>| {
        runner.shared.store.drop_of_others(&kept, || {
            assert!(kept.stands_still(), "one that is made from here on would be dropped");
            name_now.map(str::to_owned)
        });
        runner.list(world.id()).len()
    };
    assert_eq!((left(Some("shop")), left(Some("another"))), (1, 0));
    runner.create(&world.view(), often("u"), 1).expect("created");
    assert_eq!(left(None), 0);
}

/// What the triggers of one server ask for says nothing about another one.
#[test]
fn servers_of_a_cluster_leave_each_others_expiries_alone() {
    let agreement: Arc<dyn DirectoryAgreement> = Arc::new(AgreedInMemory::default());
    let worlds = [World::new(), World::empty()];
    for world in &worlds {
        let found = AgreedImage::read(&*agreement, &Default::default()).expect("it answers");
        found.iter().for_each(|found| world.directory.restore(&found.image).expect("there is room"));
        world.directory.agree_with(&agreement, found.as_ref()).expect("it answers");
    }
    let new = NewTable { durability: Some(TableDurability::Interval), ..NewTable::named("others") };
    worlds[0].directory.create_table("shop", new).expect("there is room");
    worlds[1].directory.catch_up().expect("it answers");
    let runners = worlds.each_ref().map(|world| world.start(Arc::new(|_, _| RpcStatus::Ok)));
    let expiries = |name: &str, table: &str| {
        let (table, ops) = (Some(table.to_owned()), vec![TriggerOp::Expire]);
        TriggerDefinition { table, ops, ..spec(name) }
    };
    let watched = || {
        worlds.each_ref().map(|world| {
            world.directory.catch_up().expect("it answers");
            ["items", "others"].map(|name| world.view().table_by_name(name).expect("the table").table.logs_expiry())
        })
    };
    runners[0].create(&worlds[0].view(), expiries("t", "items"), 1).expect("created");
    runners[1].create(&worlds[1].view(), expiries("u", "others"), 1).expect("created");
    assert_eq!(watched(), [[true, false], [false, true]]);
    runners[0].remove(worlds[0].id(), "t").expect("it was there");
    assert_eq!(watched(), [[false, false], [false, true]]);
}
