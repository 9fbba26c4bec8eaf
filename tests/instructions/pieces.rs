//! The pieces whose instructions are counted, each composed as in the worker.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use sandstorm_builder as builder;
use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_net::driver::Outbox;
use sandstorm_net::limits::{ClientLimits, ReplyCacheLimits, ServerLimits};
use sandstorm_net::r2p2::{ClientEndpoint, PeerAddr, ServerEndpoint};
use sandstorm_net::reply_cache::{ReplyCache, RequestAdmission};
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, RpcStatus, encode_message, encode_operation};
use sandstorm_runtime::{Engine, InvocationHandle, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// The pieces' names, in the order of [`Pieces::run`].
pub(super) const PIECES: &[&str] = &[
    "request of one get: received and parsed",
    "request of 32 gets: received and parsed",
    "table: one get of a batch of 32",
    "answer of 100 bytes: written and sent",
    "at most once: admitted and remembered",
    "call that does nothing, alone: begun, polled, finished",
    "call of one get, alone: begun, polled, finished",
    "call of one get, one of 32 that take turns",
    "call of a chain of 8, one of 32 that take turns",
    "call that gets 32 at once, one of 32 that take turns",
    "latency: counted for requests of one tenant that were answered together",
];

/// `args`: how many gets one after another (u8), how many at once (u8).
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Gets as often, and as many, as it is told.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let [gets, many] = args else { return Ok(()) };
    let mut last = None;
    for key in 0..*gets {
        last = db.get(TableId(1), &[key; 30]).await?;
    }
    if let Some(record) = last {
        db.reply(record.value())?;
    }
    if *many > 0 {
        let keys: Vec<[u8; 30]> = (0..*many).map(|key| [key; 30]).collect();
        let found = db.get_many(TableId(1), &keys).await?;
        let bytes: usize = found.iter().flatten().map(|record| record.value().len()).sum();
        db.reply(&(bytes as u64).to_le_bytes())?;
    }
    Ok(())
}
"#;

/// Calls that take turns, as many as on a worker; and the distance of the call that is prefetched ahead of its poll.
const TURNS: usize = 32;
const AHEAD: usize = 10;
/// Records, of 30 + 100 bytes.
const RECORDS: u8 = 64;
const FROM: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);

/// The library of [`SOURCE`].
pub(super) fn library() -> Vec<u8> {
    let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/extension-tests");
    let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..Default::default() }).expect("a toolchain");
    let manifest = "name = \"pieces\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n";
    let files = vec![SourceFile { path: "src/lib.rs".into(), text: SOURCE.into() }];
    let source = PushedSource::new(manifest, files).expect("a source");
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    builder::compile(&toolchain, &source, &job).expect("a library")
}

/// The state that all pieces need.
pub(super) struct Pieces {
    endpoint: ServerEndpoint,
    once: ReplyCache,
    outbox: Outbox,
    one: Vec<u8>,
    many: Vec<u8>,
    sequence: u64,
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
    extension: Arc<LoadedExtension>,
    running: VecDeque<InvocationHandle>,
}

/// A request of so many gets, as it arrives from the network.
fn request(gets: u8) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: u16::from(gets), tenant: 1, session: 77, sequence: 1, acked: 0 };
    let keys: Vec<[u8; 30]> = (0..gets).map(|key| [key; 30]).collect();
    let operations: Vec<Operation<'_>> = keys.iter().map(|key| Operation::get(1, key)).collect();
    let (mut message, mut outbox) = (Vec::new(), Outbox::default());
    encode_message(&header, &operations, &mut message);
    let limits = ClientLimits { max_datagram: 8_000, ..ClientLimits::default() };
    ClientEndpoint::new(PeerAddr::from(FROM), limits).request(0, &message, &mut outbox).expect("room for a request");
    outbox.iter().map(|datagram| datagram.to_vec()).next().expect("one datagram")
}

impl Pieces {
    /// Sets up the pieces with the library of [`library`].
    pub(super) fn new(library: &[u8]) -> Pieces {
        let watchdog = Watchdog::spawn().expect("a watchdog");
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let participant = epochs.register();
        directory.create_tenant(NewTenant::named("pieces")).expect("a tenant");
        let table = directory.create_table("pieces", NewTable::named("records")).expect("a table");
        for key in 0..RECORDS {
            let key = [key; 30];
            table
                .table
                .put(&participant, table.table.hash(&key), &key, &[7; 100], &WriteOptions::default(), 0)
                .expect("room");
        }
        let view = Arc::clone(directory.snapshot().by_name("pieces").expect("the tenant"));
        let mut engine = Engine::new(&watchdog, 0).expect("an engine");
        engine.sees(1);
        let library = ExtensionLibrary::load(library, builder::api_fingerprint()).expect("it loads");
        let extension = Arc::new(LoadedExtension::new("pieces", 1, library, BudgetOverride::default()));
        Pieces {
            endpoint: ServerEndpoint::new(ServerLimits::default()),
            once: ReplyCache::new(ReplyCacheLimits::default()),
            outbox: Outbox::default(),
            one: request(1),
            many: request(32),
            sequence: 0,
            engine,
            participant,
            view,
            extension,
            running: VecDeque::with_capacity(TURNS),
        }
    }

    /// Runs the piece of that number so often. Valgrind is told this function's name.
    #[inline(never)]
    pub(super) fn run(&mut self, piece: usize, times: u64) {
        let alone = |many: u64| many.div_ceil(TURNS as u64);
        match piece {
            0 => (0..times).for_each(|_| parse(&mut self.endpoint, &self.one, &mut self.outbox)),
            1 => (0..times).for_each(|_| parse(&mut self.endpoint, &self.many, &mut self.outbox)),
            2 => (0..alone(times)).for_each(|_| self.look_up()),
            3 => (0..times).for_each(|_| self.answer()),
            4 => (0..times).for_each(|_| self.remember()),
            5 => (0..times).for_each(|_| self.call_alone(&[0, 0])),
            6 => (0..times).for_each(|_| self.call_alone(&[1, 0])),
            7 => (0..alone(times)).for_each(|_| self.call_many(&[1, 0])),
            8 => (0..alone(times)).for_each(|_| self.call_many(&[8, 0])),
            9 => (0..alone(times)).for_each(|_| self.call_many(&[0, 32])),
            10 => (1..=times).for_each(|time| self.count_latency(black_box(time))),
            _ => panic!("there is no piece {piece}"),
        }
    }

    /// Reads 32 records as the worker reads those of a burst.
    fn look_up(&mut self) {
        let entry = self.view.tables.get(&1).expect("the table");
        let guard = self.participant.guard();
        let keys: [[u8; 30]; TURNS] = std::array::from_fn(|key| [key as u8; 30]);
        let hashes = keys.map(|key| {
            let hash = entry.table.hash(&key);
            entry.table.prefetch_bucket(hash);
            hash
        });
        entry.table.prefetch_records(&guard, hashes.iter().copied());
        for (key, hash) in keys.iter().zip(hashes) {
            assert!(black_box(entry.table.get(&guard, hash, key, 0)).is_some());
        }
    }

    /// Writes and sends a response of one value.
    fn answer(&mut self) {
        let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 77, sequence: 1, acked: 0 };
        let mut response = std::mem::take(&mut self.one);
        header.response(1).begin(&mut response);
        let answer = Operation { status: RpcStatus::Ok, number: 5, value: &[7; 100], ..Operation::new(OpKind::Get) };
        encode_operation(black_box(&answer), &mut response);
        self.endpoint.respond(0, PeerAddr::from(FROM), 1, &response, &mut self.outbox);
        self.outbox.clear();
        self.one = response;
    }

    /// Admits a request that must not run twice, and stores its answer; the answer before it has been acked.
    fn remember(&mut self) {
        self.sequence += 1;
        let (peer, sequence) = (PeerAddr::from(FROM), self.sequence);
        assert_eq!(self.once.admit(0, peer, 1, 77, sequence, sequence - 1), RequestAdmission::Execute);
        self.once.complete(peer, 1, 77, sequence, &[7; 164]);
    }

    /// Counts what the worker's ledger has of a turn that served one tenant.
    fn count_latency(&self, time: u64) {
        self.view.tenant.usage.latency(0).of(RequestClass::Get).record(0, 2_000 + time, 32);
    }

    fn begin(&mut self, args: &[u8]) -> InvocationHandle {
        // Everything is slow under valgrind.
        let budget = Budget { slice_us: 60_000_000, total_us: 60_000_000, ..Budget::default() };
        self.engine.begin(&self.view, &self.extension, args, budget).expect("it fits")
    }

    /// A call without other calls in flight.
    fn call_alone(&mut self, args: &[u8]) {
        let mut invocation = self.begin(args);
        assert_eq!(self.engine.poll(&self.participant, &mut invocation, 0, false), PollOutcome::Done);
        self.engine.finish(&self.participant, invocation);
    }

    /// 32 calls that take turns as on a worker.
    fn call_many(&mut self, args: &[u8]) {
        for _ in 0..TURNS {
            let invocation = self.begin(args);
            self.running.push_back(invocation);
        }
        while let Some(mut next) = self.running.pop_front() {
            let at = AHEAD.min(self.running.len() / 2);
            if let Some(ahead) = self.running.get_mut(at) {
                self.engine.prefetch_awaited(ahead, &next, false);
            }
            match self.engine.poll(&self.participant, &mut next, 0, true) {
                PollOutcome::Pending => self.running.push_back(next),
                end => {
                    assert_eq!(end, PollOutcome::Done);
                    self.engine.finish(&self.participant, next);
                }
            }
        }
    }
}

/// Receives a request and iterates over its operations, as admission and the plan do.
fn parse(endpoint: &mut ServerEndpoint, datagram: &[u8], outbox: &mut Outbox) {
    let request = endpoint.receive(0, PeerAddr::from(FROM), black_box(datagram), outbox).expect("a request");
    let (header, operations) = MessageHeader::decode(&request.message).expect("a message");
    black_box(header);
    for operation in operations {
        black_box(operation.expect("an operation"));
    }
}
