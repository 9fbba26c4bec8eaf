//! What extensions of both tiers have beside their tables' reads and writes: checked arithmetic, random numbers, a
//! clock of microseconds, expiry, secrets, writes of many records, lines for the log.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

/// Both tiers' builds of a source.
fn both(name: &str, text: &str) -> [Arc<LoadedExtension>; 2] {
    let library = ExtensionLibrary::load(&compile(name, text), builder::api_fingerprint()).unwrap();
    [Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default())), sandboxed(name, text)]
}

const SUMS: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let number = args[1];
    let result = match args[0] {
        b'+' => number + 1,
        b'-' => number - 1,
        b'*' => number * 2,
        b'<' => 1 << number,
        b's' => [number, number].iter().sum(),
        b'n' => (-(number as i8)) as u8,
        _ => number.wrapping_add(1),
    };
    db.reply(&[result])
}
"#;

#[test]
fn what_overflows_is_a_kill_with_its_line_in_both_tiers() {
    let mut world = World::new();
    for extension in both("sums", SUMS) {
        let killed = [
            (b"+\xff", "attempt to add with overflow at src/lib.rs:6"),
            (b"-\x00", "attempt to subtract with overflow at src/lib.rs:7"),
            (b"*\x80", "attempt to multiply with overflow at src/lib.rs:8"),
            (b"<\x08", "attempt to shift left with overflow at src/lib.rs:9"),
            (b"s\x80", "attempt to add with overflow"),
            (b"n\x80", "attempt to negate with overflow at src/lib.rs:11"),
        ];
        for (args, expected) in killed {
            let (end, _, text) = world.run(&extension, args, long());
            assert_eq!(end, PollOutcome::Killed(KillCause::Panic), "{expected}");
            assert!(text.starts_with(expected), "{text}");
        }
        for (args, result) in [(b"+\xfe", 255), (b"-\x01", 0), (b"*\x7f", 254), (b"<\x07", 128), (b"w\xff", 0)] {
            let (end, reply, text) = world.run(&extension, args, long());
            assert_eq!((end, reply), (PollOutcome::Done, vec![result]), "{text}");
        }
    }
}

const CHANCE: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut bytes = [0; 3_000];
    db.random_bytes(&mut bytes);
    if bytes.chunks(50).any(|part| part.iter().all(|byte| *byte == 0)) || db.random_below(2) > 1 {
        return Err(Error::new("not random"));
    }
    db.reply(&db.random().to_le_bytes())?;
    db.reply(&db.now_us().to_le_bytes())
}
"#;

#[test]
fn random_numbers_differ_from_call_to_call_and_the_clock_is_the_machines() {
    let mut world = World::new();
    let mut seen = Vec::new();
    for extension in both("chance", CHANCE) {
        for _ in 0..20 {
            let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
            let (end, reply, text) = world.run(&extension, b"", long());
            let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
            assert_eq!(end, PollOutcome::Done, "{text}");
            let (number, now_us) = reply.split_at(8);
            let now_us = u64::from_le_bytes(now_us.try_into().unwrap());
            // A machine whose clock is set back meanwhile is not meant.
            assert!((before..=after).contains(&now_us) || after < before, "{before} {now_us} {after}");
            seen.push(number.to_vec());
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 40);
}

const LIFE: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    let left = db.ttl(db.table("numbers")?, key).await?;
    db.reply(&[left.is_some().into()])
}
"#;

#[test]
fn the_time_that_a_record_has_left_is_a_read_of_the_record() {
    let mut world = World::new();
    world.put(b"a", b"value");
    for extension in both("life", LIFE) {
        for (key, found) in [(b"a", 1), (b"b", 0)] {
            let mut invocation = world.begin(&extension, key, long());
            assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
            let trace = invocation.trace();
            assert_eq!((invocation.reply(), trace.reads, trace.read_bytes), (&[found][..], u64::from(found), 0));
            world.engine.finish(&world.participant, invocation);
        }
    }
}

const WRITES: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let table = db.table("sorted")?;
    let entries: Vec<([u8; 2], [u8; 1])> = (0..100_u16).map(|number| (number.to_be_bytes(), [7])).collect();
    db.put_many(table, &entries).await?;
    db.put(table, b"k", b"old").flags(9).expires_in_ms(60_000).await?;
    let ttl = db.ttl(table, b"k").await?;
    let in_time = matches!(ttl, Some(TimeToLive::Ms(59_000..)));
    db.reply(format!("{in_time} {:?} ", db.put(table, b"k", b"x").if_value(b"other").await.is_err()).as_bytes())?;
    db.put(table, b"k", b"new").if_value(b"old").flags(9).expires_in_ms(5).await?;
    db.reply(format!("{} {} ", db.touch(table, b"k", 0).await?, db.touch(table, b"none", 5).await?).as_bytes())?;
    let record = db.get(table, b"k").await?.ok_or("it is there")?;
    let (value, flags) = (record.value().to_vec(), record.flags());
    db.reply(format!("{value:?} {flags} {:?} {:?} ", db.ttl(table, b"k").await?, db.ttl(table, b"none").await?).as_bytes())?;
    let deleted = db.delete_range(table, &[0, 10], &[0, 90], 50).await?;
    let rest = db.delete_range(table, &[0, 10], &[0, 90], 50).await?;
    let many = db.delete_many(table, &[&[0, 1][..], &[0, 2], b"none"]).await?;
    db.reply(format!("{deleted} {rest} {many} {}", db.count(table, b"", b"").await?).as_bytes())?;
    db.delete_range(table, b"", b"", 1_000).await?;
    Ok(())
}
"#;

#[test]
fn records_are_written_and_deleted_by_the_hundred_and_their_expiry_is_read_and_changed() {
    let shared = SharedWorld::new();
    let sorted = NewTable { quota_bytes: Some(16 << 20), ordered: true, ..NewTable::named("sorted") };
    shared.directory.create_table("ada", sorted).unwrap();
    let mut world = World::on(shared, 0);
    for extension in both("writes", WRITES) {
        let (end, reply, text) = world.run(&extension, b"", long());
        assert_eq!(end, PollOutcome::Done, "{text}");
        let expected = "true true true false [110, 101, 119] 9 Some(Never) None 50 30 2 19";
        assert_eq!(String::from_utf8(reply).unwrap(), expected);
    }
}

const WRITES_OF_TRANSACTIONS: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
async fn write(db: Db<'_>, table: TableId) -> Result<(), Error> {
    let tx = db.transaction();
    let entries: Vec<([u8; 2], [u8; 1])> = (0..100_u16).map(|number| (number.to_be_bytes(), [7])).collect();
    tx.put_many(table, &entries)?;
    tx.put_with(table, b"own", b"new", 9, 60_000)?;
    let in_time = matches!(tx.ttl(table, b"own").await?, Some(TimeToLive::Ms(59_000..=60_000)));
    let own = (tx.touch(table, b"own", 0).await?, tx.ttl(table, b"own").await?);
    db.reply(format!("{in_time} {} {:?} ", own.0, own.1).as_bytes())?;
    let old = matches!(tx.ttl(table, b"old").await?, Some(TimeToLive::Ms(1..)));
    let (touched, none) = (tx.touch(table, b"old", 9_000_000).await?, tx.touch(table, b"none", 5).await?);
    let deleted = tx.delete_many(table, &[&[0, 1][..], &[0, 2], b"none", &[0, 1], b"gone"]).await?;
    let outside = (db.ttl(table, b"own").await?, db.count(table, b"", b"").await?);
    db.reply(format!("{old} {touched} {none} {deleted} {outside:?}").as_bytes())
}
/// The first time others touch the record that it has read.
async fn meet(db: Db<'_>, table: TableId) -> Result<(), Error> {
    let tx = db.transaction();
    let left = tx.ttl(table, b"old").await?;
    if db.delete(table, b"first").await? {
        db.touch(table, b"old", 0).await?;
    }
    let touched = tx.touch(table, b"large", 9_000_000).await?;
    db.reply(format!("{left:?} {touched}").as_bytes())
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("sorted")?;
    match args {
        b"before" => {
            db.delete_range(table, b"", b"", 1_000).await?;
            db.put(table, b"old", b"of the table").flags(7).expires_in_ms(500_000).await?;
            db.put(table, b"gone", b"").await?;
            db.put(table, b"large", &vec![5; 100_000]).flags(3).await?;
            db.put(table, b"first", b"").await.map(drop)
        }
        b"write" => write(db, table).await,
        b"meet" => meet(db, table).await,
        _ => {
            let old = db.get(table, b"old").await?.ok_or("it is there")?;
            let large = db.get(table, b"large").await?.ok_or("it is there")?;
            let own = db.get(table, b"own").await?.map(|record| record.flags());
            let is_whole = large.value().iter().all(|byte| *byte == 5) && large.value().len() == 100_000;
            let (bytes, flags) = (old.value().len(), [old.flags(), large.flags()]);
            db.reply(format!("{bytes} {} {own:?} {is_whole} {} ", flags[0], flags[1]).as_bytes())?;
            for key in [&b"old"[..], b"own", b"large", b"gone"] {
                db.reply(match db.ttl(table, key).await? {
                    Some(TimeToLive::Never) => b"never ",
                    Some(TimeToLive::Ms(8_000_000..)) => b"long ",
                    Some(_) => b"short ",
                    None => b"none ",
                })?;
            }
            db.reply(db.count(table, b"", b"").await?.to_string().as_bytes())
        }
    }
}
"#;

#[test]
fn transactions_touch_and_write_by_the_hundred_and_all_of_it_holds_at_their_commit() {
    let shared = SharedWorld::new();
    let sorted = NewTable { quota_bytes: Some(16 << 20), ordered: true, ..NewTable::named("sorted") };
    shared.directory.create_table("ada", sorted).unwrap();
    let mut world = World::on(shared, 0);
    for extension in both("transaction-writes", WRITES_OF_TRANSACTIONS) {
        let mut says = |args: &[u8], expected: &str| {
            let (end, reply, text) = world.run(&extension, args, long());
            assert_eq!(end, PollOutcome::Done, "{text}");
            assert_eq!(String::from_utf8(reply).unwrap(), expected);
        };
        says(b"before", "");
        says(b"write", "true true Some(Never) true true false 3 (None, 4)");
        // 100 of many, without two of them; `own`, `old`, `large` and `first`.
        says(b"look", "12 7 Some(9) true 3 long never never none 102");
        says(b"before", "");
        // It begins anew, and reads then what others have made of it.
        says(b"meet", "Some(Never) true");
        says(b"look", "12 7 None true 3 never none long never 3");
    }
}

const SECRETS: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    db.reply(&db.secret(core::str::from_utf8(args)?)?)
}
"#;

#[test]
fn code_reads_its_own_tenants_secrets() {
    let shared = SharedWorld::new();
    let long_one = vec![b's'; sandstorm_catalog::limits::SECRET_BYTES];
    shared.directory.set_secret("ada", "short", b"word", 0).unwrap();
    shared.directory.set_secret("ada", "long", &long_one, 0).unwrap();
    let mut world = World::on(shared, 0);
    for extension in both("secrets", SECRETS) {
        for (name, value) in [("short", &b"word"[..]), ("long", &long_one)] {
            assert_eq!(world.run(&extension, name.as_bytes(), long()).1, value, "{name}");
        }
        let (end, _, text) = world.run(&extension, b"none", long());
        let not_found = sandstorm_api::abi::STATUS_NOT_FOUND;
        assert_eq!(
            (end, &*text),
            (
                PollOutcome::Failed { code: not_found },
                "the tenant has no secret \"none\": `sandstorm secret set none` sets it"
            )
        );
    }
}

const LINES: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
fn counted(count: &mut u32) -> u32 {
    *count += 1;
    *count
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut count = 0;
    info!("{} bytes, {}", args.len(), counted(&mut count));
    debug!("{}", counted(&mut count));
    error!("bad {args:?}");
    if args == b"panic" {
        panic!("of the caller's making");
    }
    db.reply(&[count as u8])
}
"#;

#[test]
fn what_code_writes_is_in_its_tenants_log_even_if_it_is_killed_and_what_is_not_kept_is_not_computed() {
    let shared = SharedWorld::new();
    let mut world = World::on(Arc::clone(&shared), 0);
    let usage = Arc::clone(&world.view.tenant.usage);
    let read = |after: u64| {
        let all = sandstorm_accounts::LogFilter {
            after: Some(after),
            extension: None,
            level: sandstorm_accounts::LineLevel::Debug,
            call: None,
            limit: 100,
        };
        let page = usage.log.read(&all);
        let line = |line: &sandstorm_accounts::LogLine| format!("#{} {} {}", line.call, line.level.name(), line.text);
        (page.next, page.lines.iter().map(line).collect::<Vec<_>>())
    };
    let (mut after, mut call) = (0, 0);
    for extension in both("lines", LINES) {
        let (end, reply, text) = world.run(&extension, b"x", long());
        assert_eq!((end, reply), (PollOutcome::Done, vec![1]), "{text}: the argument of debug! is not computed");
        call += 1;
        let (next, lines) = read(after);
        assert_eq!(lines, [format!("#{call} info 1 bytes, 1"), format!("#{call} error bad [120]")]);
        let (end, ..) = world.run(&extension, b"panic", long());
        assert_eq!(end, PollOutcome::Killed(KillCause::Panic));
        call += 1;
        let (next, lines) = read(next);
        assert_eq!(lines.len(), 3, "{lines:?}");
        let killed = format!("#{call} error killed: of the caller's making at src/lib.rs:13");
        assert!(lines[2].starts_with(&killed), "{}", lines[2]);
        after = next;
    }
    usage.log.keep_debug_lines();
    for extension in both("lines", LINES) {
        assert_eq!(world.run(&extension, b"x", long()).1, [2]);
        call += 1;
        assert_eq!(read(after).1[1], format!("#{call} debug 2"));
        after = read(after).0;
    }
    assert_eq!(shared.view("bob").tenant.usage.log.level_number(), 3, "others' levels are their own");
}
