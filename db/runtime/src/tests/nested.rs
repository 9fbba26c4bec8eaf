//! Extensions that call each other: outcomes, the one budget, the one transaction, and what is left behind.

use super::*;
use sandstorm_api::abi::{STATUS_INVALID, STATUS_NOT_FOUND};
use sandstorm_api::limits::{CALL_BYTES, CALL_DEPTH};

const CALLS: &str = r#"#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("numbers")?;
    match args {
        b"echo" => db.reply(b"echo"),
        b"fail" => {
            db.transaction().put(table, b"lost", b"x")?;
            Err(Error::not_found("as asked"))
        }
        b"panic" => panic!("as asked"),
        b"memory" => db.reply(&vec![1; 1 << 30][..1]),
        b"spin" => loop {
            core::hint::black_box(());
        },
        b"long" => db.reply(&vec![b'x'; 300_000]),
        b"deep" => match db.call("callee", b"deep").await {
            Ok(reply) => db.reply(&[&reply[..], b"."].concat()),
            Err(error) => db.reply(error.text().as_bytes()),
        },
        b"add" => {
            let sum = db.transaction().increment(table, b"one", 1).await?;
            db.reply(sum.to_string().as_bytes())
        }
        b"add with a yield" => {
            let sum = db.transaction().increment(table, b"one", 1).await?;
            yield_now().await;
            db.reply(sum.to_string().as_bytes())
        }
        b"read, and fail" => {
            let found = db.transaction().get(table, b"one").await?.map_or(0, |record| record.value().len());
            yield_now().await;
            yield_now().await;
            Err(Error::new(found.to_string()))
        }
        [b'+', inner @ ..] => {
            let tx = db.transaction();
            let first = tx.increment(table, b"one", 1).await?;
            let second = db.call("callee", inner).await?;
            let third = tx.increment(table, b"one", 1).await?;
            db.reply(format!("{first} {} {third}", String::from_utf8_lossy(&second)).as_bytes())
        }
        [b'-', inner @ ..] => {
            db.call("callee", inner).await?;
            Err(Error::new("after all"))
        }
        [b'2', inner @ ..] => {
            let (first, second) = (db.call("callee", inner).await?, db.call("callee", inner).await?);
            db.reply(&[first, second].concat())
        }
        [b'?', inner @ ..] => db.reply(&db.call("nowhere", inner).await?),
        [b'>', inner @ ..] => match db.call("callee", inner).await {
            Ok(reply) => db.reply(&reply),
            Err(error) => db.reply(format!("{:?}: {}", error.kind(), error.text()).as_bytes()),
        },
        _ => Err(Error::invalid("what?")),
    }
}
"#;

/// The source in both tiers.
fn libraries() -> &'static [Arc<ExtensionLibrary>; 2] {
    static BUILT: OnceLock<[Arc<ExtensionLibrary>; 2]> = OnceLock::new();
    BUILT.get_or_init(|| {
        let native = ExtensionLibrary::load(&compile("calls", CALLS), builder::api_fingerprint()).unwrap();
        [native, Arc::clone(&sandboxed("calls", CALLS).library)]
    })
}

/// A world in which `callee` is loaded, of these tiers; caller and callee.
fn world_of(caller: usize, callee: usize) -> (World, Arc<LoadedExtension>, Arc<LoadedExtension>) {
    let mut world = World::new();
    let load = |name: &str, tier: usize| {
        Arc::new(LoadedExtension::new(name, 7, Arc::clone(&libraries()[tier]), BudgetOverride::default()))
    };
    let (caller, callee) = (load("caller", caller), load("callee", callee));
    let mut view = (*world.view).clone();
    view.extensions.insert("callee".into(), Arc::clone(&callee));
    world.view = Arc::new(view);
    (world, caller, callee)
}

/// What the tenant's invocations have, once ended ones have given theirs back.
fn memory_bytes(world: &mut World) -> u64 {
    while world.engine.tidy() {}
    world.view.tenant.usage.invocation_memory_bytes()
}

const TIERS: [(usize, usize); 4] = [(0, 0), (1, 1), (0, 1), (1, 0)];

fn one(world: &World) -> Option<String> {
    let (table, guard) = (&world.table().table, world.participant.guard());
    let found = table.get(&guard, table.hash(b"one"), b"one", NOW_MS);
    found.map(|record| String::from_utf8(record.value().to_vec()).unwrap())
}

#[test]
fn a_callee_answers_or_fails_or_is_killed_and_its_caller_goes_on() {
    for (caller, callee) in TIERS {
        let (mut world, caller, callee) = world_of(caller, callee);
        let said = |world: &mut World, args: &[u8]| {
            let (end, reply, text) = world.run(&caller, args, long());
            assert_eq!(end, PollOutcome::Done, "{text}");
            String::from_utf8(reply).unwrap()
        };
        assert_eq!(said(&mut world, b">echo"), "echo");
        assert_eq!(said(&mut world, b"2echo"), "echoecho");
        assert_eq!(said(&mut world, b">fail"), "NotFound: callee: as asked");
        assert!(
            said(&mut world, b">panic").starts_with("Killed: callee: the server ended it: as asked at src/lib.rs:12")
        );
        assert!(said(&mut world, b">memory").starts_with("Killed: callee: the server ended it: "));
        assert!(said(&mut world, b">long").starts_with("TooLarge: callee: "));
        assert!(said(&mut world, b">nonsense").starts_with("Invalid: callee: what?"));
        let counts = callee.stats.read();
        assert_eq!((counts.ok, counts.failed), (3, 3), "the callee's calls are its own");
        let latency = callee.latency.read();
        let ended = counts.ok + counts.failed + counts.killed_total();
        assert_eq!(
            (latency.total.count(), latency.service.count()),
            (ended, ended),
            "and so is the time that each took"
        );
        assert!(latency.service.sum_ns > 0 && latency.service.sum_ns <= latency.total.sum_ns, "{latency:?}");
        assert_eq!((counts.killed_total(), world.view.tenant.usage.kills().len()), (2, 2), "and its kills are listed");
        let (end, _, text) = world.run(&caller, b"?x", long());
        let unknown = "nowhere: the tenant has no extension of this name";
        assert_eq!((end, &*text), (PollOutcome::Failed { code: STATUS_NOT_FOUND }, unknown));
        assert_eq!(memory_bytes(&mut world), 0, "nothing is left behind");
        // One that had given back more than it had would have a huge number.
        assert_eq!([caller.memory.units(), callee.memory.units()], [0; 2], "nor counted any more");
    }
}

#[test]
fn calls_in_a_circle_end_at_the_depth_and_long_arguments_are_refused() {
    for (caller, callee) in TIERS {
        let (mut world, caller, _) = world_of(caller, callee);
        let (end, reply, text) = world.run(&caller, b"deep", long());
        assert_eq!(end, PollOutcome::Done, "{text}");
        let expected = "callee: extensions call each other 8 deep at most";
        assert_eq!(String::from_utf8(reply).unwrap(), [expected, &".".repeat(CALL_DEPTH as usize)].concat());
        let long_args = vec![b'>'; CALL_BYTES + 2];
        let (_, reply, _) = world.run(&caller, &long_args, long());
        assert!(reply.starts_with(b"TooLarge: the arguments of a call"), "{}", String::from_utf8_lossy(&reply));
        let refused = Error::of(&mut world, &caller, b"+nonsense");
        assert_eq!(refused, (STATUS_INVALID, "callee: what?".to_owned()));
    }
}

/// How calls fail.
struct Error;

impl Error {
    fn of(world: &mut World, caller: &Arc<LoadedExtension>, args: &[u8]) -> (u32, String) {
        match world.run(caller, args, long()) {
            (PollOutcome::Failed { code }, _, text) => (code, text),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_callee_computes_on_its_callers_budget_and_both_end_with_it() {
    for (caller, callee) in TIERS {
        let (mut world, caller, callee) = world_of(caller, callee);
        let budget = Budget { slice_us: 200, total_us: 3_000, ..Budget::default() };
        let mut invocation = world.begin(&caller, b">spin", budget);
        let end = world.complete(&mut invocation);
        let text = String::from_utf8(invocation.text().to_vec()).unwrap();
        assert_eq!(end, PollOutcome::Killed(KillCause::TotalBudget), "{text}");
        assert!(text.contains("in the extension \"callee\" that it called"), "{text}");
        assert!(invocation.trace().switches > 0, "others had their turns meanwhile");
        world.engine.finish(&world.participant, invocation);
        assert_eq!(callee.stats.read().killed_total(), 1);
        // One that is ended from outside while its callee is switched out.
        let mut invocation = world.begin(&caller, b">>spin", budget);
        while world.poll(&mut invocation) != PollOutcome::Preempted {}
        assert!(invocation.is_preempted());
        world.engine.finish(&world.participant, invocation);
        assert_eq!(memory_bytes(&mut world), 0, "nothing is left behind");
    }
}

#[test]
fn a_callee_is_part_of_the_transaction_whoever_began_it() {
    for (caller, callee) in TIERS {
        let (mut world, caller, _) = world_of(caller, callee);
        world.put(b"one", b"0");
        let (end, reply, text) = world.run(&caller, b"+add", long());
        assert_eq!((end, &*reply), (PollOutcome::Done, &b"1 2 3"[..]), "{text}");
        assert_eq!(one(&world).as_deref(), Some("3"));
        let (_, reply, text) = world.run(&caller, b"++add", long());
        assert_eq!((&*reply, one(&world).as_deref()), (&b"4 5 6 7 8"[..], Some("8")), "{text}");
        let (_, reply, text) = world.run(&caller, b">>add", long());
        assert_eq!(
            (&*reply, one(&world).as_deref()),
            (&b"9"[..], Some("9")),
            "none but the innermost began one: {text}"
        );
        let (end, ..) = world.run(&caller, b"-add", long());
        assert_eq!((end, one(&world).as_deref()), (PollOutcome::Failed { code: 100 }, Some("9")), "all or nothing");
        let (_, reply, _) = world.run(&caller, b">-add", long());
        assert_eq!(&*reply, b"Other: callee: after all");
        assert_eq!(one(&world).as_deref(), Some("9"), "what a failed callee's callee wrote is dropped with it");
        let (_, reply, _) = world.run(&caller, b">fail", long());
        assert!(reply.starts_with(b"NotFound"));
        let (table, guard) = (&world.table().table, world.participant.guard());
        assert!(table.get(&guard, table.hash(b"lost"), b"lost", NOW_MS).is_none());
    }
}

#[test]
fn writes_of_others_between_begin_all_anew_wherever_they_are_met() {
    for (caller, callee) in TIERS {
        let (mut world, caller, _) = world_of(caller, callee);
        world.put(b"one", b"0");
        for args in [&b"+add with a yield"[..], b">+add", b"+>add with a yield"] {
            let mut invocation = world.begin(&caller, args, long());
            let mut polls = 0;
            let end = loop {
                if polls == 4 {
                    world.put(b"one", b"100");
                }
                polls += 1;
                match world.poll(&mut invocation) {
                    PollOutcome::Pending | PollOutcome::Preempted => {}
                    end => break end,
                }
            };
            assert_eq!(end, PollOutcome::Done, "{}", String::from_utf8_lossy(invocation.text()));
            let reply = String::from_utf8(invocation.reply().to_vec()).unwrap();
            assert!(polls > 4 && reply == "101 102 103", "{polls} polls, {reply}");
            assert_eq!(one(&world).as_deref(), Some("103"));
            world.engine.finish(&world.participant, invocation);
            world.put(b"one", b"0");
        }
        // Here the callee itself finds it, since it fails.
        let mut invocation = world.begin(&caller, b">read, and fail", long());
        let mut yields = 0;
        loop {
            match world.poll(&mut invocation) {
                PollOutcome::Pending => yields += 1,
                // A busy machine switches it out anywhere.
                PollOutcome::Preempted => continue,
                _ => break,
            }
            if yields == 5 {
                world.put(b"one", b"1000000");
            }
        }
        assert_eq!(String::from_utf8_lossy(invocation.reply()), "Other: callee: 7", "what it read at last");
        assert_eq!(invocation.transactions().map(|counts| counts.retries), Some(1));
        world.engine.finish(&world.participant, invocation);
    }
}
