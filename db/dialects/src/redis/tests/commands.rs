//! Permissions, transactions and limits, by hand.

use sandstorm_net::rpc::RpcStatus;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::errors::CommandError;
use super::*;
use crate::limits::protocols::AUTH_FAILURES;
use crate::{InvocationResult, WantedDatabase};

/// Runs typed lines one after the other, and checks the answer of each.
fn check(world: &mut World, client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        assert_eq!(world.typed(client, line), expected.replace('\n', "\r\n"), "{line}");
    }
}

#[test]
fn an_unauthenticated_client_is_not_served() {
    let mut world = World::new();
    let mut client = world.client(None);
    check(
        &mut world,
        &mut client,
        &[
            ("GET a", "-NOAUTH Authentication required.\n"),
            ("PING", "-NOAUTH Authentication required.\n"),
            ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.\n"),
            ("AUTH shop wrong", "-WRONGPASS invalid username-password pair or user is disabled.\n"),
            (&format!("AUTH nobody {TOKEN}"), "-WRONGPASS invalid username-password pair or user is disabled.\n"),
            (&format!("AUTH shop {TOKEN}"), "+OK\n"),
            ("PING", "+PONG\n"),
            ("RESET", "+RESET\n"),
            ("PING", "-NOAUTH Authentication required.\n"),
            (&format!("AUTH {TOKEN}"), "+OK\n"),
            ("SET a 1", "+OK\n"),
        ],
    );
    world.directory.rotate_token("shop").expect("another token");
    let ended = (b"-NOAUTH Authentication required.\r\n".to_vec(), NextAction::Close);
    assert_eq!(world.send(&mut client, b"GET a\r\nPING\r\n"), ended, "it is told, and ends");
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "SET a 1");
    world.directory.delete_tenant("shop").expect("deleted");
    assert_eq!(world.send(&mut client, b"AUTH x y\r\n"), ended, "whatever it says next");
}

#[test]
fn a_token_of_the_same_tenant_changes_nothing_else() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "SELECT other\nSET a 1\nWATCH a");
    assert_eq!(world.typed(&mut client, &format!("AUTH shop {TOKEN}\nGET a")), "+OK\r\n$1\r\n1\r\n");
    let answer = world.typed(&mut client, "CLIENT INFO");
    assert!(answer.contains(" watch=1 "), "{answer}");
}

#[test]
fn no_answer_is_skipped_where_there_is_none() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    assert_eq!(world.typed(&mut client, "CLIENT REPLY SKIP\nPING\nPING"), "+PONG\r\n");
    assert_eq!(world.typed(&mut client, "CLIENT REPLY OFF\nCLIENT REPLY SKIP\nPING\nPING\nPING"), "");
    assert_eq!(world.typed(&mut client, "CLIENT REPLY ON\nPING"), "+OK\r\n+PONG\r\n");
}

#[test]
fn who_searches_for_a_token_loses_the_connection() {
    let mut world = World::new();
    let mut client = world.client(None);
    for tries in 1..=AUTH_FAILURES {
        let (answer, next) = world.send(&mut client, b"AUTH shop wrong\r\n");
        assert!(answer.starts_with(b"-WRONGPASS"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(matches!(next, NextAction::Close), tries == AUTH_FAILURES, "try {tries}");
    }
}

#[test]
fn tables_are_selected_by_number_and_by_name() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    check(
        &mut world,
        &mut client,
        &[
            ("SET a 1", "+OK\n"),
            ("SELECT 2", "+OK\n"),
            ("GET a", "$-1\n"),
            ("SELECT items", "+OK\n"),
            ("GET a", "$1\n1\n"),
            ("COPY a b DB 2", ":1\n"),
            ("SELECT other", "+OK\n"),
            ("GET b", "$1\n1\n"),
            ("SELECT 0", "+OK\n"),
            ("EXISTS a b", ":1\n"),
            ("SELECT 16", "-ERR DB index is out of range\n"),
            ("SELECT nothing", "-ERR invalid DB index: the tenant has no table of this name\n"),
            ("FLUSHALL", "+OK\n"),
            ("DBSIZE", ":0\n"),
        ],
    );
}

/// A client that insists on numbers gets its tables, but not in a transaction, which does not wait.
#[test]
fn a_database_is_made_when_it_is_selected() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let wanted = WantedDatabase { number: 3, like: Some(1) };
    assert_eq!(world.send(&mut client, b"SELECT 3\r\n"), (Vec::new(), NextAction::MakeDatabase(wanted)));
    let mut out = Vec::new();
    let full = InvocationResult { status: RpcStatus::Failed, number: 0, value: b"too many tables", cost: None };
    client.session.answered(&full, &mut out);
    assert_eq!(out, b"-ERR DB index is out of range: too many tables\r\n");
    let items = [("SET a items", "+OK\n"), ("DBSIZE", ":1\n")];
    check(&mut world, &mut client, &items);

    assert_eq!(world.send(&mut client, b"SELECT 3\r\n").1, NextAction::MakeDatabase(wanted));
    let new = NewTable { id: Some(3), quota_bytes: Some(16 << 20), ..NewTable::named(&wanted.table_name()) };
    world.directory.create_table("shop", new).expect("a table");
    out.clear();
    client.session.answered(&InvocationResult { status: RpcStatus::Ok, number: 0, value: b"", cost: None }, &mut out);
    assert_eq!(out, b"+OK\r\n");
    let there = [
        ("DBSIZE", ":0\n"),
        ("SET a db3", "+OK\n"),
        ("SELECT db3", "+OK\n"),
        ("GET a", "$3\ndb3\n"),
        ("SELECT 0", "+OK\n"),
        ("GET a", "$5\nitems\n"),
        ("MULTI\nSELECT 4\nSELECT 3\nEXEC", "+OK\n+QUEUED\n+QUEUED\n*2\n-ERR DB index is out of range\n+OK\n"),
    ];
    check(&mut world, &mut client, &there);
}

#[test]
fn what_expires_is_gone_at_its_moment() {
    let mut world = World::new();
    world.now_ms = Some(1_000_400);
    let mut client = world.client(Some("shop"));
    check(
        &mut world,
        &mut client,
        &[
            ("SET a 1 EX 10", "+OK\n"),
            ("PTTL a", ":10000\n"),
            ("EXPIRETIME a", ":1010\n"),
            ("PEXPIRETIME a", ":1010400\n"),
            ("EXPIRE a 20 LT", ":0\n"),
            ("EXPIRE a 20 GT", ":1\n"),
            ("TTL a", ":20\n"),
            ("TTL b", ":-2\n"),
            ("SET b 1", "+OK\n"),
            ("TTL b", ":-1\n"),
            ("EXPIRE b 10 GT", ":0\n"),
            ("EXPIRE b -1", ":1\n"),
            ("EXISTS a b", ":1\n"),
        ],
    );
    // It still exists in the last millisecond: it was stored at some moment of the first one.
    world.now_ms = Some(1_020_400);
    check(&mut world, &mut client, &[("GET a", "$1\n1\n"), ("PTTL a", ":0\n")]);
    world.now_ms = Some(1_020_401);
    check(&mut world, &mut client, &[("GET a", "$-1\n"), ("SETNX a 2", ":1\n"), ("TTL a", ":-1\n")]);
}

#[test]
fn every_command_is_on_the_page() {
    let page = include_str!("../../../../../docs/protocols.md");
    let words: Vec<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for spec in super::super::commands::COMMANDS {
        assert!(words.contains(&spec.name.to_uppercase().as_str()), "docs/protocols.md does not name {}", spec.name);
    }
}

#[test]
fn a_transaction_runs_if_what_it_watches_has_not_changed() {
    let mut world = World::new();
    let (mut one, mut two) = (world.client(Some("shop")), world.client(Some("shop")));
    check(
        &mut world,
        &mut one,
        &[
            (
                "SET a 1\nWATCH a b\nMULTI\nINCR a\nSELECT 2\nSET b 5\nFLUSHDB\nSET c 6\nCOPY c d DB 1",
                "+OK\n+OK\n+OK\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n",
            ),
            ("EXEC", "*6\n:2\n+OK\n+OK\n+OK\n+OK\n:1\n"),
            ("DBSIZE", ":1\n"),
            ("SELECT 1", "+OK\n"),
            ("MGET a d", "*2\n$1\n2\n$1\n6\n"),
            ("WATCH a", "+OK\n"),
        ],
    );
    check(&mut world, &mut two, &[("SET a 7", "+OK\n")]);
    check(
        &mut world,
        &mut one,
        &[
            ("MULTI\nSET a 8\nEXEC", "+OK\n+QUEUED\n*-1\n"),
            ("GET a", "$1\n7\n"),
            ("WATCH new\nUNWATCH\nSET new 1\nMULTI\nSET new 2\nEXEC", "+OK\n+OK\n+OK\n+OK\n+QUEUED\n*1\n+OK\n"),
            (
                "MULTI\nMULTI\nWATCH a\nNOSUCH\nEXEC",
                "+OK\n-ERR MULTI calls can not be nested\n-ERR WATCH inside MULTI is not allowed\n\
                 -ERR unknown command 'NOSUCH', with args beginning with: \n\
                 -EXECABORT Transaction discarded because of previous errors.\n",
            ),
            (
                "MULTI\nSET a x\nINCR a\nGET a\nEXEC",
                "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n*3\n+OK\n-ERR value is not an integer or out of range\n$1\nx\n",
            ),
            (
                "MULTI\nFCALL f 0\nEXEC",
                "+OK\n-ERR Command not allowed inside a transaction\n\
                 -EXECABORT Transaction discarded because of previous errors.\n",
            ),
            ("EXEC", "-ERR EXEC without MULTI\n"),
            ("DISCARD", "-ERR DISCARD without MULTI\n"),
        ],
    );
}

#[test]
fn a_scan_sees_every_key_and_cursors_are_exact_in_floating_point() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    for n in 0..500 {
        world.typed(&mut client, &format!("SET key:{n} v"));
    }
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    loop {
        let answer = world.typed(&mut client, &format!("SCAN {cursor} COUNT 7 MATCH key:*"));
        let mut lines = answer.split("\r\n");
        cursor = lines.nth(2).expect("a cursor").to_owned();
        seen.extend(lines.filter(|line| line.starts_with("key:")).map(str::to_owned));
        assert!(cursor.parse::<u64>().expect("a number") < 1 << 53);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 500);
    assert!(world.typed(&mut client, "RANDOMKEY").contains("key:"));
    assert!(world.typed(&mut client, "SCAN 0 TYPE list").ends_with("\r\n*0\r\n"));
    assert_eq!(world.typed(&mut client, "KEYS key:49?").matches("key:").count(), 10);
}

#[test]
fn what_no_extension_has_is_told() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    check(
        &mut world,
        &mut client,
        &[
            ("FCALL nothing 0", "-ERR Function not found\n"),
            ("FUNCTION LIST", "*0\n"),
            (
                "EVAL x 0",
                "-ERR unknown command 'EVAL', with args beginning with: 'x' '0' \
                 (no Lua here: push an extension, and call it with FCALL)\n",
            ),
        ],
    );
}

#[test]
fn hostile_input_is_refused_within_bounds() {
    let mut world = World::new();
    for (input, expected) in [
        (&b"*1\r\n$1073741825\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n!", ""),
        (b"*1\r\n!a\r\n", "-ERR Protocol error: expected '$', got '!'\r\n"),
    ] {
        let mut client = world.client(Some("shop"));
        let (out, next) = world.send(&mut client, input);
        assert_eq!(String::from_utf8_lossy(&out), expected);
        assert_eq!(next == NextAction::Close, !expected.is_empty());
    }
    let mut unauthenticated = world.client(None);
    let (out, next) = world.send(&mut unauthenticated, b"*11\r\n");
    assert_eq!(
        (out.as_slice(), next),
        (&b"-ERR Protocol error: unauthenticated multibulk length\r\n"[..], NextAction::Close)
    );
    // A million keys are answered; a large answer is not made.
    let mut client = world.client(Some("shop"));
    let keys: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain((0..1_000_000).map(|_| &b"k"[..])).collect();
    let (out, _) = world.send(&mut client, &encoded(&keys));
    assert!(out.starts_with(b"*1000000\r\n$-1\r\n") && out.len() == 10 + 5_000_000);
    world.send(&mut client, &encoded(&[b"SET", b"k", &vec![7; 4 << 20]]));
    // An answer of any length leaves as it is produced; in a transaction, which cannot stream it, its length is
    // limited.
    let (out, _) = world.send(&mut client, &encoded(&keys[..21]));
    assert!(out.starts_with(b"*20\r\n$4194304\r\n") && out.len() > 80 << 20);
    let sent = [encoded(&[b"MULTI"]), encoded(&keys[..21]), encoded(&[b"EXEC"])].concat();
    let (out, _) = world.send(&mut client, &sent);
    assert!(String::from_utf8_lossy(&out).contains("-ERR the answer would be longer") && out.len() < 1000);
    // Answers of a pipeline leave before more of it is run.
    let line = encoded(&[b"GET", b"k"]).repeat(64);
    client.input = line.clone();
    let snapshot = world.directory.snapshot();
    let counters = world.facts.metrics.worker(0).expect("a worker");
    let context = CommandContext {
        participant: &world.participant,
        snapshot: &snapshot,
        now_ms: 1,
        now_us: 1,
        worker: 0,
        counters,
        facts: &world.facts,
        requests: Default::default(),
        retired: 0,
        budget: world.budget,
    };
    let mut out = Vec::new();
    let (used, next) = client.session.run(&context, &line, &mut out);
    assert_eq!((used, next), (line.len() / 64, NextAction::Yield));
}

#[test]
fn a_command_on_many_keys_hashes_each_once_ahead_and_once_to_read_it() {
    const KEYS: u64 = 100;
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key{number}")).collect();
    for command in ["MGET", "EXISTS", "DEL"] {
        for key in &keys {
            world.typed(&mut client, &format!("SET {key} 1"));
        }
        crate::hashed::take();
        world.typed(&mut client, &format!("{command} {}", keys.join(" ")));
        let hashed = crate::hashed::take();
        // The first one also with the commands of its batch.
        assert!((2 * KEYS..=2 * KEYS + 1).contains(&hashed), "{command}: {hashed} hashes of {KEYS} keys");
    }
}

#[test]
fn a_full_table_and_one_whose_records_are_still_read_are_told_apart() {
    use sandstorm_store::StoreError;
    let text_of = |error: StoreError| CommandError::from(error).0.into_owned();
    assert_eq!(text_of(StoreError::OutOfMemory), "OOM command not allowed when used memory > 'maxmemory'.");
    let no_memory = text_of(StoreError::NoMemory);
    assert!(no_memory.starts_with("OOM the server's machine has no memory left"), "{no_memory}");
    let still_read = text_of(StoreError::ReclaimPressure);
    assert!(still_read.starts_with("OOM ") && still_read.ends_with("write again in a moment"), "{still_read}");
}

/// A worker's time may be a turn old when a command comes: relative times count from the clock.
#[test]
fn a_time_from_now_is_counted_from_the_clock_not_from_a_turn_ago() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let past = |world: &mut World, client: &mut Client, line: &str, old_ms: u64| {
        world.now_ms = Some(5_000_000 - old_ms);
        world.clock_ms = Some(5_000_000);
        world.typed(client, line)
    };
    for line in ["SET a 1 PX 20", "PSETEX a 20 1", "SET a 1 EX 1\nPEXPIRE a 20", "SET a 1\nGETEX a PX 20"] {
        for old_ms in [0, 1, 7] {
            past(&mut world, &mut client, line, old_ms);
            assert_eq!(past(&mut world, &mut client, "PTTL a", old_ms), ":20\r\n", "{line}: never more than was given");
            world.clock_ms = None;
            world.now_ms = Some(5_000_020);
            assert_eq!(world.typed(&mut client, "GET a"), "$1\r\n1\r\n", "{line}, {old_ms} ms old");
            world.now_ms = Some(5_000_021);
            assert_eq!(world.typed(&mut client, "GET a"), "$-1\r\n", "{line}, {old_ms} ms old");
        }
    }
    past(&mut world, &mut client, "SET a 1", 3);
    assert_eq!(past(&mut world, &mut client, "PEXPIRE a 0\nGET a", 3), ":1\r\n$-1\r\n");
}

/// Any write to a watched key, and its expiry, prevent a transaction: a model of Redis, with random steps.
#[test]
fn a_transaction_runs_if_and_only_if_nothing_happened_to_what_it_watches() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let (mut world, mut seen) = (World::new(), [0, 0]);
    let (mut one, mut two) = (world.client(Some("shop")), world.client(Some("shop")));
    let mut random = StdRng::seed_from_u64(18);
    // For each key: changes so far, and its expiry, if it exists.
    let mut model: [(u64, Option<u64>); 3] = [(0, None); 3];
    let mut now_ms = 1_000_000;
    for round in 0..4_000 {
        let watched: Vec<usize> = (0..3).filter(|_| random.random_ratio(1, 2)).collect();
        world.now_ms = Some(now_ms);
        let live = |(_, end): (u64, Option<u64>), now_ms| end.is_some_and(|end| end >= now_ms);
        let state = |model: &[(u64, Option<u64>); 3], now_ms| {
            watched.iter().map(|key| (model[*key].0, live(model[*key], now_ms))).collect::<Vec<_>>()
        };
        let before = state(&model, now_ms);
        for key in &watched {
            world.typed(&mut one, &format!("WATCH {}", KEYS[*key]));
        }
        let mut sent = Vec::new();
        for _ in 0..random.random_range(0..4) {
            let key = random.random_range(0..3);
            let there = live(model[key], now_ms);
            let (line, changes, end) = match random.random_range(0..8) {
                0 => (format!("SET {} 1", KEYS[key]), true, Some(u64::MAX)),
                1 => (format!("SET {} 1 PX 5", KEYS[key]), true, Some(now_ms + 5)),
                2 | 3 => (format!("DEL {}", KEYS[key]), there, None),
                4 => (format!("PEXPIRE {} 3", KEYS[key]), there, there.then_some(now_ms + 3)),
                5 => (format!("GET {}", KEYS[key]), false, model[key].1),
                6 => {
                    for one in &mut model {
                        *one = (one.0 + u64::from(live(*one, now_ms)), None);
                    }
                    ("FLUSHDB".to_owned(), false, None)
                }
                _ => {
                    now_ms += random.random_range(1..6);
                    world.now_ms = Some(now_ms);
                    (format!("EXISTS {}", KEYS[key]), false, model[key].1)
                }
            };
            model[key] = (model[key].0 + u64::from(changes), end);
            world.typed(if random.random() { &mut one } else { &mut two }, &line);
            sent.push(line);
        }
        let runs = before == state(&model, now_ms);
        let answer = world.typed(&mut one, "MULTI\nPING\nEXEC");
        let ran = answer.ends_with("*1\r\n+PONG\r\n");
        assert_eq!(ran, runs, "round {round}: {watched:?} {before:?}, {sent:?}: {answer}");
        seen[usize::from(ran)] += 1;
    }
    assert!(seen.iter().all(|times| *times > 500), "{seen:?}");
}

#[test]
fn http_ends_a_connection_before_what_follows_it_is_run() {
    let mut world = World::new();
    for first in ["POST / HTTP/1.1", "GET /x HTTP/1.1", "PUT / HTTP/1.1", "OPTIONS * HTTP/1.1", "host: a", "post"] {
        let mut client = world.client(Some("shop"));
        let sent = format!("{first}\r\nSET stolen 1\r\n");
        let (out, next) = world.send(&mut client, sent.as_bytes());
        let out = String::from_utf8_lossy(&out).into_owned();
        assert_eq!(
            (out.as_str(), next),
            ("-ERR this port does not speak HTTP; the connection is closed\r\n", NextAction::Close)
        );
        let mut other = world.client(Some("shop"));
        assert_eq!(world.typed(&mut other, "EXISTS stolen"), ":0\r\n", "{first}");
    }
    let mut client = world.client(Some("shop"));
    // Lines that a person may type, and any words in an array, are commands.
    assert_eq!(world.typed(&mut client, "SET /x 1\nGET /x\nGET HTTP/1.1"), "+OK\r\n$1\r\n1\r\n$-1\r\n");
    let (out, _) = world.send(&mut client, &encoded(&[b"GET", b"/x", b"HTTP/1.1"]));
    assert_eq!(String::from_utf8_lossy(&out), "-ERR wrong number of arguments for 'get' command\r\n");
    assert_eq!(world.send(&mut client, &encoded(&[b"GET", b"/x"])).0, b"$1\r\n1\r\n");
    let reason = sandstorm_metrics::ConnectionReason::Http as usize;
    let counted = world.facts.metrics.worker(0).expect("a worker").connections_refused[reason].get();
    assert_eq!((counted, sandstorm_metrics::CONNECTION_REASONS[reason]), (6, "http"));
}

#[test]
fn connections_of_a_tenant_list_and_end_each_other_and_no_one_elses() {
    let mut world = World::new();
    world.directory.create_tenant(NewTenant { open: true, ..NewTenant::named("other") }).expect("a tenant");
    let (mut one, mut two, mut third) =
        (world.client(Some("shop")), world.client(Some("shop")), world.client(Some("other")));
    world.typed(&mut one, "CLIENT SETNAME first");
    world.typed(&mut two, "SELECT 2\nMULTI\nGET a");
    world.typed(&mut third, "CLIENT SETNAME stranger");
    let listed = world.typed(&mut one, "CLIENT LIST");
    assert_eq!(listed.matches("id=").count(), 2, "{listed}");
    assert!(
        listed.contains(" name=first ") && listed.contains(" cmd=client user=shop ") && !listed.contains("stranger")
    );
    assert!(listed.contains(" flags=x db=2 ") && listed.contains(" multi=1 "), "{listed}");
    let id =
        |world: &mut World, client: &mut Client| world.typed(client, "CLIENT ID").trim().trim_matches(':').to_owned();
    let (first, unauthenticated) = (id(&mut world, &mut one), id(&mut world, &mut third));
    assert_eq!(
        world.typed(&mut one, &format!("CLIENT KILL ID {unauthenticated}\nCLIENT KILL USER other")),
        ":0\r\n-ERR No such user 'other'\r\n"
    );
    assert_eq!(world.typed(&mut one, &format!("CLIENT KILL ID {first}\nPING")), ":0\r\n+PONG\r\n", "it skips itself");
    assert_eq!(world.typed(&mut one, "CLIENT KILL TYPE normal"), ":1\r\n");
    assert_eq!(world.send(&mut two, b"EXEC\r\n"), (Vec::new(), NextAction::Close));
    drop(two);
    assert_eq!(world.typed(&mut one, "CLIENT LIST").matches("id=").count(), 1);
    assert_eq!(world.typed(&mut third, "PING"), "+PONG\r\n");
    let (out, next) = world.send(&mut one, format!("CLIENT KILL ID {first} SKIPME no\r\nPING\r\n").as_bytes());
    assert_eq!((out.as_slice(), next), (&b":1\r\n"[..], NextAction::Close));
}

#[test]
fn settings_that_hold_or_do_nothing_may_be_set_and_others_say_why_not() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    for line in [
        "CONFIG SET save \"\"",
        "CONFIG SET appendonly no",
        "CONFIG SET APPENDONLY No maxmemory-samples 5",
        "CONFIG SET timeout 0",
        "CONFIG SET notify-keyspace-events \"\"",
        "CONFIG SET slowlog-log-slower-than 0",
        "CONFIG SET latency-monitor-threshold 100",
        "CONFIG SET maxmemory-policy noeviction",
        "CONFIG SET maxmemory 268435456",
        "CONFIG RESETSTAT",
        "FUNCTION FLUSH",
        "SCRIPT FLUSH",
    ] {
        assert_eq!(world.typed(&mut client, line), "+OK\r\n", "{line}");
    }
    for (line, why) in [
        ("CONFIG SET save \"900 1\"", "a table is its durability"),
        ("CONFIG SET maxmemory 100", "(it is '268435456'): a table's memory is its quota"),
        ("CONFIG SET notify-keyspace-events KEA", "no publish and subscribe"),
        ("CONFIG SET maxmemory-samples 5 dir /etc", "the log of all tables is in"),
        ("CONFIG SET nosuch 1", "Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
        ("CONFIG SET hz 1 HZ 2", "duplicate parameter"),
        ("CONFIG SET hz 1 save", "wrong number of arguments for 'config|set' command"),
        ("CLIENT TRACKING ON", "send HELLO 3 first"),
        ("LPUSH a 1", "unknown command 'LPUSH', with args beginning with: 'a' '1' (no lists here"),
        ("SUBSCRIBE a", "no publish and subscribe"),
        ("FUNCTION DELETE x", "Library not found"),
        ("EVAL x 0", "no Lua here"),
        ("JSON.SET x $ 1", "no modules here"),
    ] {
        let answer = world.typed(&mut client, line);
        assert!(answer.starts_with('-') && answer.contains(why), "{line}: {answer}");
    }
}

#[test]
fn commands_are_counted_by_name_and_told_with_the_cpu_that_they_took() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, &"GET a\n".repeat(99));
    world.typed(&mut client, "SET a x\nINCR a\nGET\nMULTI\nGET a\nEXEC");
    let text_of = world.typed(&mut client, "INFO commandstats");
    let of = |name: &str| text_of.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(
        of("cmdstat_get:").starts_with("cmdstat_get:calls=100,usec=")
            && of("cmdstat_get:").contains("rejected_calls=1,failed_calls=0"),
        "{text_of}"
    );
    assert!(of("cmdstat_incr:").ends_with("rejected_calls=0,failed_calls=1"), "{text_of}");
    assert!(world.typed(&mut client, "INFO").contains("# Cpu\r\nused_cpu_sys:0.000000\r\nused_cpu_user:0."));
    assert!(!world.typed(&mut client, "INFO").contains("cmdstat_"));
    assert!(world.typed(&mut client, "CONFIG RESETSTAT\nINFO all").contains("cmdstat_info:calls=1,"));
    assert!(!world.typed(&mut client, "INFO everything").contains("cmdstat_get:"));
}

#[test]
fn what_would_take_long_is_refused_by_its_bound() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.send(&mut client, &encoded(&[b"SET", b"a", &[b'x'; 600]]));
    assert!(
        world
            .typed(&mut client, "LCS a a LEN")
            .starts_with("-ERR LCS takes the product of both lengths, which may be 262144")
    );
    world.typed(&mut client, "SETBIT large 67108863 1");
    assert_eq!(world.typed(&mut client, "BITOP AND b large large"), ":8388608\r\n");
    assert!(
        world
            .typed(&mut client, "BITOP AND b large large large")
            .starts_with("-ERR BITOP takes values of 16777216 bytes")
    );
    let many: Vec<&[u8]> =
        [&b"BITOP"[..], b"OR", b"b"].into_iter().chain(std::iter::repeat_n(&b"a"[..], 1_001)).collect();
    assert!(world.send(&mut client, &encoded(&many)).0.starts_with(b"-ERR BITOP takes 1000 source keys"));
    let steps = std::iter::repeat_n([&b"GET"[..], b"u8", b"0"], 4_097).flatten();
    let many: Vec<&[u8]> = [&b"BITFIELD"[..], b"a"].into_iter().chain(steps).collect();
    assert!(world.send(&mut client, &encoded(&many)).0.starts_with(b"-ERR BITFIELD takes 4096 operations"));
}

/// Clients with a cache of their own work, and their cached values are never stale: each is invalidated at once.
#[test]
fn a_tracked_connection_is_told_to_forget_each_key_behind_its_answer() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "HELLO 3\nMSET a 1 b 2");
    assert_eq!(world.typed(&mut client, "GET a"), "$1\r\n1\r\n");
    assert_eq!(world.typed(&mut client, "CLIENT TRACKING ON OPTIN\nCLIENT CACHING YES"), "+OK\r\n+OK\r\n");
    let forget = |keys: &str| format!(">2\r\n$10\r\ninvalidate\r\n{keys}");
    let (one, both) = (forget("*1\r\n$1\r\na\r\n"), forget("*2\r\n$1\r\na\r\n$1\r\nb\r\n"));
    assert_eq!(world.typed(&mut client, "GET a"), format!("$1\r\n1\r\n{one}"));
    assert_eq!(world.typed(&mut client, "MGET a b"), format!("*2\r\n$1\r\n1\r\n$1\r\n2\r\n{both}"));
    assert_eq!(world.typed(&mut client, "SET a 1\nPING"), "+OK\r\n+PONG\r\n");
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    let answer = world.typed(&mut client, "MULTI\nPTTL a\nGET b\nEXEC");
    assert_eq!(answer, format!("{queued}*2\r\n:-1\r\n$1\r\n2\r\n{both}"), "behind the whole of it");
    assert_eq!(world.typed(&mut client, "CLIENT TRACKING OFF\nGET a"), "+OK\r\n$1\r\n1\r\n");
}
