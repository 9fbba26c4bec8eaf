//! Frames without sockets.

use super::super::tests::{Client, World};
use super::*;
use crate::{CommandContext, PortService, Protocol};
use sandstorm_catalog::{DirectoryOptions, GrantAccess, NewTable, NewTenant, QuotaChanges};

const TOKEN: &str = "a-token-of-twenty-characters";

/// A request.
pub(super) fn frame(opcode: u8, cas: u64, [extras, key, value]: [&[u8]; 3]) -> Vec<u8> {
    let mut frame = vec![0x80, opcode];
    frame.extend_from_slice(&(key.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    frame.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    frame.extend_from_slice(&[7, 7, 7, opcode]);
    frame.extend_from_slice(&cas.to_be_bytes());
    [&frame[..], extras, key, value].concat()
}

fn set(key: &str, value: &[u8], cas: u64) -> Vec<u8> {
    frame(1, cas, [&[0, 0, 0, 5, 0, 0, 0, 0], key.as_bytes(), value])
}

fn of_key(opcode: u8, key: &str) -> Vec<u8> {
    frame(opcode, 0, [b"", key.as_bytes(), b""])
}

/// An answer: the status, extras, key and value as text, and the CAS number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Heard {
    opcode: u8,
    status: u16,
    body: [Vec<u8>; 3],
    cas: u64,
}

impl Heard {
    fn value(&self) -> String {
        String::from_utf8_lossy(&self.body[2]).into_owned()
    }
}

fn answers(mut bytes: &[u8]) -> Vec<Heard> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<24>() {
        assert_eq!((head[0], head[5], &head[12..16]), (0x81, 0, &[7, 7, 7, head[1]][..]), "{head:?}");
        let status = u16::from_be_bytes([head[6], head[7]]);
        let len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let (extras, key) = (usize::from(head[4]), usize::from(u16::from_be_bytes([head[2], head[3]])));
        let body = &rest[..len];
        let body = [&body[..extras], &body[extras..extras + key], &body[extras + key..]].map(<[u8]>::to_vec);
        let cas = u64::from_be_bytes(head[16..24].try_into().expect("eight bytes"));
        all.push(Heard { opcode: head[1], status, body, cas });
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty(), "half an answer: {bytes:?}");
    all
}

impl World {
    /// The answers to a client's bytes, and the next action.
    fn frames(&self, client: &mut Client, sent: &[u8]) -> (Vec<Heard>, NextAction) {
        client.input.extend_from_slice(sent);
        let (mut out, mut used, mut last) = (Vec::new(), 0, NextAction::Yield);
        self.context(|context: &CommandContext<'_>| {
            while matches!(last, NextAction::Yield | NextAction::HandOver(_)) {
                let (bytes, next) = client.session.run(context, &client.input[used..], &mut out);
                (used, last) = (used + bytes, next);
            }
        });
        client.input.drain(..used);
        (answers(&out), last)
    }

    /// The only answer.
    fn frame(&self, client: &mut Client, sent: &[u8]) -> Heard {
        let (mut replies, next) = self.frames(client, sent);
        assert_eq!((replies.len(), matches!(next, NextAction::NeedMore(_))), (1, true), "{replies:?}, {next:?}");
        replies.remove(0)
    }

    /// A client at a port where each client authenticates.
    fn unauthenticated(&self) -> Client {
        let service = PortService { protocol: Protocol::Memcached, tenant: None, table: None, public: false };
        Client { session: MemcachedSession::new(&std::sync::Arc::new(service)), input: Vec::new() }
    }
}

/// A server with a closed tenant, which has two tables.
fn with_closed_tenant() -> World {
    let world = World::new(GrantAccess::Read);
    let tenant = NewTenant { token: Some(TOKEN.into()), ..NewTenant::named("bank") };
    world.directory.create_tenant(tenant).expect("a tenant");
    for table in ["accounts", "notes"] {
        world.directory.create_table("bank", NewTable::named(table)).expect("a table");
    }
    world
}

fn plain(user: &str, token: &str) -> Vec<u8> {
    frame(0x21, 0, [b"", b"PLAIN", format!("\0{user}\0{token}").as_bytes()])
}

#[test]
fn what_one_protocol_writes_the_other_reads_under_the_same_number() {
    let world = World::new(GrantAccess::Read);
    let (mut client, mut text) = (world.client("shop", "t"), world.client("shop", "t"));
    let stored = world.frame(&mut client, &set("a", b"one", 0));
    let found = world.frame(&mut client, &of_key(0x0c, "a"));
    assert_eq!((found.status, &found.body), (0, &[vec![0, 0, 0, 5], b"a".to_vec(), b"one".to_vec()]));
    assert_eq!(found.cas, stored.cas);
    let number = stored.cas;
    assert_eq!(world.send_text(&mut text, "gets a\r\n"), format!("VALUE a 5 3 {number}\r\none\r\nEND\r\n"));
    assert_eq!(world.send_text(&mut text, "mg a c\r\n"), format!("HD c{number}\r\n"));
    let exists = world.frame(&mut client, &set("a", b"two", number + 1));
    assert_eq!((exists.status, exists.value(), exists.cas), (2, "Data exists for key.".into(), 0));
    assert_eq!(world.send_text(&mut text, &format!("cas a 0 0 3 {number}\r\ntwo\r\n")), "STORED\r\n");
    assert_eq!(world.frame(&mut client, &set("a", b"three", number)).status, 2);
    let now = world.frame(&mut client, &of_key(0, "a")).cas;
    assert_eq!(world.frame(&mut client, &set("a", b"three", now)).status, 0);
    assert_eq!(world.send_text(&mut text, "get a\r\n"), "VALUE a 5 5\r\nthree\r\nEND\r\n");
    let now = world.frame(&mut client, &of_key(0, "a")).cas;
    assert_eq!(world.frame(&mut client, &frame(4, now - 1, [b"", b"a", b""])).status, 2, "deleted by its number alone");
    assert_eq!(world.frame(&mut client, &frame(4, now, [b"", b"a", b""])).status, 0);
    assert_eq!(world.frame(&mut client, &frame(4, now, [b"", b"a", b""])).status, 1);
}

#[test]
fn no_two_records_ever_have_the_same_number() {
    let world = World::new(GrantAccess::Read);
    let (mut client, mut text) = (world.client("shop", "t"), world.client("shop", "t"));
    let mut numbers = std::collections::HashSet::new();
    let mut last = std::collections::HashMap::new();
    for round in 0..3 {
        for key in 0..2000 {
            let key = format!("key{key}");
            let number = match round {
                1 => {
                    let sent = world.send_text(&mut text, &format!("ms {key} 1 c\r\nx\r\n"));
                    sent.trim_end().strip_prefix("HD c").and_then(|c| c.parse().ok()).expect("a number")
                }
                _ => world.frame(&mut client, &set(&key, b"x", 0)).cas,
            };
            assert!(numbers.insert(number), "{number} of {key} in round {round} was another's");
            assert!(last.insert(key.clone(), number).is_none_or(|before| before < number), "a key's numbers grow");
            if round == 1 {
                assert_eq!(world.send_text(&mut text, &format!("delete {key}\r\n")), "DELETED\r\n");
            }
        }
    }
    for (key, number) in &last {
        assert_eq!(world.send_text(&mut text, &format!("md {key} C{number}\r\n")), "HD\r\n", "{key}");
    }
}

#[test]
fn a_number_is_told_of_what_was_stored_alone() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let stored = world.send_text(&mut client, "ms a 1 c\r\nx\r\n");
    assert!(stored.starts_with("HD c") && stored != "HD c0\r\n", "{stored}");
    for (sent, replies) in [
        ("ms a 1 ME c\r\ny\r\n", "NS c0\r\n"),
        ("ms a 1 C5 c k\r\ny\r\n", "EX c0 ka\r\n"),
        ("ms b 1 C5 c\r\ny\r\n", "NF c0\r\n"),
        ("ms b 1 MR c\r\ny\r\n", "NS c0\r\n"),
        ("ms b 1 MA c\r\ny\r\n", "NS c0\r\n"),
    ] {
        assert_eq!(world.send_text(&mut client, sent), replies, "as memcached has it: {sent:?}");
    }
}

#[test]
fn quiet_commands_tell_what_went_wrong_and_quiet_gets_what_is_there() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let sent = [
        frame(0x11, 0, [&[0; 8], b"a", b"1"]),
        frame(0x12, 0, [&[0; 8], b"a", b"2"]),
        frame(0x13, 0, [&[0; 8], b"b", b"2"]),
        of_key(0x09, "a"),
        of_key(0x09, "none"),
        of_key(0x0d, "none"),
        frame(0x15, 0, [&[0; 20], b"a", b""]),
        frame(0x19, 0, [b"", b"none", b"x"]),
        of_key(0x14, "none"),
        of_key(0x14, "a"),
        frame(0x18, 0, [b"", b"", b""]),
        frame(0x0a, 0, [b"", b"", b""]),
    ];
    let (replies, next) = world.frames(&mut client, &sent.concat());
    let replies: Vec<_> = replies.iter().map(|replies| (replies.opcode, replies.status)).collect();
    assert_eq!(replies, [(0x12, 2), (0x13, 1), (0x09, 0), (0x19, 5), (0x14, 1), (0x0a, 0)]);
    assert_eq!(next, NextAction::NeedMore(1));
    assert_eq!(world.frames(&mut client, &frame(0x17, 0, [b"", b"", b""])), (Vec::new(), NextAction::Close));
}

#[test]
fn arithmetic_makes_what_is_not_there_unless_it_is_told_not_to() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let sum = |up: bool, delta: u64, initial: u64, exptime: u32, cas| {
        let extras = [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat();
        frame(if up { 5 } else { 6 }, cas, [&extras, b"n", b""])
    };
    let number = |replies: &Heard| u64::from_be_bytes(replies.body[2][..].try_into().expect("eight bytes"));
    assert_eq!(world.frame(&mut client, &sum(true, 3, 10, u32::MAX, 0)).status, 1);
    let made = world.frame(&mut client, &sum(true, 3, 10, 0, 0));
    assert_eq!((number(&made), made.cas != 0), (10, true));
    let added = world.frame(&mut client, &sum(true, 3, 10, 0, made.cas));
    assert_eq!((number(&added), added.cas > made.cas), (13, true));
    assert_eq!(world.frame(&mut client, &sum(false, 3, 10, 0, made.cas)).status, 2);
    assert_eq!(number(&world.frame(&mut client, &sum(false, 100, 10, 0, 0))), 0);
    assert_eq!(world.frame(&mut client, &set("n", b"text", 0)).status, 0);
    let wrong = world.frame(&mut client, &sum(true, 1, 0, 0, 0));
    assert_eq!((wrong.status, wrong.value()), (6, "Non-numeric server-side value for incr or decr".into()));
}

#[test]
fn what_is_too_long_is_skipped_and_what_cannot_be_ends_the_connection() {
    let options = DirectoryOptions { max_value_len: 1000, ..DirectoryOptions::default() };
    let world = World::with_options(GrantAccess::Read, options);
    let mut client = world.client("shop", "t");
    assert_eq!(world.frame(&mut client, &set("a", &[b'x'; 1000], 0)).status, 0);
    let long = [set("a", &[b'x'; 1001], 0), of_key(0, "a")].concat();
    for piece in [1, 30, 500, long.len()] {
        let mut replies = Vec::new();
        for part in long.chunks(piece) {
            replies.extend(world.frames(&mut client, part).0);
            assert!(client.input.len() < 40 || piece > 40, "what is skipped is not kept");
        }
        let replies: Vec<_> = replies.iter().map(|replies| (replies.status, replies.value())).collect();
        assert_eq!(
            replies,
            [(3, "Too large.".into()), (1, "Not found".into())],
            "a set that failed leaves nothing old"
        );
    }
    assert!(
        world.send_text(&mut world.client("shop", "t"), "stats settings\r\n").contains("STAT item_size_max 1000\r\n")
    );
    let unknown = [frame(0x77, 0, [b"extra", b"key", b"value"]), frame(0x0b, 0, [b"", b"", b""])].concat();
    let (replies, _) = world.frames(&mut client, &unknown);
    assert_eq!(replies.iter().map(|replies| replies.status).collect::<Vec<_>>(), [0x81, 0]);
    let no_key = frame(1, 0, [&[0; 8], b"", b"x"]);
    let shorter = [&[0x80, 0, 0, 9][..], &[0; 8], &[7, 7, 7, 0], &[0; 8]].concat();
    for (wrong, status) in [(no_key, 4), (of_key(0, &"k".repeat(251)), 4), (shorter, 0x81)] {
        let mut client = world.client("shop", "t");
        let (replies, next) = world.frames(&mut client, &[of_key(0, "a"), wrong].concat());
        assert_eq!(replies.iter().map(|replies| replies.status).collect::<Vec<_>>(), [1, status]);
        assert_eq!(next, NextAction::Close);
    }
    let mut client = world.client("shop", "t");
    assert_eq!(world.frames(&mut client, &[of_key(0, "a"), b"get a\r\n".to_vec()].concat()).1, NextAction::Close);
}

#[test]
fn an_unauthenticated_client_gets_the_version_and_an_authentication_error() {
    let world = with_closed_tenant();
    let mut client = world.unauthenticated();
    assert_eq!(world.frame(&mut client, &frame(0x0b, 0, [b"", b"", b""])).value(), MEMCACHED_VERSION);
    assert_eq!(world.frame(&mut client, &frame(0x20, 0, [b"", b"", b""])).value(), "PLAIN");
    // A forbidden value is not awaited either.
    let announced = &set("a", &[b'x'; 100_000], 0)[..40];
    for refused in [announced, &of_key(0, "a"), &frame(0x10, 0, [b"", b"", b""]), &frame(8, 0, [b"", b"", b""])] {
        let mut client = world.unauthenticated();
        let (replies, next) = world.frames(&mut client, refused);
        assert_eq!((replies[0].status, replies[0].value(), next), (0x20, "Auth failure.".into(), NextAction::Close));
    }
    let step = frame(0x22, 0, [b"", b"PLAIN", format!("\0bank\0{TOKEN}").as_bytes()]);
    assert_eq!(world.frame(&mut client, &step).status, 0x20, "a step of nothing");
    assert_eq!(world.frame(&mut client, &frame(0x21, 0, [b"", &[b'X'; 40], b""])).status, 4);
    let long = [frame(0x21, 0, [b"", b"PLAIN", &[b'x'; 2000]]), frame(0x0b, 0, [b"", b"", b""])].concat();
    let (replies, _) = world.frames(&mut client, &long);
    assert_eq!(replies.iter().map(|replies| replies.status).collect::<Vec<_>>(), [0x82, 0]);
    assert_eq!(world.frame(&mut client, &plain("bank", "another-token-of-twenty")).status, 0x20);
    let (replies, next) = world.frames(&mut client, &plain("nobody", TOKEN));
    assert_eq!((replies[0].status, next), (0x20, NextAction::Close), "five in all");
}

#[test]
fn who_shows_a_token_acts_for_its_tenant_until_it_shows_a_wrong_one() {
    let world = with_closed_tenant();
    let (mut client, mut other) = (world.unauthenticated(), world.unauthenticated());
    let replies = world.frame(&mut client, &plain("bank/notes", TOKEN));
    assert_eq!((replies.status, replies.value()), (0, "Authenticated".into()));
    assert_eq!(world.frame(&mut client, &set("a", b"note", 0)).status, 0);
    // In two steps, to the default table.
    let begin = frame(0x21, 0, [b"", b"PLAIN", b""]);
    assert_eq!(world.frame(&mut other, &begin).status, 0x21);
    let step = frame(0x22, 0, [b"", b"PLAIN", format!("\0bank\0{TOKEN}").as_bytes()]);
    assert_eq!(world.frame(&mut other, &step).status, 0);
    assert_eq!(world.frame(&mut other, &of_key(0, "a")).status, 1, "another table");
    assert_eq!(world.frame(&mut other, &plain("bank/notes", TOKEN)).status, 0);
    assert_eq!(world.frame(&mut other, &of_key(0, "a")).value(), "note");
    let (replies, next) = world.frames(&mut other, &[plain("bank", "wrong"), of_key(0, "a")].concat());
    assert_eq!(replies.iter().map(|replies| replies.status).collect::<Vec<_>>(), [0x20, 0x20]);
    assert_eq!(next, NextAction::Close);
    let stats = world.frames(&mut client, &frame(0x10, 0, [b"", b"", b""])).0;
    let stat = |name: &str| stats.iter().find(|stat| stat.body[1] == name.as_bytes()).map(Heard::value);
    assert_eq!((stat("auth_cmds"), stat("auth_errors")), (Some("4".into()), Some("1".into())));
    world.directory.rotate_token("bank").expect("another token");
    world.directory.delete_tenant("bank").expect("deleted");
    let (replies, next) = world.frames(&mut client, &of_key(0, "a"));
    assert_eq!((replies[0].status, next), (0x20, NextAction::Close), "a connection ends with its right");
}

#[test]
fn a_port_that_speaks_for_a_tenant_knows_no_sasl() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    for sent in [frame(0x20, 0, [b"", b"", b""]), plain("shop", TOKEN)] {
        let replies = world.frame(&mut client, &sent);
        assert_eq!((replies.status, replies.value()), (0x81, "Unknown command".into()));
    }
    assert_eq!(world.frame(&mut client, &set("a", b"x", 0)).status, 0);
    let mut lost = world.client("nobody", "t");
    let (replies, next) = world.frames(&mut lost, &of_key(0, "a"));
    assert_eq!((replies.len(), replies[0].status, next), (1, 0x20, NextAction::Close));
    assert!(replies[0].value().starts_with("this port speaks for tenant \"nobody\", which does not exist"));
}

#[test]
fn quotas_and_rights_hold_and_are_named() {
    let world = World::new(GrantAccess::Read);
    let mut granted = world.client("guest", "shop/t");
    let refused = world.frame(&mut granted, &set("a", b"x", 0));
    assert_eq!((refused.status, refused.value()), (0x20, "the table was granted for reading only".into()));
    let mut client = world.client("shop", "t");
    assert_eq!(world.frame(&mut client, &set("a", b"x", 0)).status, 0);
    let quotas = QuotaChanges { requests_per_s: Some(10), ..QuotaChanges::default() };
    world.directory.set_quotas("shop", &quotas).expect("set");
    let (replies, _) = world.frames(&mut client, &of_key(0, "a").repeat(100));
    let last = replies.last().expect("answers");
    assert_eq!(
        (replies.len(), last.status, last.value()),
        (100, 0x82, "quota requests_per_s: too many requests a second".into())
    );
}

#[test]
fn a_datagram_may_be_a_frame() {
    let world = World::new(GrantAccess::Read);
    let mut datagrams = world.client("shop", "t");
    let request = |datagrams: &mut Client, sent: &[u8]| {
        let mut out = Vec::new();
        world.context(|context| assert!(datagrams.session.run_datagram(context, sent, &mut out).is_none()));
        out
    };
    assert_eq!(answers(&request(&mut datagrams, &set("a", b"one", 0)))[0].status, 0);
    assert_eq!(request(&mut datagrams, b"get a\r\n"), b"VALUE a 5 3\r\none\r\nEND\r\n");
    assert_eq!(answers(&request(&mut datagrams, &of_key(0, "a")))[0].value(), "one");
    assert_eq!(request(&mut datagrams, &of_key(0, "a")[..20]), b"", "half a frame is dropped");
    assert_eq!(request(&mut datagrams, b"mn\r\n"), b"MN\r\n");
}

#[test]
fn prometheus_exporter_finds_what_it_needs() {
    let world = World::new(GrantAccess::Read);
    let mut text = world.client("shop", "t");
    world.send_text(&mut text, "set a 0 0 1\r\nx\r\nget a\r\n");
    let names = |text: &mut Client, list: &str| -> Vec<String> {
        let sent = world.send_text(text, list);
        let mut names: Vec<_> =
            sent.lines().filter_map(|line| Some(line.strip_prefix("STAT ")?.split(' ').next()?.to_owned())).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "a line twice: {names:?}");
        names
    };
    let (general, slabs) = (names(&mut text, "stats\r\n"), names(&mut text, "stats slabs\r\n"));
    // Without these the exporter reports that memcached is down.
    for needed in ["cmd_set", "cas_misses", "cas_hits", "cas_badval"] {
        assert!(general.iter().any(|name| name == needed), "{needed}");
    }
    for needed in ["1:cmd_set", "1:cas_hits", "1:cas_badval"] {
        assert!(slabs.iter().any(|name| name == needed), "{needed}");
    }
    // A name in both lists counts once as a counter and once as a gauge, and the exporter then reports nothing at all.
    for name in names(&mut text, "stats items\r\n") {
        let name = name.strip_prefix("items:").expect("an item");
        assert!(slabs.iter().all(|slab| slab != name), "{name}");
    }
}

#[test]
fn statistics_count_what_was_done_in_either_protocol_and_begin_anew() {
    let world = World::new(GrantAccess::Read);
    let (mut client, mut text) = (world.client("shop", "t"), world.client("shop", "t"));
    world.frame(&mut client, &set("a", b"1", 0));
    world.frame(&mut client, &set("a", b"1", 12345));
    world.frame(&mut client, &frame(0x1c, 0, [&[0; 4], b"a", b""]));
    world.send_text(
        &mut text,
        "get a b\r\nincr a 1\r\ndecr c 1\r\ncas c 0 0 1 5\r\nx\r\ntouch c 5\r\ndelete c\r\ndelete a\r\n",
    );
    world.frame(&mut client, &frame(8, 0, [b"", b"", b""]));
    let expected = [
        ("cmd_get", 2),
        ("cmd_set", 3),
        ("cmd_touch", 2),
        ("cmd_flush", 1),
        ("get_hits", 1),
        ("get_misses", 1),
        ("incr_hits", 1),
        ("incr_misses", 0),
        ("decr_misses", 1),
        ("cas_badval", 1),
        ("cas_misses", 1),
        ("cas_hits", 0),
        ("touch_hits", 1),
        ("touch_misses", 1),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("total_items", 1),
        ("total_connections", 2),
        ("rejected_connections", 0),
    ];
    let sent = world.send_text(&mut text, "stats\r\n");
    let frames = world.frames(&mut client, &frame(0x10, 0, [b"", b"", b""])).0;
    let (last, stats) = frames.split_last().expect("some");
    assert_eq!(last.body, [b"".to_vec(), b"".to_vec(), b"".to_vec()]);
    for (name, count) in expected {
        assert!(sent.contains(&format!("STAT {name} {count}\r\n")), "{name} {count}: {sent}");
        let stat = stats.iter().find(|stat| stat.body[1] == name.as_bytes()).map(Heard::value);
        assert_eq!(stat, Some(count.to_string()), "{name}");
    }
    assert_eq!(world.send_text(&mut text, "stats reset\r\n"), "RESET\r\n");
    let sent = world.send_text(&mut text, "stats\r\n");
    assert!(sent.contains("STAT cmd_set 0\r\n") && sent.contains("STAT get_hits 0\r\n"), "{sent}");
    assert_eq!(world.frame(&mut client, &of_key(0x10, "nonsense")).status, 1);
}
