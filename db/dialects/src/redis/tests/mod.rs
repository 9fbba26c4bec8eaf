//! The answers to clients: by hand, and beside a real Redis.

mod calls;
mod commands;
mod differential;
mod hostile;
mod largest;
mod pieces;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::RedisSession;
use crate::limits::protocols::PIECE_WORK;
use crate::{CommandContext, NextAction, PortService, Protocol, ServerProperties};
use sandstorm_catalog::{Directory, DirectoryOptions, DirectorySnapshot, NewTable, NewTenant};
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::{Epochs, Participant};

const TOKEN: &str = "a-token-of-some-length-0001";

/// A worker's part of a server, without the worker: a tenant `shop` with two tables.
struct World {
    directory: Arc<Directory>,
    participant: Participant,
    facts: ServerProperties,
    now_ms: Option<u64>,
    /// The time of the clock itself, if it differs from the worker's time.
    clock_ms: Option<u64>,
    /// Work of one piece.
    budget: u32,
}

/// One connection.
struct Client {
    session: RedisSession,
    input: Vec<u8>,
}

impl World {
    fn new() -> World {
        let epochs = Epochs::new();
        let directory = Directory::with_options(Arc::clone(&epochs), DirectoryOptions::default());
        let new = NewTenant { token: Some(TOKEN.into()), ..NewTenant::named("shop") };
        directory.create_tenant(new).expect("a tenant");
        for table in ["items", "other"] {
            let quota_bytes = Some(256 << 20);
            directory.create_table("shop", NewTable { quota_bytes, ..NewTable::named(table) }).expect("a table");
        }
        let facts = ServerProperties { metrics: ServerMetrics::new(1), workers: 1, started_ms: 0, connections: 100 };
        facts.metrics.slow.set_ns(0);
        World { directory, participant: epochs.register(), facts, now_ms: None, clock_ms: None, budget: PIECE_WORK }
    }

    fn now_ms(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        self.now_ms.unwrap_or(now.as_millis() as u64)
    }

    fn client(&self, tenant: Option<&str>) -> Client {
        let service =
            PortService { protocol: Protocol::Redis, tenant: tenant.map(str::to_owned), table: None, public: false };
        Client { session: RedisSession::new(&Arc::new(service)), input: Vec::new() }
    }

    /// The context of one call of a session.
    fn context<'a>(&'a self, snapshot: &'a Arc<DirectorySnapshot>) -> CommandContext<'a> {
        CommandContext {
            participant: &self.participant,
            snapshot,
            now_ms: self.now_ms(),
            now_us: self.now_ms() * 1000,
            worker: 0,
            counters: self.facts.metrics.worker(0).expect("a worker"),
            facts: &self.facts,
            requests: Default::default(),
            retired: self.participant.retired(),
            budget: self.budget,
        }
    }

    /// The answers to a client's bytes, and the next action.
    fn send(&mut self, client: &mut Client, bytes: &[u8]) -> (Vec<u8>, NextAction) {
        client.input.extend_from_slice(bytes);
        let (snapshot, mut out, mut used) = (self.directory.snapshot(), Vec::new(), 0);
        sandstorm_store::fix_clock(self.clock_ms.or(self.now_ms));
        let next = loop {
            let context = self.context(&snapshot);
            let (bytes, next) = client.session.run(&context, &client.input[used..], &mut out);
            used += bytes;
            match next {
                NextAction::Yield | NextAction::HandOver(_) => {}
                other => break other,
            }
        };
        client.input.drain(..used);
        self.participant.quiescent();
        (out, next)
    }

    /// The answers to a client's typed lines.
    fn typed(&mut self, client: &mut Client, lines: &str) -> String {
        let (out, _) = self.send(client, (lines.replace('\n', "\r\n") + "\r\n").as_bytes());
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// A command as clients send it.
fn encoded(args: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = sandstorm_net::resp::RespWriter { out: &mut out, resp3: false };
    reply.array(args.len());
    args.iter().for_each(|arg| reply.bulk(arg));
    out
}
