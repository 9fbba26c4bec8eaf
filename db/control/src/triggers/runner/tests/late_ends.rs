//! Promise: what ends late or was written of another log is taken for nothing else: a call of a trigger that was
//! removed, a replay of a letter that was discarded, a position of a log that is gone.

use sandstorm_server::workers::LocalCallResult;

use super::*;
use crate::checked_json::with_checksum;

/// The calls that were begun and are not ended yet, the oldest first.
type OpenCalls = Arc<Mutex<Vec<LocalCall>>>;

/// Starts triggers whose calls end when the test says so.
fn start_slow(world: &World) -> (TriggerRunner, OpenCalls) {
    let open = OpenCalls::default();
    let begun = Arc::clone(&open);
    let sink = move |_home: u32, calls: Vec<LocalCall>| begun.lock().extend(calls);
    let directory = Arc::clone(&world.directory);
    let runner =
        TriggerRunner::start(directory, Box::new(|_| {}), Some(world.folder.path()), CallSinks::here(Box::new(sink)));
    (runner.expect("started"), open)
}

/// Waits for so many open calls, and takes the oldest.
fn take(open: &OpenCalls, of: usize) -> LocalCall {
    wait_until(|| open.lock().len() == of);
    open.lock().remove(0)
}

fn end(call: LocalCall, status: RpcStatus) {
    (call.done)(LocalCallResult { status, number: 1, value: b"late".to_vec(), shown: 0, cost: None, ended: None });
}

fn put(world: &World, key: &[u8]) {
    let (participant, view) = (world.directory.participant(), world.view());
    let table = &view.table_by_name("items").expect("the table").table;
    table.put(&participant, table.hash(key), key, b"value", &WriteOptions::default(), 1).expect("room");
}

#[test]
fn a_call_of_a_removed_trigger_ends_none_of_the_next_one_with_its_name() {
    let world = World::new();
    let (runner, open) = start_slow(&world);
    runner.create(&world.view(), spec("t"), 1).expect("created");
    put(&world, b"key");
    let old = take(&open, 1);
    runner.remove(world.id(), "t").expect("the trigger");
    runner.create(&world.view(), spec("t"), 1).expect("created");
    put(&world, b"key");
    let new = take(&open, 1);
    end(old, RpcStatus::Ok);
    end(new, RpcStatus::Failed);
    // The call that failed is made again, and only then the change is handled.
    let again = take(&open, 1);
    assert_eq!(status(&runner, world.id(), "t").calls.succeeded, 0);
    end(again, RpcStatus::Ok);
    wait_until(|| status(&runner, world.id(), "t").calls.succeeded == 1);
}

#[test]
fn a_replay_of_a_discarded_letter_takes_no_later_letter_with_it() {
    let world = World::new();
    let (runner, open) = start_slow(&world);
    runner.create(&world.view(), TriggerDefinition { retries: 0, ..spec("t") }, 1).expect("created");
    put(&world, b"one");
    end(take(&open, 1), RpcStatus::Failed);
    let letters = || status(&runner, world.id(), "t").dead_letters;
    wait_until(|| letters() == 1);
    assert_eq!(runner.replay(world.id(), "t", None), Ok(1));
    let replayed = take(&open, 1);
    assert_eq!(runner.discard_letters(world.id(), "t"), Ok(1));
    put(&world, b"two");
    end(take(&open, 1), RpcStatus::Failed);
    wait_until(|| letters() == 1);
    end(replayed, RpcStatus::Ok);
    wait_until(|| status(&runner, world.id(), "t").open == 0);
    assert_eq!(letters(), 1, "that of another change");
    assert_eq!(runner.replay(world.id(), "t", None), Ok(1));
    end(take(&open, 1), RpcStatus::Ok);
    wait_until(|| letters() == 0);
}

#[test]
fn a_position_of_another_log_pauses_a_trigger_and_says_so() {
    let world = World::new();
    let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
    runner.create(&world.view(), spec("t"), 1).expect("created");
    let mut random = SmallRng::seed_from_u64(5);
    world.write(&mut random, 50);
    wait_until_handled(&world, &runner);
    runner.stop();
    drop(runner);
    let file = world.file("t");
    let written = std::fs::read_to_string(&file).expect("its file");
    let log = world.directory.change_log().expect("a log");
    let (written, _checksum) = written.trim_end().rsplit_once('\n').expect("two lines");
    let (id, position) = (format!("\"log_id\":{}", log.id()), format!("\"position\":{}", log.durable()));
    assert!(written.contains(&id) && written.contains(&position), "{written}");
    // As a log is that was salvaged or removed; and as one is that was restored to an earlier time.
    for other in [
        written.replace(&id, &format!("\"log_id\":{}", log.id() ^ 1)),
        written.replace(&position, &format!("\"position\":{}", log.durable() + 4_096)),
    ] {
        std::fs::write(&file, with_checksum(other.into_bytes())).expect("room");
        let runner = world.start(Arc::new(|_, _| RpcStatus::Ok));
        let paused = || match status(&runner, world.id(), "t").phase {
            TriggerPhase::Paused(why) => why,
            _ => String::new(),
        };
        wait_until(|| paused().contains("not the one"));
        world.succeeded.lock().clear();
        runner.set_paused(world.id(), "t", false, 1).expect("the trigger");
        let made = world.write(&mut random, 20);
        wait_until_handled(&world, &runner);
        assert_complete(&made, &world.seen());
    }
}
