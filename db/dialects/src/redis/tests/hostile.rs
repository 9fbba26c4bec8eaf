//! Clients that take too much: time of the worker, memory, attempts; and quotas in transactions.

use super::*;
use crate::limits::protocols::AUTH_FAILURES;
use crate::limits::redis::{
    ATOMIC_KEYS, PATTERN_STEPS, PATTERN_STEPS_PER_REQUEST, SINGLE_STEP_ARGS, TRANSACTION_WORK, WATCHED_BYTES,
};
use sandstorm_accounts::RequestSubject;
use sandstorm_catalog::QuotaChanges;

/// One turn of a worker: the used bytes, and the next action.
pub(super) fn turn(world: &World, client: &mut Client, input: &[u8]) -> (usize, NextAction, Vec<u8>) {
    let (used, next, out, _) = send_counted(world, client, input);
    (used, next, out)
}

/// The same, with its cost for the tenant, in requests.
fn send_counted(world: &World, client: &mut Client, input: &[u8]) -> (usize, NextAction, Vec<u8>, u64) {
    let (snapshot, mut out) = (world.directory.snapshot(), Vec::new());
    let context = world.context(&snapshot);
    let (used, next) = client.session.run(&context, input, &mut out);
    (used, next, out, context.requests.get().into())
}

#[test]
fn commands_that_take_long_let_others_have_their_turn() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let pairs: Vec<Vec<u8>> = (0..2_000).map(|n| format!("key:{n}").into_bytes()).collect();
    let all: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(pairs.iter().flat_map(|key| [&key[..], b"v"])).collect();
    assert_eq!(world.send(&mut client, &encoded(&all)).0, b"+OK\r\n");
    world.send(&mut client, &encoded(&[b"SETBIT", b"large", b"60000000", b"1"]));
    for line in ["KEYS nothing", "SCAN 0 COUNT 10000", "SETBIT large 1 1", "BITCOUNT large 0 -1 BIT"] {
        let pipeline = format!("{line}\r\n").repeat(64);
        let (used, next, _) = turn(&world, &mut client, pipeline.as_bytes());
        assert!(next == NextAction::Yield && used < pipeline.len() / 2, "{line}: {used} of {} bytes", pipeline.len());
    }
    let (used, _, _) = turn(&world, &mut client, "GET key:1\r\n".repeat(64).as_bytes());
    assert_eq!(used, 64 * "GET key:1\r\n".len(), "plain ones are run together");
}

#[test]
fn a_transaction_has_an_end() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let each = (8 << 20) / crate::limits::protocols::BYTES_PER_REQUEST as u32;
    let (last, most) = (8 * (8 << 20) - 1, TRANSACTION_WORK / each);
    world.typed(&mut client, &format!("SETBIT large {last} 1\nMULTI"));
    for _ in 0..most + 50 {
        world.typed(&mut client, "BITCOUNT large 0 -1");
    }
    let answer = world.typed(&mut client, "EXEC");
    assert!(answer.starts_with(&format!("*{}\r\n", most + 50)));
    let (run, refused) =
        (answer.matches("\r\n:").count(), answer.matches("-ERR the transaction takes too long").count());
    assert_eq!(run + refused, most as usize + 50);
    assert!(run >= most as usize && refused >= 40, "{run} were run, {refused} were not");
    assert_eq!(world.typed(&mut client, "PING"), "+PONG\r\n");
}

#[test]
fn what_a_connection_keeps_is_counted_and_bounded() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "MULTI");
    world.send(&mut client, &encoded(&[b"SET", b"a", &vec![b'x'; 1 << 20]]));
    assert!(client.session.used_bytes() > 1 << 20);
    world.typed(&mut client, "DISCARD");
    assert!(client.session.used_bytes() < 8 << 10);
    let keys: Vec<Vec<u8>> = (0..18).map(|n: u8| vec![b'a' + n; 60 << 10]).collect();
    let watch: Vec<&[u8]> = [&b"WATCH"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
    let (answer, _) = world.send(&mut client, &encoded(&watch));
    assert!(answer.starts_with(b"-ERR no more than"), "{}", String::from_utf8_lossy(&answer));
    assert!((WATCHED_BYTES / 2..2 * WATCHED_BYTES).contains(&client.session.used_bytes()));
    world.typed(&mut client, "UNWATCH");
    assert!(client.session.used_bytes() < 8 << 10);
    let part = [b"*1000000\r\n".as_slice(), &b"$0\r\n\r\n".repeat(500_000)].concat();
    let (_, next) = world.send(&mut client, &part);
    assert!(matches!(next, NextAction::NeedMore(_)) && client.session.used_bytes() >= 500_000 * 8);
}

#[test]
fn patterns_that_take_very_long_are_refused() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.send(&mut client, &encoded(&[b"SET", &[b'a'; 60_000], b"1"]));
    let pattern = [b"*".as_slice(), &[b'a'; 30_000], b"b"].concat();
    for sent in [encoded(&[b"KEYS", &pattern]), encoded(&[b"SCAN", b"0", b"MATCH", &pattern])] {
        let (answer, _) = world.send(&mut client, &sent);
        assert!(answer.starts_with(b"-ERR the pattern takes too long"), "{}", String::from_utf8_lossy(&answer));
    }
    let set = [b"*[".as_slice(), &vec![b'x'; 8 << 20], b"]"].concat();
    let (answer, _) = world.send(&mut client, &encoded(&[b"CONFIG", b"GET", &set]));
    assert_eq!(answer, b"*0\r\n");
}

#[test]
fn patterns_cost_what_they_take_and_several_take_no_more_than_one() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "PING");
    let set = [b"*[".as_slice(), &vec![b'9'; 1 << 20], b"]"].concat();
    let get: Vec<&[u8]> = [&b"CONFIG"[..], b"GET"].into_iter().chain([&set[..]; 8]).collect();
    let most = PATTERN_STEPS / PATTERN_STEPS_PER_REQUEST;
    let (_, _, _, requests) = send_counted(&world, &mut client, &encoded(&get));
    assert!((most / 2..most + 100).contains(&requests), "{requests} of {most}");
    let list = encoded(&[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", &set]);
    let (_, _, _, requests) = send_counted(&world, &mut client, &list);
    assert!((most / 2..most + 100).contains(&requests), "{requests} of {most}");
}

#[test]
fn keys_are_work_of_a_transaction() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let exists = [vec![&b"EXISTS"[..]], vec![&b"k"[..]; ATOMIC_KEYS / 2]].concat();
    world.typed(&mut client, "MULTI");
    for _ in 0..2 {
        assert_eq!(world.send(&mut client, &encoded(&exists)).0, b"+QUEUED\r\n");
    }
    // One more is too many, and refuses all.
    let answer = world.typed(&mut client, "GET k\nEXEC");
    assert!(answer.starts_with("-ERR a transaction happens at once: no more than 2000 commands and keys"), "{answer}");
    assert!(answer.contains("\r\n-EXECABORT"), "{answer}");
    world.typed(&mut client, "MULTI");
    world.send(&mut client, &encoded(&exists));
    assert_eq!(world.typed(&mut client, "EXEC"), format!("*1\r\n:0\r\n"));
    world.typed(&mut client, "MULTI");
    let answer = world.send(&mut client, &encoded(&[vec![&b"DEL"[..]], vec![&b"k"[..]; 100_000]].concat())).0;
    assert!(
        answer.starts_with(b"-ERR 'del' takes 2001 arguments at most here"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert!(world.typed(&mut client, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn what_is_stored_at_once_has_an_end() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let names: Vec<Vec<u8>> = (0..=ATOMIC_KEYS).map(|n| format!("k{n}").into_bytes()).collect();
    for command in [&b"MSET"[..], b"MSETNX"] {
        for (pairs, stored) in [(ATOMIC_KEYS + 1, false), (10 * ATOMIC_KEYS, false), (ATOMIC_KEYS, true)] {
            let keys = names.iter().cycle().take(pairs).flat_map(|key| [&key[..], b"v"]);
            let (answer, _) = world.send(&mut client, &encoded(&[command].into_iter().chain(keys).collect::<Vec<_>>()));
            let expected: &[u8] = if stored { if command == b"MSET" { b"+OK" } else { b":1" } } else { b"-ERR 'mset" };
            assert!(answer.starts_with(expected), "{pairs}: {}", String::from_utf8_lossy(&answer));
        }
        let large = vec![b'v'; 5 << 20];
        let (answer, _) = world.send(&mut client, &encoded(&[command, b"a", &large, b"b", &large]));
        assert!(answer.starts_with(b"-ERR 'mset"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(world.typed(&mut client, "EXISTS a\nEXISTS b\nFLUSHALL"), ":0\r\n:0\r\n+OK\r\n");
    }
}

#[test]
fn names_are_counted_and_what_is_said_of_them_has_an_end() {
    const NAMES: usize = 1_000_000;
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "PING");
    for words in [&["COMMAND", "INFO"][..], &["COMMAND", "DOCS"], &["COMMAND", "GETKEYS", "MGET"], &["INFO"]] {
        let named = |names: usize| {
            let words = words.iter().map(|word| word.as_bytes());
            encoded(&words.chain(std::iter::repeat_n(&b"getset"[..], names)).collect::<Vec<_>>())
        };
        let names = SINGLE_STEP_ARGS - words.len();
        let (_, _, answer, requests) = send_counted(&world, &mut client, &named(names));
        let least = names / if words.len() == 1 { crate::limits::redis::ARGS_PER_REQUEST } else { 1 };
        assert!(!answer.starts_with(b"-") && requests >= least as u64, "{words:?}: {requests}");
        for names in [names + 1, NAMES] {
            let answer = world.send(&mut client, &named(names)).0;
            let text = format!("-ERR '{}' takes {SINGLE_STEP_ARGS} arguments at most here", words[0].to_lowercase());
            assert!(answer.starts_with(text.as_bytes()), "{}", String::from_utf8_lossy(&answer));
        }
    }
}

#[test]
fn keys_of_a_transaction_are_counted_once() {
    let mut world = World { budget: u32::MAX, ..World::new() };
    let mut client = world.client(Some("shop"));
    let exists = encoded(&[vec![&b"EXISTS"[..]], vec![&b"k"[..]; 1_000]].concat());
    world.typed(&mut client, "PING");
    let alone = send_counted(&world, &mut client, &exists).3;
    world.typed(&mut client, "MULTI");
    let queued = send_counted(&world, &mut client, &exists).3;
    let (_, _, answer, run) = send_counted(&world, &mut client, b"EXEC\r\n");
    assert_eq!(answer, b"*1\r\n:0\r\n");
    assert!((1_000..1_100).contains(&alone) && queued < 100, "{alone}, {queued}");
    assert!((alone - 100..=alone + 2).contains(&run), "{run} of {alone}");
}

#[test]
fn a_reset_does_not_give_new_tries() {
    let mut world = World::new();
    let mut client = world.client(None);
    for tries in 1..=AUTH_FAILURES {
        assert_eq!(world.typed(&mut client, "RESET"), "+RESET\r\n");
        let (_, next) = world.send(&mut client, b"AUTH shop wrong\r\n");
        assert_eq!(next == NextAction::Close, tries == AUTH_FAILURES);
    }
}

#[test]
fn a_rate_refuses_a_transaction_as_a_whole() {
    let mut world = World::new();
    let quotas = QuotaChanges { requests_per_s: Some(200), ..QuotaChanges::default() };
    world.directory.set_quotas("shop", &quotas).expect("set");
    world.now_ms = Some(1_000_000);
    let mut client = world.client(Some("shop"));
    // A tenth of a second's requests may come at once: these five, but not the keys of the MSET on top.
    let keys = (0..30).map(|n| format!(" k{n} v")).collect::<String>();
    let answer = world.typed(&mut client, &format!("MULTI\nSET a 1\nMSET{keys}\nEXEC\nPING"));
    let expected = "-EXECABORT Transaction discarded because of: OVERQUOTA the tenant is over its quota requests_per_s";
    assert!(answer.contains(expected) && answer.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n-"), "{answer}");
    world.now_ms = Some(2_000_000);
    assert_eq!(world.typed(&mut client, "EXISTS a k0 k1\nPING"), ":0\r\n+PONG\r\n");
    // Commands were counted when they were queued: fourteen of twenty, and none twice.
    let sets = "SET b 1\n".repeat(12);
    assert_eq!(world.typed(&mut client, &format!("MULTI\n{sets}EXEC")).matches("+OK").count(), 13);
    world.now_ms = Some(2_500_000);
    // EXEC itself is one request too many: the transaction is over all the same.
    let mut over = world.typed(&mut client, "MULTI");
    while !over.contains("OVERQUOTA") {
        over = world.typed(&mut client, "SET a 1");
    }
    let answer = world.typed(&mut client, "EXEC");
    assert!(answer.starts_with("-EXECABORT Transaction discarded because of: OVERQUOTA"), "{answer}");
    world.now_ms = Some(3_000_000);
    assert_eq!(world.typed(&mut client, "GET a"), "$-1\r\n", "not queued");
}

#[test]
fn several_values_are_stored_or_none_of_them() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let long = vec![b'k'; (64 << 10) + 1];
    for command in [&b"MSET"[..], b"MSETNX"] {
        let (answer, _) = world.send(&mut client, &encoded(&[command, b"a", b"1", &long, b"2"]));
        assert!(answer.starts_with(b"-ERR "), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(world.typed(&mut client, "EXISTS a"), ":0\r\n");
    }
}

#[test]
fn what_took_long_is_told_to_its_tenant_alone() {
    // Here each timed command counts as slow.
    let mut world = World::new();
    world.directory.create_tenant(NewTenant::named("bank")).expect("a tenant");
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "CLIENT SETNAME me\nSLOWLOG RESET\nGET a\nKEYS a*\nSLOWLOG GET");
    let answer = world.typed(&mut client, "SLOWLOG GET 1");
    assert!(answer.contains("*2\r\n$4\r\nKEYS\r\n$2\r\na*\r\n$0\r\n\r\n$2\r\nme\r\n"), "{answer}");
    assert_eq!(world.typed(&mut client, "SLOWLOG LEN"), ":1\r\n", "GET is not timed");
    let mut other = world.client(Some("bank"));
    assert_eq!(world.typed(&mut other, "SLOWLOG LEN"), ":0\r\n");
    assert!(world.typed(&mut client, "CONFIG GET slowlog-*").contains("slowlog-max-len\r\n$3\r\n128\r\n"));
    assert_eq!(world.typed(&mut client, "SLOWLOG RESET\nSLOWLOG LEN"), "+OK\r\n:0\r\n");
}

#[test]
fn a_tenant_is_told_what_its_clients_read() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "SET a 1\nMGET a b c\nGET a");
    let answer = world.typed(&mut client, "INFO stats");
    assert!(answer.contains("keyspace_hits:2\r\nkeyspace_misses:2\r\n"), "{answer}");
}

#[test]
fn a_batch_that_ends_as_another_tenant_names_no_key_of_the_first() {
    let mut world = World::new();
    let new = NewTenant { token: Some("another-token-of-some-length".into()), ..NewTenant::named("other") };
    world.directory.create_tenant(new).expect("a tenant");
    let mut client = world.client(None);
    assert_eq!(world.typed(&mut client, &format!("AUTH shop {TOKEN}")), "+OK\r\n");
    client.session.begin_answers();
    assert_eq!(world.typed(&mut client, &format!("GET secret\nAUTH shop {TOKEN}")), "$-1\r\n+OK\r\n");
    assert_eq!(client.session.first_command().key_prefix(), b"secret", "it is the same tenant's");
    client.session.begin_answers();
    let both = world.typed(&mut client, "GET secret\nAUTH other another-token-of-some-length");
    assert_eq!(both, "$-1\r\n+OK\r\n");
    assert_eq!(client.session.first_command(), RequestSubject::of("redis"));
}
