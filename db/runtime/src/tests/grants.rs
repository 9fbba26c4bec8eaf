//! Host calls on granted tables: each checks what the grant allows at that moment, whatever the invocation began with.

use super::*;
use sandstorm_catalog::{GrantAccess, GrantIssuer};

/// Reads bob's table by name, then, after each yield, tries every operation on it, with calls on its own table in
/// between, and replies with the results.
const SOURCE: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn kind<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => String::from("Ok"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let own = db.table("numbers")?;
    let lent = db.table("bob/numbers")?;
    let borrowed = db.get(lent, b"k").await?.ok_or(Error::not_found("k"))?.value();
    for _ in 0..3 {
        yield_now().await;
        let mine = db.get(own, b"k").await?.ok_or(Error::not_found("k"))?.value();
        let reads = [
            kind(db.get(lent, b"k").await),
            kind(db.get_many(lent, &[b"k", b"l"]).await),
            kind(db.scan(lent, Cursor::default(), 5)),
        ];
        db.put(own, b"touched", b"").await?;
        let writes = [
            kind(db.put(lent, b"p", b"v").await),
            kind(db.increment(lent, b"n", 1).await),
            kind(db.delete(lent, b"d").await),
        ];
        let name = kind(db.table("bob/numbers"));
        db.reply(format!("{reads:?} {writes:?} {name} ").as_bytes())?;
        db.reply(mine)?;
        db.reply(borrowed)?;
        db.reply(b"\n")?;
    }
    Ok(())
}
"#;

#[test]
fn a_running_invocation_is_bound_by_what_a_grant_allows_now_and_keeps_what_it_has_read() {
    let mut world = World::new();
    let directory = Arc::clone(&world.shared.directory);
    let grant = |access| directory.grant("bob", "numbers", "ada", access, GrantIssuer::Owner).map(drop).unwrap();
    grant(GrantAccess::Read);
    for (tenant, value) in [("ada", b"own,"), ("bob", b"lent")] {
        world.view = world.shared.view(tenant);
        world.put(b"k", value);
    }
    world.view = world.shared.view("ada");
    let extension = compiled("lent", SOURCE);
    let mut invocation = world.begin(&extension, b"", Budget { slice_us: 100_000, total_us: 1_000_000, ..long() });
    // Reads do not yield, so that a poll goes from one yield to the next.
    let begun = world.engine.poll(&world.participant, &mut invocation, NOW_MS, false);
    assert_eq!((begun, invocation.reply().len()), (PollOutcome::Pending, 0));
    let mut lines = 0;
    let mut poll = |world: &mut World, expected: [&str; 3]| {
        let polled = world.engine.poll(&world.participant, &mut invocation, NOW_MS, false);
        let reply = String::from_utf8(invocation.reply().to_vec()).unwrap();
        let [reads, writes, name] = expected;
        let line = format!("{:?} {:?} {name} own,lent", [reads; 3], [writes; 3]);
        assert_eq!(
            reply.lines().nth(lines),
            Some(line.as_str()),
            "{polled:?} {}",
            String::from_utf8_lossy(invocation.text())
        );
        lines += 1;
        polled
    };
    assert_eq!(poll(&mut world, ["Ok", "ReadOnly", "Ok"]), PollOutcome::Pending);
    grant(GrantAccess::ReadWrite);
    assert_eq!(poll(&mut world, ["Ok", "Ok", "Ok"]), PollOutcome::Pending);
    // The table is gone, and its memory would be freed but for the invocation.
    directory.drop_table("bob", "numbers").unwrap();
    world.participant.quiescent();
    directory.reap();
    assert_eq!(poll(&mut world, ["UnknownTable"; 3]), PollOutcome::Done);
    world.engine.finish(&world.participant, invocation);
    let (end, _, text) = world.run(&extension, b"", long());
    assert_eq!((end, text.as_str()), (PollOutcome::Failed { code: 3 }, "the tenant has no table \"bob/numbers\""));
}
