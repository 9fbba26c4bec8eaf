//! Sessions without sockets, with simulated time.

mod divided;
mod largest;

use super::*;
use crate::{Protocol, ServerProperties};
use sandstorm_catalog::{Directory, DirectoryOptions, GrantAccess, GrantIssuer, NewTable, NewTenant, QuotaChanges};
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::slots::SlotOwnership;
use sandstorm_store::{Epochs, Participant, StorageMode};

/// The parts of a server that sessions need.
pub(super) struct World {
    pub(super) directory: Arc<Directory>,
    participant: Participant,
    facts: ServerProperties,
    pub(super) now_ms: u64,
}

/// A client of such a server.
pub(super) struct Client {
    pub(super) session: MemcachedSession,
    pub(super) input: Vec<u8>,
}

impl World {
    /// A server with tenants `shop` and `granted`, each with a table `t`; the one of `shop` was granted to `granted`.
    pub(super) fn new(access: GrantAccess) -> World {
        World::with_options(access, DirectoryOptions::default())
    }

    pub(super) fn with_options(access: GrantAccess, options: DirectoryOptions) -> World {
        World::in_cluster(access, options, None)
    }

    /// The same, which owns these slots of a cluster.
    fn in_cluster(access: GrantAccess, options: DirectoryOptions, slots: Option<&Arc<SlotOwnership>>) -> World {
        let epochs = Epochs::new();
        let directory = Directory::with_options(Arc::clone(&epochs), options);
        slots.into_iter().for_each(|slots| directory.join_cluster(slots));
        for tenant in ["shop", "guest"] {
            directory.create_tenant(NewTenant { open: true, ..NewTenant::named(tenant) }).expect("a tenant");
            directory.create_table(tenant, NewTable::named("t")).expect("a table");
        }
        directory.grant("shop", "t", "guest", access, GrantIssuer::Operator).expect("a grant");
        let facts = ServerProperties { metrics: ServerMetrics::new(1), workers: 1, started_ms: 0, connections: 100 };
        facts.metrics.slow.set_ns(0);
        World { directory, participant: epochs.register(), facts, now_ms: 1_800_000_000_000 }
    }

    /// A client at a port that is configured for a tenant, with a table of it.
    pub(super) fn client(&self, tenant: &str, table: &str) -> Client {
        let (tenant, table) = (Some(tenant.to_owned()), Some(table.to_owned()));
        let service = PortService { protocol: Protocol::Memcached, tenant, table, public: false };
        Client { session: MemcachedSession::new(&Arc::new(service)), input: Vec::new() }
    }

    pub(super) fn context(&self, run: impl FnOnce(&CommandContext<'_>)) {
        let snapshot = self.directory.snapshot();
        sandstorm_store::fix_clock(Some(self.now_ms));
        run(&CommandContext {
            participant: &self.participant,
            snapshot: &snapshot,
            now_ms: self.now_ms,
            now_us: self.now_ms * 1000,
            worker: 0,
            counters: self.facts.metrics.worker(0).expect("a worker"),
            facts: &self.facts,
            requests: Default::default(),
            retired: self.participant.retired(),
            budget: u32::MAX,
        });
    }

    /// The answers to a client's bytes, and the next action.
    pub(super) fn send_bytes(&self, client: &mut Client, sent: &[u8]) -> (String, NextAction) {
        client.input.extend_from_slice(sent);
        let (mut out, mut used, mut last) = (Vec::new(), 0, NextAction::Yield);
        self.context(|context| {
            while matches!(last, NextAction::Yield | NextAction::HandOver(_)) {
                let (bytes, next) = client.session.run(context, &client.input[used..], &mut out);
                (used, last) = (used + bytes, next);
            }
        });
        client.input.drain(..used);
        (String::from_utf8_lossy(&out).into_owned(), last)
    }

    pub(super) fn send_text(&self, client: &mut Client, sent: &str) -> String {
        self.send_bytes(client, sent.as_bytes()).0
    }

    pub(super) fn datagram(&self, client: &mut Client, sent: &str) -> String {
        let mut out = Vec::new();
        self.context(|context| assert!(client.session.run_datagram(context, sent.as_bytes(), &mut out).is_none()));
        String::from_utf8_lossy(&out).into_owned()
    }
}

#[test]
fn what_is_done_to_a_granted_table_is_done_there() {
    let world = World::new(GrantAccess::ReadWrite);
    let (mut owner, mut own) = (world.client("shop", "t"), world.client("guest", "t"));
    let mut granted = world.client("guest", "shop/t");
    assert_eq!(world.send_text(&mut granted, "mg a N30 v\r\n"), "VA 0 W\r\n\r\n");
    assert_eq!(
        (world.send_text(&mut own, "mg a\r\n"), world.send_text(&mut owner, "mg a t\r\n")),
        ("EN\r\n".into(), "HD t30 Z\r\n".into())
    );
    assert_eq!(world.send_text(&mut owner, "ms b 1 T10\r\nx\r\n"), "HD\r\n");
    assert_eq!(world.send_text(&mut granted, "mg b R30 v\r\n"), "VA 1 W\r\nx\r\n");
    assert_eq!(world.send_text(&mut granted, "mg b T100 v t\r\n"), "VA 1 t100 Z\r\nx\r\n");
    assert_eq!(world.send_text(&mut owner, "mg b t\r\n"), "HD t100 Z\r\n");
}

#[test]
fn who_may_only_read_wins_nothing() {
    let world = World::new(GrantAccess::Read);
    let (mut owner, mut granted) = (world.client("shop", "t"), world.client("guest", "shop/t"));
    assert_eq!(world.send_text(&mut owner, "ms a 1 T10\r\nx\r\n"), "HD\r\n");
    assert_eq!(world.send_text(&mut granted, "mg a R30 v\r\n"), "VA 1\r\nx\r\n");
    assert_eq!(
        world.send_text(&mut owner, "mg a R30 v\r\n"),
        "VA 1 W\r\nx\r\n",
        "his renewal was not taken from the owner"
    );
    for writes in ["mg a T5", "mg a N5", "gat 5 a", "gat 5 a b c", "touch a 5", "md a", "delete a", "flush_all", "ma a"]
    {
        let refused = "SERVER_ERROR the table was granted for reading only\r\n";
        assert_eq!(world.send_text(&mut granted, &format!("{writes}\r\n")), refused, "{writes}");
    }
}

#[test]
fn an_error_takes_the_place_of_the_end_of_a_list() {
    let world = World::new(GrantAccess::Read);
    let mut lost = world.client("shop", "nothing");
    assert_eq!(
        world.send_text(&mut lost, "get a b c\r\nmn\r\n"),
        "SERVER_ERROR the tenant has no such table\r\nMN\r\n"
    );
    let mut client = world.client("shop", "t");
    assert_eq!(world.send_text(&mut client, "set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    let quotas = QuotaChanges { requests_per_s: Some(10), ..QuotaChanges::default() };
    world.directory.set_quotas("shop", &quotas).expect("set");
    for many in [100, 3000] {
        let (front, keys) = ("VALUE a 0 1\r\nx\r\n", " a".repeat(many));
        let answer = world.send_text(&mut client, &format!("get{keys}\r\nmn\r\n"));
        let rest = answer.trim_start_matches(front);
        assert_eq!(rest, "SERVER_ERROR quota requests_per_s: too many requests a second\r\nMN\r\n", "of {many}");
    }
}

#[test]
fn blanks_of_an_endless_get_are_not_kept() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    assert_eq!(world.send_text(&mut client, "set b 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(world.send_text(&mut client, &format!("get {}", "a ".repeat(2000))), "");
    for _ in 0..1000 {
        assert_eq!(world.send_text(&mut client, &" ".repeat(1000)), "");
        assert!(client.input.is_empty(), "{} bytes wait", client.input.len());
    }
    assert_eq!(world.send_text(&mut client, " b   \r\nmn\r\n"), "VALUE b 0 1\r\nx\r\nEND\r\nMN\r\n");
}

#[test]
fn a_port_acts_for_the_tenant_that_has_the_name_now() {
    let world = World::new(GrantAccess::Read);
    let (mut stream, mut datagrams) = (world.client("guest", "t"), world.client("guest", "t"));
    assert_eq!(world.send_text(&mut stream, "set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(world.datagram(&mut datagrams, "get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    world.directory.delete_tenant("guest").expect("deleted");
    let unauthenticated =
        "SERVER_ERROR this port speaks for tenant \"guest\", which does not exist: sandstorm tenant create guest\r\n";
    assert_eq!(world.datagram(&mut datagrams, "get a b\r\n"), unauthenticated);
    assert_eq!(
        world.send_bytes(&mut stream, b"get a\r\n"),
        (unauthenticated.to_owned(), NextAction::Close),
        "a connection ends with its right"
    );
    let mut stream = world.client("guest", "t");
    assert_eq!(world.send_text(&mut stream, "get a\r\n"), unauthenticated);
    world.directory.create_tenant(NewTenant { open: true, ..NewTenant::named("guest") }).expect("a tenant");
    world.directory.create_table("guest", NewTable::named("t")).expect("a table");
    for _ in 0..2 {
        assert_eq!(world.datagram(&mut datagrams, "get a\r\n"), "END\r\n");
        assert_eq!(world.send_text(&mut stream, "get a\r\n"), "END\r\n");
    }
}

#[test]
fn records_end_when_they_should() {
    let mut world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let stored =
        ["set a 0 10 1\r\nx\r\n", "set b 0 10 1\r\nx\r\n", "ms c 1 T10\r\nx\r\n", "set d 0 1800000010 1\r\nx\r\n"];
    stored
        .iter()
        .for_each(|sent| assert!(["STORED\r\n", "HD\r\n"].contains(&world.send_text(&mut client, sent).as_str())));
    world.now_ms += 9_999;
    let all = "VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nVALUE d 0 1\r\nx\r\nEND\r\n";
    assert_eq!(world.send_text(&mut client, "get a b c d\r\n"), all);
    world.now_ms += 1;
    let but_d = "VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nEND\r\n";
    assert_eq!(
        world.send_text(&mut client, "get a b c d\r\n"),
        but_d,
        "a date is met; times from now are never cut short"
    );
    assert_eq!(world.send_text(&mut client, "gat 10 b\r\n"), "VALUE b 0 1\r\nx\r\nEND\r\n");
    world.now_ms += 1;
    assert_eq!(world.send_text(&mut client, "get a b c d\r\n"), "VALUE b 0 1\r\nx\r\nEND\r\n");
    assert_eq!(
        world.send_text(&mut client, "touch a 10\r\nadd a 0 0 1\r\ny\r\nincr c 1\r\n"),
        "NOT_FOUND\r\nSTORED\r\nNOT_FOUND\r\n"
    );
    assert_eq!(world.send_text(&mut client, "touch b -1\r\nget b\r\n"), "TOUCHED\r\nEND\r\n");
}

#[test]
fn a_flush_comes_when_its_delay_is_over() {
    let mut world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    assert_eq!(
        world.send_text(&mut client, "set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\n"),
        "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    );
    world.now_ms += 10_000;
    assert_eq!(world.send_text(&mut client, "get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    world.now_ms += 1;
    assert_eq!(world.send_text(&mut client, "get a\r\nset a 0 0 1\r\ny\r\n"), "END\r\nSTORED\r\n");
    world.now_ms += 100_000;
    assert_eq!(
        world.send_text(&mut client, "get a\r\nflush_all 10\r\nflush_all\r\nset a 0 0 1\r\nz\r\n"),
        "VALUE a 0 1\r\ny\r\nEND\r\nOK\r\nOK\r\nSTORED\r\n"
    );
    world.now_ms += 100_000;
    assert_eq!(
        world.send_text(&mut client, "get a\r\n"),
        "VALUE a 0 1\r\nz\r\nEND\r\n",
        "the later flush took the place of the earlier"
    );
}

#[test]
fn copies_of_a_large_value_leave_others_their_turn() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let large = format!("set a 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000));
    assert_eq!(world.send_text(&mut client, &large), "STORED\r\n");
    for (command, least) in [("gat 0 a\r\n", 450), ("append a 0 0 1\r\nx\r\n", 900)] {
        let (sent, mut out) = (command.repeat(10), Vec::new());
        world.context(|context| {
            let (used, next) = client.session.run(context, sent.as_bytes(), &mut out);
            assert_eq!((used, next), (command.len(), NextAction::Yield), "{command}");
            assert!(context.requests.get() > least, "it costs its tenant more than a small one");
        });
    }
}

#[test]
fn a_new_time_or_mark_for_a_large_value_does_not_copy_it() {
    let world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    let large = format!("set a 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000));
    assert_eq!(world.send_text(&mut client, &large), "STORED\r\n");
    for command in ["touch a 0\r\n", "mg a T0\r\n", "md a I\r\n"] {
        let (sent, mut out) = (command.repeat(10), Vec::new());
        world.context(|context| {
            let (used, _) = client.session.run(context, sent.as_bytes(), &mut out);
            assert_eq!(used, sent.len(), "{command}: all at once");
            assert!(context.requests.get() < 100, "{command}: {} requests' work", context.requests.get());
        });
    }
    assert_eq!(
        world.send_text(&mut client, "get a\r\n"),
        format!("VALUE a 0 1000000\r\n{}\r\nEND\r\n", "v".repeat(1_000_000))
    );
}

#[test]
fn a_flush_that_comes_due_costs_the_tenant_what_it_takes() {
    let mut world = World::new(GrantAccess::Read);
    let mut client = world.client("shop", "t");
    for number in 0..1_000 {
        assert_eq!(world.send_text(&mut client, &format!("set a{number} 0 0 1\r\nx\r\n")), "STORED\r\n");
    }
    assert_eq!(world.send_text(&mut client, "flush_all 10\r\n"), "OK\r\n");
    let mut works = || {
        let mut out = Vec::new();
        world.now_ms += 5_001;
        let mut worked = 0;
        world.context(|context| {
            assert_eq!(client.session.run(context, b"get a1\r\n", &mut out).0, 8);
            worked = context.work_done();
        });
        (worked, out.len())
    };
    let (before, due, after) = (works(), works(), works());
    assert!(before.0 < 50 && before.1 > 5, "{before:?}");
    assert!(due.0 > 500 && due.1 == 5, "it is whoever comes first of the table's own: {due:?}");
    assert!(after.0 < 50 && after.1 == 5, "{after:?}");
}

#[test]
fn a_write_costs_its_tenant_what_it_evicts() {
    let world = World::new(GrantAccess::Read);
    let table = NewTable { mode: StorageMode::Cache, quota_bytes: Some(4 << 20), ..NewTable::named("cache") };
    world.directory.create_table("shop", table).expect("a table");
    let mut client = world.client("shop", "cache");
    for number in 0..50_000 {
        assert_eq!(world.send_text(&mut client, &format!("set small{number} 0 0 10\r\n0123456789\r\n")), "STORED\r\n");
    }
    let (large, mut out) = (format!("set large 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000)), Vec::new());
    world.context(|context| {
        assert_eq!(client.session.run(context, large.as_bytes(), &mut out).0, large.len());
        let (requests, worked) = (context.requests.get(), context.work_done());
        assert!(worked > 1000 && worked > requests, "{worked} for {requests}");
    });
    world.context(|context| {
        assert_eq!(client.session.run(context, b"get large\r\n", &mut out).0, 11);
        assert_eq!(context.work_done(), context.requests.get(), "others do not pay for it");
    });
}

#[test]
fn emptying_a_table_and_statistics_cost_their_tenant_what_they_take() {
    let world = World::new(GrantAccess::Read);
    let (mut text, mut binary) = (world.client("shop", "t"), world.client("shop", "t"));
    let frame = |op: u8| [&[0x80, op][..], &[0; 22]].concat();
    let texts = [(&b"flush_all\r\n"[..], 50), (b"flush_all noreply\r\n", 50), (b"stats\r\n", 20)];
    let texts = texts.map(|(sent, least)| (false, sent.to_vec(), least));
    let frames = [(0x08, 50), (0x18, 50), (0x10, 20)].map(|(op, least)| (true, frame(op), least));
    for (is_binary, sent, least) in texts.into_iter().chain(frames) {
        let client = if is_binary { &mut binary } else { &mut text };
        world.context(|context| {
            let (mut used, mut out) = (0, Vec::new());
            while used < sent.len() {
                used += client.session.run(context, &sent[used..], &mut out).0;
            }
            assert!(context.work_done() >= least, "{} for {sent:?}", context.work_done());
        });
    }
}

#[test]
fn a_datagram_is_answered_whole_or_has_an_end() {
    let world = World::new(GrantAccess::Read);
    let (mut stream, mut datagrams) = (world.client("shop", "t"), world.client("shop", "t"));
    let stores = |key: &str, len: usize| format!("set {key} 0 0 {len}\r\n{}\r\n", "v".repeat(len));
    let value = |key: &str, len: usize| format!("VALUE {key} 0 {len}\r\n{}\r\n", "v".repeat(len));
    let keys: Vec<_> = (0..200).map(|number| format!("k{number}")).collect();
    keys.iter().for_each(|key| assert_eq!(world.send_text(&mut stream, &stores(key, 1000)), "STORED\r\n"));
    for (key, len) in [("a", 70_000), ("large", 300_000)] {
        assert_eq!(world.send_text(&mut stream, &stores(key, len)), "STORED\r\n");
    }
    let two = format!("{}END\r\n", value("a", 70_000)).repeat(2);
    assert!(world.datagram(&mut datagrams, "get a\r\nget a\r\n") == two);
    let all: String = keys.iter().map(|key| value(key, 1000)).collect();
    assert!(world.datagram(&mut datagrams, &format!("get {}\r\n", keys.join(" "))) == format!("{all}END\r\n"));
    let append = "append large 0 0 0\r\n\r\n";
    assert_eq!(world.datagram(&mut datagrams, &append.repeat(3)), "STORED\r\n".repeat(3));
    let too_much = "SERVER_ERROR out of memory writing get response\r\n";
    assert_eq!(world.datagram(&mut datagrams, &append.repeat(200)), too_much);
    assert_eq!(world.datagram(&mut datagrams, "mn\r\n"), "MN\r\n", "the next one begins anew");
}

#[test]
fn only_its_owner_empties_a_table() {
    let world = World::new(GrantAccess::ReadWrite);
    let (mut owner, mut granted) = (world.client("shop", "t"), world.client("guest", "shop/t"));
    assert_eq!(world.send_text(&mut granted, "set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    for flush in ["flush_all\r\n", "flush_all 5\r\n"] {
        assert_eq!(world.send_text(&mut granted, flush), "SERVER_ERROR only a table's owner may empty it\r\n");
    }
    assert_eq!(
        world.send_text(&mut owner, "get a\r\nflush_all\r\nget a\r\n"),
        "VALUE a 0 1\r\nx\r\nEND\r\nOK\r\nEND\r\n"
    );
}

#[test]
fn a_full_table_and_one_whose_records_are_still_read_are_told_apart() {
    use super::answers::store_error_text;
    use sandstorm_store::StoreError;
    assert_eq!(store_error_text(StoreError::OutOfMemory), "SERVER_ERROR out of memory storing object");
    let no_memory = store_error_text(StoreError::NoMemory);
    assert!(no_memory.starts_with("SERVER_ERROR out of memory storing object: the server's machine"), "{no_memory}");
    let still_read = store_error_text(StoreError::ReclaimPressure);
    assert!(still_read.starts_with("SERVER_ERROR ") && still_read.ends_with("write again in a moment"), "{still_read}");
}

#[test]
fn http_ends_a_connection_before_what_follows_it_is_run() {
    let world = World::new(GrantAccess::Read);
    for first in ["POST / HTTP/1.1", "GET / HTTP/1.1", "PUT /x HTTP/1.0", "OPTIONS * HTTP/1.1"] {
        let mut client = world.client("shop", "t");
        let sent = format!("{first}\r\nset stolen 0 0 1\r\nx\r\n");
        assert_eq!(world.send_bytes(&mut client, sent.as_bytes()), (String::new(), NextAction::Close), "{first}");
        let mut other = world.client("shop", "t");
        assert_eq!(world.send_text(&mut other, "get stolen\r\n"), "END\r\n", "{first}");
    }
}

/// A frame of the binary protocol.
fn frame(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let (key_len, len) = ((key.len() as u16).to_be_bytes(), ((key.len() + value.len()) as u32).to_be_bytes());
    let head = [&[sandstorm_net::memcached::binary::MAGIC, opcode], &key_len[..], &[0; 4], &len, &[0; 12]];
    [&head.concat()[..], key, value].concat()
}

#[test]
fn a_batch_that_ends_as_another_tenant_names_no_key_of_the_first() {
    const GET: u8 = 0x00;
    const SASL_AUTH: u8 = 0x21;
    let world = World::new(GrantAccess::Read);
    let log_in = |name: &str| {
        let token = format!("a-token-of-some-length-{name}");
        let new = NewTenant { token: Some(token.clone()), ..NewTenant::named(name) };
        world.directory.create_tenant(new).expect("a tenant");
        world.directory.create_table(name, NewTable::named("t")).expect("a table");
        frame(SASL_AUTH, b"PLAIN", format!("\0{name}\0{token}").as_bytes())
    };
    let (first, second) = (log_in("first"), log_in("second"));
    let service = PortService { protocol: Protocol::Memcached, tenant: None, table: None, public: false };
    let mut client = Client { session: MemcachedSession::new(&Arc::new(service)), input: Vec::new() };
    assert!(world.send_bytes(&mut client, &first).0.contains("Authenticated"));
    client.session.begin_answers();
    world.send_bytes(&mut client, &frame(GET, b"secret", b""));
    assert_eq!(client.session.first_command().key_prefix(), b"secret");
    client.session.begin_answers();
    let both = world.send_bytes(&mut client, &[frame(GET, b"secret", b""), second].concat()).0;
    assert!(both.contains("Authenticated"), "{both}");
    assert_eq!(client.session.first_command(), RequestSubject::of("memcached"));
}
