//! A call under way is found at its line, in both tiers: where it computes, and where it waits for another extension.
//! A look changes nothing of what comes of it.

use super::*;

const NESTED: &str = r#"#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    match args {
        [b'>', inner @ ..] => ask(db, inner).await,
        b"spin" => spin(),
        _ => {
            yield_now().await;
            db.reply(b"inner")
        }
    }
}

async fn ask(db: Db<'_>, inner: &[u8]) -> Result<(), Error> {
    let reply = db.call("nested", inner).await?;
    db.reply(&reply)
}

#[inline(never)]
fn spin() -> Result<(), Error> {
    loop {
        core::hint::black_box(());
    }
}
"#;

/// The number of the line of the source that has this text.
fn line_of(text: &str) -> u32 {
    NESTED.lines().position(|line| line.contains(text)).unwrap() as u32 + 1
}

/// A world in which the extension is loaded under the name by which it calls itself.
fn world_with(library: Arc<ExtensionLibrary>) -> (World, Arc<LoadedExtension>) {
    let mut world = World::new();
    let nested = Arc::new(LoadedExtension::new("nested", 1, library, BudgetOverride::default()));
    let mut view = (*world.view).clone();
    view.extensions.insert("nested".into(), Arc::clone(&nested));
    world.view = Arc::new(view);
    (world, nested)
}

/// The source in both tiers.
fn libraries() -> [Arc<ExtensionLibrary>; 2] {
    let native = ExtensionLibrary::load(&compile("nested", NESTED), builder::api_fingerprint()).unwrap();
    [native, Arc::clone(&sandboxed("nested", NESTED).library)]
}

fn levels(world: &mut World, invocation: &mut InvocationHandle, with_places: bool) -> Vec<CallLevel> {
    let query = PositionQuery { now_ms: NOW_MS, is_cold: false, with_places };
    world.engine.positions(&world.participant, invocation, query)
}

/// What each level does, and whether it is in a line of these.
fn activities(levels: &[CallLevel], lines: &[u32]) -> Vec<(CallActivity, bool)> {
    let is_there = |level: &CallLevel| level.places.iter().any(|place| lines.contains(&place.line));
    levels.iter().map(|level| (level.activity, is_there(level))).collect()
}

#[test]
fn a_call_is_found_where_it_computes_and_where_it_waits_for_another_extension() {
    for library in libraries() {
        let (mut world, nested) = world_with(library);
        let budget = Budget { slice_us: 1_000, ..long() };
        let mut invocation = world.begin(&nested, b">spin", budget);
        let found = levels(&mut world, &mut invocation, true);
        assert_eq!((activities(&found, &[]), found[0].is_looked_at), (vec![(CallActivity::New, false)], false));
        assert_eq!(invocation.paused_ns(), 0);
        while world.poll(&mut invocation) != PollOutcome::Preempted {}
        let spin = line_of("fn spin");
        let lines = [spin, spin + 1, spin + 2];
        let expected = |is_there| [(CallActivity::SwitchedOut, is_there), (CallActivity::AwaitsCall, false)];
        for _ in 0..3 {
            let found = levels(&mut world, &mut invocation, true);
            assert_eq!(activities(&found, &lines), expected(true), "{found:?}");
            assert!(found[0].places.iter().any(|place| place.function.contains("spin")), "{found:?}");
            assert!(found[1].places.is_empty(), "nothing of a caller runs: {found:?}");
        }
        assert!(invocation.paused_ns() > 0);
        let looks = |levels: &[CallLevel]| levels.iter().filter(|level| level.is_looked_at).count();
        assert_eq!(looks(&levels(&mut world, &mut invocation, true)), 1, "of two levels, one has a stack");
        let without = levels(&mut world, &mut invocation, false);
        assert_eq!((activities(&without, &lines), looks(&without)), (expected(false).into(), 0), "nobody wanted them");
        assert_eq!(world.poll(&mut invocation), PollOutcome::Preempted, "it goes on");
        world.engine.finish(&world.participant, invocation);
    }
}

#[test]
fn a_call_ends_as_it_would_however_often_it_is_looked_at() {
    for library in libraries() {
        let (mut world, nested) = world_with(library);
        let mut invocation = world.begin(&nested, b">", long());
        let mut seen = Vec::new();
        let end = loop {
            match world.poll(&mut invocation) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => break end,
            }
            let found = levels(&mut world, &mut invocation, true);
            seen.push(found.iter().map(|level| level.activity).collect::<Vec<_>>());
        };
        assert_eq!((end, invocation.reply()), (PollOutcome::Done, &b"inner"[..]), "{seen:?}");
        let waits = |inner| vec![inner, CallActivity::AwaitsCall];
        assert_eq!(seen[..2], [waits(CallActivity::New), waits(CallActivity::Ready)], "{seen:?}");
        assert_eq!(nested.stats.read().killed_total(), 0);
        world.engine.finish(&world.participant, invocation);
    }
}
