//! By hand: who may what, transactions, bounds.

use sandstorm_net::rpc::Status;

use super::*;
use crate::limits::protocols::AUTH_FAILURES;
use crate::protocols::InvocationAnswer;

/// Lines that are typed one after the other, and what each is answered.
fn check(place: &mut Place, client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        assert_eq!(place.typed(client, line), expected.replace('\n', "\r\n"), "{line}");
    }
}

#[test]
fn nobody_is_served_who_has_not_shown_who_it_is() {
    let mut place = Place::new();
    let mut client = place.client(None);
    check(
        &mut place,
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
    place.directory.rotate_token("shop").expect("another token");
    let ended = (b"-NOAUTH Authentication required.\r\n".to_vec(), Next::Close);
    assert_eq!(place.say(&mut client, b"GET a\r\nPING\r\n"), ended, "it is told, and ends");
    let mut client = place.client(Some("shop"));
    place.typed(&mut client, "SET a 1");
    place.directory.delete_tenant("shop").expect("deleted");
    assert_eq!(place.say(&mut client, b"AUTH x y\r\n"), ended, "whatever it says next");
}

#[test]
fn a_token_of_the_same_tenant_changes_nothing_else() {
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    place.typed(&mut client, "SELECT other\nSET a 1\nWATCH a");
    assert_eq!(place.typed(&mut client, &format!("AUTH shop {TOKEN}\nGET a")), "+OK\r\n$1\r\n1\r\n");
    let answer = place.typed(&mut client, "CLIENT INFO");
    assert!(answer.contains(" watch=1 "), "{answer}");
}

#[test]
fn no_answer_is_skipped_where_there_is_none() {
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    assert_eq!(place.typed(&mut client, "CLIENT REPLY SKIP\nPING\nPING"), "+PONG\r\n");
    assert_eq!(place.typed(&mut client, "CLIENT REPLY OFF\nCLIENT REPLY SKIP\nPING\nPING\nPING"), "");
    assert_eq!(place.typed(&mut client, "CLIENT REPLY ON\nPING"), "+OK\r\n+PONG\r\n");
}

#[test]
fn who_searches_for_a_token_loses_the_connection() {
    let mut place = Place::new();
    let mut client = place.client(None);
    for tries in 1..=AUTH_FAILURES {
        let (answer, next) = place.say(&mut client, b"AUTH shop wrong\r\n");
        assert!(answer.starts_with(b"-WRONGPASS"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(matches!(next, Next::Close), tries == AUTH_FAILURES, "try {tries}");
    }
}

#[test]
fn tables_are_selected_by_number_and_by_name() {
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    check(
        &mut place,
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
            ("SELECT 3", "-ERR DB index is out of range\n"),
            ("SELECT nothing", "-ERR invalid DB index: the tenant has no table of this name\n"),
            ("FLUSHALL", "+OK\n"),
            ("DBSIZE", ":0\n"),
        ],
    );
}

#[test]
fn what_expires_is_gone_at_its_moment() {
    let mut place = Place::new();
    place.now_ms = Some(1_000_400);
    let mut client = place.client(Some("shop"));
    check(
        &mut place,
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
    place.now_ms = Some(1_020_400);
    check(&mut place, &mut client, &[("GET a", "$-1\n"), ("SETNX a 2", ":1\n"), ("TTL a", ":-1\n")]);
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
    let mut place = Place::new();
    let (mut one, mut two) = (place.client(Some("shop")), place.client(Some("shop")));
    check(
        &mut place,
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
    check(&mut place, &mut two, &[("SET a 7", "+OK\n")]);
    check(
        &mut place,
        &mut one,
        &[
            ("MULTI\nSET a 8\nEXEC", "+OK\n+QUEUED\n*-1\n"),
            ("GET a", "$1\n7\n"),
            ("WATCH new\nUNWATCH\nSET new 1\nMULTI\nSET new 2\nEXEC", "+OK\n+OK\n+OK\n+OK\n+QUEUED\n*1\n+OK\n"),
            (
                "MULTI\nMULTI\nWATCH a\nNOSUCH\nEXEC",
                "+OK\n-ERR MULTI calls can not be nested\n-ERR WATCH inside MULTI is not allowed\n-ERR unknown command 'NOSUCH', with args beginning with: \n-EXECABORT Transaction discarded because of previous errors.\n",
            ),
            (
                "MULTI\nSET a x\nINCR a\nGET a\nEXEC",
                "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n*3\n+OK\n-ERR value is not an integer or out of range\n$1\nx\n",
            ),
            (
                "MULTI\nFCALL f 0\nEXEC",
                "+OK\n-ERR Command not allowed inside a transaction\n-EXECABORT Transaction discarded because of previous errors.\n",
            ),
            ("EXEC", "-ERR EXEC without MULTI\n"),
            ("DISCARD", "-ERR DISCARD without MULTI\n"),
        ],
    );
}

#[test]
fn a_scan_sees_every_key_and_cursors_are_exact_in_floating_point() {
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    for n in 0..500 {
        place.typed(&mut client, &format!("SET key:{n} v"));
    }
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    loop {
        let answer = place.typed(&mut client, &format!("SCAN {cursor} COUNT 7 MATCH key:*"));
        let mut lines = answer.split("\r\n");
        cursor = lines.nth(2).expect("a cursor").to_owned();
        seen.extend(lines.filter(|line| line.starts_with("key:")).map(str::to_owned));
        assert!(cursor.parse::<u64>().expect("a number") < 1 << 53);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 500);
    assert!(place.typed(&mut client, "RANDOMKEY").contains("key:"));
    assert!(place.typed(&mut client, "SCAN 0 TYPE list").ends_with("\r\n*0\r\n"));
    assert_eq!(place.typed(&mut client, "KEYS key:49?").matches("key:").count(), 10);
}

#[test]
fn an_extension_is_called_and_its_end_is_told() {
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    check(
        &mut place,
        &mut client,
        &[
            ("FCALL nothing 0", "-ERR Function not found\n"),
            ("FUNCTION LIST", "*0\n"),
            (
                "EVAL x 0",
                "-ERR unknown command 'EVAL', with args beginning with: 'x' '0' (no Lua here: push an extension, and call it with FCALL)\n",
            ),
        ],
    );
    for (status, number, value, expected) in [
        (Status::Ok, 1, "sum", "$3\r\nsum\r\n"),
        (Status::Failed, 4, "no such record", "-FAILED (code 4) no such record\r\n"),
        (
            Status::Killed,
            2,
            "ended: it computed past its CPU budget",
            "-KILLED ended: it computed past its CPU budget\r\n",
        ),
        (Status::OverQuota, 0, "concurrent_invocations", "-OVERQUOTA concurrent_invocations\r\n"),
    ] {
        let mut out = Vec::new();
        client.session.answered(&InvocationAnswer { status, number, value: value.as_bytes() }, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn hostile_input_is_refused_within_bounds() {
    let mut place = Place::new();
    for (input, expected) in [
        (&b"*1\r\n$1073741825\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n!", ""),
        (b"*1\r\n!a\r\n", "-ERR Protocol error: expected '$', got '!'\r\n"),
    ] {
        let mut client = place.client(Some("shop"));
        let (out, next) = place.say(&mut client, input);
        assert_eq!(String::from_utf8_lossy(&out), expected);
        assert_eq!(next == Next::Close, !expected.is_empty());
    }
    let mut stranger = place.client(None);
    let (out, next) = place.say(&mut stranger, b"*11\r\n");
    assert_eq!(
        (out.as_slice(), next),
        (&b"-ERR Protocol error: unauthenticated multibulk length\r\n"[..], Next::Close)
    );
    // A million keys are answered; a large answer is not made.
    let mut client = place.client(Some("shop"));
    let keys: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain((0..1_000_000).map(|_| &b"k"[..])).collect();
    let (out, _) = place.say(&mut client, &encoded(&keys));
    assert!(out.starts_with(b"*1000000\r\n$-1\r\n") && out.len() == 10 + 5_000_000);
    place.say(&mut client, &encoded(&[b"SET", b"k", &vec![7; 4 << 20]]));
    // As long as it is, an answer leaves as it comes about; in a transaction, where it cannot, it has an end.
    let (out, _) = place.say(&mut client, &encoded(&keys[..21]));
    assert!(out.starts_with(b"*20\r\n$4194304\r\n") && out.len() > 80 << 20);
    let said = [encoded(&[b"MULTI"]), encoded(&keys[..21]), encoded(&[b"EXEC"])].concat();
    let (out, _) = place.say(&mut client, &said);
    assert!(String::from_utf8_lossy(&out).contains("-ERR the answer would be longer") && out.len() < 1000);
    // Answers of a pipeline leave before more of it is run.
    let line = encoded(&[b"GET", b"k"]).repeat(64);
    client.input = line.clone();
    let snapshot = place.directory.snapshot();
    let counters = place.facts.metrics.worker(0).expect("a worker");
    let context = Context {
        participant: &place.participant,
        snapshot: &snapshot,
        now_ms: 1,
        now_us: 1,
        worker: 0,
        counters,
        facts: &place.facts,
        requests: Default::default(),
        retired: 0,
        budget: place.budget,
    };
    let mut out = Vec::new();
    let (used, next) = client.session.run(&context, &line, &mut out);
    assert_eq!((used, next), (line.len() / 64, Next::Again));
}

#[test]
fn a_command_on_many_keys_hashes_each_once_ahead_and_once_to_read_it() {
    const KEYS: u64 = 100;
    let mut place = Place::new();
    let mut client = place.client(Some("shop"));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key{number}")).collect();
    for command in ["MGET", "EXISTS", "DEL"] {
        for key in &keys {
            place.typed(&mut client, &format!("SET {key} 1"));
        }
        crate::store::hashed::take();
        place.typed(&mut client, &format!("{command} {}", keys.join(" ")));
        let hashed = crate::store::hashed::take();
        // The first one also with the commands of its batch.
        assert!((2 * KEYS..=2 * KEYS + 1).contains(&hashed), "{command}: {hashed} hashes of {KEYS} keys");
    }
}

#[test]
fn a_full_table_and_one_whose_records_are_still_read_are_told_apart() {
    use super::super::call::Fail;
    use crate::store::StoreError;
    let told = |error: StoreError| Fail::from(error).0.into_owned();
    assert_eq!(told(StoreError::OutOfMemory), "OOM command not allowed when used memory > 'maxmemory'.");
    let still_read = told(StoreError::StillRead);
    assert!(still_read.starts_with("OOM ") && still_read.ends_with("write again in a moment"), "{still_read}");
}
